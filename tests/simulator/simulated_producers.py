"""Idempotent producers of a simulated partition: they send again whatever they have no reply to.

A batch that is sent again is only asked about: if it is in the log, the partition must say where; if not, it must not.
Nothing is drawn from the source of the simulation, so that a seed leads to the same run as without producers.
"""

import random
from dataclasses import dataclass

from courser.errors import CommandRejected, ErrorCode
from courser.records.batch import Batch
from courser.records.producers import BatchProducer
from courser.records.stored_header import PartitionIdentity
from courser.storage.log_reader import LogReader
from courser.storage.producer_table import ProducerLimits, ProducerTable
from tests.simulator.partition_model import PartitionModel, SentBatch, promise

_LIMITS = ProducerLimits(age_max=2**62)
"""Clocks are set by years: what is forgotten after a day is for other tests."""


@dataclass(slots=True)
class Sender:
    """A producer."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    unclear: SentBatch | None = None
    """The batch without a reply."""


class SimulatedProducers:
    """The producers, and what the partition remembers of them while the process lives."""

    def __init__(self, identity: PartitionIdentity) -> None:
        self._source = random.Random(identity.topic_uuid)
        self._senders = [Sender(number) for number in range(1, 4)]
        self._table: ProducerTable | None = None

    def die(self) -> None:
        """The process is gone."""
        self._table = None

    def _table_of(self, reader: LogReader) -> ProducerTable:
        if self._table is None:
            self._table = ProducerTable(_LIMITS)
            self._table.rebuild(reader.newest_of_producers(0), 0, 0)
        return self._table

    def number(self, batch: Batch, sent: SentBatch, model: PartitionModel, reader: LogReader) -> None:
        """Let a producer send a batch, or nobody whom the partition knows."""
        sender = self._source.choice((*self._senders, None))
        if sender is None:
            return
        table = self._table_of(reader)
        if sender.unclear is not None:
            self._send_again(table, sender, sender.unclear, model)
        producer = BatchProducer(sender.producer_id, sender.epoch, sender.sequence, batch.count)
        if not self._is_next(table, producer):
            sender.epoch, sender.sequence = sender.epoch + 1, 0
            producer = BatchProducer(sender.producer_id, sender.epoch, 0, batch.count)
            promise(self._is_next(table, producer), f"(p) {producer} was refused, though it starts over")
        batch.producer = sent.producer = producer
        sender.unclear = sent

    def _send_again(self, table: ProducerTable, sender: Sender, sent: SentBatch, model: PartitionModel) -> None:
        assert sent.producer is not None
        is_stored = sent in model.batches
        try:
            offset = table.find_repeat(sent.producer, 0)
        except CommandRejected as refusal:
            promise(refusal.code == ErrorCode.PRODUCER_UNKNOWN, f"(p) {sent.producer} was refused: {refusal}")
            promise(not is_stored, f"(p) {sent.producer} is not known, and stored at {sent.base_offset}")
        else:
            expected = sent.base_offset if is_stored else None
            is_removed = offset == sent.base_offset and sent.base_offset < model.start_offset
            is_right = offset == expected or is_removed
            promise(is_right, f"(p) {sent.producer} is said to be at {offset}, and is at {expected}")
            if offset is not None:
                sender.sequence = sent.producer.next_sequence
        sender.unclear = None

    @staticmethod
    def _is_next(table: ProducerTable, producer: BatchProducer) -> bool:
        try:
            offset = table.find_repeat(producer, 0)
        except CommandRejected as refusal:
            promise(refusal.code == ErrorCode.PRODUCER_UNKNOWN, f"(p) {producer} was refused: {refusal}")
            return False
        promise(offset is None, f"(p) {producer} was never sent, and is said to be at {offset}")
        return True

    def stored(self, sent: SentBatch) -> None:
        """A batch was written."""
        if sent.producer is not None:
            assert self._table is not None
            self._table.remember(sent.producer, sent.base_offset, 0)
            sender = self._senders[sent.producer.producer_id - 1]
            sender.sequence, sender.unclear = sent.producer.next_sequence, None

    def check(self, model: PartitionModel, reader: LogReader) -> None:
        """(p) The newest batches of each producer that are in the log are recognised."""
        table = self._table_of(reader)
        for sender in self._senders:
            own = [sent for sent in model.batches if sent.producer and sent.producer[0] == sender.producer_id]
            newest = [sent for sent in own if sent.producer and sent.producer[:2] == (own[-1].producer or (0, 0))[:2]]
            for sent in newest[-_LIMITS.batch_count_max :]:
                self._send_again(table, Sender(0), sent, model)
