"""What the log asks of a store, as values: who carries requests out, in which order and when, is not the log's concern.

A thread carries them out at once (``perform``, ``run``). A simulation carries them out late, twice or never.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from courser.archive.errors import ArchiveFailure, ArchiveInterrupted, ObjectMissing
from courser.archive.store import Store

RETRY_PAUSE = 100_000
"""Microseconds between two attempts, while a store does not answer or has not decided."""


@dataclass(frozen=True, slots=True)
class Put:
    """Create an object. Answer: whether the store says that it was created now."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Read an object, or its first bytes. Answer: the bytes; None if there is no such object."""

    key: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class ListKeys:
    """List the keys below a prefix. New ones may be missing. Answer: the keys."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next request. Answer: None."""

    microseconds: int


StoreRequest = Put | Read | ListKeys
Request = StoreRequest | Pause
Answer = bool | bytes | tuple[str, ...] | ArchiveFailure | None
"""A failure means that nothing is known: what was asked for may have been done, or be done later."""
Result = TypeVar("Result")
Steps = Generator[Request, Answer, Result]
"""A procedure that asks for one thing after another."""


def perform(store: Store, request: StoreRequest) -> Answer:
    """Ask a store. Raises ``ArchiveInterrupted`` if the process stops."""
    try:
        match request:
            case Put(key, data):
                return store.put_new(key, data)
            case Read(key, size):
                return store.read(key) if size is None else bytes(store.read_range(key, 0, size))
            case ListKeys(prefix):
                return tuple(found.key for found in store.list_objects(prefix))
    except ObjectMissing:
        return None
    except ArchiveInterrupted:
        raise
    except ArchiveFailure as failure:
        return failure


def run(steps: Steps[Result], ask: Callable[[StoreRequest], Answer], pause: Callable[[int], None]) -> Result:
    """Carry a procedure out on this thread. ``pause`` waits for microseconds, and may raise to end it."""
    answer: Answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        if isinstance(request, Pause):
            pause(request.microseconds)
            answer = None
        else:
            answer = ask(request)


def read(key: str, size: int | None = None) -> Steps[bytes | None]:
    """Read an object, however long the store takes to answer; None if there is none."""
    while True:
        answer = yield Read(key, size)
        if answer is None or isinstance(answer, bytes):
            return answer
        yield Pause(RETRY_PAUSE)


def list_keys(prefix: str) -> Steps[tuple[str, ...]]:
    """List keys, however long the store takes to answer."""
    while True:
        answer = yield ListKeys(prefix)
        if isinstance(answer, tuple):
            return answer
        yield Pause(RETRY_PAUSE)
