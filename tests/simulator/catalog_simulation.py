"""A catalog on the fake disk, its process dying at any moment: what every start must show, and what it must not.

``CatalogWorld`` drives a catalog as a server does: submit a command, make its directories, acknowledge, remove what was
deleted, forget it. Beside it, it keeps the state that was acknowledged and the one that a command in flight would give.
A start has to show one of the two. There is one exception: a start that finds a creation unfinished and the disk full
undoes the creation, which leaves its id used.

``crash_everywhere`` repeats a step with a crash at each call that changes the disk.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from courser.catalog import changes
from courser.catalog.descriptors import descriptor_of
from courser.catalog.directories import identity_of
from courser.catalog.entities import Partition, Topic
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.catalog.state import CatalogState, DeletedDirectories
from courser.catalog.store import CatalogSettings
from courser.catalog.transitions import apply
from courser.errors import CommandRejected, DiskFull, JournalFull, MetadataReadOnly, StorageFailure
from courser.model.topic_options import TopicOptions
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import LEDGER, STREAMS, partition_directory, stream_directory, topic_directory
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from tests.fakes.clocks import ManualClock
from tests.fakes.files import CrashMoment, FakeFileSystem, FaultPlan, SimulatedCrash
from tests.simulator.disk_trouble import RecordingPlan
from tests.simulator.partition_model import BrokenPromise

DATA = Path("/data")
FEW_SLOTS = CatalogSettings(slot_count=8, slot_margin=2)
"""A snapshot after every sixth command."""
_SECOND = 1_000_000


class CrashKind(Enum):
    """What dies."""

    KILL = "kill"
    POWER_CUT = "power cut"


@dataclass(frozen=True, slots=True)
class UndoneCreation:
    """What becomes of a creation in flight if a start undoes it."""

    state: bytes
    ledgers: frozenset[Path]
    """The last files that the creation makes. If all of them exist, it is complete and must not be undone."""


class CatalogWorld:
    """A data directory, the process in it, and what is known of both."""

    def __init__(self, disk: FakeFileSystem, settings: CatalogSettings = FEW_SLOTS) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.settings = settings
        self.stop = StopKind.CRASHED
        self.acknowledged = visible(CatalogState())
        self.possible: bytes | None = None
        """What the command in flight would make of it."""
        self._undone: UndoneCreation | None = None
        """Set if the command in flight creates partitions."""
        self._may_be_undone = False
        """Whether a start since then had a reason to undo it. That start may have died after it had journaled this."""
        self._opened: OpenedCatalog | None = None

    @classmethod
    def new(cls, seed: int, settings: CatalogSettings = FEW_SLOTS) -> "CatalogWorld":
        """An empty data directory."""
        disk = FakeFileSystem(random.Random(seed))
        disk.plant_directory(DATA)
        return cls(disk, settings)

    def fork(self, seed: int) -> "CatalogWorld":
        """The same disk and the same facts, without a process: to try another outcome."""
        other = CatalogWorld(self.disk.clone(random.Random(seed)), self.settings)
        other.clock = ManualClock(self.clock.now(), self.clock.monotonic())
        other.stop = StopKind.KILLED if self._opened is not None else self.stop
        other.acknowledged, other.possible = self.acknowledged, self.possible
        other._undone, other._may_be_undone = self._undone, self._may_be_undone
        return other

    @property
    def opened(self) -> OpenedCatalog:
        """The running catalog."""
        assert self._opened is not None, "nothing runs here"
        return self._opened

    @property
    def state(self) -> CatalogState:
        """The running catalog's state."""
        return self.opened.store.state

    # --- what a server does ---

    def start(self, *, recreate_missing_state: bool = False) -> OpenedCatalog:
        """Start a process. Afterwards what it shows counts as acknowledged: somebody may have seen it."""
        is_unfinished = self._undone is not None and not self._undone.ledgers <= set(self.disk.files())
        try:
            opened = open_catalog(
                self.disk,
                DATA,
                clock=self.clock,
                stop=self.stop,
                settings=self.settings,
                recreate_missing_state=recreate_missing_state,
            )
        finally:
            plan = self.disk.plan
            was_full = isinstance(plan, RecordingPlan) and plan.was_full_below(DATA / STREAMS)
            self._may_be_undone = self._may_be_undone or (is_unfinished and was_full)
        shown = visible(opened.store.state)
        undone = self._undone.state if self._undone is not None and self._may_be_undone else None
        if shown not in (self.acknowledged, self.possible, undone):
            raise BrokenPromise("the state after the start is neither the acknowledged one nor that of the command")
        self.acknowledged = shown
        self._set_in_flight(None)
        self.stop = StopKind.KILLED
        self._opened = opened
        return opened

    def perform(self, command: changes.AnyChange) -> bool:
        """One command with all that belongs to it; False if the rules forbid it."""
        store = self.opened.store
        before = store.state.encode()
        op = 0 if store.last_op is None else store.last_op + 1
        model = CatalogState.decode(before)
        rejection = apply(model, command, op, self.clock.now())
        try:
            self._set_in_flight(
                None if isinstance(rejection, CommandRejected) else visible(model),
                undone_creation(before, model, command, op),
            )
            store.submit(command)
        except (CommandRejected, DiskFull, JournalFull, MetadataReadOnly) as refusal:
            self._set_in_flight(None)
            if store.state.encode() != before:
                raise BrokenPromise(f"a refused command changed the state: {refusal}") from refusal
            if isinstance(refusal, CommandRejected) != isinstance(rejection, CommandRejected):
                raise BrokenPromise(f"the rules and the transitions disagree: {refusal}") from refusal
            if not isinstance(refusal, CommandRejected):
                raise
            return False
        except StorageFailure as failure:
            if store.state.encode() != before:
                raise BrokenPromise(f"applied before it was durable: {failure}") from failure
            raise
        if store.state.encode() != model.encode():
            raise BrokenPromise("the same command gave another state")
        self.opened.directories.carry_out(store.state, command)
        self.acknowledged = visible(model)
        self._set_in_flight(None)
        self._remove_deleted()
        self.clock.advance(_SECOND)
        return True

    def _set_in_flight(self, possible: bytes | None, undone: UndoneCreation | None = None) -> None:
        self.possible, self._undone, self._may_be_undone = possible, undone, False

    def _remove_deleted(self) -> None:
        store = self.opened.store
        gone = [deleted.path for deleted in store.state.deleted.values() if self.opened.directories.remove(deleted)]
        if gone:
            store.submit(changes.DirectoryRemoval(tuple(gone)))

    def crash(self, kind: CrashKind) -> None:
        """The process is gone. A power cut before a start came to its end stays one, whatever follows."""
        if kind is CrashKind.POWER_CUT:
            self.disk.power_cut()
            self.stop = StopKind.CRASHED
        else:
            self.disk.kill()
        self._opened = None
        self.disk.plan = RecordingPlan()

    # --- what must be true ---

    def check_tree(self) -> None:
        """Directories and descriptors say what the state says, and every partition can be opened."""
        found = self.opened.reconciliation
        if found.lost or found.unknown:
            raise BrokenPromise(f"lost: {found.lost}, unknown: {found.unknown}")
        for path in self.state.deleted:
            # On a full disk the removal is not forgotten yet.
            if any(DATA / path in file.parents for file in self.disk.files()):
                raise BrokenPromise(f"deleted and still there: {path}")
        if not self.disk_directories() <= self.expected_directories():
            raise BrokenPromise(f"left over: {self.disk_directories() - self.expected_directories()}")
        directories = self.opened.directories
        for stream in self.state.streams.values():
            # A full disk has no room for a descriptor: a later start writes it.
            is_behind = (stream.stream_id, None) in found.behind
            if (
                directories.descriptor(stream_directory(DATA, stream.stream_id)) != descriptor_of(stream)
                and not is_behind
            ):
                raise BrokenPromise(f"the descriptor of stream {stream.stream_id} is not what the state says")
            for topic in stream.topics.values():
                directory = topic_directory(DATA, stream.stream_id, topic.topic_id)
                is_behind = (stream.stream_id, topic.topic_id) in found.behind
                if directories.descriptor(directory) != descriptor_of(stream, topic) and not is_behind:
                    raise BrokenPromise(f"the descriptor of {directory} is not what the state says")
                for partition in topic.partitions:
                    self._check_partition(directories.partition_path(stream, topic, partition), topic, partition)

    def _check_partition(self, path: Path, topic: Topic, partition: Partition) -> None:
        identity = identity_of(topic, partition)
        stop = self.stop
        log = PartitionLog.open(self.disk, path, identity, settings=LogSettings(), clock=self.clock, stop=stop)
        damages = [finding for finding in log.findings if finding.is_damage]
        if damages:
            raise BrokenPromise(f"a new partition is damaged: {damages}")

    def expected_directories(self) -> set[Path]:
        """The partitions of the state."""
        directories = self.opened.directories
        return {
            directories.partition_path(stream, topic, partition)
            for stream in self.state.streams.values()
            for topic in stream.topics.values()
            for partition in topic.partitions
        }

    def disk_directories(self) -> set[Path]:
        """The partitions on the disk."""
        return {path.parent for path in self.disk.files() if path.parent.parent.name == "partitions"}

    def check_that_life_goes_on(self) -> None:
        """A command works, and survives a kill and a power cut."""
        for kind in CrashKind:
            name = f"still alive after {self.opened.store.last_op}"
            if not self.perform(changes.StreamCreation(name, self.disk.random.randbytes(16))):
                raise BrokenPromise("a new stream was rejected")
            self.crash(kind)
            self.start()
            self.check_tree()


