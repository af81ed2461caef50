"""What all connections of a process share."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.access.sessions import Session
from courser.broker.partition.read_buffers import ReadBuffers
from courser.broker.partition.waiting import Waiting
from courser.model.clock import Clock
from courser.model.memory_ledger import MemoryLedger
from courser.transports.held_replies import HeldReplies
from courser.transports.settings import ConnectionSettings
from courser.transports.turns import Turns
from courser.wire.codec import Codec

Result = TypeVar("Result")

_CONVERSION_COUNT_MAX = 2
"""Requests and replies that are converted at a time: one is in progress, and the next one is ready. More would only
take memory that is not counted."""


@dataclass(frozen=True, slots=True)
class Services:
    """What all connections share."""

    begin: Callable[[Session, Command], Reply | Waiting[Any] | None]
    """Carries out a command as far as possible without waiting: gives the reply, or what it waits for."""
    choose_codec: Callable[[memoryview, Session], Codec | None]
    """The codec for a connection that begins with these bytes; None if they are too few. Raises ``FrameRefused``."""
    buffers: ReadBuffers
    """The memory of replies: given back when a reply is with the kernel."""
    clock: Clock
    settings: ConnectionSettings
    memory: MemoryLedger
    """The memory for large requests of all connections."""
    slow_work: Executor
    """For requests and replies that take long to convert. One thread: more would keep the event loop waiting."""
    turns: Turns = field(default_factory=Turns)
    held_replies: HeldReplies = field(default_factory=HeldReplies)
    conversions: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _CONVERSION_COUNT_MAX))

    async def convert(self, work: Callable[[], Result]) -> Result:
        """Do on another thread what would hold other connections up."""
        async with self.conversions:
            try:
                done = asyncio.get_running_loop().run_in_executor(self.slow_work, work)
            except RuntimeError as error:
                # The server has stopped its threads. Nobody is left to read the answer.
                raise asyncio.CancelledError from error
            return await done
