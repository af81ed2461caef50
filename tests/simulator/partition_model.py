"""What a partition was told, and what it may therefore answer after a crash: the promises, as checks.

The model lives outside the fake disk. It knows every batch that was written, which of them were acknowledged, and
every offset that any client has seen. A broken promise raises ``BrokenPromise`` with the letter of the promise:

* (a) a kill loses nothing, (b) a power cut loses what the level allows and leaves a prefix,
* (c) an offset that was confirmed never names another message, (d) a batch is there whole or not at all,
* (e) time does not go back, (f) lookups agree, (g) consumers only ever move back, (h) the start does not,
* (j) a full disk refuses whole batches, (k) marks are in order, (m) a crash alone is not called damage,
* (n) starts and reads fail only if the disk does, (p) what an idempotent producer sends again is recognised if it is
  in the log, and only then.
"""

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from courser.model.durability import Durability, DurabilityPolicy
from courser.records.producers import BatchProducer
from courser.storage.offset_table import ConsumerKey


class BrokenPromise(AssertionError):
    """A log, a catalog or a start did something that it promised not to do."""


def promise(holds: bool, text: str) -> None:
    """Raise ``BrokenPromise`` unless it holds."""
    if not holds:
        raise BrokenPromise(text)


class Loss(Enum):
    """What the last stop may have taken, the worst of several in a row."""

    NOTHING = 0
    """A kill, a clean stop, a copy: every finished write is there."""
    UNSYNCED = 1
    """A power cut or a remount."""


@dataclass(slots=True, eq=False)
class SentBatch:
    """A batch that was handed to the log. Each is itself and no other."""

    base_offset: int
    identifiers: tuple[int, ...]
    payloads: tuple[bytes, ...]
    size: int
    timestamp: int
    policy: DurabilityPolicy
    written_at: int
    """When its write began."""
    acknowledged_at: int | None = None
    producer: BatchProducer | None = None
    """The idempotent producer that sent it."""

    @property
    def end_offset(self) -> int:
        """The offset behind its last message."""
        return self.base_offset + len(self.identifiers)


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message as a reader got it."""

    offset: int
    identifier: int
    payload: bytes
    timestamp: int


@dataclass(slots=True)
class StoredValue:
    """One store of a consumer's offset; None: a delete."""

    value: int | None
    is_acknowledged: bool


@dataclass(slots=True)
class ConsumerHistory:
    """What one consumer stored. The first value is durable, the later ones may not be."""

    values: list[StoredValue] = field(default_factory=lambda: [StoredValue(None, is_acknowledged=True)])

    @property
    def last(self) -> int | None:
        """The value that a kill leaves."""
        return self.values[-1].value

    def allows_after_power_cut(self, value: int | None) -> bool:
        """A value that was stored; not one that skips messages which the last acknowledged one had still to come."""
        last = max(number for number, stored in enumerate(self.values) if stored.is_acknowledged)
        acknowledged = self.values[last].value
        if value in [stored.value for stored in self.values[last:]]:
            return True
        earlier = [stored.value for stored in self.values[:last]]
        return value in earlier and (value is None or (acknowledged is not None and value <= acknowledged))