def undone_creation(before: bytes, after: CatalogState, command: changes.AnyChange, op: int) -> UndoneCreation | None:
    """What a start makes of the state if it undoes a command; None if it never does.

    Only creations of partitions are undone: a stream without its directory does not stop a start.
    """
    if not isinstance(command, changes.TopicCreation | changes.PartitionCreation):
        return None
    ledgers = frozenset(
        partition_directory(DATA, stream.stream_id, topic.topic_id, partition.partition_id, op) / LEDGER
        for stream in after.streams.values()
        for topic in stream.topics.values()
        for partition in topic.partitions
        if partition.incarnation == op
    )
    if not ledgers:
        return None
    state = CatalogState.decode(before)
    if isinstance(command, changes.TopicCreation):
        # No other topic may get the id: somebody may have seen this one.
        state.streams[command.stream_id].topic_ids.use(command.topic_id)
    return UndoneCreation(visible(state), ledgers)


def visible(state: CatalogState) -> bytes:
    """The state as clients see it: without the directories that wait for their removal."""
    waiting, state.deleted = state.deleted, DeletedDirectories()
    try:
        return state.encode()
    finally:
        state.deleted = waiting


# --- crashes at every position ---


@dataclass(slots=True)
class Coverage:
    """How much was tried."""

    positions: int = 0
    """Calls that change the disk, each of them the last one once."""
    crashes: int = 0

    def add(self, other: "Coverage") -> None:
        """Sum up."""
        self.positions += other.positions
        self.crashes += other.crashes

    def __str__(self) -> str:
        return f"{self.positions} positions, {self.crashes} crashes"


