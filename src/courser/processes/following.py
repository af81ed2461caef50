"""A further process of a server: it follows the metadata of the first one, and owns some topics.

It applies the same changes to the same state, in the order of the journal, and opens or closes its own partitions. It
writes no metadata: directories and descriptors are the work of the first process.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from courser.api.operating_replies import StartReport
from courser.broker.access.sessions import SessionActivity, activity_of
from courser.broker.broker import Broker, Place
from courser.broker.catalog.catalog_service import CatalogService, Wanted
from courser.broker.catalog.purging import AnyPurge, prepared_purge, purge_topics
from courser.broker.groups.groups import GroupKey
from courser.broker.partition.disk_pool import DiskPool
from courser.broker.partition.disk_watch import read_only_partitions
from courser.broker.partition.peers import FirstProcess, RedoStep, Sums
from courser.broker.settings import BrokerSettings
from courser.catalog import changes
from courser.catalog.directories import Directories, StreamOrTopic, outdated_by
from courser.catalog.entities import PurgedTopic
from courser.catalog.opening import OpenedCatalog
from courser.catalog.reconcile import Reconciliation
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogStore
from courser.catalog.transitions import Created, apply
from courser.errors import CourserError
from courser.model.clock import Clock
from courser.processes.merged_metrics import Snapshot, snapshot_of
from courser.processes.ownership import client_ids_of, owns_of, share_name
from courser.processes.peer import Peer
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.files import FileSystem
from courser.storage.local_files import DirectoryLock, LocalFileSystem
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import last_known_time
from courser.storage.staged_file import StagingTarget
from courser.storage.watched_clock import SystemClock, WatchedClock


@dataclass(frozen=True, slots=True)
class OpeningOrders:
    """What a further process needs to open its partitions."""

    number: int
    process_count: int
    path: Path
    settings: BrokerSettings
    """With this process's share of what is limited for the whole server."""
    state: bytes
    """All metadata."""
    stop: StopKind
    """How the session before ended for the partitions of this process."""
    lost: frozenset[Path]
    unopened: frozenset[PartitionIdentity]


class ReplicatedStore(CatalogStore):
    """The metadata as another process has it: nothing is written here."""

    def __init__(self, state: CatalogState) -> None:
        self.state = state
        self.snapshot_failure = None

    @property
    def failure(self) -> str | None:
        """The first process has the journal."""
        return None

    def replay(self, op: int, timestamp: int, body: bytes) -> changes.AnyChange:
        """Apply a change that is durable."""
        change = changes.decode_change(body)
        apply(self.state, change, op, timestamp)
        return change

    def close(self) -> None:
        """There is nothing to close."""


class FollowingCatalog(CatalogService):
    """The catalog of a further process."""

    async def submit(self, wanted: Wanted) -> Created:
        """Never called: the router sends such commands to the first process."""
        raise AssertionError(f"{wanted} is a change, and changes are made by the first process alone")

    async def follow(self, op: int, timestamp: int, body: bytes, *, is_held: bool) -> CourserError | None:
        """Apply a change to the state and to the open partitions. Returns what the disk refused."""
        store = self._store
        assert isinstance(store, ReplicatedStore), "a further process follows"
        async with self._turn:
            change = store.replay(op, timestamp, body)
            self.version += 1
            self._let_go(change)
            places = outdated_by(self.state, change)
            self._behind |= places
            try:
                await self._settle(places, is_held=is_held)
            except CourserError as error:
                self._catch_up_later()
                return error
            finally:
                self.on_change()
            return None

    async def open_new(self, stream_id: int, topic_id: int) -> None:
        """Open partitions whose directories were just created."""
        async with self._turn:
            stream = self.state.streams[stream_id]
            await self._registry.open_new(stream, stream.topics[topic_id])
            self._tell_partition_count(stream_id, topic_id)

    async def _settle(self, places: set[StreamOrTopic], *, is_held: bool = False) -> None:
        """Bring the open partitions up to date with the state. Descriptors are the work of the first process."""
        topics = [
            (stream, stream.topics[topic_id])
            for stream_id, topic_id in places
            if (stream := self.state.streams.get(stream_id)) is not None
            and topic_id in stream.topics
            and (stream_id, topic_id) in self._registry.topics
        ]
        await purge_topics(self._registry, self.state, topics, is_held=is_held)
        for place in topics:
            await self._registry.apply_options(*place)
        self._behind -= places


class SharedDirectory(DataDirectory):
    """A data directory that the first process has opened. It records how the session begins and ends."""

    def begin(self, unopened: frozenset[PartitionIdentity] = frozenset()) -> None:
        """Do nothing: the first process has begun."""

    def close(self, *, is_clean: bool) -> None:
        """Give this process's share of the lock back."""
        del is_clean
        self._lock.close()