@dataclass(slots=True)
class PartitionModel:
    """Everything that is known of one partition from outside."""

    batches: list[SentBatch] = field(default_factory=list)
    """In offset order: what a reader would find if nothing were lost."""
    in_flight: SentBatch | None = None
    """The append that a crash interrupted."""
    start_offset: int = 0
    possible_starts: set[int] = field(default_factory=set)
    """Where a removal that is under way may have put it."""
    is_purging: bool = False
    may_be_purged: bool = False
    """The last start cannot tell from the start offset whether an interrupted purge happened."""
    next_offset: int = 0
    synced_offset: int = 0
    """Below it nothing is lost."""
    confirmed: dict[int, int] = field(default_factory=dict)
    """Every offset that any client was told, and the message that it named."""
    confirmed_end: int = 0
    consumers: dict[ConsumerKey, ConsumerHistory] = field(default_factory=dict)
    rotten: set[SentBatch] = field(default_factory=set)
    """Batches that were damaged on purpose."""
    acknowledged_count: int = 0

    # --- while the server runs ---

    def append(self, batch: SentBatch) -> None:
        """A batch was written."""
        expected = self.next_offset
        promise(batch.base_offset == expected, f"(a) offset {batch.base_offset} was given where {expected} is next")
        promise(batch.base_offset >= self.confirmed_end, f"(c) offset {batch.base_offset} was confirmed before")
        self.batches.append(batch)
        self.next_offset = batch.end_offset

    def acknowledge(self, batch: SentBatch, now: int) -> None:
        """The sender was told."""
        batch.acknowledged_at = now
        self.acknowledged_count += 1
        for number, identifier in enumerate(batch.identifiers):
            self.confirm(batch.base_offset + number, identifier)

    def confirm(self, offset: int, identifier: int) -> None:
        """Somebody knows now which message this offset names."""
        before = self.confirmed.setdefault(offset, identifier)
        promise(before == identifier, f"(c) offset {offset} named message {before}, and now names {identifier}")
        self.confirmed_end = max(self.confirmed_end, offset + 1)

    def remove_below(self, start_offset: int) -> None:
        """Messages were trimmed or purged, durably."""
        gone = [batch for batch in self.batches if batch.base_offset < start_offset]
        self.batches = self.batches[len(gone) :]
        self.rotten.difference_update(gone)
        self.start_offset = start_offset

    def visible(self, offset: int, end_offset: int) -> list[tuple[int, int, bytes, SentBatch]]:
        """Offset, identifier, payload and batch of every message from ``offset`` on, below ``end_offset``."""
        return [
            (batch.base_offset + number, identifier, payload, batch)
            for batch in self.batches
            if batch.end_offset > offset and batch.base_offset < end_offset and batch not in self.rotten
            for number, (identifier, payload) in enumerate(zip(batch.identifiers, batch.payloads, strict=True))
            if offset <= batch.base_offset + number < end_offset
        ]

    # --- after a recovery ---

    def check_start(self, start_offset: int) -> None:
        """(h) The start is where it was, or where an interrupted removal put it."""
        allowed = {self.start_offset} | self.possible_starts
        promise(start_offset in allowed, f"(h) the start offset is {start_offset}, expected one of {sorted(allowed)}")
        if self.is_purging and start_offset in self.possible_starts:
            self.may_be_purged = start_offset == self.start_offset
            if not self.may_be_purged:
                self.consumers = {}
        self.remove_below(start_offset)
        self.possible_starts = set()
        self.is_purging = False

    def check_messages(self, seen: list[SeenMessage], loss: Loss, *, has_sync_failed: bool) -> None:
        """(a) to (e): compare everything that is readable with everything that was sent, and keep what survived."""
        for message in seen:
            if message.offset in self.confirmed:
                self.confirm(message.offset, message.identifier)
        for before, after in pairwise(seen):
            promise(before.offset < after.offset, f"(c) offset {after.offset} comes after {before.offset}")
        candidates = [*self.batches, *([self.in_flight] if self.in_flight is not None else [])]
        by_offset = {message.offset: message for message in seen}
        survivors = {batch: None for batch in candidates if self._survived(batch, by_offset)}
        promise(not by_offset, f"(d) messages that were never sent, or were removed: {sorted(by_offset)}")
        lost = [batch for batch in self.batches if batch not in survivors and batch not in self.rotten]
        if lost and survivors and not has_sync_failed:
            last = next(reversed(survivors)).base_offset
            promise(last < lost[0].base_offset, f"(b) offset {lost[0].base_offset} is lost, {last} is not")
        self._check_loss(lost, loss, has_sync_failed=has_sync_failed)
        self.batches = [batch for batch in candidates if batch in survivors or batch in self.rotten]
        self.in_flight = None

    @staticmethod
    def _survived(batch: SentBatch, by_offset: dict[int, SeenMessage]) -> bool:
        found = [by_offset.pop(offset, None) for offset in range(batch.base_offset, batch.end_offset)]
        present = [message for message in found if message is not None]
        if not present:
            return False
        promise(len(present) == len(found), f"(d) a part of the batch at offset {batch.base_offset} is there")
        for message, identifier, payload in zip(present, batch.identifiers, batch.payloads, strict=True):
            is_same = message.identifier == identifier and message.payload == payload
            promise(is_same, f"(c) offset {message.offset} names message {message.identifier}, not {identifier}")
            promise(message.timestamp == batch.timestamp, f"(e) another time at offset {message.offset}")
        return True

    def _check_loss(self, lost: list[SentBatch], loss: Loss, *, has_sync_failed: bool) -> None:
        below = [batch for batch in lost if batch.end_offset <= self.synced_offset]
        promise(not below, f"(b) synced up to {self.synced_offset}, but lost: {_ranges(below)}")
        if loss is Loss.NOTHING and not has_sync_failed:
            promise(not lost, f"(a) lost without a power cut: {_ranges(lost)}")
        acknowledged = [batch for batch in lost if batch.acknowledged_at is not None]
        at_synced = [batch for batch in acknowledged if batch.policy.level is Durability.SYNCED]
        promise(not at_synced, f"(b) acknowledged at `synced`, and lost: {_ranges(at_synced)}")
        self._check_bounds(lost, [batch for batch in acknowledged if batch.policy.level is Durability.BOUNDED])

    def _check_bounds(self, lost: list[SentBatch], at_bounded: list[SentBatch]) -> None:
        if not at_bounded:
            return
        policy = at_bounded[0].policy
        count = sum(len(batch.identifiers) for batch in at_bounded)
        promise(count <= policy.message_count_max, f"(b) {count} acknowledged messages lost: {policy}")
        size = sum(batch.size for batch in at_bounded)
        promise(size <= policy.size_max, f"(b) {size} acknowledged bytes lost: {policy}")
        oldest = min(batch.written_at for batch in lost)
        span = max(batch.acknowledged_at or 0 for batch in at_bounded) - oldest
        promise(span <= 2 * policy.interval, f"(b) {span} microseconds of acknowledged messages lost: {policy}")

    def check_next_offset(self, next_offset: int, *, is_exact: bool) -> None:
        """(c) Numbering goes on above all that was confirmed; after a mere kill without a gap."""
        end = max([self.start_offset, *(batch.end_offset for batch in self.batches[-1:])])
        promise(next_offset >= end, f"(c) the next offset is {next_offset}, but messages reach to {end}")
        promise(next_offset >= self.confirmed_end, f"(c) next is {next_offset}, confirmed below {self.confirmed_end}")
        if is_exact:
            expected = max(end, self.next_offset)
            promise(next_offset == expected, f"(a) next is {next_offset} after a mere kill, expected {expected}")
        self.next_offset = next_offset
        self.synced_offset = next_offset

    def check_consumers(self, stored: dict[ConsumerKey, int], loss: Loss, *, has_sync_failed: bool) -> None:
        """(g) After a kill exactly what was stored last; after a power cut never ahead of it."""
        if self.may_be_purged and not stored:
            self.consumers = {}
        self.may_be_purged = False
        unknown = stored.keys() - self.consumers.keys()
        promise(not unknown, f"(g) consumers that were never stored, or purged: {unknown}")
        for key, history in self.consumers.items():
            value = stored.get(key)
            if loss is Loss.NOTHING and not has_sync_failed:
                # The last one may have been interrupted, and then only it is not acknowledged.
                allowed = [history.last]
                if not history.values[-1].is_acknowledged:
                    allowed += [entry.value for entry in history.values[-2:-1]]
                promise(value in allowed, f"(g) {key} is at {value} after a kill, expected {allowed}")
            else:
                # What a failed sync left may be a record that cannot be told from rot: the consumer begins anew.
                is_forgotten = has_sync_failed and value is None
                promise(
                    is_forgotten or history.allows_after_power_cut(value), f"(g) {key} is at {value}: {history.values}"
                )
        self.consumers = {key: ConsumerHistory([StoredValue(value, True)]) for key, value in stored.items()}


def _ranges(batches: list[SentBatch]) -> str:
    return ", ".join(f"{batch.base_offset}..{batch.end_offset - 1}" for batch in batches)
