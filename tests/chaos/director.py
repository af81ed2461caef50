"""Plays the episodes of a plan: lets clients work, makes trouble, ends the server, starts it again, judges."""

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from courser.api import commands as c
from courser.errors import CourserError
from courser.model.permissions import ALL_PERMISSIONS
from courser.records.classic import Dialect
from tests.chaos.history import DestructionKind, History, Operation, Violation
from tests.chaos.history import Path as Place
from tests.chaos.judging import Judge
from tests.chaos.measuring import Measurement, Pulse, Strangers
from tests.chaos.plan import MEASURED_SHARE, Attack, End, Episode, Trouble, draw
from tests.chaos.sandbox import ArchiveRefused, Sandbox
from tests.chaos.sdk_workers import SDK_STREAM, SdkProducers
from tests.chaos.speakers import ClassicSpeaker, OwnSpeaker
from tests.chaos.stager import Stager
from tests.chaos.workers import STREAMS, Book, Gate, Operator, Reader, Registrar, Sender, Worker
from tests.servers import ROOT_NAME, ROOT_PASSWORD
from tests.torture.process import until

PULSE_STREAM = "pulse"
USERS = {"maria": "password of maria", "tom": "password of tom"}
"""Users with all rights."""
NOBODY, NOBODY_PASSWORD = "nobody", "password of nobody"
"""A user without any."""
USED_SHARE_MAX = 0.5
"""How full the small disks may be before everything is purged, or what is not needed removed from the archive."""
STOP_SECONDS_MAX = 60.0
"""How long a stop may take on a busy machine, whatever is wrong."""
HEALTH_PATIENCE = 10.0
"""Seconds within which a server with a silent process says how it is. On a quiet machine it is one."""
START_PATIENCE = 120.0
"""Seconds until a well server has acknowledged a message."""
_SENT = "send done"
_SIGNS_OF_DEFECTS = ("Traceback (most recent call last)", "defect")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What a run is told."""

    seed: int
    seconds: float
    directory: Path
    with_disk: bool
    releases: tuple[str, ...]
    """Of the official SDK."""
    troubles: tuple[Trouble, ...] = tuple(Trouble)
    attacks: tuple[Attack, ...] = tuple(Attack)
    with_purges: bool = True
    with_measurements: bool = True
    with_archive: bool = True
    episode_count: int | None = None
    """At most so many; None: as many as there is time for."""


@dataclass
class Report:
    """What came of it."""

    episode_count: int = 0
    message_count: int = 0
    restore_count: int = 0
    answer_counts: dict[str, int] = field(default_factory=dict)
    measurement: Measurement = field(default_factory=Measurement)
    violations: list[Violation] = field(default_factory=list)
    story: list[str] = field(default_factory=list)


class StartFailed(Exception):
    """A server that should start does not."""


class Director:
    """One run."""

    def __init__(self, options: Options, say: Say) -> None:
        self._options = options
        self._say = say
        self._book = Book()
        self._gate = Gate()
        self._sandbox = Sandbox(options.directory, with_disk=options.with_disk, with_archive=options.with_archive)
        self._workers: list[Worker] = []
        self._pause = threading.Event()
        self.report = Report()

    def run(self) -> Report:
        """From the first start to the last judgement, or to the first broken promise."""
        report, history = self.report, self._book.history
        with ExitStack() as stack:
            stack.enter_context(self._sandbox)
            self._must_start()
            self._prepare()
            stack.callback(self._dismiss)
            stack.callback(self._gate.finish)
            self._hire()
            sdk = stack.enter_context(SdkProducers(self._options.releases, self._sandbox.server.address, self._book))
            try:
                self._play_all(sdk)
                if not history.violations:
                    self._finish()
            except (StartFailed, ArchiveRefused, CourserError, subprocess.TimeoutExpired) as failure:
                history.complain("unavailable", (), f"{type(failure).__name__}: {failure}")
            report.violations = history.violations + report.measurement.violations()
            report.answer_counts = dict(sorted(self._book.answer_counts.items()))
            if report.violations:
                report.story = self._tell_story(history.violations)
                self._sandbox.keep_evidence(self._options.directory / "evidence")
        return report

    def _play_all(self, sdk: SdkProducers) -> None:
        deadline = time.monotonic() + self._options.seconds
        options = self._options
        share = MEASURED_SHARE if options.with_measurements else 0.0
        for episode in draw(options.seed, troubles=options.troubles, attacks=options.attacks, measured_share=share):
            if time.monotonic() > deadline or episode.number == options.episode_count:
                return
            self._say(f"{self._time_left(deadline):4.0f} s left, episode {episode.number}: {episode}")
            self._play(episode, sdk)
            self.report.episode_count += 1
            if self._book.history.violations:
                return

    @staticmethod
    def _time_left(deadline: float) -> float:
        return max(0.0, deadline - time.monotonic())

    # --- the cast -------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with self._root() as root:
            client = root.client()
            for name, password in USERS.items():
                client.create_user(name, password, permissions=ALL_PERMISSIONS)
            client.create_user(NOBODY, NOBODY_PASSWORD)
            client.create_stream(PULSE_STREAM)
            client.create_topic(PULSE_STREAM, "t", 1)

    def _hire(self) -> None:
        seed, book, gate = self._options.seed, self._book, self._gate
        operator = partial(Operator, with_purges=self._options.with_purges)
        self._workers = [
            operator("operator-0.9", seed, book, gate, self._own("maria"), STREAMS[0]),
            operator("operator-0.8", seed, book, gate, self._classic("tom", Dialect.SDK_0_8), STREAMS[1]),
            Registrar("registrar", seed, book, gate, self._root()),
            Sender("sender-0.9", seed, book, gate, self._own("tom")),
            Sender("sender-0.8", seed, book, gate, self._classic("maria", Dialect.SDK_0_8)),
            Sender("sender-0.5", seed, book, gate, self._classic("tom", Dialect.SDK_0_5)),
            Reader("reader-1", seed, book, gate, self._own("maria"), 1),
            Reader("reader-2", seed, book, gate, self._own("tom"), 2),
            Stager("stager", seed, book, gate, self._own("maria")),
        ]
        for worker in self._workers:
            worker.start()

    def _dismiss(self) -> None:
        for worker in self._workers:
            worker.join()

    def _own(self, user: str) -> OwnSpeaker:
        return OwnSpeaker(self._sandbox.server.address, user, USERS[user])

    def _root(self) -> OwnSpeaker:
        return OwnSpeaker(self._sandbox.server.address, ROOT_NAME, ROOT_PASSWORD)

    def _classic(self, user: str, dialect: Dialect) -> ClassicSpeaker:
        return ClassicSpeaker(self._sandbox.server.port, user, USERS[user], dialect)

    # --- an episode -----------------------------------------------------------------------------------

    def _play(self, episode: Episode, sdk: SdkProducers) -> None:
        source = random.Random(episode.seed)
        self._use_processes(episode.process_count)
        sdk.begin(episode.number)
        self._gate.open()
        self._wait_for_work()
        with ExitStack() as strangers:
            for moment, act in self._timeline(episode, source, strangers):
                self._pause.wait(max(0.0, moment - time.monotonic()))
                act()
        if busy := self._gate.close():
            self._complain("silent", f"requests of {sorted(busy)} got no answer in time")
        self._check_workers()
        if episode.heals_first:
            self._heal()
        is_complete = episode.is_well and episode.end is End.STOP
        if is_complete:
            # Otherwise they go on after the stop: what they send then is not in the archive.
            sdk.end()
        self._end(episode.end, is_well=episode.is_well)
        if is_complete:
            self._judge_restored()
        if not episode.heals_first:
            # The trouble meets the start, too. It may refuse; what it does, it must do right.
            if self._sandbox.start() is None:
                self._end(End.KILL)
            self._heal()
        self._must_start()
        sdk.end()
        self._judge()
        if episode.is_restored and not self._book.history.violations:
            self._end(End.STOP, is_well=True)
            self._judge_restored()
            self._must_start()
        if not self._book.history.violations:
            self._tidy_up()
            if episode.is_measured and episode.attack is not None:
                self._measure(episode.attack, episode.seed)

    def _wait_for_work(self) -> None:
        """Trouble begins when a message was acknowledged: on a busy machine, that may take a while."""
        before = self._book.count_of(_SENT)
        until(
            lambda: self._book.count_of(_SENT) > before or self._has_failed, "the first acknowledgement", START_PATIENCE
        )

    @property
    def _has_failed(self) -> bool:
        return any(worker.failure is not None for worker in self._workers)

    def _use_processes(self, count: int) -> None:
        """The server may have another number of processes after each start."""
        if count != self._sandbox.process_count:
            self._end(End.STOP, is_well=True)
            self._sandbox.process_count = count
            self._must_start()

    def _finish(self) -> None:
        """Nothing is wrong any more, and the server stops: its archive has everything."""
        self._end(End.STOP, is_well=True)
        self._judge_restored()

    def _timeline(
        self, episode: Episode, source: random.Random, strangers: ExitStack
    ) -> Iterable[tuple[float, Callable[[], None]]]:
        """What happens when, in order."""
        began, seconds = time.monotonic(), episode.seconds
        acts: list[tuple[float, Callable[[], None]]] = [(began + seconds, lambda: None)]
        for trouble in episode.troubles:
            moment = began + source.uniform(0.05, 0.4) * seconds
            if trouble is Trouble.FREEZE:
                acts.append((moment, self._sandbox.server.freeze))
                acts.append((moment + source.uniform(0.3, 1.5), self._sandbox.server.thaw))
            elif trouble is Trouble.STOPPED:
                acts.append((moment, partial(self._stop_and_start, is_well=episode.is_well)))
            elif trouble is Trouble.ARCHIVE_GONE:
                acts.append((moment, self._making(trouble, random.Random(source.getrandbits(32)))))
                if source.random() < 0.5:
                    acts.append((moment + source.uniform(0.3, 3.0), self._bring_archive_back))
            elif trouble is Trouble.FROZEN_PROCESS:
                acts.append((moment, self._making(trouble, random.Random(source.getrandbits(32)))))
                acts.append((moment + 0.1, self._check_health))
                if source.random() < 0.5:
                    acts.append((moment + source.uniform(0.3, 3.0), self._sandbox.thaw_processes))
            elif trouble is Trouble.KILLED_PROCESS:
                for _ in range(source.choice((1, 1, 2, 3))):
                    moment = began + source.uniform(0.05, 1.0) * seconds
                    acts.append((moment, self._making(trouble, random.Random(source.getrandbits(32)))))
            elif trouble is Trouble.STRANGERS:
                if episode.attack is not None:
                    acts.append((moment, self._letting_in(strangers, episode.attack, source.getrandbits(32))))
            else:
                acts.append((moment, self._making(trouble, random.Random(source.getrandbits(32)))))
        kills = [began + source.uniform(0.2, 0.95) * seconds for _ in range(episode.kill_count)]
        acts += [(moment, self._kill_and_start) for moment in kills]
        return sorted(acts, key=lambda act: act[0])

    def _making(self, trouble: Trouble, source: random.Random) -> Callable[[], None]:
        def make() -> None:
            self._sandbox.make(trouble, source)
            if trouble in (Trouble.CLOCK_AHEAD, Trouble.CLOCK_BEHIND):
                self._note_clock_set()

        return make

    def _heal(self) -> None:
        if self._sandbox.is_clock_set:
            self._note_clock_set()
        self._check_misplaced(self._sandbox.heal())

    def _bring_archive_back(self) -> None:
        if self._sandbox.archive is not None:
            self._check_misplaced(self._sandbox.archive.bring_back())

    def _check_misplaced(self, files: list[str]) -> None:
        if files:
            self._complain("misplaced", f"written where the archive was, while it was away: {files[:5]}")

    def _check_health(self) -> None:
        """Whoever watches the server learns how it is, also if a process is silent."""
        for path in ("/health/ready", "/metrics"):
            if self._sandbox.is_running and (failure := self._sandbox.ask_health(path, HEALTH_PATIENCE)):
                self._complain("silent", f"{path}: {failure}")

    def _note_clock_set(self) -> None:
        with self._book.lock:
            self._book.history.clock_set()

    def _letting_in(self, stack: ExitStack, attack: Attack, seed: int) -> Callable[[], None]:
        def let_in() -> None:
            stack.enter_context(self._strangers(attack, seed))

        return let_in

    def _strangers(self, attack: Attack, seed: int) -> Strangers:
        return Strangers(attack, self._sandbox.server.port, seed, (NOBODY, NOBODY_PASSWORD))

    def _kill_and_start(self) -> None:
        self._end(End.KILL)
        if self._sandbox.start() is not None:
            self._heal()
            self._must_start()

    def _stop_and_start(self, *, is_well: bool) -> None:
        self._end(End.STOP, is_well=is_well)
        if self._sandbox.start() is not None:
            self._heal()
            self._must_start()

    def _end(self, end: End, *, is_well: bool = False) -> None:
        server = self._sandbox.server
        if not self._sandbox.is_running:
            self._complain("died", f"the server ended by itself with {server.process.returncode}")
        elif end is End.KILL:
            self._sandbox.kill()
        else:
            server.thaw()
            code, seconds = self._sandbox.stop()
            if is_well and code:
                self._complain("unclean", f"a stop without any trouble ended with {code}")
            if seconds > STOP_SECONDS_MAX:
                self._complain("slow stop", f"a stop took {seconds:.1f} s")
        with self._book.lock:
            self._book.history.server_ended()
        for line in self._sandbox.new_output().splitlines():
            if any(sign in line for sign in _SIGNS_OF_DEFECTS):
                self._complain("defect", f"the server's log says: {line}")

    def _must_start(self) -> None:
        refusal = self._sandbox.start()
        if refusal is not None:
            raise StartFailed(refusal.reason)

    def _check_workers(self) -> None:
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure

    # --- between two episodes -------------------------------------------------------------------------

    def _judge(self) -> None:
        with self._book.lock:
            address, ignored = self._sandbox.server.address, frozenset({PULSE_STREAM})
            judge = Judge(self._book.history, address, ignored_streams=ignored)
            judge.judge()
        self.report.message_count += judge.message_count

    def _judge_restored(self) -> None:
        """What a stopped server's archive brings back is everything."""
        if not self._options.with_archive:
            return
        with self._sandbox.restore() as restored, self._book.lock:
            history = self._book.history
            Judge(history, restored.address, ignored_streams=frozenset({PULSE_STREAM}), where="restored").judge()
        self.report.restore_count += 1

    def _tidy_up(self) -> None:
        """Purge everything before the disk is full for good."""
        if self._sandbox.archive_used_share > USED_SHARE_MAX:
            self._sandbox.prune_archive()
        if self._sandbox.used_share < USED_SHARE_MAX:
            return
        with self._root() as root:
            for stream in (*STREAMS, SDK_STREAM):
                declare = partial(_declare_purge, (stream,))
                operation = self._book.begin("director", "purge stream", (stream,), declare)
                self._book.end(operation, root.ask(c.PurgeStream(stream)))

    def _measure(self, attack: Attack, seed: int) -> None:
        with Pulse(self._sandbox.server.port, PULSE_STREAM) as pulse:
            for turn in range(2):
                pulse.wait_for_calm()
                self.report.measurement.add(None, pulse.measure())
                with self._strangers(attack, seed + turn) as strangers:
                    strangers.wait_until_at_work()
                    self.report.measurement.add(attack, pulse.measure())

    def _complain(self, kind: str, text: str) -> None:
        with self._book.lock:
            self._book.history.complain(kind, (), text)

    def _tell_story(self, violations: list[Violation]) -> list[str]:
        lines: list[str] = []
        for path in dict.fromkeys(violation.path for violation in violations[:3]):
            lines += [f"--- {'/'.join(map(str, path)) or 'everything'}", *self._book.history.story(path)]
        return lines


def _declare_purge(path: Place, history: History, operation: Operation) -> None:
    history.destroys(operation, path, DestructionKind.PURGE)
