"""Number the messages of a producer, so that a partition recognises a batch that is sent again.

A batch keeps its numbers until it has a result. If one is given up, or the partition does not know what comes before
it, the messages after it start over with the next *epoch*. Until then, batches of the epoch before are waited for:
whether they are stored is known only as long as that epoch is the latest.
"""

from collections.abc import Callable

from courser.records.batch import Batch
from courser.records.producers import EPOCH_MAX, BatchProducer, is_after

_IN_FLIGHT_MAX = 5
"""Batches on their way to a partition. It remembers at least so many."""


class PartitionNumbers:
    """The numbers of a producer's messages for one partition."""

    __slots__ = (
        "_doubtful_epoch",
        "_draw_id",
        "_epoch",
        "_is_settling",
        "_producer_id",
        "_refused",
        "_sequence",
        "in_flight_count",
    )

    def __init__(self, draw_id: Callable[[], int]) -> None:
        """``draw_id`` gives ids for producers."""
        self._draw_id = draw_id
        self._producer_id = draw_id()
        self._epoch = self._sequence = 0
        self._is_settling = False
        """Whether batches of the epoch before may be on their way."""
        self._refused: BatchProducer | None = None
        """A batch that will never be stored with its numbers. So neither will those after it in its epoch, nor what
        is left of epochs before."""
        self._doubtful_epoch = -1
        """The last one in which a batch was given up that may still be stored."""
        self.in_flight_count = 0
        """Batches that were sent and have no reply."""

    def number(self, batch: Batch) -> bool:
        """Give the batch the next numbers, unless it has some. False if it has to wait for those on their way."""
        if self.in_flight_count >= _IN_FLIGHT_MAX:
            return False
        if batch.producer is not None and not self._is_void(batch.producer):
            return True
        if self._is_settling and self.in_flight_count:
            return False
        self._is_settling = False
        batch.producer = producer = BatchProducer(self._producer_id, self._epoch, self._sequence, batch.count)
        self._sequence = producer.next_sequence
        return True

    def _is_void(self, producer: BatchProducer) -> bool:
        refused = self._refused
        if refused is None or producer.epoch > refused.epoch:
            return False
        return producer.epoch < refused.epoch or not is_after(refused.sequence, producer.sequence)

    def is_doubtful(self, producer: BatchProducer) -> bool:
        """Whether a batch that was refused, because others are missing before it, may be stored after all.

        That is so if it was sent over an earlier connection, and one of the others was given up: a server that has not
        noticed the end of that connection may still store both.
        """
        return producer.epoch == self._doubtful_epoch

    def give_up(self, producer: BatchProducer, *, is_doubtful: bool) -> None:
        """Number what follows a batch anew, except what was numbered before. ``is_doubtful``: it may be stored."""
        if is_doubtful:
            self._doubtful_epoch = producer.epoch
        self._start_over(producer)

    def renew(self, producer: BatchProducer) -> None:
        """Number a batch anew that was refused, and will not be stored as it was; and what follows it."""
        if not self._is_void(producer):
            self._refused = producer
        self._start_over(producer)

    def _start_over(self, producer: BatchProducer) -> None:
        """Begin the next epoch, unless that was done since the batch was numbered."""
        if (producer.producer_id, producer.epoch) != (self._producer_id, self._epoch):
            return
        self._epoch, self._sequence, self._is_settling = self._epoch + 1, 0, True
        if self._epoch > EPOCH_MAX:
            self._producer_id, self._epoch, self._refused = self._draw_id(), 0, None
