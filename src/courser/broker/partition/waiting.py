"""How work waits on the event loop: attempts, an entrance, work in the background, waits for messages, long walks.

An attempt gives its result at once, or says what it waits for.

Most requests never wait: a send at ``written`` is one write call, a poll finds its data in the kernel's cache. A task
for each would cost more than the request. So everything on the path of a request first tries, on the spot, and returns
its result. If it has to wait after all, it returns a ``Waiting``; whoever answers the client adds a callback to it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from types import coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Other = TypeVar("Other")
PAST_EVERY_OFFSET = 2**64
_STEP_COUNT_MAX = 200
"""Partitions and segments that are looked at without a pause: up to 10 us each."""

Pause = Callable[[], Awaitable[None]]


class Waiting(Generic[Result]):
    """What has to be done before a result may be used. Thousands of sends may wait for one sync: this is cheap."""

    __slots__ = ("_convert", "_explain", "_value", "future")

    def __init__(self, future: asyncio.Future[Any], value: Any = None) -> None:
        """``value`` is the result if it is known already, else the future gives it."""
        self.future = future
        self._value = value
        self._convert: Callable[[Any], Result] | None = None
        self._explain: Callable[[BaseException], Exception] | None = None

    def then(
        self, convert: Callable[[Result], Other], explain: Callable[[BaseException], Exception]
    ) -> "Waiting[Other]":
        """This wait with the result converted; ``explain`` turns a failure into the error that the caller gets."""
        assert self._convert is None, "a result is converted once"
        waiting: Waiting[Other] = Waiting(self.future, self._value)
        waiting._convert, waiting._explain = convert, explain
        return waiting

    def result(self) -> Result:
        """The result, once the future is done. Raises what went wrong."""
        error = self.future.exception()
        if error is not None:
            try:
                raise error if self._explain is None else self._explain(error)
            finally:
                # Otherwise the error and this frame refer to each other, and what was read stays in memory with them.
                del error
        value = self.future.result() if self._value is None else self._value
        result: Result = value if self._convert is None else self._convert(value)
        return result

    def cancel(self) -> None:
        """End a wait that nobody needs any more, with the work that is done for it alone.

        In the next turn of the event loop: a task that has not begun would not clean up.
        """
        asyncio.get_running_loop().call_soon(self.future.cancel)

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for it. Cancelling the wait cancels work that is done for it alone, and nothing that others share."""
        if isinstance(self.future, asyncio.Task):
            # ``result`` raises the failure, explained.
            with contextlib.suppress(Exception):
                yield from self.future.__await__()
        while not self.future.done():
            yield from asyncio.wait((self.future,)).__await__()
        return self.result()


def attempt(work: Coroutine[Any, Any, Result]) -> Result | Waiting[Result]:
    """Run a coroutine up to its first wait. Its result if there is none, else the rest goes on in a task.

    Python 3.12 has this as ``eager_start``; the project begins at 3.11. Before its first wait the coroutine is in no
    task: it cannot enter ``asyncio.timeout`` or a ``TaskGroup`` there.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    return Waiting(asyncio.get_running_loop().create_task(_rest_of(work, waits_for)))


async def _rest_of(work: Coroutine[Any, Any, Result], waits_for: object) -> Result:
    return await _resumed(work, waits_for)


@coroutine
def _resumed(work: Coroutine[Any, Any, Result], waits_for: object) -> Generator[Any, Any, Result]:
    """A coroutine whose first step gave ``waits_for``."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - a cancellation, for instance: it belongs to the coroutine
            try:
                waits_for = work.throw(error)
            except StopIteration as stop:
                result: Result = stop.value
                return result
        else:
            return (yield from work.__await__())


class Entrance:
    """Requests that wait before they take effect, for whoever has to wait until they have."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Around the wait of one request."""
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(left)
        try:
            yield
        finally:
            self._waiting.discard(left)
            left.set_result(None)

    async def settle(self) -> None:
        """Wait until every request that waits now has taken effect or has failed."""
        if self._waiting:
            await asyncio.wait(tuple(self._waiting))


class Background:
    """Work that continues even if the client that requested it disconnects: the running tasks of one owner.

    The owner waits for them before it closes. Used on one event loop.
    """

    def __init__(self) -> None:
        # The loop itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Run a coroutine in a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def shielded(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for its result. Cancelling the wait does not cancel the work."""
        return await asyncio.shield(self.start(work))

    async def idle(self) -> None:
        """Wait until no task is running, including those that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class WaitingReaders:
    """The readers that wait for messages of one partition, woken once for all sends of a turn of the event loop.

    Args:
        visible_end: the offset after the last readable message; ``PAST_EVERY_OFFSET`` if none will follow.
    """

    __slots__ = ("_is_announcing", "_visible_end", "waiting")

    def __init__(self, visible_end: Callable[[], int]) -> None:
        self.waiting: dict[asyncio.Future[bool], int] = {}
        """The offset that each client waits for. Whoever appends calls ``announce_soon`` unless this is empty."""
        self._visible_end = visible_end
        self._is_announcing = False
        """Whether they will be woken in the next turn of the event loop."""

    def wait_for(self, woken: asyncio.Future[bool], offset: int) -> None:
        """Set ``woken`` to True once there is a message at ``offset``, or there can never be one."""
        self.waiting[woken] = offset

    def stop_waiting(self, woken: asyncio.Future[bool]) -> None:
        """Forget a future passed to ``wait_for``. Can be repeated."""
        self.waiting.pop(woken, None)

    def announce_soon(self) -> None:
        """Wake waiting clients in the next turn of the loop: once for all sends of this turn, after their replies."""
        if not self._is_announcing:
            self._is_announcing = True
            asyncio.get_running_loop().call_soon(self.announce)

    def announce(self) -> None:
        """Wake the clients that have something to read.

        Those that wait for later offsets are not woken: that would cost a hundred times as much as this check.
        """
        self._is_announcing = False
        end_offset = self._visible_end()
        for woken in [woken for woken, offset in self.waiting.items() if offset < end_offset]:
            del self.waiting[woken]
            if not woken.done():
                woken.set_result(True)


async def let_others_run() -> None:
    """Continue in the next turn of the event loop."""
    await asyncio.sleep(0)


class Steps:
    """Counts what a walk over much that is in memory looks at, and pauses, so that no client waits for all of it."""

    def __init__(self, pause: Pause = let_others_run, count_max: int = _STEP_COUNT_MAX) -> None:
        self._pause = pause
        self._count_max = count_max
        self._count = 0

    async def take(self, count: int = 1) -> None:
        """Before the next ``count`` are looked at: pause if they would be too many without one."""
        if self._count and self._count + count > self._count_max:
            self._count = 0
            await self._pause()
        self._count += count

    @property
    def count_max(self) -> int:
        """How many are looked at without a pause."""
        return self._count_max
