"""Signals: the first SIGTERM or SIGINT asks for a clean stop, the second ends the process at once."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

_log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FATAL_SIGNAL_BASE = 128


class Signals:
    """The process's signals, for as long as a server runs. On the main thread."""

    def __init__(self, *, on_hang_up: Callable[[], None], exit_at_once: Callable[[int], None] = os._exit) -> None:
        self.stop = asyncio.Event()
        """Set by the first signal."""
        self._exit_at_once = exit_at_once
        self._loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._on_stop, number)
        self._loop.add_signal_handler(signal.SIGHUP, on_hang_up)

    def _on_stop(self, number: int) -> None:
        if self.stop.is_set():
            # What was acknowledged is with the kernel or on the disk: nothing of it needs this process any more.
            self._exit_at_once(_FATAL_SIGNAL_BASE + number)
        _log.info("%s: stopping; a second one ends the process at once", signal.Signals(number).name)
        self.stop.set()

    def close(self) -> None:
        """Leave the signals alone again."""
        for number in (*_STOP_SIGNALS, signal.SIGHUP):
            self._loop.remove_signal_handler(number)
