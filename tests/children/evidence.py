"""What was acknowledged, kept outside of the child and its disk, and how a directory is held against it."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from courser.model.identifiers import ConsumerKind
from courser.storage.data_directory import DataDirectory
from courser.storage.log_reader import LogReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.paths import LEDGER
from courser.storage.read_result import SkipReason
from courser.storage.recovery_cases import RecoveryFinding, StopKind
from tests.children.broken import open_data_directory
from tests.children.payloads import MessageIdentity, messages_of
from tests.children.plan import Fault, Plan, identity_of_partition

_ENDLESS = 1 << 62


class PromiseBroken(AssertionError):
    """The server did not keep its word. The negative controls wait for this one, and for no other failure."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A batch that was acknowledged, or seen by a reader."""

    base_offset: int
    count: int
    run: int
    sequence: int
    time: int = field(default=0, compare=False)
    """Monotonic microseconds; 0 if nobody was told."""

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


@dataclass(slots=True)
class PartitionEvidence:
    """One partition's."""

    batches: dict[int, Acknowledged] = field(default_factory=dict)
    """By base offset."""
    lost: list[Acknowledged] = field(default_factory=list)
    """Acknowledged, and gone after a power cut that was allowed to take them."""
    confirmed_end: int = 0
    """Behind every offset that anybody was ever told."""
    start: int = 0
    """The start offset that was acknowledged."""
    start_max: int = 0
    """The highest one that an unfinished trim may have left."""
    is_created: bool = False
    stores: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(lambda: [None]))
    """What a power cut may leave of a consumer, oldest first."""
    last_stores: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(lambda: [None]))
    """What a kill may leave: the one that was acknowledged, and one under way."""


class Evidence:
    """Everything that was acknowledged on one data directory."""

    def __init__(self) -> None:
        self.partitions: dict[int, PartitionEvidence] = defaultdict(PartitionEvidence)
        self.ack_count = 0
        self.message_count = 0
        self.failures: list[list[str]] = []

    def take(self, words: list[str]) -> None:
        """One line of a child."""
        try:
            self._take(words)
        except AssertionError as error:
            raise PromiseBroken(str(error)) from error

    def _take(self, words: list[str]) -> None:
        match words:
            case ["ack", number, *numbers]:
                self._take_ack(self.partitions[int(number)], Acknowledged(*map(int, numbers)))
            case ["partition", number, how, *_]:
                evidence = self.partitions[int(number)]
                assert how == "opened" or not evidence.is_created, f"partition {number} was there, and is gone"
                evidence.is_created = True
            case ["storing", number, name, offset]:
                self.partitions[int(number)].stores[name].append(int(offset))
                self.partitions[int(number)].last_stores[name].append(int(offset))
            case ["stored", number, name, offset, is_durable]:
                evidence = self.partitions[int(number)]
                evidence.last_stores[name] = [int(offset)]
                if is_durable == "1":
                    evidence.stores[name] = [int(offset)]
            case ["trimming", number, before]:
                evidence = self.partitions[int(number)]
                evidence.start_max = max(evidence.start_max, int(before))
            case ["trimmed", number, start]:
                evidence = self.partitions[int(number)]
                evidence.start = max(evidence.start, int(start))
            case ["purging" | "purged" as step, number, offset]:
                self._take_purge(self.partitions[int(number)], int(offset), is_done=step == "purged")
            case ["failed", *_]:
                self.failures.append(words)

    def _take_ack(self, evidence: PartitionEvidence, batch: Acknowledged) -> None:
        # Two appenders may be told in another order than that of their offsets, but never of the same ones.
        for other in (*evidence.lost, *evidence.batches.values()) if batch.base_offset < evidence.confirmed_end else ():
            overlaps = batch.base_offset < other.end_offset and other.base_offset < batch.end_offset
            assert not overlaps, f"an offset was given out twice: {batch} and {other}"
        evidence.batches[batch.base_offset] = batch
        evidence.confirmed_end = max(evidence.confirmed_end, batch.end_offset)
        self.ack_count += 1
        self.message_count += batch.count

    def _take_purge(self, evidence: PartitionEvidence, offset: int, *, is_done: bool) -> None:
        if is_done:
            evidence.start = offset
            evidence.stores.clear()
            evidence.last_stores.clear()
            return
        evidence.start_max = _ENDLESS
        for stores in (*evidence.stores.values(), *evidence.last_stores.values()):
            stores.append(None)


