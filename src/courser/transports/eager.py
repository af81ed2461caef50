"""A coroutine that was begun on the spot, and has to be waited for after all.

Most requests never wait: a send at `written` is one write call, a poll finds its data in the kernel's cache. A task for
each would cost more than the request. So a coroutine is stepped by hand first, and what is left goes into a task only
if there is something left. (Python 3.12 has this as ``eager_start``; the project begins at 3.11.)

Before its first wait such a coroutine is in no task: ``asyncio.timeout`` and ``TaskGroup`` cannot be entered there.
"""

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


@coroutine
def rest_of(work: Coroutine[Any, Any, Result], waits_for: object) -> Generator[Any, Any, Result]:
    """What is left of a coroutine whose first step gave ``waits_for``."""
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
