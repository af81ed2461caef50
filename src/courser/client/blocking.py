"""A private event loop in its own thread, and calls into it from other threads.

The base of the sync client: every call runs a method of the async client, so there is one implementation. Between calls
the loop keeps running heartbeats, linger timers and reconnects.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from courser.errors import ClientClosed

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
Inner = TypeVar("Inner")
Original_co = TypeVar("Original_co", covariant=True)


class LoopThread:
    """An event loop that runs until it is stopped."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="courser-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for it. An interrupt of the caller cancels it."""
        if self.loop.is_closed():
            work.close()
            raise ClientClosed("the client is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a sync client cannot be used on its own event loop")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run a coroutine on the loop without waiting for it."""
        if self.loop.is_closed():
            work.close()
            raise ClientClosed("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Stop the loop and its thread. May be called more than once."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class Blocking(Protocol[Original_co]):
    """A sync twin: the async original, and the loop on which it runs.

    The attributes are read-only, so a twin of a subclass is accepted where a twin of its base is expected.
    """

    @property
    def _original(self) -> Original_co: ...

    @property
    def _thread(self) -> LoopThread: ...


def blocking(
    method: Callable[Concatenate[Inner, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Blocking[Inner], Parameters], Result]:
    """The same method for a sync twin. It returns when the original is done."""

    @wraps(method)
    def call(self: Blocking[Inner], /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        return self._thread.call(method(self._original, *arguments, **named))

    return call