@dataclass(frozen=True, slots=True)
class Found:
    """What a partition has to offer after recovery."""

    start: int
    next_offset: int
    messages: dict[int, MessageIdentity]
    skipped: list[tuple[int, int, SkipReason]]
    findings: tuple[RecoveryFinding, ...]
    stores: dict[str, int]
    failure: str | None


def examine(plan: Plan, stop: StopKind | None, fault: Fault = Fault.NONE) -> dict[int, Found]:
    """Recover a directory and read all of it. The session is not begun: the next start has the same facts."""
    directory = open_data_directory(Path(plan.path), fault)
    try:
        if stop is not None:
            assert directory.stop is stop, f"the last session is taken for {directory.stop}"
        numbers = [number for number in range(plan.partition_count) if (plan.directory_of(number) / LEDGER).exists()]
        return {number: _examine_partition(directory, plan, number) for number in numbers}
    finally:
        directory.close(is_clean=False)


def _examine_partition(directory: DataDirectory, plan: Plan, number: int) -> Found:
    log = directory.open_partition(plan.directory_of(number), identity_of_partition(number), plan.settings)
    messages: dict[int, MessageIdentity] = {}
    skipped: list[tuple[int, int, SkipReason]] = []
    offset, reader = log.start_offset, LogReader(log)
    while True:
        result = reader.read(offset, count=1000, size_max=1 << 20)
        skipped += [(skip.first_offset, skip.end_offset, skip.reason) for skip in result.skipped]
        messages.update(messages_of(result))
        if result.next_offset == offset:
            break
        offset = result.next_offset
    stores = {key.identifier.decode(): stored for key, stored in log.offsets.items()}
    assert all(key.kind is ConsumerKind.CONSUMER and isinstance(key, ConsumerKey) for key, _ in log.offsets.items())
    start, next_offset, findings, failure = log.start_offset, log.next_offset, log.findings, log.failure
    log.release_files()
    return Found(start, next_offset, messages, skipped, findings, stores, failure)


@dataclass(slots=True)
class Verdict:
    """What came of holding a directory against the evidence."""

    acked_count: int = 0
    """Messages that were acknowledged and not trimmed since."""
    lost_count: int = 0
    largest_loss: int = 0
    """Messages that one partition lost."""
    longest_loss: int = 0
    """Microseconds between the first and the last acknowledgement that one partition lost."""
    unacked_count: int = 0
    """Messages that are there though nobody was told."""
    gap_count: int = 0

    def add(self, other: "Verdict") -> None:
        """Sum up several."""
        self.acked_count += other.acked_count
        self.lost_count += other.lost_count
        self.largest_loss = max(self.largest_loss, other.largest_loss)
        self.longest_loss = max(self.longest_loss, other.longest_loss)
        self.unacked_count += other.unacked_count
        self.gap_count += other.gap_count


def judge(evidence: Evidence, found: dict[int, Found], *, after_kill: bool) -> Verdict:
    """Check all that holds after any crash, and count what was lost. What is found becomes the evidence."""
    verdict = Verdict()
    for number, partition in evidence.partitions.items():
        try:
            if partition.is_created:
                assert number in found, f"partition {number} is gone"
            if number in found:
                verdict.add(_judge_partition(number, partition, found[number], after_kill=after_kill))
        except AssertionError as error:
            raise PromiseBroken(str(error)) from error
    return verdict


