"""What a partition remembers of its idempotent producers: says whether a batch is the next one, or stored already.

A producer numbers its messages, and sends a batch again with the same numbers if no reply came. The table is in memory.
The facts are in the headers of the stored batches, so it can be made again from the newest of them.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from courser.configuration.key import setting
from courser.errors import CommandRejected, ErrorCode
from courser.model import setting_kinds as kinds
from courser.model.quantities import SECOND
from courser.records.producers import BatchProducer, is_after

_HOUR = 3600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """How much a partition remembers of idempotent producers, and for how long."""

    count_max: int = setting(
        "system.producers.max_per_partition",
        kinds.integer(1, 1_000_000),
        1000,
        "idempotent producers that a partition remembers, at 1 KiB each; beyond them, the one that was silent for "
        "longest is forgotten",
    )
    batch_count_max: int = setting(
        "system.producers.max_batches",
        kinds.integer(5, 1000),
        5,
        "batches of each idempotent producer that a partition recognises if they are sent again",
    )
    """Not fewer than Courser's own client may have on their way to one partition."""
    age_max: int = setting(
        "system.producers.expiry",
        kinds.duration(SECOND),
        24 * _HOUR,
        "how long a partition remembers an idempotent producer that sends nothing",
    )
    """Microseconds."""


class StoredBatch(NamedTuple):
    """A batch of an idempotent producer in the log."""

    producer: BatchProducer
    base_offset: int
    """Where its first message was stored."""
    timestamp: int
    """When."""


class _Known:
    """What is remembered of one producer."""

    __slots__ = ("batches", "epoch", "is_rebuilt", "next_sequence", "written_at")

    def __init__(self, epoch: int, batch_count_max: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=batch_count_max)
        """Sequence, count and base offset of the newest ones."""
        self.written_at = 0
        self.is_rebuilt = False
        """Whether it comes from the log, which may lack batches: condensed, or lost with the power."""


class ProducerTable:
    """The producers of one partition. For one thread. Times are those of the monotonic clock."""

    def __init__(self, limits: ProducerLimits) -> None:
        self._limits = limits
        self._known: dict[int, _Known] = {}
        """By id, in the order of their newest batches."""

    def __len__(self) -> int:
        return len(self._known)

    def find_repeat(self, producer: BatchProducer, now: int) -> int | None:
        """The offset at which the batch is stored already; None if it is the next one and has to be stored.

        Raises:
            CommandRejected: 92 if it is neither, 93 if the producer has begun a later epoch, 94 if the producer is not
                known and this is not its first batch.
        """
        known = self._known.get(producer.producer_id)
        sequence = producer.sequence
        if known is None or known.written_at < now - self._limits.age_max:
            if sequence:
                raise _unknown(producer)
            return None
        if producer.epoch == known.epoch:
            if sequence == known.next_sequence:
                return None
            for stored_sequence, count, base_offset in known.batches:
                if stored_sequence == sequence and count == producer.message_count:
                    return base_offset
            if known.is_rebuilt and is_after(sequence, known.next_sequence):
                # Nobody knows what was in between, and this batch is not stored: the producer starts over.
                raise _unknown(producer)
        elif producer.epoch > known.epoch:
            if not sequence:
                return None
            if known.is_rebuilt:
                raise _unknown(producer)
        else:
            reason = f"producer {producer.producer_id} has begun epoch {known.epoch}, so epoch {producer.epoch} is over"
            raise CommandRejected(ErrorCode.PRODUCER_FENCED, reason)
        expected = known.next_sequence if producer.epoch == known.epoch else 0
        raise CommandRejected(
            ErrorCode.PRODUCER_OUT_OF_ORDER,
            f"producer {producer.producer_id} continues with message {expected} of epoch {producer.epoch}, but this "
            f"batch begins with message {sequence}, and is not one of its last {self._limits.batch_count_max}",
        )

    def remember(self, producer: BatchProducer, base_offset: int, now: int) -> None:
        """Note that a batch was stored. ``find_repeat`` has said that it is the next one."""
        known = self._taken(producer, now)
        known.is_rebuilt = False
        known.batches.append((producer.sequence, producer.message_count, base_offset))
        known.next_sequence = producer.next_sequence

    def rebuild(self, batches: Iterable[StoredBatch], now: int, monotonic: int) -> None:
        """Note what was found in the log, in the order of the offsets, at the time ``now`` of the wall clock."""
        latest = monotonic - self._limits.age_max
        for producer, base_offset, timestamp in batches:
            # Times in the log go back where the clock was set back. Those of the table must not.
            latest = max(latest, monotonic - max(now - timestamp, 0))
            known = self._taken(producer, latest)
            known.is_rebuilt = True
            batch = producer.sequence, producer.message_count, base_offset
            # What condensing leaves of a batch may be several.
            if not known.batches or known.batches[-1] != batch:
                known.batches.append(batch)
            known.next_sequence = producer.next_sequence

    def _taken(self, producer: BatchProducer, now: int) -> _Known:
        """The producer, as the one with the newest batch; forgets another one if there are too many."""
        table, producer_id = self._known, producer.producer_id
        known = table.pop(producer_id, None)
        if known is None or known.epoch != producer.epoch:
            known = _Known(producer.epoch, self._limits.batch_count_max)
        table[producer_id] = known
        known.written_at = now
        if len(table) > self._limits.count_max:
            del table[next(iter(table))]
        return known


def _unknown(producer: BatchProducer) -> CommandRejected:
    reason = (
        f"this partition does not know producer {producer.producer_id}, or not what precedes its message "
        f"{producer.sequence}: it has to start over with the next epoch"
    )
    return CommandRejected(ErrorCode.PRODUCER_UNKNOWN, reason)
