"""Who keeps the event loop busy, according to the stack of its thread: a command, a task, or a callback.

Nothing here looks at the variables of a frame: that would keep alive what they refer to.
"""

import asyncio
import inspect
import os
import selectors
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType

from courser.handlers.dispatcher import HANDLERS

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_PLACE_COUNT_MAX = 4
"""Innermost functions of ours that a place names."""


class BlameKind(Enum):
    """What kind of work it was."""

    COMMAND = "command"
    """The handler of a command."""
    TASK = "task"
    """A background task, or a task that serves a request."""
    CALLBACK = "callback"
    """A callback of a transport, of a timer, or of a disk job: for example decoding a request."""
    COLLECTION = "garbage collection"
    PROCESSOR = "processor"
    """Not the server: its thread was ready, and the machine ran something else."""
    UNKNOWN = "unknown"
    """It was over before anybody could look."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Who it was. There are only as many kinds and names as the program has commands, tasks and callbacks."""

    kind: BlameKind
    name: str = ""
    place: str = ""
    """The innermost functions of ours, the innermost first."""


def commands_by_code() -> Mapping[CodeType, str]:
    """The name of the command that each handler carries out."""
    return {handler.__code__: command.__name__ for command, handler in HANDLERS.items()}


@dataclass(frozen=True, slots=True)
class WatchedLoop:
    """An event loop and its thread."""

    loop: asyncio.AbstractEventLoop
    thread_id: int
    base: CodeType
    """The function from which callbacks are called. If the loop itself is compiled, that is the one that runs it."""

    @classmethod
    def here(cls) -> "WatchedLoop":
        """The running one. Called in a coroutine."""
        frame = sys._getframe(1)
        while frame.f_code.co_flags & inspect.CO_COROUTINE and frame.f_back is not None:
            frame = frame.f_back
        return cls(asyncio.get_running_loop(), threading.get_ident(), frame.f_code)

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self.thread_id)

    def is_idle(self, frame: FrameType) -> bool:
        """Whether the loop waits for events, judging by its innermost frame."""
        return frame.f_code is self.base or frame.f_globals is vars(selectors)


def blame(watched: WatchedLoop, frame: FrameType, commands: Mapping[CodeType, str]) -> Blame | None:
    """Blame whoever is at work; None if the loop waits for events. ``frame`` is the innermost."""
    if watched.is_idle(frame):
        return None
    frames = list(_callers(watched, frame))
    ours = [one for one in frames if one.f_code.co_filename.startswith(_PACKAGE)]
    place = " < ".join(_place(one) for one in ours[:_PLACE_COUNT_MAX])
    for one in ours:
        if (command := commands.get(one.f_code)) is not None:
            return Blame(BlameKind.COMMAND, command, place)
    if (name := _task_name(watched.loop)) is not None:
        return Blame(BlameKind.TASK, name, place)
    outermost = ours[-1] if ours else frames[-1]
    return Blame(BlameKind.CALLBACK, _name(outermost), place or _place(frame))


def _callers(watched: WatchedLoop, innermost: FrameType) -> Iterator[FrameType]:
    """From the innermost frame to the one that the loop called."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code is not watched.base:
        yield frame
        frame = frame.f_back


def _task_name(loop: asyncio.AbstractEventLoop) -> str | None:
    """The name of the current task. Tasks without a name of their own are known by their function."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    name = task.get_name()
    if not name.startswith("Task-"):
        return name
    return getattr(task.get_coro(), "__qualname__", "task")


def _name(frame: FrameType) -> str:
    return f"{_module(frame.f_code)}.{frame.f_code.co_name}"


def _place(frame: FrameType) -> str:
    return f"{_module(frame.f_code)}.{frame.f_code.co_name}:{frame.f_lineno}"


def _module(code: CodeType) -> str:
    """As people know it: ``broker.partition``, or the name of the file if it is not ours."""
    name = code.co_filename
    path = name.removeprefix(_PACKAGE) if name.startswith(_PACKAGE) else Path(name).name
    return path.removesuffix(".py").replace(os.sep, ".")