Step = Callable[[CatalogWorld], object]
"""What a process does, from its start to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashDepth:
    """How thoroughly to try."""

    power_cuts: int = 2
    """Outcomes of a power cut at one position: each leaves another part of what was not synced."""
    second_crashes: int | None = 1
    """In the start after a crash: how many positions, chosen by chance; None: all of them."""


def crash_everywhere(
    world: CatalogWorld, step: Step, depth: CrashDepth, *, recover: Step = lambda world: world.start()
) -> Coverage:
    """Repeat a step with a crash at every call that changes the disk and one behind its end.

    The start after each crash, ``recover``, is let crash as well.

    Raises:
        BrokenPromise: with the position.
    """
    source = random.Random(world.disk.random.getrandbits(32))
    calls = _mutating_calls(world, step)
    coverage = Coverage(positions=len(calls) + 1)
    for position, operation in enumerate([*calls, "the end"], 1):
        for moment in _moments(operation):
            fork = world.fork(source.getrandbits(32))
            if _dies(fork, step, position, moment) != (position <= len(calls)):
                raise BrokenPromise(f"call {position} did not come: the step is not the same every time")
            where = f"crash {moment.value} call {position} ({operation})"
            coverage.crashes += _try_outcomes(fork, recover, where, depth, source)
    return coverage


def _moments(operation: str) -> list[CrashMoment]:
    """The moments that differ: after a call is before the next one, and only some calls have a middle."""
    return [CrashMoment.BEFORE, *([CrashMoment.MIDDLE] if operation in ("write_at", "allocate") else [])]


class _ListingPlan(RecordingPlan):
    """Lists the calls in which a crash may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._operation = ""

    def failure(self, operation: str, path: Path) -> int | None:
        self._operation = operation
        return super().failure(operation, path)

    def crash(self, source: random.Random) -> CrashMoment | None:
        self.calls.append(self._operation)
        return super().crash(source)


