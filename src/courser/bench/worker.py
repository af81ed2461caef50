"""A worker process: runs some of the actors, each on its own thread, for the conductor that started it."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO

from courser.bench.actors import Actor, Reading, open_wire
from courser.bench.channel import (
    Done,
    Failed,
    Finish,
    Join,
    Phase,
    Ready,
    Settle,
    Stop,
    WorkerProgress,
    WorkerSetup,
    failed,
    put,
    take,
    to_worker_decoder,
)
from courser.bench.wires import TopicName
from courser.client.targets import Target
from courser.errors import CourserError

_REPORT_INTERVAL = 0.1
"""Seconds between two progress reports."""


class Worker:
    """Receives commands on one pipe and answers on another. Its actors run meanwhile."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands = commands
        self._answers = answers
        self._lock = threading.Lock()
        """Protects ``_answers``."""
        self._actors: list[Actor] = []
        self._stop = threading.Event()

    def run(self) -> None:
        """Run until the conductor sends ``Finish`` or closes the pipe."""
        while (frame := take(self._commands)) is not None:
            command = to_worker_decoder.decode(frame)
            try:
                match command:
                    case WorkerSetup():
                        self._actors = _hire(command)
                        self._say(Ready())
                    case Join():
                        self._each_reader(Reading.join)
                    case Settle():
                        self._each_reader(Reading.settle)
                    case Phase():
                        self._stop = threading.Event()
                        threading.Thread(target=self._work, args=(command, self._stop), daemon=True).start()
                    case Stop():
                        self._stop.set()
                    case Finish():
                        break
            except CourserError as error:
                self._say(failed(error))
        # Threads that wait for a server must not keep the process alive.
        self._answers.flush()
        os._exit(0)

    def _each_reader(self, action: Callable[[Reading], None]) -> None:
        for actor in self._actors:
            if actor.reading is not None:
                action(actor.reading)
        self._say(Ready())

    def _work(self, phase: Phase, stop: threading.Event) -> None:
        """Run one phase and report its progress."""
        errors: list[CourserError] = []
        threads = [
            threading.Thread(target=_act, args=(actor, phase, stop, errors), daemon=True) for actor in self._actors
        ]
        for actor in self._actors:
            # Reset before the first report, which must not contain figures of the last phase.
            actor.begin(phase)
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not errors:
                thread.join(_REPORT_INTERVAL)
                self._say(self._progress())
        if errors:
            self._say(failed(errors[0]))
            return
        self._say(self._progress())
        self._say(Done([actor.report() for actor in self._actors]))

    def _progress(self) -> WorkerProgress:
        senders = [actor.sending.count if actor.sending is not None else None for actor in self._actors]
        readers = [actor.reading.count for actor in self._actors if actor.reading is not None]
        return WorkerProgress(
            # Evaluated first: if it is False, the counts below are complete.
            are_producing=any(actor.is_sending for actor in self._actors),
            sent=[0 if sent is None else sent.messages for sent in senders],
            sent_size=sum(sent.size for sent in senders if sent is not None),
            received=sum(read.messages for read in readers),
            received_size=sum(read.size for read in readers),
        )

    def _say(self, message: Ready | WorkerProgress | Done | Failed) -> None:
        with self._lock:
            try:
                put(self._answers, message)
            except BrokenPipeError:
                os._exit(1)


def _hire(setup: WorkerSetup) -> list[Actor]:
    """Connect every actor."""
    target = Target(**setup.login.fields)  # type: ignore[arg-type]  # made from the fields of one
    actors = []
    for task in setup.tasks:
        place = TopicName(setup.streams[task.stream], setup.topics[task.topic])
        group = None if task.group is None else setup.groups[task.group]
        wire = open_wire(setup.plan.wire, target)
        actors.append(Actor(wire, task, setup.plan, place, group, is_foreign=setup.is_foreign))
    return actors


def _act(actor: Actor, phase: Phase, stop: threading.Event, errors: list[CourserError]) -> None:
    try:
        actor.run(phase, stop)
    except CourserError as error:
        errors.append(error)


def _die(details: threading.ExceptHookArgs) -> None:
    """End the process if one thread fails: a partial measurement is useless."""
    traceback.print_exception(details.exc_value)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Run the worker process."""
    # Output of other code must not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.excepthook = _die
    Worker(sys.stdin.buffer, answers).run()


if __name__ == "__main__":
    main()
