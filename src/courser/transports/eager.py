"""A coroutine whose first step ran at once and that has to be awaited after all.

Most requests never wait: a send at `written` is one write call, a poll finds its data in the kernel's cache. A task for
each would cost more than the request. So the first step of a coroutine runs by hand, and only the rest, if any, goes
into a task. (Python 3.12 has this as ``eager_start``; the project supports 3.11.)

Before its first await such a coroutine is not in a task: it cannot use ``asyncio.timeout`` or ``TaskGroup`` there.
"""

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


@coroutine
def rest_of(work: Coroutine[Any, Any, Result], waits_for: object) -> Generator[Any, Any, Result]:
    """The rest of a coroutine whose first step yielded ``waits_for``."""
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