def _mutating_calls(world: CatalogWorld, step: Step) -> list[str]:
    fork = world.fork(0)
    plan = fork.disk.plan = _ListingPlan()
    step(fork)
    return plan.calls


def _try_outcomes(crashed: CatalogWorld, recover: Step, where: str, depth: CrashDepth, source: random.Random) -> int:
    """Kill it, cut its power a few times, and look at the start after each. Return how often something died."""
    counted = 0
    for kind in (CrashKind.KILL, *[CrashKind.POWER_CUT] * depth.power_cuts):
        fork = crashed.fork(source.getrandbits(32))
        fork.crash(kind)
        counted += 1
        for second in _second_positions(fork, recover, depth, source):
            again = fork.fork(source.getrandbits(32))
            second_kind = source.choice(tuple(CrashKind))
            if _dies(again, recover, second, source.choice(tuple(CrashMoment))):
                counted += 1
            again.crash(second_kind)
            _check(again, recover, f"{where}, {kind.value}, then call {second} of the start, {second_kind.value}")
        _check(fork, recover, f"{where}, {kind.value}")
    return counted


def _second_positions(world: CatalogWorld, recover: Step, depth: CrashDepth, source: random.Random) -> list[int]:
    if depth.second_crashes == 0:
        return []
    try:
        count = len(_mutating_calls(world, recover))
    except BrokenPromise:
        # The check without a second crash tells where.
        return []
    if depth.second_crashes is None:
        return list(range(1, count + 1))
    return source.sample(range(1, count + 1), min(count, depth.second_crashes))


def _dies(world: CatalogWorld, step: Step, position: int, moment: CrashMoment) -> bool:
    world.disk.plan = RecordingPlan().crash_at(position, moment)
    try:
        step(world)
    except SimulatedCrash:
        return True
    finally:
        world.disk.plan = FaultPlan()
    return False


def _check(world: CatalogWorld, recover: Step, where: str) -> None:
    try:
        recover(world)
        world.check_tree()
        world.check_that_life_goes_on()
    except Exception as error:
        raise BrokenPromise(f"{where}: {type(error).__name__}: {error}") from error


# --- random lives ---


