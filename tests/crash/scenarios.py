"""Short lives of a partition, the same each time, to be interrupted at every call that changes anything."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from courser.errors import StorageFailure
from courser.model.durability import Durability, DurabilityPolicy
from courser.model.identifiers import ConsumerKind
from courser.records.batch import NewMessage, build_batch
from courser.records.stored_header import PartitionIdentity
from courser.storage import upkeep
from courser.storage.jobs import perform
from courser.storage.log_reader import LogReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import begin_session, end_session, how_it_stopped
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_sync
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.simulator.checked_reads import read_everything
from tests.simulator.small_settings import SMALL_LIMITS
from tests.storage.condensed import condense, keyed

DATA = Path("/data")
DIRECTORY = DATA / "partition"
IDENTITY = PartitionIdentity(bytes(range(16)), 1, 2)
KEY = ConsumerKey(ConsumerKind.CONSUMER, b"1")
SETTINGS = LogSettings(
    segment_size=1_200,
    index_interval=64,
    durability=DurabilityPolicy(level=Durability.SYNCED),
    allocation_min=256,
    allocation_max=512,
    recovery_point_size=300,
    limits=SMALL_LIMITS,
)


@dataclass
class Facts:
    """What the outside world was told: it survives every crash."""

    is_created: bool = False
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    sent: dict[int, bytes] = field(default_factory=dict)
    start_offset: int = 0
    possible_start: int = 0
    is_purging: bool = False
    superseded: set[int] = field(default_factory=set)
    """Messages that may be missing from now on, because a later one has the same key."""
    stored: int | None = None
    possible_stores: set[int | None] = field(default_factory=lambda: {None})


class Life:
    """One process on the fake disk."""

    def __init__(self, file_system: FakeFileSystem, facts: Facts) -> None:
        self.file_system = file_system
        self.facts = facts
        self._log: PartitionLog | None = None

    @property
    def log(self) -> PartitionLog:
        assert self._log is not None
        return self._log

    def start(self) -> None:
        """What a server does: recover, then begin."""
        stop = how_it_stopped(self.file_system, DATA)
        if self.facts.is_created:
            self._open(stop)
        begin_session(self.file_system, DATA)
        if not self.facts.is_created:
            self._create()

    def _create(self) -> None:
        stop = StopKind.CLEAN
        try:
            PartitionLog.create(self.file_system, DIRECTORY, IDENTITY, below=DATA)
        except StorageFailure as failure:
            if not isinstance(failure.cause, FileExistsError):
                raise
            # An attempt before this one has made it, and died before anybody was told.
            stop = StopKind.CRASHED
        self.facts.is_created = True
        self._open(stop)

    def _open(self, stop: StopKind) -> None:
        clock = ManualClock()
        self._log = PartitionLog.open(self.file_system, DIRECTORY, IDENTITY, settings=SETTINGS, clock=clock, stop=stop)

    def send(self, count: int) -> None:
        """Append batches, and acknowledge them after one sync."""
        for _ in range(count):
            offset = self.log.next_offset
            payloads = [b"%d." % (offset + number) * 40 for number in range(2)]
            self.facts.sent |= {offset + number: payload for number, payload in enumerate(payloads)}
            self.log.append(build_batch([NewMessage(payload) for payload in payloads]))
        self.sync()

    def send_keyed(self, *keys: bytes) -> None:
        """Append a batch of messages with these keys, and acknowledge it."""
        offset = self.log.next_offset
        messages = [(key, b"%d." % (offset + number) * 40) for number, key in enumerate(keys)]
        self.facts.sent |= {offset + number: payload for number, (_, payload) in enumerate(messages)}
        self.log.append(keyed(messages))
        self.sync()

    def condense(self, *superseded: int) -> None:
        """Remove these messages, which are the superseded ones."""
        self.facts.superseded |= set(superseded)
        assert condense(self.log)
        assert not {message.offset for message in read_everything(self.log, LogReader(self.log))} & set(superseded)

    def sync(self) -> None:
        written = self.log.next_offset
        job = plan_sync(self.log)
        if job is not None:
            assert perform(job)
        assert self.log.marks.synced.offset == written
        self.facts.acknowledged = {
            offset: payload for offset, payload in self.facts.sent.items() if offset >= self.facts.start_offset
        }

    def upkeep(self) -> list[str]:
        """Do all that is due, and say what that was."""
        names = []
        while (job := upkeep.plan_upkeep(self.log)) is not None:
            assert perform(job)
            names.append(job.name)
        return names

    def trim(self, before_offset: int) -> None:
        job = upkeep.plan_trim(self.log, before_offset)
        assert job is not None
        self._remove(job.run, job.complete)

    def purge(self) -> None:
        job = upkeep.plan_purge(self.log)
        self.facts.is_purging = True
        self._remove(job.run, job.complete)
        self.facts.is_purging = False
        self.facts.stored = None
        self.facts.possible_stores = {None}

    def _remove(self, run: Callable[[], None], complete: Callable[[], None]) -> None:
        facts = self.facts
        facts.possible_start = self.log.start_offset
        run()
        complete()
        facts.start_offset = facts.possible_start
        facts.acknowledged = {
            offset: payload for offset, payload in facts.acknowledged.items() if offset >= facts.start_offset
        }

    def store(self, offset: int) -> None:
        self.facts.possible_stores.add(offset)
        self.log.store_offset(KEY, offset)
        self.sync()
        self.facts.stored = offset
        self.facts.possible_stores = {offset}

    def stop(self) -> None:
        upkeep.close(self.log)
        assert self.log.failure is None
        end_session(self.file_system, DATA)

    def check(self) -> None:
        """After a start: everything that was acknowledged is there, and nothing that was not sent."""
        facts, log = self.facts, self.log
        assert not [finding for finding in log.findings if finding.is_damage]
        assert log.start_offset in (facts.start_offset, facts.possible_start)
        seen = {message.offset: message.payload for message in read_everything(log, LogReader(log))}
        expected = {o: payload for o, payload in facts.acknowledged.items() if o >= log.start_offset}
        missing = expected.keys() - seen.keys()
        assert missing <= facts.superseded
        assert {o: payload for o, payload in expected.items() if o not in missing}.items() <= seen.items()
        assert seen.items() <= facts.sent.items()
        sent = sorted(offset for offset in facts.sent if offset >= log.start_offset and offset not in missing)
        assert sorted(seen) == sent[: len(seen)], "what is left is a prefix"
        assert log.next_offset > max(seen, default=-1)
        stored = log.offsets.get(KEY)
        assert stored in facts.possible_stores or (facts.is_purging and stored is None)
        facts.acknowledged, facts.sent = dict(seen), dict(seen)
        facts.start_offset = facts.possible_start = log.start_offset
        facts.stored, facts.possible_stores, facts.is_purging = stored, {stored}, False


def create(life: Life) -> None:
    life.start()


def append(life: Life) -> None:
    life.start()
    life.send(1)
    life.send(2)


def roll_and_seal(life: Life) -> None:
    life.start()
    life.send(6)
    assert "seal" in life.upkeep()
    life.send(1)


def trim(life: Life) -> None:
    roll_and_seal(life)
    life.trim(life.log.next_offset)
    life.send(1)


def purge(life: Life) -> None:
    roll_and_seal(life)
    life.store(3)
    life.purge()
    life.send(1)
    life.store(life.log.next_offset - 1)


def condensing(life: Life) -> None:
    """Two segments are replaced, twice each."""
    life.start()
    for keys in ((b"a", b"b"), (b"a", b"c"), (b"c", b"b"), (b"d", b"c")):
        life.send_keyed(*keys)
    life.log.roll()
    life.upkeep()
    life.send_keyed(b"e", b"f")
    life.condense(0, 1, 4)
    life.send_keyed(b"a", b"d")
    life.log.roll()
    life.upkeep()
    life.send_keyed(b"e", b"f")
    life.condense(2, 6)
    life.send(1)


def rewrite_of_offsets(life: Life) -> None:
    append(life)
    for offset in (1, 2, 3, 5):
        life.store(offset)
    assert "offsets rewrite" in life.upkeep()
    life.store(0)
    life.store(4)


def clean_stop(life: Life) -> None:
    roll_and_seal(life)
    life.store(5)
    life.stop()


def recovery_of_a_torn_tail(life: Life) -> None:
    """A power cut after unsynced writes, with an outcome that takes a cut; then a start, and life goes on."""
    append(life)
    for _ in range(5):
        offset = life.log.next_offset
        life.facts.sent[offset] = payload = b"unsynced" * 30
        life.log.append(build_batch([NewMessage(payload)]))
    life.file_system.random = outcome_that_takes_a_cut(life.file_system)
    life.file_system.power_cut()
    again = Life(life.file_system, life.facts)
    again.start()
    assert {finding.letter for finding in again.log.findings} & {"E", "F"}
    again.check()
    again.send(1)


def outcome_that_takes_a_cut(file_system: FakeFileSystem) -> random.Random:
    """A source of randomness with which the next power cut leaves a torn tail."""
    for number in range(1_000):
        copy = file_system.clone(random.Random(0))
        copy.random = random.Random(number)
        copy.power_cut()
        life = Life(copy, Facts(is_created=True))
        life.start()
        if {finding.letter for finding in life.log.findings} & {"E", "F"}:
            return random.Random(number)
    raise AssertionError("no power cut tears this tail")


SCENARIOS: tuple[Callable[[Life], None], ...] = (
    create,
    append,
    roll_and_seal,
    trim,
    purge,
    condensing,
    rewrite_of_offsets,
    clean_stop,
    recovery_of_a_torn_tail,
)


def new_disk(seed: int) -> FakeFileSystem:
    file_system = FakeFileSystem(random.Random(seed))
    file_system.plant_directory(DATA)
    return file_system
