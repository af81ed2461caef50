"""Background tasks: deadlines, retention, heartbeats, tokens, snapshots, memory, disk, logs.

A task that crashes is logged and restarted after a growing pause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from courser.broker.access.heartbeats import Heartbeats, has_groups
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.figures.history import INTERVAL
from courser.broker.upkeep.retention import DeletionReason
from courser.model.clock import Clock
from courser.model.quantities import SECOND, format_byte_size
from courser.server.allocator import find_trim
from courser.server.configuration.settings import ServerSettings
from courser.server.garbage import CollectionWatch, Garbage
from courser.server.logs import Logs
from courser.server.loop_watch import LoopReport, LoopWatch
from courser.transports.connections import Connections

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_PAUSE_MAX = 60.0
"""The longest pause in seconds before a crashed task is restarted. The pause doubles with each crash."""
_HEALTHY_AFTER = 300_000_000
"""Microseconds without a crash after which the pause is reset."""
_SNAPSHOT_CHECK_INTERVAL = 60 * SECOND
"""Microseconds between two checks whether the metadata journal needs a snapshot."""
_STAGING_INTERVAL = 60 * SECOND
"""Microseconds between two checks for expired staged parts and for publishes that failed because of the disk."""
_TRIM_INTERVAL = 5 * SECOND
"""Microseconds between two attempts to return freed memory to the system."""
_DISK_INTERVAL = 10 * SECOND
"""Microseconds between two checks for a full disk and for read-only partitions."""
_FREE_SPACE_INTERVAL = SECOND
"""The same if a minimum of free space is configured: in ten seconds, a fast disk writes gigabytes."""
_HANDOVER_INTERVAL = 5 * SECOND
"""Microseconds between two checks for group members that hold lost partitions for too long."""
_MEMBER_INTERVAL = SECOND
"""Microseconds between two checks for members over HTTP that nobody uses any more."""
_MIB = 1024 * 1024

Work = Callable[[], Coroutine[Any, Any, None]]


class BackgroundTasks:
    """Keeps background tasks alive until it is stopped. Used on one event loop."""

    def __init__(self, clock: Clock, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._clock = clock
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()
        self.crash_count = 0

    def keep(self, name: str, work: Work) -> None:
        """Run ``work``, which never returns; restart it whenever it crashes."""
        task = asyncio.get_running_loop().create_task(self._run(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def every(self, interval: int, name: str, action: Work) -> None:
        """Run ``action`` repeatedly, with a pause of ``interval`` microseconds before each run."""

        async def work() -> None:
            while True:
                await self._pause(interval / 1_000_000)
                await action()

        self.keep(name, work)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, work: Work) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = self._clock.monotonic()
            try:
                await work()
            except Exception:  # noqa: BLE001 - whatever it was: it is logged, and the work goes on
                if self._clock.monotonic() - began > _HEALTHY_AFTER:
                    pause = _FIRST_PAUSE
                self.crash_count += 1
                _log.exception("background task crashed; restarting: task=%s again_in=%gs", name, pause)
            else:
                _log.error("background task ended unexpectedly; restarting: task=%s again_in=%gs", name, pause)
            await self._pause(pause)
            pause = min(pause * 2, _PAUSE_MAX)


def keep_background_tasks(
    tasks: BackgroundTasks,
    broker: Broker,
    connections: Connections,
    settings: ServerSettings,
    logs: Logs,
    is_member: Callable[[Session], bool] | None = None,
) -> None:
    """Start every background task that is enabled.

    ``is_member`` says whether a connection of this process is a member of a group, if there are other processes.
    """
    keep_own_tasks(tasks, broker, connections, settings, is_member)
    tasks.every(_SNAPSHOT_CHECK_INTERVAL, "snapshots", broker.catalog.take_due_snapshot)
    tasks.every(_STAGING_INTERVAL, "staging", broker.look_after_staging)
    tasks.every(_MEMBER_INTERVAL, "members over HTTP", partial(_expire_members, broker))
    tasks.every(INTERVAL, "history", broker.operating.history.take)
    if broker.archiver is not None:
        tasks.keep("archiver", broker.archiver.run)
    if broker.archive_pruner is not None:
        tasks.keep("archive pruning", broker.archive_pruner.run)
    if settings.broker.token_cleaner_enabled:
        clean = partial(broker.authentication.tokens.clean, settings.broker.token_cleaner_interval)
        tasks.keep("token cleaner", clean)
    if settings.logging.directory is not None:
        tasks.every(settings.logging.check_interval, "log files", partial(_check_logs, logs))
    if settings.logging.sysinfo_interval:
        report = partial(_report_figures, broker, connections)
        tasks.every(settings.logging.sysinfo_interval, "figures", report)


def keep_own_tasks(
    tasks: BackgroundTasks,
    broker: Broker,
    connections: Connections,
    settings: ServerSettings,
    is_member: Callable[[Session], bool] | None = None,
) -> None:
    """Start the tasks that every process of a server has, for its own partitions and connections."""
    tasks.keep("deadlines", connections.patrol)
    clock, metrics = broker.clock, broker.metrics
    watch = LoopWatch(LoopReport(metrics, clock), CollectionWatch(metrics, clock))
    tasks.keep("event loop watch", watch.run)
    tasks.keep("garbage", Garbage(clock, lambda: watch.is_idle).run)
    tasks.every(_HANDOVER_INTERVAL, "hand-overs", partial(_expire_handovers, broker))
    disk_interval = _FREE_SPACE_INTERVAL if settings.broker.free_space_min else _DISK_INTERVAL
    tasks.every(disk_interval, "disk", broker.disk_watch.look)
    if (trim := find_trim()) is not None:
        tasks.every(_TRIM_INTERVAL, "memory", partial(_in_pool, broker, trim))
    if settings.broker.cleaner_enabled:
        tasks.keep("cleaner", broker.retention.run)
        tasks.keep("condenser", broker.condenser.run)
    if settings.broker.scrub_rate:
        tasks.keep("scrubber", broker.scrubber.run)
    if settings.broker.heartbeat_enabled:
        heartbeats = Heartbeats(
            broker.sessions,
            broker.clock,
            interval=settings.broker.heartbeat_interval,
            is_member=is_member if is_member is not None else has_groups,
        )
        tasks.keep("heartbeats", heartbeats.run)


async def _in_pool(broker: Broker, work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(broker.pool, work)


async def _expire_handovers(broker: Broker) -> None:
    broker.groups.expire()


async def _expire_members(broker: Broker) -> None:
    broker.connectionless.expire()


async def _check_logs(logs: Logs) -> None:
    logs.check()


async def _report_figures(broker: Broker, connections: Connections) -> None:
    """Log one line with the state of the process and the counters since its start."""
    figures = await asyncio.get_running_loop().run_in_executor(broker.pool, broker.operating.machine.measure)
    deleted, missed = broker.retention.counters.segment_count, broker.polls.counters
    _log.info(
        "figures cpu=%.1f%% memory=%dMiB threads=%d connections=%d turned_away=%d cut_off=%d disk_free=%s "
        "segments_expired=%d segments_over_size=%d polls_behind=%d polls_damaged=%d",
        figures.cpu_usage,
        figures.memory_usage // _MIB,
        figures.thread_count,
        connections.count,
        connections.turned_away_count,
        connections.cut_off_count,
        format_byte_size(figures.free_disk_space // _MIB * _MIB).replace(" ", ""),
        deleted[DeletionReason.EXPIRED],
        deleted[DeletionReason.SIZE],
        missed.gone_count,
        missed.damaged_count,
    )
