"""Metadata on the event loop: one command at a time, from its check to the directories that follow it.

A command is journaled and synced, then applied, then carried out on disk and in the open partitions, and only then
acknowledged. The next one begins after that: a start after a crash finds at most one command whose directories are not
there, and it is the journal's last entry. Once begun, a command is finished whether or not its client still waits.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.catalog import commands as c
from courser.catalog.directories import Directories
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogStore
from courser.catalog.transitions import Created
from courser.errors import CommandRejected, CourserError, ErrorCode

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class CatalogService:
    """The one place where metadata changes while a server runs."""

    def __init__(
        self, store: CatalogStore, directories: Directories, registry: PartitionRegistry, pool: Executor
    ) -> None:
        self._store = store
        self._directories = directories
        self._registry = registry
        self._pool = pool
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Created]] = set()
        self._is_closed = False

    @property
    def state(self) -> CatalogState:
        """Everything that is known: to be read, never to be changed."""
        return self._store.state

    async def submit(self, command: c.AnyCommand) -> Created:
        """Carry out one command: durable, applied, and followed by the disk on return.

        Raises:
            CommandRejected: the rules forbid it; nothing was changed.
            JournalFull, DiskFull: nothing was changed.
            StorageFailure, MetadataReadOnly: the disk refused; it may or may not be there after a restart.
        """
        # A client that goes away must not leave a command between the journal and the state.
        task = asyncio.ensure_future(self._take_turn(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _take_turn(self, command: c.AnyCommand) -> Created:
        async with self._turn:
            if self._is_closed:
                raise CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
            if self._store.is_snapshot_forced:
                await self._in_pool(self._store.make_room)
            prepared = self._store.prepare(command)
            await self._in_pool(partial(self._store.persist, prepared))
            created = self._store.commit(prepared)
            self._let_go(command)
            await self._in_pool(partial(self._directories.carry_out, self.state, command))
            await self._follow(command)
            return created

    def _let_go(self, command: c.AnyCommand) -> list[Partition]:
        """What a durable deletion takes away is found by nobody from now on."""
        match command:
            case c.DeleteStream():
                return self._registry.remove_stream(command.stream_id)
            case c.DeleteTopic():
                return self._registry.remove_topic(command.stream_id, command.topic_id)
            case _:
                return []

    async def _follow(self, command: c.AnyCommand) -> None:
        """Make the open partitions follow a command."""
        match command:
            case c.CreateTopic():
                stream = self.state.streams[command.stream_id]
                topic_id = self.state.topic_by_name[command.stream_id, command.name]
                await self._registry.open_new(stream, stream.topics[topic_id])
            case c.CreatePartitions():
                stream = self.state.streams[command.stream_id]
                await self._registry.open_new(stream, stream.topics[command.topic_id])
            case _:
                return

    async def close(self) -> bool:
        """Take no more commands. Return whether a clean stop may be claimed."""
        async with self._turn:
            self._is_closed = True
        self._store.close()
        return self._store.failure is None

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
