"""The worker processes of a run: started, told, listened to, and ended by their own ids."""

import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

from courser.bench.channel import (
    Done,
    Failed,
    Finish,
    Ready,
    ToConductor,
    ToWorker,
    WorkerFailed,
    WorkerProgress,
    WorkerSetup,
    error_of,
    put,
    take,
    to_conductor_decoder,
)

_COMMAND = (sys.executable, "-P", "-m", "courser.bench.worker")
_PATIENCE = 30.0
"""Seconds that a worker may take to go home: a moment, unless the machine has more to do than it can."""
_ERROR_SIZE_MAX = 4096
_STEP = 1.0


class _WorkerProcess:
    """One process."""

    def __init__(self, number: int, events: "queue.Queue[tuple[int, ToConductor | None]]") -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        # In a session of its own: Ctrl-C is for the conductor, who then sends everybody home.
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._number = number
        self._listener = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self._listener.start()

    def _listen(self, events: "queue.Queue[tuple[int, ToConductor | None]]") -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            while (frame := take(answers)) is not None:
                events.put((self._number, to_conductor_decoder.decode(frame)))
        events.put((self._number, None))

    def tell(self, message: ToWorker) -> None:
        assert self._process.stdin is not None
        try:
            put(self._process.stdin, message)
        except BrokenPipeError as error:
            raise self.collapse() from error

    def collapse(self) -> WorkerFailed:
        """It ended without a word."""
        code = self._process.wait(_PATIENCE)
        self._errors.seek(0, 2)
        self._errors.seek(max(self._errors.tell() - _ERROR_SIZE_MAX, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return WorkerFailed(f"a worker exited with status {code}" + (f": {lines[-1]}" if lines else ""))

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None
        try:
            if process.poll() is None:
                put(process.stdin, Finish())
                process.wait(_PATIENCE)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            self._listener.join()
            self._errors.close()


class Crew:
    """All of them, as a context manager: nobody is left behind."""

    def __init__(self, jobs: list[WorkerSetup]) -> None:
        self._jobs = jobs
        self._events: queue.Queue[tuple[int, ToConductor | None]] = queue.Queue()
        self._members: list[_WorkerProcess] = []

    def __enter__(self) -> Self:
        try:
            for number, job in enumerate(self._jobs):
                member = _WorkerProcess(number, self._events)
                self._members.append(member)
                member.tell(job)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for member in self._members:
            member.close()

    def tell(self, message: ToWorker) -> None:
        """Tell all of them."""
        for member in self._members:
            member.tell(message)

    def wait_until_ready(self) -> None:
        """Until each has done its step. Raises ``CourserError``."""
        missing = len(self._members)
        for _, message in self.events(None):
            if isinstance(message, Ready):
                missing -= 1
                if not missing:
                    return

    def events(self, timeout: float | None) -> Iterator[tuple[int, Ready | WorkerProgress | Done]]:
        """What they say, by the number of the worker. Ends if nobody says anything for so many seconds.

        Raises:
            CourserError: one of them failed.
        """
        silence = 0.0
        while timeout is None or silence < timeout:
            try:
                # Second by second: a machine that slept for an hour has not been silent for an hour.
                number, message = self._events.get(timeout=_STEP)
            except queue.Empty:
                silence += _STEP
                continue
            silence = 0.0
            if message is None:
                raise self._members[number].collapse()
            if isinstance(message, Failed):
                raise error_of(message)
            yield number, message