def _judge_partition(number: int, evidence: PartitionEvidence, found: Found, *, after_kill: bool) -> Verdict:
    name = f"partition {number}"
    damages = [finding for finding in found.findings if finding.is_damage]
    assert not damages, f"{name}: a crash explains none of {damages}"
    assert found.failure is None, f"{name}: {found.failure}"
    assert evidence.start <= found.start, f"{name} starts at {found.start} again, after a trim to {evidence.start}"
    # The start may lie further on than where a trim was to end, if there is nothing but a gap between the two.
    asked = max(evidence.start_max, evidence.start)
    taken = [batch for base, batch in evidence.batches.items() if base < found.start and batch.end_offset > asked]
    assert not taken, f"{name} starts at {found.start}, a trim was to end at {asked}: {taken[:3]}"
    assert found.next_offset >= evidence.confirmed_end, (
        f"{name} goes on at {found.next_offset}: {evidence.confirmed_end}"
    )
    _check_gaps(name, found, after_kill=after_kill)
    _check_stores(name, evidence, found, after_kill=after_kill)
    batches = _batches_of(name, found)
    lost = _losses(name, evidence, found, batches)
    verdict = Verdict(lost_count=sum(batch.count for batch in lost))
    verdict.acked_count = sum(batch.count for batch in evidence.batches.values() if batch.base_offset >= found.start)
    verdict.largest_loss = verdict.lost_count
    times = [batch.time for batch in lost if batch.time]
    verdict.longest_loss = max(times, default=0) - min(times, default=0)
    verdict.unacked_count = sum(batch.count for base, batch in batches.items() if base not in evidence.batches)
    verdict.gap_count = sum(reason is SkipReason.RESERVED for _, _, reason in found.skipped)
    evidence.lost += lost
    evidence.batches = batches
    evidence.confirmed_end = max(evidence.confirmed_end, found.next_offset)
    evidence.start = evidence.start_max = found.start
    names = {*evidence.stores, *evidence.last_stores, *found.stores}
    for stores in (evidence.stores, evidence.last_stores):
        stores.update({consumer: [found.stores.get(consumer)] for consumer in names})
    return verdict


def _check_gaps(name: str, found: Found, *, after_kill: bool) -> None:
    assert all(reason is SkipReason.RESERVED for _, _, reason in found.skipped), f"{name}: {found.skipped}"
    if after_kill:
        expected = list(range(found.start, found.next_offset))
        gaps = {offset for first, end, _ in found.skipped for offset in range(first, end)}
        missing = set(expected) - found.messages.keys() - gaps
        # A gap of an earlier power cut at the very end is not met by a read.
        trailing = set(range(max(found.messages, default=found.start - 1) + 1, found.next_offset))
        assert not missing - trailing, f"{name} has gaps after a mere kill: {sorted(missing)[:10]}"


def _check_stores(name: str, evidence: PartitionEvidence, found: Found, *, after_kill: bool) -> None:
    allowed = evidence.last_stores if after_kill else evidence.stores
    for consumer in {*allowed, *found.stores}:
        stored = found.stores.get(consumer)
        assert stored in allowed[consumer], f"{name}: {consumer} stands at {stored}, not at one of {allowed[consumer]}"


def _batches_of(name: str, found: Found) -> dict[int, Acknowledged]:
    """The messages found, put together to batches: each whole, and only once."""
    batches: dict[int, Acknowledged] = {}
    seen: set[tuple[int, int]] = set()
    for offset, identity in found.messages.items():
        base = offset - identity.number
        if identity.number == 0:
            assert (identity.run, identity.sequence) not in seen, f"{name}: {identity} is there twice"
            seen.add((identity.run, identity.sequence))
            batches[base] = Acknowledged(base, identity.count, identity.run, identity.sequence)
        batch = batches.get(base)
        assert batch is not None, f"{name}: the batch of {identity} at {offset} has no beginning"
        assert (batch.run, batch.sequence) == (identity.run, identity.sequence), f"{name}: {identity} in {batch}"
    for batch in batches.values():
        there = sum(offset in found.messages for offset in range(batch.base_offset, batch.end_offset))
        assert there == batch.count, f"{name}: {there} of {batch.count} messages are left of {batch}"
    return batches


def _losses(
    name: str, evidence: PartitionEvidence, found: Found, batches: dict[int, Acknowledged]
) -> list[Acknowledged]:
    lost = []
    for base, batch in sorted(evidence.batches.items()):
        if base < found.start:
            continue
        if base not in batches:
            lost.append(batch)
            there = [offset for offset in range(base, batch.end_offset) if offset in found.messages]
            assert not there, f"{name}: offset {there[0]} was {batch} and is {found.messages[there[0]]}"
        else:
            assert batches[base] == batch, f"{name}: offset {base} was {batch} and is {batches[base]}"
    for batch in evidence.lost:
        assert batch.base_offset not in batches, f"{name}: {batch} was lost and is back"
    if lost:
        last = max(batches, default=-1)
        assert last < lost[0].base_offset, f"{name}: {batches[last]} survived {lost[0]}, which is older"
    return lost
