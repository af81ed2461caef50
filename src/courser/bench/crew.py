"""Start the worker processes of a run, exchange messages with them, and stop them."""

import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
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

WORKER_COMMAND = (sys.executable, "-P", "-m", "courser.bench.worker")
_PATIENCE = 30.0
"""Seconds that a worker may take to exit, in case the machine is overloaded."""
_ERROR_SIZE_MAX = 4096
_STEP = 1.0


class _WorkerProcess:
    """One process."""

    def __init__(
        self, number: int, command: Sequence[str], events: "queue.Queue[tuple[int, ToConductor | None]]"
    ) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        # In its own session, so that Ctrl-C reaches only the conductor, which then stops the workers.
        self._process = subprocess.Popen(
            command,
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
        """The error for a worker that exited unexpectedly."""
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
    """All workers, as a context manager that stops them at the end."""

    def __init__(self, jobs: list[WorkerSetup], command: Sequence[str] = WORKER_COMMAND) -> None:
        """``command`` starts a worker."""
        self._jobs = jobs
        self._command = command
        self._events: queue.Queue[tuple[int, ToConductor | None]] = queue.Queue()
        self._members: list[_WorkerProcess] = []

    def __enter__(self) -> Self:
        try:
            for number, job in enumerate(self._jobs):
                member = _WorkerProcess(number, self._command, self._events)
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
        """Send a message to all workers."""
        for member in self._members:
            member.tell(message)

    def wait_until_ready(self) -> None:
        """Wait until all workers have completed their step. Raises ``CourserError``."""
        missing = len(self._members)
        for _, message in self.events(None):
            if isinstance(message, Ready):
                missing -= 1
                if not missing:
                    return

    def events(self, timeout: float | None) -> Iterator[tuple[int, Ready | WorkerProgress | Done]]:
        """Iterate over the messages of the workers and their numbers. Ends after ``timeout`` seconds of silence.

        Raises:
            CourserError: a worker has failed.
        """
        silence = 0.0
        while timeout is None or silence < timeout:
            try:
                # Counted in steps of a second, so that time during which the machine was suspended does not count.
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