def live_randomly(world: CatalogWorld, source: random.Random, life_count: int) -> Coverage:
    """Processes that begin, take random commands, and die: by a crash, a sick disk, or a plain kill.

    Raises:
        BrokenPromise: with the life.
    """
    coverage = Coverage()
    for life in range(life_count):
        before = world.disk.mutations
        plan = world.disk.plan = _random_plan(source)
        try:
            world.start()
            # The look itself is not to be disturbed.
            world.disk.plan = FaultPlan()
            world.check_tree()
            world.disk.plan = plan
            for _ in range(source.randrange(8)):
                world.perform(random_command(source, world.state))
        except SimulatedCrash:
            pass
        except BrokenPromise as error:
            raise BrokenPromise(f"life {life}: {error}") from error
        except (StorageFailure, MetadataReadOnly, JournalFull) as failure:
            if not plan.fired:
                raise BrokenPromise(f"life {life} failed, although the disk did not: {failure!r}") from failure
            # A server whose disk fails in the middle of a command ends, and the next start puts things in order.
        # After a failed directory sync a kernel shows names that the disk does not have: it goes on after a new mount.
        kinds = (CrashKind.POWER_CUT,) if plan.has_failed_names else tuple(CrashKind)
        world.crash(source.choice(kinds))
        coverage.crashes += 1
        coverage.positions += world.disk.mutations - before
    world.start()
    world.check_tree()
    world.check_that_life_goes_on()
    return coverage


def _random_plan(source: random.Random) -> RecordingPlan:
    plan = RecordingPlan()
    match source.randrange(5):
        case 0:
            plan.crash_at(source.randint(1, 120))
        case 1:
            plan.fail("sync", errno.EIO, call=source.randint(1, 40))
        case 2:
            plan.fail("write_at", errno.ENOSPC, call=source.randint(1, 40), onwards=source.random() < 0.5)
        case 3:
            name = source.choice(("sync_directory", "rename", "make_directory", "open", "list_directory", "unlink"))
            plan.fail(name, source.choice((errno.EIO, errno.ENOSPC, errno.EMFILE)), call=source.randint(1, 40))
    return plan


# --- random commands ---


def random_command(source: random.Random, state: CatalogState) -> changes.AnyChange:
    """A command that often makes sense, and sometimes does not."""
    stream_id = _pick(source, list(state.streams))
    stream = state.streams.get(stream_id)
    topic_id = _pick(source, list(stream.topics) if stream is not None else [])
    topic = stream.topics.get(topic_id) if stream is not None else None
    group_id = _pick(source, list(topic.groups) if topic is not None else [])
    user_id = _pick(source, list(state.users))
    name = f"name {source.randrange(12)}"
    explicit = source.choice((None, None, source.randrange(40)))
    makers: list[Callable[[], changes.AnyChange]] = [
        lambda: changes.StreamCreation(name, source.randbytes(16), explicit),
        lambda: changes.StreamUpdate(stream_id, name),
        lambda: changes.StreamDeletion(stream_id),
        lambda: changes.StreamPurge(stream_id),
        lambda: changes.TopicCreation(
            stream_id, name, source.randbytes(16), source.randrange(3), _options(source), explicit
        ),
        lambda: changes.TopicUpdate(stream_id, topic_id, name, _options(source)),
        lambda: changes.TopicDeletion(stream_id, topic_id),
        lambda: changes.TopicPurge(stream_id, topic_id),
        lambda: changes.PartitionCreation(stream_id, topic_id, source.randrange(3)),
        lambda: changes.PartitionDeletion(stream_id, topic_id, source.randrange(3)),
        lambda: changes.GroupCreation(stream_id, topic_id, name, explicit),
        lambda: changes.GroupDeletion(stream_id, topic_id, group_id),
        lambda: changes.UserCreation(name, "$argon2id$made up"),
        lambda: changes.UserUpdate(user_id, name, source.choice((None, True, False))),
        lambda: changes.UserDeletion(user_id),
        lambda: changes.PasswordChange(user_id, f"$argon2id${source.random()}"),
        lambda: changes.TokenCreation(user_id, name, source.randbytes(32)),
        lambda: changes.TokenDeletion(user_id, name),
    ]
    weights = [6, 2, 1, 2, 8, 2, 2, 2, 4, 2, 3, 1, 2, 1, 1, 1, 2, 1]
    return source.choices(makers, weights)[0]()


def _pick(source: random.Random, known: list[int]) -> int:
    return source.choice(known) if known and source.random() < 0.9 else source.randrange(5)


def _options(source: random.Random) -> TopicOptions:
    return TopicOptions(max_topic_size=source.choice((None, 2**40)), message_expiry=source.choice((None, 1)))
