"""A private event loop in its own thread, and objects whose methods run on it and block the caller.

The base of the sync client: every call runs a method of the async client, so there is one implementation. Between calls
the loop keeps running heartbeats, linger timers and reconnects.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import wraps
from typing import Any, Self, TypeVar

from courser.errors import ClientClosed

Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=type)
Method = TypeVar("Method", bound=Callable[..., Any])


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


def on_new_loop(make: Callable[[], Awaitable[Result]]) -> tuple[Result, LoopThread]:
    """Create something on an event loop of its own. The loop ends if that fails."""
    thread = LoopThread()

    async def create() -> Result:
        return await make()

    try:
        return thread.call(create()), thread
    except BaseException:
        thread.stop()
        raise


class Blocking:
    """An async object for threads: calls run on its event loop, and return when they are done."""

    def __init__(self, original: Any, thread: LoopThread) -> None:
        self._original = original
        self._thread = thread

    def __enter__(self) -> Self:
        self._thread.call(self._original.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, *reason: object) -> None:
        self._thread.call(self._original.__aexit__(kind, *reason))

    def _on_loop(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Call a plain function on the event loop, and wait for its result."""

        async def call() -> Result:
            return function(*arguments, **named)

        return self._thread.call(call())


def blocking_form(original: type, names: Iterable[str] | None = None) -> Callable[[Kind], Kind]:
    """Give a ``Blocking`` class these methods and properties of the async class; by default all that are public.

    What the class defines itself stays.
    """

    def add(kind: Kind) -> Kind:
        for name in names or (name for name in dir(original) if not name.startswith("_")):
            if name not in vars(kind):
                setattr(kind, name, _blocking(kind, getattr(original, name)))
        return kind

    return add


def with_parameters_of(original: Callable[..., Any]) -> Callable[[Method], Method]:
    """For a method that passes its arguments on: ``help`` shows those of the original, and what this one returns."""

    def add(method: Method) -> Method:
        shown = inspect.signature(original).replace(return_annotation=method.__annotations__["return"])
        method.__wrapped__, method.__signature__ = original, shown  # type: ignore[attr-defined]
        return method

    return add


def _blocking(owner: type, member: Any) -> Any:
    """A method that runs the original on the event loop and returns when it is done; or the original property."""
    if isinstance(member, property):
        return property(_blocking(owner, member.fget))
    is_async = inspect.iscoroutinefunction(member)

    @wraps(member)
    def call(self: Blocking, /, *arguments: Any, **named: Any) -> Any:
        done = member(self._original, *arguments, **named)
        return self._thread.call(done) if is_async else done

    call.__qualname__ = f"{owner.__name__}.{member.__name__}"
    return call
