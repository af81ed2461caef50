"""Signals: the first SIGTERM or SIGINT asks for a clean stop, the second ends the process at once.

The default of almost every other signal is to end the process on the spot. None of them may do that to a server by
accident: what says that the machine or the process is about to end asks for a clean stop too, and the rest is ignored.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)

_FATAL_SIGNAL_BASE = 128


def _present(*names: str) -> tuple[int, ...]:
    """The numbers of those signals that this system has."""
    return tuple(int(getattr(signal, name)) for name in names if hasattr(signal, name))


STOP_SIGNALS = _present("SIGTERM", "SIGINT", "SIGQUIT", "SIGPWR", "SIGXCPU")
"""A clean stop: asked for by a person or a supervisor, by a failing power supply, by a limit of processor time."""
IGNORED_SIGNALS = (
    *_present("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGSTKFLT"),
    *range(*(_present("SIGRTMIN", "SIGRTMAX") or (0, 0))),
    *_present("SIGRTMAX"),
)
"""These mean nothing to the server. SIGPIPE and SIGXFSZ are not among them: Python ignores them by itself. Neither are
those of a crash (SIGSEGV, SIGABRT): a process that goes on after one may write anything."""


class Signals:
    """The process's signals, for as long as a server runs. On the main thread."""

    def __init__(self, *, on_hang_up: Callable[[], None], exit_at_once: Callable[[int], None] = os._exit) -> None:
        self.stop = asyncio.Event()
        """Set by the first signal."""
        self._exit_at_once = exit_at_once
        self._loop = asyncio.get_running_loop()
        self._taken: list[int] = []
        self._reported: set[int] = set()
        self._take(STOP_SIGNALS, self._on_stop)
        self._take([signal.SIGHUP], lambda _number: on_hang_up())
        # Whoever profiles or debugs this process may have installed a handler before: it is left alone.
        self._take([number for number in IGNORED_SIGNALS if _ends_the_process(number)], self._on_ignored)

    def _take(self, numbers: Iterable[int], handler: Callable[[int], None]) -> None:
        for number in numbers:
            self._loop.add_signal_handler(number, handler, number)
            self._taken.append(number)

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            # What was acknowledged is with the kernel or on the disk: nothing of it needs this process any more.
            self._exit_at_once(_FATAL_SIGNAL_BASE + number)
        _log.info("%s: stopping; a second one ends the process at once", _name(number))
        self.stop.set()

    def _on_ignored(self, number: int) -> None:
        # Once each: whoever sends them many times a second must not fill the log.
        if number not in self._reported:
            self._reported.add(number)
            _log.warning("%s ignored: it means nothing to this server, and is not logged again", _name(number))

    def close(self) -> None:
        """Leave the signals alone again."""
        for number in self._taken:
            self._loop.remove_signal_handler(number)


def _ends_the_process(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
