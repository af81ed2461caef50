"""Both clients behind the calls of the async one, each with a broker of its own: one suite for both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from courser.client.sync import SyncClient, SyncConsumedMessage, SyncConsumer
from courser.client.sync_producer import SyncProducer, SyncTicket
from courser.model.clock import Clock
from courser.testing.broker import SyncTestBroker, TestBroker

_WRAPPED = (SyncClient, SyncConsumer, SyncProducer, SyncTicket, SyncConsumedMessage)
_IMMEDIATE = {"producer", "consumer", "json", "text", "position"}
"""Calls that are not awaited in the async client either."""
_END = object()


class Awaited:
    """A sync object whose calls are awaited: they run on a thread, so that the test's own event loop goes on."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._original, name)
        if not callable(value):
            return value
        if name in _IMMEDIATE:
            return lambda *arguments, **named: wrapped(value(*arguments, **named))

        async def call(*arguments: Any, **named: Any) -> Any:
            return wrapped(await asyncio.to_thread(value, *arguments, **named))

        return call

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._original.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._original.__exit__, *error)

    def __aiter__(self) -> "Awaited":
        return self

    async def __anext__(self) -> Any:
        value = await asyncio.to_thread(next, self._original, _END)
        if value is _END:
            raise StopAsyncIteration
        return wrapped(value)


def wrapped(value: Any) -> Any:
    return Awaited(value) if isinstance(value, _WRAPPED) else value


class Twins:
    """A broker and clients of one kind."""

    def __init__(self, broker: Any, *, is_sync: bool) -> None:
        self.broker = broker
        self.is_sync = is_sync

    async def connect(self, **options: Any) -> Any:
        """A client, used as if it were async. Its type is left open: it is one of two."""
        if self.is_sync:
            return wrapped(await asyncio.to_thread(self.broker.connect, **options))
        return await self.broker.connect(**options)

    async def disconnect(self) -> None:
        """Break all connections."""
        await self._call(self.broker.disconnect)

    async def stop(self) -> None:
        """Stop the broker."""
        await self._call(self.broker.stop)

    async def open(self) -> None:
        """Start it again on the same data."""
        await self._call(self.broker.open)

    async def restart(self) -> None:
        """Stop the broker, and start it again on the same data."""
        await self._call(self.broker.restart)

    async def _call(self, function: Callable[[], Any]) -> None:
        if self.is_sync:
            await asyncio.to_thread(function)
            return
        done = function()
        if isinstance(done, Awaitable):
            await done


@asynccontextmanager
async def twins(kind: str, clock: Clock | None = None) -> AsyncIterator[Twins]:
    """A broker of one kind, ``async`` or ``sync``."""
    if kind == "async":
        async with TestBroker(clock=clock) as broker:
            yield Twins(broker, is_sync=False)
    else:
        sync = SyncTestBroker(clock=clock)
        await asyncio.to_thread(sync.__enter__)
        try:
            yield Twins(sync, is_sync=True)
        finally:
            await asyncio.to_thread(sync.__exit__, None, None, None)
