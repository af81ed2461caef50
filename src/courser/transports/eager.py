"""Run a coroutine on the spot, and make a task of it only if it has to wait.

Most requests never wait: a send at `written` is one write call, a poll finds its data in the kernel's cache. A task for
each would cost more than the request. (Python 3.12 has this as ``eager_start``; the project begins at 3.11.)

Before its first wait such a coroutine is in no task: ``asyncio.timeout`` and ``TaskGroup`` cannot be entered there.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def start(work: Coroutine[Any, Any, Result], done: Callable[[Result], None]) -> "asyncio.Task[Result] | None":
    """Run it. If it ends without waiting, ``done`` gets its result and None is returned; otherwise a task is.

    In the second case the caller asks the task for its end. What the coroutine raises on the spot is raised here.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as stop:
        done(stop.value)
        return None
    return asyncio.get_running_loop().create_task(_finish(work, waits_for))


async def _finish(work: Coroutine[Any, Any, Result], waits_for: Any) -> Result:
    return await _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, Result], waits_for: Any) -> Generator[Any, Any, Result]:
    """What is left of a coroutine that waits for its first future."""
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
