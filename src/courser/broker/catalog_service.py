"""Metadata on the event loop: one change at a time, from its check to the directories that follow it.

A change is journaled and synced, then applied, then carried out on disk and in the open partitions, and only then
acknowledged. Once begun, a change is finished whether or not its client still waits.

If the disk refuses to carry it out, its client is told, and what is missing is tried again, before the next change and
now and then. What follows from the state alone may wait: descriptors, which a start compares, and purges, which say
themselves how far they reach. Directories of a creation may not: a start makes them only if the creation is the
journal's last entry. So no change comes behind an unfinished creation, except those that make room; they take it back
first.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from courser.broker.groups import ConsumerGroups
from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.broker.purging import prepared_purge, purge_topics
from courser.catalog import changes
from courser.catalog.directories import Directories, Step
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

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Place = tuple[int, int | None]
"""Ids of a stream and a topic; no topic: the stream itself."""

_TRY_COUNT = 3
"""How often the disk is asked to follow a change before its client is told that it does not."""
_RETRY_DELAY = 0.1
"""Seconds between two tries."""
_AT_ONCE = 4
"""Pieces of work for the disk that one change has under way: more would keep other work out of the pool."""
_MAKERS = (
    changes.CreateStream,
    changes.UpdateStream,
    changes.CreateTopic,
    changes.UpdateTopic,
    changes.CreatePartitions,
    changes.CreateGroup,
)
"""Commands after which there is more on the disk than before."""
_CREATIONS = (changes.CreateStream, changes.CreateTopic, changes.CreatePartitions)
"""Commands that make directories."""
_CATCH_UP_DELAY = 1.0
_CATCH_UP_DELAY_MAX = 60.0
"""Seconds before the disk is asked once more for what it refused: at first, and after it has refused many times."""
_FORGOTTEN_AT_ONCE = 1000
"""Directories in one entry of the journal."""


class CatalogService:
    """The one place where metadata changes while a server runs."""

    def __init__(
        self,
        store: CatalogStore,
        directories: Directories,
        registry: PartitionRegistry,
        pool: Executor,
        *,
        groups: ConsumerGroups,
        retry_delay: float = _RETRY_DELAY,
    ) -> None:
        self._store = store
        self._directories = directories
        self._registry = registry
        self._pool = pool
        self._groups = groups
        self._retry_delay = retry_delay
        self.version = 0
        """Grows with every change of the state."""
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[bool]] = set()
        """Partitions that were deleted: their files are closed before their directories are removed."""
        self._remover: asyncio.Task[None] | None = None
        self._snapshot: asyncio.Task[None] | None = None
        self._kept: set[str] = set()
        """Deleted directories that cannot be removed: left to the next start."""
        self._unmade: changes.AnyChange | None = None
        """A durable creation whose directories the disk refused: it must stay the journal's last entry."""
        self._behind: set[Place] = set()
        """Where the disk has not followed the state: descriptors, and purges."""
        self._catch_up_delay = _CATCH_UP_DELAY
        self._catch_up_timer: asyncio.TimerHandle | None = None
        self._failure: str | None = None
        """Why no change is taken until a restart, besides what the journal says itself."""
        self._is_closed = False

    @property
    def state(self) -> CatalogState:
        """Everything that is known: to be read, never to be changed."""
        return self._store.state

    @property
    def failure(self) -> str | None:
        """Why no change is taken until a restart, or None."""
        return self._store.failure or self._failure

    @property
    def snapshot_failure(self) -> str | None:
        """Why the last snapshot could not be made, or None: the journal fills up meanwhile."""
        return self._store.snapshot_failure

    # --- changes ---

    async def submit(self, change: changes.AnyChange) -> Created:
        """Carry out one change: durable, applied, and followed by the disk on return.

        Raises:
            CommandRejected: the rules forbid it; nothing was changed.
            JournalFull, DiskFull: nothing was changed, or the disk could not follow a change that is durable.
            StorageFailure, MetadataReadOnly: the disk refused; it may or may not be there after a restart.
        """
        return await self.submit_made(lambda: change)

    async def submit_made(self, make: Callable[[], changes.AnyChange]) -> Created:
        """The same for a change that depends on the state: it is made when its turn has come.

        Raises:
            CourserError: as ``submit``, and what ``make`` raises.
        """
        # A client that goes away must not leave a change between the journal and the state.
        return await asyncio.shield(self._start(self._take_turn(make)))

    def _start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_turn(self, make: Callable[[], changes.AnyChange]) -> Created:
        async with self._turn:
            if self._is_closed:
                raise CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
            refusal = await self._catch_up()
            if self._store.is_snapshot_forced:
                # Nothing else changes the state meanwhile: it is this change's turn.
                await self._in_pool(self._store.make_room)
            try:
                change = make()
                if refusal is not None and self._unmade is not None:
                    if not changes.makes_room(change) or isinstance(change, changes.ForgetDeleted):
                        raise refusal
                    await self._take_back(self._unmade, change)
                    change = make()
                return await self._carry_out(change)
            finally:
                # Also after a failure: what was deleted may be the room that is missing.
                self._clean_up()
                self._catch_up_later()

    async def _carry_out(self, change: changes.AnyChange) -> Created:
        if not isinstance(change, changes.PurgeTopic | changes.PurgeStream):
            return await self._make_durable(change)
        async with prepared_purge(self._registry, self.state, change) as purge:
            return await self._make_durable(purge)

    async def _make_durable(self, change: changes.AnyChange) -> Created:
        prepared = self._store.prepare(change)
        await self._in_pool(partial(self._persist, prepared))
        # From here on neither a kill nor a power cut takes the change: a start finds it and finishes it.
        try:
            created = self._store.commit(prepared)
            self.version += 1
            self._let_go(change)
            await self._follow_patiently(change)
        except CourserError:
            raise
        except Exception as defect:
            # Nobody knows what the disk and the open partitions have followed: a start puts that in order.
            self._failure = f"{type(change).__name__} came to no end: {defect!r}"
            raise
        return created

    async def _take_back(self, creation: changes.AnyChange, change: changes.AnyChange) -> None:
        """Delete what a creation was to make: nobody was told of it, and ``change`` must not wait for it."""
        undo = undo_of(self.state, creation)
        assert undo is not None, "only creations are unmade"
        if undo == change:
            self._unmade = None
            return
        _log.warning("creation taken back, the disk has no room for it command=%s", type(creation).__name__)
        version = self.version
        try:
            await self._make_durable(undo)
        finally:
            if self.version != version:
                self._unmade = None

    def _persist(self, prepared: PreparedChange) -> None:
        """In the pool: make a change durable, unless it is plain that the disk could not follow it.

        It would stand in the way of those that make room: deletions.
        """
        change = prepared.change
        if isinstance(change, _MAKERS):
            new_count = change.partition_count if isinstance(change, changes.CreateTopic) else 0
            self._directories.check_room(change.count if isinstance(change, changes.CreatePartitions) else new_count)
        self._store.persist(prepared)

    # --- what the disk refused ---

    async def _catch_up(self) -> StorageFailure | None:
        """Have the disk do what it refused before. Return why it still does not."""
        if self._failure is not None:
            raise MetadataReadOnly(self._directories.path, self._failure)
        try:
            if self._unmade is not None:
                await self._follow(self._unmade, is_repeated=True)
                self._unmade = None
            if self._behind:
                await self._settle(set(self._behind))
        except StorageFailure as failure:
            if is_failed_sync(failure):
                self._failure = str(failure)
                raise
            return failure
        except PartitionReadOnly:
            # Logged. It is purged by the next start.
            pass
        self._catch_up_delay = _CATCH_UP_DELAY
        return None

    def _catch_up_later(self) -> None:
        """Ask the disk again after a while, also if no change comes."""
        is_needed = self._unmade is not None or bool(self._behind)
        if is_needed and self._catch_up_timer is None and self._failure is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._catch_up_timer = loop.call_later(self._catch_up_delay, lambda: self._start(self._try_again()))
            self._catch_up_delay = min(2 * self._catch_up_delay, _CATCH_UP_DELAY_MAX)

    async def _try_again(self) -> None:
        self._catch_up_timer = None
        async with self._turn:
            if self._is_closed:
                return
            try:
                await self._catch_up()
            except CourserError as error:
                _log.error("no change of metadata is taken until a restart reason=%s", error)
            self._catch_up_later()

    def note_behind(self, places: Iterable[Place]) -> None:
        """At a start: these descriptors could not be written. Purges that could not be carried out are found here."""
        self._behind.update(places)
        for stream in self.state.streams.values():
            for topic in stream.topics.values():
                opened = self._registry.topics[stream.stream_id, topic.topic_id]
                if any(found.log.failure is None and is_behind(found.log, topic) for found in opened.partitions):
                    self._behind.add((stream.stream_id, topic.topic_id))
        self._catch_up_later()

    # --- what follows a durable change ---

    def _let_go(self, change: changes.AnyChange) -> None:
        """What a durable deletion takes away is found by nobody from now on."""
        gone: list[Partition] = []
        match change:
            case changes.DeleteStream():
                gone = self._registry.remove_stream(change.stream_id)
                self._groups.stream_deleted(change.stream_id)
            case changes.DeleteTopic():
                gone = self._registry.remove_topic(change.stream_id, change.topic_id)
                self._groups.topic_deleted(change.stream_id, change.topic_id)
            case changes.DeletePartitions():
                _, topic = self._topic(change.stream_id, change.topic_id)
                kept_count = len(topic.partitions)
                gone = self._registry.remove_partitions(change.stream_id, change.topic_id, kept_count)
                self._tell_partition_count(change)
            case _:
                return
        for partition in gone:
            task = self._start(partition.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _follow_patiently(self, change: changes.AnyChange) -> None:
        """Have the disk follow a change. If it does not, what is missing is remembered."""
        for number in range(_TRY_COUNT):
            try:
                await self._follow(change, is_repeated=number > 0)
            except StorageFailure as failure:
                _log.warning("change not carried out command=%s reason=%s", type(change).__name__, failure)
                if is_failed_sync(failure):
                    # Never asked again: the next sync may succeed without having done anything. If the power fails,
                    # the next start finds the change at the journal's end, and compares the directories with it.
                    self._failure = str(failure)
                    raise
                if number + 1 == _TRY_COUNT:
                    if isinstance(change, _CREATIONS):
                        self._unmade = change
                    raise
                await asyncio.sleep(self._retry_delay)
            else:
                return

    async def _follow(self, change: changes.AnyChange, *, is_repeated: bool) -> None:
        """Make directories and open partitions follow a change. May be repeated after a failure."""
        if not isinstance(change, _CREATIONS):
            places = self._places(change)
            self._behind |= places
            await self._settle(places, is_held=isinstance(change, changes.PurgeTopic | changes.PurgeStream))
            return
        for step in await self._in_pool(partial(self._directories.steps, self.state, change, is_repeated=is_repeated)):
            await self._do_at_once(step)
        match change:
            case changes.CreateTopic():
                stream = self.state.streams[change.stream_id]
                topic_id = self.state.topic_by_name[change.stream_id, change.name]
                await self._registry.open_new(stream, stream.topics[topic_id])
            case changes.CreatePartitions():
                await self._registry.open_new(*self._topic(change.stream_id, change.topic_id))
                self._tell_partition_count(change)
            case _:
                return

    def _places(self, change: changes.AnyChange) -> set[Place]:
        """What has to follow the state after a change that makes no directory."""
        match change:
            case changes.UpdateStream():
                return {(change.stream_id, None)}
            case changes.PurgeStream():
                return {(change.stream_id, topic_id) for topic_id in self.state.streams[change.stream_id].topics}
            case (
                changes.UpdateTopic()
                | changes.PurgeTopic()
                | changes.DeletePartitions()
                | changes.CreateGroup()
                | changes.DeleteGroup()
            ):
                return {(change.stream_id, change.topic_id)}
            case _:
                # Users, tokens and sinks leave no trace in the tree, and a deletion is done when it is durable.
                return set()

    async def _settle(self, places: set[Place], *, is_held: bool = False) -> None:
        """Make streams and topics what the state says: purged, described, with their options. May be repeated.

        A failure in one part keeps no other from being done.

        Raises:
            StorageFailure: a part has to be done again.
            PartitionReadOnly: a partition could not be purged, and is by the next start. All else is done.
        """
        known = [(self.state.streams[place[0]], place[1]) for place in places if place[0] in self.state.streams]
        topics = [(stream, stream.topics[number]) for stream, number in known if number in stream.topics]
        descriptions = [partial(self._directories.settle_topic, stream, topic) for stream, topic in topics]
        descriptions += [partial(self._directories.settle_stream, stream) for stream, number in known if number is None]
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [
            # First what makes room.
            partial(purge_topics, self._registry, self.state, topics, is_held=is_held),
            partial(self._do_at_once, descriptions),
        ]
        works += [partial(self._registry.apply_options, *place) for place in topics if self._is_open(*place)]
        failures: list[CourserError] = []
        for work in works:
            try:
                await work()
            except CourserError as failure:
                failures.append(failure)
        # After a failed sync nothing may be tried again: it must not go unnoticed among others.
        failures.sort(key=lambda failure: (not is_failed_sync(failure), not isinstance(failure, StorageFailure)))
        if not failures or not isinstance(failures[0], StorageFailure):
            self._behind -= places
        if failures:
            raise failures[0]

    def _is_open(self, stream: Stream, topic: Topic) -> bool:
        return (stream.stream_id, topic.topic_id) in self._registry.topics

    async def _do_at_once(self, step: Step) -> None:
        """Share the pieces of a step among a few threads: their syncs go to the disk together."""
        pieces = iter(step)
        failures: list[Exception] = []

        async def work() -> None:
            for piece in pieces:
                try:
                    await self._in_pool(piece)
                except Exception as failure:  # noqa: BLE001 - raised below, when nobody is at work any more
                    failures.append(failure)
                if failures:
                    return

        await asyncio.gather(*(work() for _ in range(min(len(step), _AT_ONCE))))
        if failures:
            # After a failed sync nothing may be tried again: it must not go unnoticed among others.
            raise next(filter(is_failed_sync, failures), failures[0])

    def _topic(self, stream_id: int, topic_id: int) -> tuple[Stream, Topic]:
        stream = self.state.streams[stream_id]
        return stream, stream.topics[topic_id]

    def _tell_partition_count(self, change: changes.CreatePartitions | changes.DeletePartitions) -> None:
        _, topic = self._topic(change.stream_id, change.topic_id)
        self._groups.partitions_changed(change.stream_id, change.topic_id, len(topic.partitions))

    # --- in the background ---

    def _clean_up(self) -> None:
        if self._remover is None and self._removable():
            self._remover = self._start(self._remove_deleted())
        if self._store.is_snapshot_due():
            self._snapshot = self._start(self.take_due_snapshot())

    async def take_due_snapshot(self) -> None:
        """Take a snapshot if the journal is large or old enough. To be called now and then."""
        async with self._turn:
            is_settled = self._unmade is None and self._failure is None
            if self._is_closed or not is_settled or not self._store.is_snapshot_due():
                return
            try:
                await self._in_pool(self._store.take_snapshot)
            except StorageFailure as failure:
                self._store.snapshot_failure = str(failure)
                _log.warning("snapshot of the metadata failed reason=%s", failure)

    def _removable(self) -> list[str]:
        return [path for path in self.state.deleted if path not in self._kept][:_FORGOTTEN_AT_ONCE]

    async def _remove_deleted(self) -> None:
        """Remove deleted directories, then have the catalog forget them."""
        try:
            while not self._is_closed and (paths := self._removable()):
                if self._closing:
                    await asyncio.wait(self._closing)
                removed = [path for path in paths if await self._remove(path)]
                if removed:
                    await self.submit(changes.ForgetDeleted(tuple(removed)))
        except CourserError as error:
            # They are removed once more by the next start.
            _log.info("deleted directories are not forgotten yet reason=%s", error)
        finally:
            self._remover = None

    async def _remove(self, path: str) -> bool:
        """Remove one directory; False if it stays."""
        deleted = self.state.deleted.get(path)
        if deleted is None or self._is_closed:
            return False
        try:
            if await self._in_pool(partial(self._directories.remove, deleted)):
                return True
            _log.warning(
                "directory not removed, it is not what was deleted or holds the files of another partition path=%s",
                path,
            )
        except StorageFailure as failure:
            _log.warning("directory not removed path=%s reason=%s", path, failure)
        self._kept.add(path)
        return False

    async def close(self) -> bool:
        """Take no more changes. Return whether a clean stop may be claimed."""
        async with self._turn:
            self._is_closed = True
            if self._catch_up_timer is not None:
                self._catch_up_timer.cancel()
            try:
                refusal: CourserError | None = await self._catch_up()
            except CourserError as error:
                refusal = error
            if refusal is not None:
                _log.error("the last change of metadata stays unfinished reason=%s", refusal)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._store.close()
        # After a clean stop a start believes that the last change came to its end, and makes nothing again.
        return self.failure is None and self._unmade is None and not self._behind

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
