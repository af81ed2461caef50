"""Signals: the first SIGTERM or SIGINT requests a clean stop, the second ends the process at once.

By default almost every other signal kills the process. A server must not die by accident: signals that announce the end
of the machine or the process request a clean stop too, and the rest are ignored.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)

_FATAL_SIGNAL_BASE = 128


def _present(*names: str) -> tuple[int, ...]:
    """The numbers of the given signals that this system has."""
    return tuple(int(getattr(signal, name)) for name in names if hasattr(signal, name))


STOP_SIGNALS = _present("SIGTERM", "SIGINT", "SIGQUIT", "SIGPWR", "SIGXCPU")
"""Signals that request a clean stop: from a person or a supervisor, a failing power supply, a CPU time limit."""
IGNORED_SIGNALS = (
    *_present("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGSTKFLT"),
    *range(*(_present("SIGRTMIN", "SIGRTMAX") or (0, 0))),
    *_present("SIGRTMAX"),
)
"""Signals that the server ignores. SIGPIPE and SIGXFSZ are not listed because Python ignores them already. Crash
signals (SIGSEGV, SIGABRT) are not ignored: a process that continues after one may write anything."""


class Signals:
    """Handles the signals of the process while a server runs. Use it on the main thread."""

    def __init__(self, *, on_hang_up: Callable[[], None], exit_at_once: Callable[[int], None] = os._exit) -> None:
        self.stop = asyncio.Event()
        """Set by the first stop signal."""
        self._exit_at_once = exit_at_once
        self._loop = asyncio.get_running_loop()
        self._taken: list[int] = []
        self._reported: set[int] = set()
        self._take(STOP_SIGNALS, self._on_stop)
        self._take([signal.SIGHUP], lambda _number: on_hang_up())
        # A profiler or debugger may have installed a handler already: leave it alone.
        self._take([number for number in IGNORED_SIGNALS if _ends_the_process(number)], self._on_ignored)

    def _take(self, numbers: Iterable[int], handler: Callable[[int], None]) -> None:
        for number in numbers:
            self._loop.add_signal_handler(number, handler, number)
            self._taken.append(number)

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            # Acknowledged messages are in the page cache or on disk: they do not need this process.
            self._exit_at_once(_FATAL_SIGNAL_BASE + number)
        _log.info("received %s, stopping; a second signal ends the process at once", _name(number))
        self.stop.set()

    def _on_ignored(self, number: int) -> None:
        # Log each signal once: frequent signals must not fill the log.
        if number not in self._reported:
            self._reported.add(number)
            _log.warning("ignoring %s; further signals of this kind are not logged", _name(number))

    def close(self) -> None:
        """Restore the default handling of signals."""
        for number in self._taken:
            self._loop.remove_signal_handler(number)


def _ends_the_process(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
