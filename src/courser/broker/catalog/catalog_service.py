"""Metadata changes on the event loop: one at a time, from the check to the directories on disk.

A change is journaled and synced, applied to the state, applied to the disk and the open partitions, and only then
acknowledged. Once started, a change is completed whether or not its client still waits.

If the disk refuses, the client gets an error. The missing work is retried before the next change and periodically.
Work that follows from the state alone may be postponed: descriptors, which a start compares with the state, and purges,
which record where they end. The directories of a creation may not: a start recreates them only if the creation is the
last entry of the journal. So no change may follow an unfinished creation, except changes that free disk space; these
undo the creation first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from courser.api.commands import GetMetadataChanges
from courser.api.metadata_changes import MetadataChanges
from courser.broker.catalog.purging import prepared_purge, purge_topics
from courser.broker.groups.groups import ConsumerGroups
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.partition.peers import Peers
from courser.broker.partition.waiting import Background
from courser.broker.settings import BrokerSettings
from courser.catalog import changes
from courser.catalog.directories import CREATIONS, Creation, Directories, StreamOrTopic, Task, outdated_by
from courser.catalog.entities import Stream, Topic
from courser.catalog.partitions import is_behind
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogStore, PreparedChange
from courser.catalog.transitions import Created, undo_of
from courser.errors import (
    CommandRejected,
    CourserError,
    ErrorCode,
    MetadataReadOnly,
    PartitionReadOnly,
    StorageFailure,
)
from courser.storage.durable_files import is_failed_sync
from courser.storage.partition_log import PartitionLog

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Wanted: TypeAlias = changes.AnyChange | Callable[[], changes.AnyChange]
"""A change, or a function that makes it from the state when it is its turn. What the function raises is the answer."""
_TRY_COUNT = 3
"""How often applying a change to the disk is tried before its client gets an error."""
_AT_ONCE = 4
"""Concurrent disk tasks of one change: more would keep other work out of the pool."""
_CATCH_UP_DELAY = 1.0
_CATCH_UP_DELAY_MAX = 60.0
"""Seconds before work that the disk refused is retried: at first, and after many failures."""
_FORGOTTEN_AT_ONCE = 1000
"""How many directories one journal entry may list."""


class CatalogService:
    """The only place where metadata changes while a server runs."""

    def __init__(
        self,
        store: CatalogStore,
        directories: Directories,
        registry: PartitionRegistry,
        pool: Executor,
        *,
        groups: ConsumerGroups,
        settings: BrokerSettings,
        peers: Peers | None = None,
    ) -> None:
        self._store = store
        self.state: CatalogState = store.state
        """Read-only for callers."""
        self._directories = directories
        self._registry = registry
        self._pool = pool
        self._groups = groups
        self._settings = settings
        self._peers = peers
        self.version = 0
        """Increases with every change of the state."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a change was applied to the state and to the open partitions, or failed."""
        self.purge_end_of: Callable[[PartitionLog], int] = lambda log: log.next_offset
        """The offset up to which a purge may delete messages, asked while no message can be added."""
        self._turn = asyncio.Lock()
        self._background = Background()
        self._closing: set[asyncio.Task[bool]] = set()
        """Deleted partitions whose files have to be closed before their directories are removed."""
        self._remover: asyncio.Task[None] | None = None
        self._snapshot: asyncio.Task[None] | None = None
        self._kept: set[str] = set()
        """Deleted directories that cannot be removed: the next start tries again."""
        self._unmade: Creation | None = None
        """A durable creation whose directories could not be created: it must stay the journal's last entry."""
        self._behind: set[StreamOrTopic] = set()
        """Where the disk is behind the state: descriptors and purges."""
        self._catch_up_delay = _CATCH_UP_DELAY
        self._catch_up_timer: asyncio.TimerHandle | None = None
        self._failure: str | None = None
        """Why changes are refused until a restart, if not because of the journal."""
        self._is_closed = False

    @property
    def failure(self) -> str | None:
        """Why changes are refused until a restart, or None."""
        return self._store.failure or self._failure

    @property
    def is_busy(self) -> bool:
        """Whether a change is being made, or somebody looks at the state between two changes. Others wait."""
        return self._turn.locked()

    @property
    def snapshot_failure(self) -> str | None:
        """Why the last snapshot failed, or None. Without snapshots the journal fills up."""
        return self._store.snapshot_failure

    def read_changes(self, wanted: GetMetadataChanges) -> MetadataChanges:
        """A page of the changes, or of the present state. Raises ``CommandRejected``."""
        return self._store.feed.read(self.state, wanted)

    # --- changes ---

    async def submit(self, wanted: Wanted) -> Created:
        """Make one change. On return it is durable and applied to the state and to the disk.

        Raises:
            CommandRejected: the rules or a limit forbid it; nothing was changed.
            JournalFull, DiskFull: nothing was changed, or a durable change could not be applied to the disk.
            StorageFailure, MetadataReadOnly: the disk refused; after a restart the change may be present or not.
        """
        # A client that disconnects must not leave a change journaled but not applied.
        return await asyncio.shield(self._background.start(self._take_turn(wanted)))

    async def between_changes(self, look: Callable[[CatalogStore], Awaitable[Result]]) -> Result:
        """Let ``look`` run while no change is being made: state and journal fit together. Changes wait for it."""
        async with self._turn:
            return await look(self._store)

    def refuse_changes(self, reason: str) -> None:
        """Refuse changes until a restart. The first reason is kept."""
        self._failure = self._failure or reason

    async def _take_turn(self, wanted: Wanted) -> Created:
        """Wait for the turn of a change, let nothing unfinished come before it, and make it."""
        async with self._turn:
            if self._is_closed:
                raise CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
            refusal = await self._catch_up()
            if self._store.is_snapshot_forced and self._unmade is None:
                # No other change runs now: this one holds the lock. A creation that a snapshot covers could not be
                # undone by the next start.
                await self._in_pool(self._store.make_room)
            try:
                change = wanted() if callable(wanted) else wanted
                check_limits(self.state, change, self._settings)
                if refusal is not None and self._unmade is not None:
                    if not isinstance(change, changes.ROOM_MAKERS) or isinstance(change, changes.DirectoryRemoval):
                        raise refusal
                    await self._take_back(self._unmade, change)
                    change = wanted() if callable(wanted) else wanted
                if not isinstance(change, changes.TopicPurge | changes.StreamPurge):
                    return await self._carry_out(change)
                held = prepared_purge(self._registry, self.state, change, self.purge_end_of, self._peers)
                async with held as purge:
                    return await self._carry_out(purge)
            finally:
                # Also after a failure: removing deleted directories may free the space that is missing.
                if self._remover is None and self.state.deleted and self._removable():
                    self._remover = self._background.start(self._remove_deleted())
                if self._store.is_snapshot_due():
                    self._snapshot = self._background.start(self.take_due_snapshot())
                self._catch_up_later()
                self.on_change()

    async def _carry_out(self, change: changes.AnyChange) -> Created:
        """Journal a change, apply it to the state, then to the disk and to the open partitions."""
        prepared = self._store.prepare(change)
        await self._in_pool(partial(self._persist, prepared))
        # From here on the change survives a kill and a power cut: a start finds and completes it.
        try:
            created = self._store.commit(prepared)
            self.version += 1
            # Only the deletion of what an unfinished creation created gets here before the creation is complete.
            self._unmade = None
            self._let_go(change)
            # Before its directories: whatever the disk says, all processes have the same state.
            refusal = None if self._peers is None else await self._peers.apply(prepared)
            await self._follow(change)
            if refusal is not None:
                raise refusal
        except CourserError:
            raise
        except Exception as defect:
            # How much was applied to the disk and the open partitions is unknown: a restart repairs it.
            self._failure = f"{type(change).__name__} did not complete: {defect!r}"
            raise
        return created

    async def _take_back(self, creation: Creation, change: changes.AnyChange) -> None:
        """Undo a creation that was never acknowledged, so that ``change`` does not have to wait for it."""
        undo = undo_of(self.state, creation)
        assert undo is not None, "it is a creation"
        if undo == change:
            return
        _log.warning("undid a creation because the disk is full change=%s", type(creation).__name__)
        try:
            await self._carry_out(undo)
        except StorageFailure as failure:
            if self._unmade is not None or is_failed_sync(failure):
                raise
            # The undo is durable. Only a descriptor is behind, and ``change`` may free the space for it.

    def _persist(self, prepared: PreparedChange) -> None:
        """In the pool: make a change durable, unless the disk clearly has no room for it.

        An unfinished creation would block the deletions that free space.
        """
        self._directories.check_room(prepared.change)
        self._store.persist(prepared)

    # --- what the disk refused ---

    async def _catch_up(self) -> StorageFailure | None:
        """Retry the work that the disk refused. Return why it still fails, or None."""
        if self._failure is not None:
            raise MetadataReadOnly(self._directories.path, self._failure)
        try:
            if self._unmade is not None:
                await self._create(self._unmade, is_repeated=True)
                self._unmade = None
            if self._behind:
                await self._settle(set(self._behind))
        except StorageFailure as failure:
            if is_failed_sync(failure):
                self._failure = str(failure)
                raise
            return failure
        except PartitionReadOnly:
            # Already logged. The next start purges the partition.
            pass
        self._catch_up_delay = _CATCH_UP_DELAY
        return None

    def _catch_up_later(self) -> None:
        """Retry after a delay, even if no further change is made."""
        is_needed = self._unmade is not None or bool(self._behind)
        if is_needed and self._catch_up_timer is None and self._failure is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._catch_up_timer = loop.call_later(
                self._catch_up_delay, lambda: self._background.start(self._try_again())
            )
            self._catch_up_delay = min(2 * self._catch_up_delay, _CATCH_UP_DELAY_MAX)

    async def _try_again(self) -> None:
        self._catch_up_timer = None
        async with self._turn:
            if self._is_closed:
                return
            try:
                await self._catch_up()
            except CourserError as error:
                _log.error("metadata is read-only until a restart reason=%s", error)
            self._catch_up_later()
            self.on_change()

    def note_behind(self, places: Iterable[StreamOrTopic]) -> None:
        """At a start: retry these descriptors, and purges that partitions missed, which are found here."""
        self._behind.update(places)
        for stream in self.state.streams.values():
            for topic in stream.topics.values():
                opened = self._registry.topics.get((stream.stream_id, topic.topic_id))
                if opened is not None and any(
                    found.log.failure is None and is_behind(found.log, topic) for found in opened.partitions
                ):
                    self._behind.add((stream.stream_id, topic.topic_id))
        self._catch_up_later()

    # --- what follows a durable change ---

    def _let_go(self, change: changes.AnyChange) -> None:
        """Hide what a durable deletion removes: from now on no request finds it."""
        gone: list[Partition] = []
        match change:
            case changes.StreamDeletion():
                gone = self._registry.remove_stream(change.stream_id)
                self._groups.stream_deleted(change.stream_id)
            case changes.TopicDeletion():
                gone = self._registry.remove_topic(change.stream_id, change.topic_id)
                self._groups.topic_deleted(change.stream_id, change.topic_id)
            case changes.PartitionDeletion():
                kept_count = len(self.state.streams[change.stream_id].topics[change.topic_id].partitions)
                gone = self._registry.remove_partitions(change.stream_id, change.topic_id, kept_count)
                self._tell_partition_count(change.stream_id, change.topic_id)
            case _:
                return
        for partition in gone:
            task = self._background.start(partition.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _follow(self, change: changes.AnyChange) -> None:
        """Apply a change to the disk and to the open partitions. If the disk refuses, remember what is missing."""
        outdated = outdated_by(self.state, change)
        self._behind |= outdated
        for number in range(1, _TRY_COUNT + 1):
            try:
                if isinstance(change, CREATIONS):
                    await self._create(change, is_repeated=number > 1)
                else:
                    is_held = isinstance(change, changes.TopicPurge | changes.StreamPurge)
                    await self._settle(outdated, is_held=is_held)
            except StorageFailure as failure:
                _log.warning(
                    "could not apply the metadata change to disk; retrying change=%s reason=%s",
                    type(change).__name__,
                    failure,
                )
                if is_failed_sync(failure):
                    # Never retried: after a failed sync the next one may succeed without having written anything. If
                    # the power fails, the next start finds the change at the end of the journal and compares the
                    # directories with it.
                    self._failure = str(failure)
                    raise
                if number == _TRY_COUNT:
                    if isinstance(change, CREATIONS):
                        self._unmade = change
                    raise
                await asyncio.sleep(self._settings.limits.change_retry_delay)
            else:
                return

    async def _create(self, creation: Creation, *, is_repeated: bool) -> None:
        """Create directories, and open the partitions in them. May be repeated after a failure."""
        state = self.state
        work = partial(self._directories.create, state, creation, is_repeated=is_repeated)
        if remaining := await self._in_pool(work):
            await self._run(remaining)
        if isinstance(creation, changes.StreamCreation):
            return
        stream = state.streams[creation.stream_id]
        if isinstance(creation, changes.TopicCreation):
            topic = stream.topics[state.topic_by_name[stream.stream_id, creation.name]]
        else:
            topic = stream.topics[creation.topic_id]
        if self._peers is None or self._registry.owns(stream.stream_id, topic.topic_id):
            await self._registry.open_new(stream, topic, are_created=not is_repeated)
        else:
            await self._peers.open_new(stream.stream_id, topic.topic_id)
        if isinstance(creation, changes.PartitionCreation):
            self._tell_partition_count(stream.stream_id, topic.topic_id)

    async def _settle(self, places: set[StreamOrTopic], *, is_held: bool = False) -> None:
        """Bring streams and topics up to date with the state: purges, descriptors, options. May be repeated.

        If one part fails, the others are still done.

        Raises:
            StorageFailure: a part has to be repeated.
            PartitionReadOnly: a partition could not be purged; the next start purges it. Everything else is done.
        """
        known = [(self.state.streams[place[0]], place[1]) for place in places if place[0] in self.state.streams]
        topics = [(stream, stream.topics[number]) for stream, number in known if number in stream.topics]
        descriptions = [partial(self._directories.settle, *place) for place in topics]
        descriptions += [partial(self._directories.settle, stream) for stream, number in known if number is None]
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [
            # Purges first, because they free disk space.
            partial(purge_topics, self._registry, self.state, topics, is_held=is_held),
            partial(self._run, descriptions),
        ]
        works += [partial(self._registry.apply_options, *place) for place in topics if self._is_open(*place)]
        failures: list[CourserError] = []
        for work in works:
            try:
                await work()
            except CourserError as failure:
                failures.append(failure)
        # A failed sync must not be retried, so it is raised before other failures.
        failures.sort(key=lambda failure: (not is_failed_sync(failure), not isinstance(failure, StorageFailure)))
        if not failures or not isinstance(failures[0], StorageFailure):
            self._behind -= places
        if failures:
            raise failures[0]

    def _is_open(self, stream: Stream, topic: Topic) -> bool:
        return (stream.stream_id, topic.topic_id) in self._registry.topics

    async def _run(self, tasks: Sequence[Task]) -> None:
        """Run tasks in a few threads, so that their syncs reach the disk together."""
        remaining = iter(tasks)
        failures: list[Exception] = []

        async def work() -> None:
            for task in remaining:
                try:
                    await self._in_pool(task)
                except Exception as failure:  # noqa: BLE001 - raised below, when all threads have ended
                    failures.append(failure)
                if failures:
                    return

        await asyncio.gather(*(work() for _ in range(min(len(tasks), _AT_ONCE))))
        if failures:
            # A failed sync must not be retried, so it is raised before other failures.
            raise next(filter(is_failed_sync, failures), failures[0])

    def _tell_partition_count(self, stream_id: int, topic_id: int) -> None:
        count = len(self.state.streams[stream_id].topics[topic_id].partitions)
        self._groups.partitions_changed(stream_id, topic_id, count)

    # --- in the background ---

    async def take_due_snapshot(self) -> None:
        """Take a snapshot if the journal is large or old enough. Call it periodically."""
        async with self._turn:
            can_cover = self.is_settled and self._failure is None
            if self._is_closed or not can_cover or not self._store.is_snapshot_due():
                return
            try:
                await self._in_pool(self._store.take_snapshot)
            except StorageFailure as failure:
                self._store.snapshot_failure = str(failure)
                _log.warning("metadata snapshot failed reason=%s", failure)

    async def wait_for_closed(self) -> None:
        """Wait until the files of deleted partitions are closed."""
        if self._closing:
            await asyncio.wait(self._closing)

    @property
    def is_settled(self) -> bool:
        """Whether every durable creation has its directories."""
        return self._unmade is None

    def _removable(self) -> list[str]:
        removable = (path for path in self.state.deleted if path not in self._kept)
        return list(islice(removable, _FORGOTTEN_AT_ONCE))

    async def _remove_deleted(self) -> None:
        """Remove deleted directories, then make the catalog forget them."""
        try:
            while not self._is_closed and (paths := self._removable()):
                await self.wait_for_closed()
                if self._peers is not None:
                    await self._peers.wait_for_closed()
                removed = [path for path in paths if await self._remove(path)]
                if removed:
                    await self.submit(changes.DirectoryRemoval(tuple(removed)))
        except CourserError as error:
            # The next start removes them again.
            _log.info("could not record that deleted directories are gone; retrying reason=%s", error)
        finally:
            self._remover = None

    async def _remove(self, path: str) -> bool:
        """Remove one directory. Return False if it was not removed."""
        deleted = self.state.deleted.get(path)
        if deleted is None or self._is_closed:
            return False
        try:
            if await self._in_pool(partial(self._directories.remove, deleted)):
                return True
            _log.warning(
                "not removing a directory that is not the deleted one or has the files of another partition path=%s",
                path,
            )
        except StorageFailure as failure:
            _log.warning("could not remove a directory path=%s reason=%s", path, failure)
        self._kept.add(path)
        return False

    async def close(self) -> bool:
        """Accept no more changes. Return whether the stop is clean."""
        async with self._turn:
            self._is_closed = True
            if self._catch_up_timer is not None:
                self._catch_up_timer.cancel()
            try:
                refusal: CourserError | None = await self._catch_up()
            except CourserError as error:
                refusal = error
            if refusal is not None:
                _log.error("the last metadata change is still unfinished reason=%s", refusal)
        await self._background.idle()
        self._store.close()
        # After a clean stop, the next start assumes that the last change is complete and recreates nothing.
        return self.failure is None and self._unmade is None and not self._behind

    def _in_pool(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._pool, work)


def check_limits(state: CatalogState, change: changes.AnyChange, settings: BrokerSettings) -> None:
    """Refuse what would be one too many, before it is journaled. Raises ``CommandRejected``.

    The rules of the catalog hold for every entry of a journal, so a lower limit there would reject what an older server
    accepted. These are limits of this server, and never concern what exists.
    """
    limits = settings.limits
    match change:
        case changes.StreamCreation() if len(state.streams) >= limits.stream_count_max:
            reason = f"the limit of {limits.stream_count_max} streams is reached"
            raise CommandRejected(ErrorCode.TOO_MANY_STREAMS, reason)
        case changes.TopicCreation(stream_id=stream_id):
            stream, limit = state.streams.get(stream_id), limits.topic_count_of_stream_max
            if stream is not None and len(stream.topics) >= limit:
                raise CommandRejected(ErrorCode.TOO_MANY_TOPICS, f"a stream can have at most {limit} topics")
        case changes.PartitionCreation(stream_id=stream_id, topic_id=topic_id, count=count):
            topic, limit = state.topic(stream_id, topic_id), limits.partition_count_of_topic_max
            if topic is not None and len(topic.partitions) + count > limit:
                reason = f"a topic can have at most {limit} partitions; this one has {len(topic.partitions)}"
                raise CommandRejected(ErrorCode.TOO_MANY_PARTITIONS, reason)
        case changes.GroupCreation(stream_id=stream_id, topic_id=topic_id):
            topic, limit = state.topic(stream_id, topic_id), settings.group_count_max
            if topic is not None and len(topic.groups) >= limit:
                reason = f"a topic can have at most {limit} consumer groups; delete unused ones first"
                raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)
            streams, limit = state.streams.values(), limits.group_count_of_server_max
            if sum(len(topic.groups) for stream in streams for topic in stream.topics.values()) >= limit:
                reason = f"the limit of {limit} consumer groups is reached; delete unused ones first"
                raise CommandRejected(ErrorCode.TOO_MANY_GROUPS, reason)
        case changes.PublishStart(sink=name, user_id=user_id):
            sinks, limit = state.sinks, limits.sink_count_of_user_max
            is_new = name not in sinks and len(sinks) >= limit
            if is_new and sum(sink.user_id == user_id for sink in sinks.values()) >= limit:
                reason = f"a user can have at most {limit} sinks; forget one first"
                raise CommandRejected(ErrorCode.TOO_MANY_SINKS, reason)
