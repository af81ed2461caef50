"""Metadata on the event loop: one command at a time, from its check to the directories that follow it.

A command is journaled and synced, then applied, then carried out on disk and in the open partitions, and only then
acknowledged. The next one begins after that: a start after a crash finds at most one command whose directories are not
there, and it is the journal's last entry. Once begun, a command is finished whether or not its client still waits.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from courser.broker.groups import ConsumerGroups
from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.broker.purging import purge_topics
from courser.catalog import commands as c
from courser.catalog.directories import Directories, Step
from courser.catalog.entities import Stream, Topic
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogStore, PreparedCommand
from courser.catalog.transitions import Created
from courser.errors import CommandRejected, CourserError, ErrorCode, MetadataReadOnly, StorageFailure
from courser.storage.durable_files import is_failed_sync

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_TRY_COUNT = 3
"""How often the disk is asked to follow a command before its client is told that it does not."""
_RETRY_DELAY = 0.1
"""Seconds between two tries."""
_AT_ONCE = 4
"""Pieces of work for the disk that one command has under way: more would keep other work out of the pool."""
_MAKERS = (
    c.CreateStream,
    c.UpdateStream,
    c.CreateTopic,
    c.UpdateTopic,
    c.CreatePartitions,
    c.CreateGroup,
)
"""Commands after which there is more on the disk than before."""
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
        self._unfinished: c.AnyCommand | None = None
        """A durable command that the disk has not followed: the next one waits for it."""
        self._failure: str | None = None
        """Why no command is taken until a restart, besides what the journal says itself."""
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

    # --- commands ---

    async def submit(self, command: c.AnyCommand) -> Created:
        """Carry out one command: durable, applied, and followed by the disk on return.

        Raises:
            CommandRejected: the rules forbid it; nothing was changed.
            JournalFull, DiskFull: nothing was changed, or the disk could not follow a change that is durable.
            StorageFailure, MetadataReadOnly: the disk refused; it may or may not be there after a restart.
        """
        return await self.submit_made(lambda: command)

    async def submit_made(self, make: Callable[[], c.AnyCommand]) -> Created:
        """The same for a command that depends on the state: it is made when its turn has come.

        Raises:
            CourserError: as ``submit``, and what ``make`` raises.
        """
        # A client that goes away must not leave a command between the journal and the state.
        return await asyncio.shield(self._start(self._take_turn(make)))

    def _start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_turn(self, make: Callable[[], c.AnyCommand]) -> Created:
        async with self._turn:
            if self._is_closed:
                raise CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
            await self._finish_last()
            if self._store.is_snapshot_forced:
                # Nothing else changes the state meanwhile: it is this command's turn.
                await self._in_pool(self._store.make_room)
            command = make()
            prepared = self._store.prepare(command)
            await self._in_pool(partial(self._persist, prepared))
            # From here on neither a kill nor a power cut takes the command: a start finds it and finishes it.
            try:
                created = self._store.commit(prepared)
                self.version += 1
                self._let_go(command)
                await self._follow_patiently(command)
            except CourserError:
                raise
            except Exception as defect:
                # Nobody knows what the disk and the open partitions have followed: a start puts that in order.
                self._failure = f"{type(command).__name__} came to no end: {defect!r}"
                raise
        self._clean_up()
        return created

    def _persist(self, prepared: PreparedCommand) -> None:
        """In the pool: make a command durable, unless it is plain that the disk could not follow it.

        It would stand in the way of those that make room: deletions.
        """
        command = prepared.command
        if isinstance(command, _MAKERS):
            new_count = command.partition_count if isinstance(command, c.CreateTopic) else 0
            self._directories.check_room(command.count if isinstance(command, c.CreatePartitions) else new_count)
        self._store.persist(prepared)

    async def _finish_last(self) -> None:
        """Do what is left of a command that the disk did not follow: it must stay the last one until then."""
        if self._failure is not None:
            raise MetadataReadOnly(self._directories.path, self._failure)
        if self._unfinished is not None:
            await self._follow(self._unfinished, is_repeated=True)
            self._unfinished = None

    # --- what follows a durable command ---

    def _let_go(self, command: c.AnyCommand) -> None:
        """What a durable deletion takes away is found by nobody from now on."""
        gone: list[Partition] = []
        match command:
            case c.DeleteStream():
                gone = self._registry.remove_stream(command.stream_id)
                self._groups.stream_deleted(command.stream_id)
            case c.DeleteTopic():
                gone = self._registry.remove_topic(command.stream_id, command.topic_id)
                self._groups.topic_deleted(command.stream_id, command.topic_id)
            case c.DeletePartitions():
                _, topic = self._topic(command.stream_id, command.topic_id)
                kept_count = len(topic.partitions)
                gone = self._registry.remove_partitions(command.stream_id, command.topic_id, kept_count)
                self._tell_partition_count(command)
            case _:
                return
        for partition in gone:
            task = self._start(partition.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _follow_patiently(self, command: c.AnyCommand) -> None:
        """Have the disk follow a command; if it does not, no other command comes before it does."""
        for number in range(_TRY_COUNT):
            try:
                await self._follow(command, is_repeated=number > 0)
            except StorageFailure as failure:
                _log.warning("disk does not follow command=%s reason=%s", type(command).__name__, failure)
                if is_failed_sync(failure):
                    # Never asked again: the next sync may succeed without having done anything. If the power fails,
                    # the next start finds the command at the journal's end, and compares the directories with it.
                    self._failure = str(failure)
                    raise
                if number + 1 == _TRY_COUNT:
                    self._unfinished = command
                    raise
                await asyncio.sleep(self._retry_delay)
            else:
                return

    async def _follow(self, command: c.AnyCommand, *, is_repeated: bool) -> None:
        """Make directories and open partitions follow a command. May be repeated after a failure."""
        for step in await self._in_pool(partial(self._directories.steps, self.state, command, is_repeated=is_repeated)):
            await self._do_at_once(step)
        match command:
            case c.CreateTopic():
                stream = self.state.streams[command.stream_id]
                topic_id = self.state.topic_by_name[command.stream_id, command.name]
                await self._registry.open_new(stream, stream.topics[topic_id])
            case c.CreatePartitions():
                await self._registry.open_new(*self._topic(command.stream_id, command.topic_id))
                self._tell_partition_count(command)
            case c.UpdateTopic() | c.DeletePartitions():
                await self._registry.apply_options(*self._topic(command.stream_id, command.topic_id))
            case c.PurgeTopic():
                stream, topic = self._topic(command.stream_id, command.topic_id)
                await purge_topics(self._registry, stream, [topic])
            case c.PurgeStream():
                stream = self.state.streams[command.stream_id]
                await purge_topics(self._registry, stream, list(stream.topics.values()))
            case _:
                return

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

    def _tell_partition_count(self, command: c.CreatePartitions | c.DeletePartitions) -> None:
        _, topic = self._topic(command.stream_id, command.topic_id)
        self._groups.partitions_changed(command.stream_id, command.topic_id, len(topic.partitions))

    # --- in the background ---

    def _clean_up(self) -> None:
        if self._remover is None and self._removable():
            self._remover = self._start(self._remove_deleted())
        if self._store.is_snapshot_due():
            self._snapshot = self._start(self.take_due_snapshot())

    async def take_due_snapshot(self) -> None:
        """Take a snapshot if the journal is large or old enough. To be called now and then."""
        async with self._turn:
            is_settled = self._unfinished is None and self._failure is None
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
                    await self.submit(c.ForgetDeleted(tuple(removed)))
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
        """Take no more commands. Return whether a clean stop may be claimed."""
        async with self._turn:
            self._is_closed = True
            try:
                await self._finish_last()
            except CourserError as error:
                _log.error("the last change of metadata stays unfinished reason=%s", error)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._store.close()
        # After a clean stop a start believes that the last command came to its end, and makes nothing again.
        return self.failure is None and self._unfinished is None

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
