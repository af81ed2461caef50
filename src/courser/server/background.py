"""Periodic background work: deadlines, retention, heartbeats, tokens, snapshots, memory, disk, logs."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from courser.broker.broker import Broker
from courser.broker.disk_watch import DiskWatch
from courser.broker.heartbeats import Heartbeats
from courser.broker.retention import DeletionReason
from courser.model.quantities import SECOND, format_byte_size
from courser.server.allocator import find_trim
from courser.server.configuration.settings import ServerSettings
from courser.server.logs import Logs
from courser.server.supervision import BackgroundTasks
from courser.transports.connections import Connections

_log = logging.getLogger(__name__)

_SNAPSHOT_CHECK_INTERVAL = 60 * SECOND
"""Microseconds between two checks whether the metadata journal needs a snapshot."""
_STAGING_INTERVAL = 60 * SECOND
"""Microseconds between two checks for expired staged parts and for publishes that failed because of the disk."""
_TRIM_INTERVAL = 5 * SECOND
"""Microseconds between two attempts to return freed memory to the system."""
_DISK_INTERVAL = 10 * SECOND
"""Microseconds between two checks for a full disk and for read-only partitions."""
_MIB = 1024 * 1024


def keep_background_tasks(
    supervisor: BackgroundTasks, broker: Broker, connections: Connections, settings: ServerSettings, logs: Logs
) -> None:
    """Start every background task that is enabled."""
    supervisor.keep("deadlines", connections.patrol)
    supervisor.every(_SNAPSHOT_CHECK_INTERVAL, "snapshots", broker.catalog.take_due_snapshot)
    supervisor.every(_STAGING_INTERVAL, "staging", broker.look_after_staging)
    disk_watch = DiskWatch(broker.partitions, broker.pool, broker.machine.disk_space)
    supervisor.every(_DISK_INTERVAL, "disk", disk_watch.look)
    if (trim := find_trim()) is not None:
        supervisor.every(_TRIM_INTERVAL, "memory", partial(_in_pool, broker, trim))
    if settings.broker.cleaner_enabled:
        supervisor.keep("cleaner", broker.retention.run)
    if settings.broker.heartbeat_enabled:
        heartbeats = Heartbeats(broker.sessions, broker.clock, interval=settings.broker.heartbeat_interval)
        supervisor.keep("heartbeats", heartbeats.run)
    if settings.broker.token_cleaner_enabled:
        clean = partial(broker.authentication.tokens.clean, settings.broker.token_cleaner_interval)
        supervisor.keep("token cleaner", clean)
    if settings.logging.directory is not None:
        supervisor.every(settings.logging.check_interval, "log files", partial(_check_logs, logs))
    if settings.logging.sysinfo_interval:
        report = partial(_report_figures, broker, connections)
        supervisor.every(settings.logging.sysinfo_interval, "figures", report)


async def _in_pool(broker: Broker, work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(broker.pool, work)


async def _check_logs(logs: Logs) -> None:
    logs.check()


async def _report_figures(broker: Broker, connections: Connections) -> None:
    """Log one line with the state of the process and the counters since its start."""
    figures = await asyncio.get_running_loop().run_in_executor(broker.pool, broker.machine.measure)
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