async def open_follower(
    orders: OpeningOrders,
    lock: DirectoryLock,
    first: FirstProcess,
    *,
    file_system: FileSystem | None = None,
    clock: Clock | None = None,
) -> Broker:
    """Open the partitions of a further process. Raises ``CourserError`` if one of them cannot be opened.

    ``file_system`` and ``clock`` replace those of the machine, for tests.
    """
    if file_system is None:
        file_system = LocalFileSystem()
    if clock is None:
        system = SystemClock()
        clock = WatchedClock(system, elapsed=system.since_boot, last_known=last_known_time(file_system, orders.path))
    data = SharedDirectory(orders.path, file_system, lock, orders.stop, clock)
    state = CatalogState.decode(orders.state)
    opened = OpenedCatalog(ReplicatedStore(state), Directories(file_system, orders.path), Reconciliation(), None)
    place = Place(
        owns=owns_of(orders.number, orders.process_count),
        share=share_name(orders.number, orders.process_count),
        first=first,
        make_catalog=FollowingCatalog,
        draw_client_id=client_ids_of(orders.number, orders.process_count),
    )
    pool = DiskPool(orders.settings.disk_thread_count)
    broker = Broker(data, orders.settings, pool, opened, _no_randomness, place=place)
    try:
        streams = list(state.streams.values())
        await broker.partitions.open_all(streams, orders.stop, lost=orders.lost, unopened=orders.unopened)
    except BaseException:
        broker.partitions.abandon()
        pool.shutdown()
        raise
    broker.operating.start_findings.note_partitions(broker.partitions)
    broker.disk_watch.skip_known()
    broker.catalog.note_behind(())
    await broker.offsets.forget_unknown_groups(state)
    return broker


def _no_randomness(size: int) -> bytes:
    raise AssertionError(f"{size} random bytes are asked for, but nothing is decided here")


class FirstProcessPeer:
    """The first process, as a further one calls it. Implements ``FirstProcess``."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def settle_below(self, identity: PartitionIdentity, before_offset: int) -> None:
        await self._peer.call("settle_below", identity, before_offset)

    def hurry_archive(self) -> None:
        self._peer.note("archive_hurry")


class FollowingServices:
    """What a further process does for the first one."""

    def __init__(self, broker: Broker) -> None:
        assert isinstance(broker.catalog, FollowingCatalog), "a further process follows"
        self._broker = broker
        self._catalog = broker.catalog
        self._held: AsyncExitStack | None = None
        """Holds the writes to topics that are being purged."""

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """The services of ``Peer``."""
        return {
            "apply": self._apply,
            "hold_writes": self._hold_writes,
            "release_writes": self._release_writes,
            "open_new": self._open_new,
            "wait_for_closed": self._wait_for_closed,
            "check_targets": self._check_targets,
            "redo": self._redo,
            "facts": self._facts,
            "metrics": self._metrics,
            "problems": self._problems,
            "start_report": self._start_report,
            "archive": self._archive,
            "tell_archive": self._tell_archive,
        }

    async def _apply(self, _: Peer, op: int, timestamp: int, body: bytes) -> CourserError | None:
        error = await self._catalog.follow(op, timestamp, body, is_held=self._held is not None)
        broker, state = self._broker, self._catalog.state
        match changes.decode_change(body):
            case changes.GroupDeletion(stream_id=stream_id, topic_id=topic_id, group_id=group_id):
                key: GroupKey = (stream_id, topic_id, group_id)
                broker.groups.remove_members(key)
                await broker.offsets.forget_group(key)
            case changes.UserUpdate(user_id=user_id):
                broker.user_updated(state.users[user_id])
            case changes.PermissionUpdate(user_id=user_id):
                broker.permissions_updated(state.users[user_id])
            case _:
                pass
        return error

    async def _hold_writes(self, _: Peer, change: AnyPurge) -> Mapping[int, PurgedTopic]:
        """Where the partitions of this process end, by topic."""
        await self._release_writes(_)
        broker, stack = self._broker, AsyncExitStack()
        purge = await stack.enter_async_context(
            prepared_purge(broker.partitions, self._catalog.state, change, self._catalog.purge_end_of)
        )
        self._held = stack
        rows = (
            purge.topics
            if isinstance(purge, changes.StreamPurge)
            else (PurgedTopic(purge.topic_id, purge.count, purge.ends),)
        )
        return {row.topic_id: row for row in rows if broker.partitions.owns(change.stream_id, row.topic_id)}

    async def _release_writes(self, _: Peer) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()

    async def _open_new(self, _: Peer, stream_id: int, topic_id: int) -> None:
        await self._catalog.open_new(stream_id, topic_id)

    async def _wait_for_closed(self, _: Peer) -> None:
        await self._catalog.wait_for_closed()

    def _check_targets(self, _: Peer, targets: Mapping[StagingTarget, int]) -> Mapping[StagingTarget, int]:
        return self._broker.publishing.check_targets(targets)

    async def _redo(self, _: Peer, sink: str, step: RedoStep) -> None:
        await self._broker.publishing.redo_here(sink, step)

    async def _archive(self, _: Peer, phase: Callable[[Any], Awaitable[Any]]) -> Any:
        return await phase(self._broker.archive_share)

    def _tell_archive(self, _: Peer, tell: Callable[[Any], None]) -> None:
        tell(self._broker.archive_share)

    def _start_report(self, _: Peer) -> StartReport:
        return self._broker.operating.start_findings.report()

    def _problems(self, _: Peer) -> list[str]:
        # Not the disk: that is the same for all.
        return read_only_partitions(self._broker.partitions)

    async def _metrics(self, _: Peer) -> Snapshot:
        await self._broker.operating.scrapes.survey()
        return snapshot_of(self._broker.metrics)

    async def _facts(self, _: Peer) -> tuple[Sums, dict[int, SessionActivity]]:
        """The figures of all topics, and what is known about all connections, by client id."""
        sessions = {session.client_id: activity_of(session) for session in self._broker.sessions}
        return await self._broker.figures.sums(), sessions
