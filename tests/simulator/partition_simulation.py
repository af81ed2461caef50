"""A server's life on a disk that fails, from one seed: sends, syncs, upkeep, reads, and crashes without end.

The code under test is the real one; the disk and the clock are fake. A *round* is a stop, of whatever kind, and the
start after it. After each start every promise of ``partition_model`` is checked. The same seed gives the same run.
"""

import errno
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from courser.errors import StorageFailure
from courser.records.stored_header import PartitionIdentity
from courser.storage.identity_search import ForeignPartition
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import partition_directory
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import begin_session, check_format, end_session, how_it_stopped, last_known_time
from tests.fakes.files import FakeFileSystem, SimulatedCrash
from tests.simulator.checked_reads import RandomReads, read_everything
from tests.simulator.disk_trouble import (
    RecordingPlan,
    check_nothing_vanished,
    hurt_an_index,
    let_a_batch_rot,
    logs_below,
)
from tests.simulator.partition_model import BrokenPromise, Loss, promise
from tests.simulator.simulated_clock import SimulatedClock
from tests.simulator.simulated_partition import UNKNOWN_TIME, SimulatedPartition
from tests.simulator.small_settings import random_settings

_ROUNDS_PER_SEED = 8
REPEAT_COMMAND = "python -m tests.crash.rounds --rounds 1 --seed {seed}"
_TRACE_LENGTH_MAX = 400
_FAILING = ("sync",) * 4 + (
    "write_at",
    "write_at",
    "sync_directory",
    "truncate",
    "rename",
    "unlink",
    "allocate",
    "open",
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong, and how often: odds per life of a server, or per stop."""

    failing: tuple[str, ...] = _FAILING
    failure_odds: float = 0.2
    misplacement_odds: float = 0.05
    """That a partition's directory is opened in the place of another one."""
    rot_odds: float = 0.08
    index_odds: float = 0.1


class SimulationFailure(AssertionError):
    """A promise was broken, or the code under test raised something it should not."""

    def __init__(self, seed: int, reason: str, trace: list[str]) -> None:
        super().__init__(seed, reason)
        self.seed = seed
        self.reason = reason
        self.trace = trace

    def __str__(self) -> str:
        steps = "\n".join(f"  {line}" for line in self.trace[-_TRACE_LENGTH_MAX:])
        command = REPEAT_COMMAND.format(seed=self.seed)
        return f"seed {self.seed}: {self.reason}\nrun again with: {command}\nwhat happened:\n{steps}\n  {self.reason}"


@dataclass(slots=True)
class Statistics:
    """What was covered."""

    rounds: int = 0
    acknowledged_count: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Statistics") -> None:
        """Take the numbers of another run in."""
        self.rounds += other.rounds
        self.acknowledged_count += other.acknowledged_count
        self.operations.update(other.operations)


class Stop(Enum):
    """How a round ends."""

    KILL = "kill"
    POWER_CUT = "power cut"
    REMOUNT = "remount"
    CLEAN = "clean stop"


_STOPS = (Stop.KILL,) * 7 + (Stop.POWER_CUT,) * 8 + (Stop.REMOUNT,) + (Stop.CLEAN,) * 4
_CRASHES = (Stop.KILL, Stop.POWER_CUT, Stop.POWER_CUT, Stop.REMOUNT)


def simulate(seed: int, trouble: Trouble | None = None) -> Statistics:
    """Run one seed.

    Raises:
        SimulationFailure: with the seed, the reason and everything that happened before.
    """
    simulation = Simulation(seed, trouble or Trouble())
    try:
        simulation.run()
    except BrokenPromise as broken:
        raise SimulationFailure(seed, str(broken), simulation.trace) from broken
    except Exception as error:
        raise SimulationFailure(seed, f"unexpected: {error!r}", simulation.trace) from error
    return simulation.statistics


class Simulation:
    """One data directory with one or two partitions."""

    def __init__(self, seed: int, trouble: Trouble) -> None:
        self._trouble = trouble
        self.trace: list[str] = []
        self.statistics = Statistics()
        self._source = source = random.Random(seed)
        self._file_system = FakeFileSystem(random.Random(source.getrandbits(64)))
        self._clock = SimulatedClock(source, self._note)
        self._data = Path("/data")
        self._file_system.plant_directory(self._data)
        self._reads = RandomReads(source, self._note)
        count = source.choice((1, 1, 2))
        self._partitions = [
            SimulatedPartition(
                PartitionIdentity(source.randbytes(16), number, 7), source, self._clock.manual, self._note
            )
            for number in range(count)
        ]
        self._plan = RecordingPlan()
        self._loss = Loss.NOTHING
        self._has_sync_failed = False
        """Since the last start that succeeded."""
        self._counted_as_crash = False
        """Whether an attempt of the start under way took the stop for a power cut."""
        self._has_failed_names = False
        self._is_rotten = False
        self._is_start_repeated = False
        """Whether the last start was interrupted before it came to its end."""
        self._is_all_durable = True
        """Whether the last stop left nothing that another power cut could take."""
        self._logs_before: dict[Path, bytes] | None = None
        """The logs as they were before the start that is under way, however often it was interrupted."""
        self._were_logs_durable = True

    def run(self) -> None:
        """Live through some rounds."""
        self._start()
        for _ in range(_ROUNDS_PER_SEED):
            self._live()
            was_rotten = self._is_rotten
            self._start()
            self.statistics.rounds += 1
            if was_rotten:
                # A power cut would make rot above the recovery point look like its own work.
                break
        self.statistics.acknowledged_count = sum(partition.model.acknowledged_count for partition in self._partitions)

    def _note(self, name: str, text: str) -> None:
        self.statistics.operations[name] += 1
        self.trace.append(f"{name}: {text}" if text else name)

    def _directory(self, partition: SimulatedPartition) -> Path:
        identity = partition.identity
        return partition_directory(self._data, 1, 1, identity.partition_id, identity.incarnation)

    def _take_plan(self, plan: RecordingPlan) -> None:
        """Follow another plan, after noting what the one before has done."""
        self._has_sync_failed = self._has_sync_failed or self._plan.has_failed_sync
        self._has_failed_names = self._has_failed_names or self._plan.has_failed_names
        self._plan = self._file_system.plan = plan

    # --- starting ---

    def _start(self) -> None:
        """Start, perhaps interrupted several times, and check every promise."""
        stop: StopKind | None = None
        attempts = 0
        while stop is None:
            plan = RecordingPlan()
            if attempts < 3 and not self._is_rotten:
                self._make_trouble(plan, crash_odds=0.3, call_max=20, failure_odds=self._trouble.failure_odds / 5)
            self._take_plan(plan)
            attempts += 1
            try:
                stop = self._recover()
            except SimulatedCrash as crash:
                self._note("crash in recovery", str(crash))
                self._die(self._source.choice(_CRASHES))
            except (StorageFailure, OSError) as failure:
                promise(bool(plan.fired), f"(n) a start failed although the disk did not: {failure!r}")
                self._note("failed start", str(failure))
                self._die(self._source.choice((Stop.KILL, Stop.POWER_CUT)))
        self._take_plan(RecordingPlan())
        self._is_start_repeated = attempts > 1
        for partition in self._partitions:
            self._check(partition, stop)
        self._loss = Loss.NOTHING
        self._has_sync_failed = self._is_rotten = self._counted_as_crash = False
        self._logs_before = None

    def _recover(self) -> StopKind:
        file_system = self._file_system
        check_format(file_system, self._data)
        stop = how_it_stopped(file_system, self._data)
        self._note("start", f"after {stop.value}")
        self._clock.begin(last_known_time(file_system, self._data))
        self._counted_as_crash = self._counted_as_crash or stop is StopKind.CRASHED
        if self._logs_before is None:
            self._logs_before = logs_below(file_system, self._data)
            self._were_logs_durable = self._is_all_durable
        for partition in self._partitions:
            if partition.is_created:
                self._open(partition, stop)
        begin_session(file_system, self._data, self._clock.watched.now())
        for partition in self._partitions:
            if not partition.is_created:
                self._create(partition)
        return stop

    def _create(self, partition: SimulatedPartition) -> None:
        self._note("create", str(partition.identity.partition_id))
        stop = StopKind.CLEAN
        try:
            PartitionLog.create(self._file_system, self._directory(partition), partition.identity, below=self._data)
        except StorageFailure as failure:
            if not isinstance(failure.cause, FileExistsError):
                raise
            # An attempt before this one has made it, and died before anybody was told.
            stop = StopKind.CRASHED
        partition.is_created = True
        self._open(partition, stop)

    def _open(self, partition: SimulatedPartition, stop: StopKind) -> None:
        settings = random_settings(self._source)
        log = PartitionLog.open(
            self._file_system,
            self._directory(partition),
            partition.identity,
            settings=settings,
            clock=self._clock.watched,
            stop=stop,
        )
        for finding in log.findings:
            self._note(f"finding {finding.letter}", f"{finding.path.name}: {finding.text}")
        self._note("open", f"{settings.durability.level.value}, next {log.next_offset}, start {log.start_offset}")
        self._clock.opened(log)
        partition.open(log)

    def _check(self, partition: SimulatedPartition, stop: StopKind) -> None:
        log, model = partition.log, partition.model
        has_sync_failed = self._has_sync_failed
        damage = [finding for finding in log.findings if finding.is_damage]
        if model.rotten or has_sync_failed:
            has_holes = any(gap.is_loss for gap in log.ledger.state.gaps) or bool(log.ledger.state.damages)
            partition.is_damaged = partition.is_damaged or bool(damage) or bool(model.rotten) or has_holes
        elif not partition.is_damaged:
            promise(not damage, f"(m) called damage after a mere crash: {damage}")
        model.check_start(log.start_offset)
        seen = read_everything(log, partition.reader)
        if model.in_flight is not None and model.in_flight.timestamp == UNKNOWN_TIME:
            times = [message.timestamp for message in seen if message.offset == model.in_flight.base_offset]
            model.in_flight.timestamp = times[0] if times else UNKNOWN_TIME
        model.check_messages(seen, self._loss, has_sync_failed=has_sync_failed)
        is_kill = self._loss is Loss.NOTHING and not self._counted_as_crash and not has_sync_failed
        # What was cut may have been confirmed, and an interrupted start may have cut something before this one.
        is_cut = self._is_start_repeated or any(finding.letter in ("C", "W") for finding in log.findings)
        model.check_next_offset(log.next_offset, is_exact=is_kill and not partition.was_cut_refused and not is_cut)
        partition.was_cut_refused = log.failure is not None
        for message in seen:
            model.confirm(message.offset, message.identifier)
        model.check_consumers(dict(log.offsets.items()), self._loss, has_sync_failed=has_sync_failed)
        partition.check_producers()
        if self._logs_before is not None and log.failure is None and not has_sync_failed:
            directory = self._directory(partition)
            check_nothing_vanished(self._file_system, self._logs_before, directory, log.start_offset)
        self._clock.check(log, model)
        if not model.rotten and not partition.is_damaged:
            self._reads.look_up(log, partition.reader, model)
        if self._source.random() < 0.1 and log.failure is None:
            self._check_again(partition, stop)

    def _check_again(self, partition: SimulatedPartition, stop: StopKind) -> None:
        """(l) A second recovery finds what the first one left, whatever index cache it uses."""
        self._note("recover again", "")
        log = partition.log
        copy = self._file_system.clone(random.Random(0))
        again = PartitionLog.open(
            copy,
            log.directory,
            partition.identity,
            settings=random_settings(self._source),
            clock=self._clock.watched,
            stop=stop,
        )
        first = _contents(log)
        second = _contents(again)
        # At `synced` a reader sees less than there is, but after a recovery everything is synced.
        for before, after in zip(first, second, strict=True):
            promise(before == after, f"(l) recovered again: {before} became {after}")

    # --- living ---

    def _live(self) -> None:
        source = self._source
        plan = RecordingPlan()
        self._make_trouble(plan, crash_odds=0.6, call_max=150, failure_odds=self._trouble.failure_odds)
        self._take_plan(plan)
        stop = source.choice(_STOPS)
        try:
            for _ in range(source.choice((5, 20, 60, 100))):
                partition = source.choice(self._partitions)
                self._operate(partition)
                partition.check_marks()
                partition.check_totals()
            for partition in self._partitions:
                partition.check_producers()
            self._file_system.capacity = None
            if stop is Stop.CLEAN:
                stop = self._stop_cleanly()
        except SimulatedCrash as crash:
            self._note("crash", str(crash))
            stop = source.choice(_CRASHES)
        self._file_system.capacity = None
        self._take_plan(RecordingPlan())
        self._die(stop)
        if source.random() < 0.1:
            self._clock.set()
        self._meddle()

    def _make_trouble(self, plan: RecordingPlan, *, crash_odds: float, call_max: int, failure_odds: float) -> None:
        source = self._source
        if source.random() < crash_odds:
            plan.crash_at(source.randint(1, call_max))
        if source.random() < failure_odds:
            operation = source.choice(self._trouble.failing)
            call = source.randint(1, 12)
            plan.fail(operation, errno.EIO, call=call, onwards=source.random() < 0.1)
            self._note("arm failure", f"{operation}, call {call}")
        if source.random() < 0.2:
            plan.shorten(call=source.randint(1, 10), onwards=source.random() < 0.3)

    def _operate(self, partition: SimulatedPartition) -> None:
        source = self._source
        draw = source.random() * 100
        if draw < 32:
            self._append(partition)
        elif draw < 50:
            partition.step_sync()
        elif draw < 66:
            partition.step_upkeep()
        elif draw < 68:
            partition.catch_up()
        elif draw < 78:
            self._ask(partition)
        elif draw < 86:
            partition.store()
        else:
            self._operate_less_often(partition, draw)

    def _operate_less_often(self, partition: SimulatedPartition, draw: float) -> None:
        source = self._source
        if draw < 88:
            partition.delete()
        elif draw < 90:
            partition.trim()
        elif draw < 90.7:
            partition.purge()
        elif draw < 93:
            partition.roll()
        elif draw < 98:
            self._clock.manual.advance(source.choice((1, 400, 40_000, 600_000)))
        elif draw < 99:
            self._clock.set()
            # Times are corrected once the batch that is being appended has its own.
            partition.finish_append()
            self._clock.check(partition.log, partition.model)
        else:
            is_full = self._file_system.capacity is None
            self._file_system.capacity = self._file_system.used + source.randint(0, 2_000) if is_full else None
            self._note("disk fills" if is_full else "disk has room", "")

    def _append(self, partition: SimulatedPartition) -> None:
        if partition.append():
            self._clock.check_append(partition.model.batches[-1])

    def _ask(self, partition: SimulatedPartition) -> None:
        log, model, may_stop = partition.log, partition.model, partition.is_damaged
        try:
            if may_stop or self._source.random() < 0.7:
                self._reads.read(log, partition.reader, model, may_stop=may_stop)
            else:
                self._reads.look_up(log, partition.reader, model)
        except StorageFailure as failure:
            self._note("failed read", str(failure))
            promise(bool(self._plan.fired), f"(n) a read failed although the disk did not: {failure!r}")

    # --- stopping ---

    def _stop_cleanly(self) -> Stop:
        self._note("close", "")
        are_clean = [partition.close() for partition in self._partitions]
        if not all(are_clean):
            self._note("unclean close", "")
            return Stop.KILL
        try:
            end_session(self._file_system, self._data, self._clock.watched.now())
        except StorageFailure as failure:
            self._note("unclean close", str(failure))
            return Stop.KILL
        return Stop.CLEAN

    def _die(self, stop: Stop) -> None:
        self._take_plan(RecordingPlan())
        if self._has_failed_names and stop in (Stop.KILL, Stop.CLEAN):
            stop = Stop.REMOUNT
        self._has_failed_names = False
        self._note(stop.value, "")
        for partition in self._partitions:
            partition.die()
        if stop is Stop.POWER_CUT:
            self._file_system.power_cut()
        elif stop is Stop.REMOUNT:
            self._file_system.remount()
        else:
            self._file_system.kill()
        self._is_all_durable = stop in (Stop.POWER_CUT, Stop.REMOUNT)
        if self._is_all_durable:
            self._loss = Loss.UNSYNCED
            if not self._were_logs_durable:
                self._logs_before = None

    def _misplace(self, partition: SimulatedPartition) -> None:
        """(o) In the place of another partition the directory is refused, and not a byte of it is changed."""
        if not partition.is_created:
            return
        source, stop = self._source, self._source.choice(tuple(StopKind))
        stranger = PartitionIdentity(source.randbytes(16), partition.identity.partition_id, 9)
        self._note("misplace", f"partition {partition.identity.partition_id}, {stop.value}")
        disk = self._file_system.clone(random.Random(0))
        before = {path: disk.contents(path) for path in disk.files()}
        is_refused = False
        try:
            PartitionLog.open(
                disk,
                self._directory(partition),
                stranger,
                settings=random_settings(source),
                clock=self._clock.watched,
                stop=stop,
            )
        except ForeignPartition as found:
            is_refused = found.found == partition.identity
        promise(is_refused, "(o) the directory of another partition was opened")
        promise({path: disk.contents(path) for path in disk.files()} == before, "(o) a foreign directory was changed")

    def _meddle(self) -> None:
        """What operators and disks do while the server is down."""
        source = self._source
        if source.random() < self._trouble.misplacement_odds:
            self._misplace(source.choice(self._partitions))
        if source.random() < self._trouble.index_odds:
            text = hurt_an_index(self._file_system, source, self._data)
            if text is not None:
                self._note("hurt index", text)
        if source.random() < 0.04:
            copy = self._data.with_name(self._data.name + "+")
            self._file_system.copy_directory(self._data, copy)
            self._data = copy
            self._note("copy", str(copy))
        elif self._loss is Loss.NOTHING and not self._has_sync_failed and source.random() < self._trouble.rot_odds:
            partition = source.choice(self._partitions)
            batch = let_a_batch_rot(self._file_system, source, self._directory(partition), partition.model)
            if batch is not None:
                partition.model.rotten.add(batch)
                self._is_rotten = True
                self._note("rot", f"offset {batch.base_offset}")


def _contents(log: PartitionLog) -> tuple[object, ...]:
    """What is in a partition after a recovery."""
    stored = sorted(log.offsets.items(), key=str)
    return log.start_offset, log.next_offset, stored, read_everything(log, LogReader(log))
