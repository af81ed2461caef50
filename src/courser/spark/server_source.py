"""Reads messages from the server. The next poll is already running while the last one is decoded."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from courser.client.batches import PolledBatches
from courser.client.messages import PollingStrategy
from courser.client.targets import Target
from courser.errors import ErrorCode, NotFound, OffsetsUnavailable
from courser.spark.background_clients import BackgroundClient, connection_to, with_retries
from courser.spark.errors import ReadFailed
from courser.spark.sources import FetchedBatches

_COUNT_MAX = 2**32 - 1
"""Messages that one poll can request."""


@dataclass(frozen=True, slots=True)
class ServerSource:
    """One topic on one server."""

    target: Target
    stream: str
    topic: str
    topic_uuid: bytes
    """The topic that the read was planned for. A new topic may have taken its name since."""
    poll_size: int
    """Bytes of one reply."""
    retries: int

    def fetch(self, partition: int, start: int, end: int) -> Iterator[FetchedBatches]:
        """Raises ``ReadFailed`` if the topic was deleted or replaced."""
        connection = with_retries(lambda: connection_to(self.target), self.retries)
        self._check_identity(connection)
        offset = start
        coming = self._poll(connection, partition, offset, end)
        while offset < end:
            polled = coming.result()
            if not polled.message_count:
                if (head := self._head(connection, partition)) < end:
                    reason = f"beyond the head of the partition, which is now {head} and was at least {end} at planning"
                    raise OffsetsUnavailable(
                        ErrorCode.OFFSET_GONE, first_offset=max(offset, head), end_offset=end, reason=reason
                    )
                # Offsets that no message ever had: after a power cut the server skips the ones it had reserved.
                yield FetchedBatches(memoryview(b""), end)
                return
            behind = polled.next_offset
            assert behind is not None, "there are messages"
            if behind < end:
                coming = self._poll(connection, partition, behind, end)
            for records in polled.pieces[:-1]:
                yield FetchedBatches(records, offset)
            yield FetchedBatches(polled.pieces[-1], min(behind, end))
            offset = behind

    def _head(self, connection: BackgroundClient, partition: int) -> int:
        """The next offset of a partition; 0 if it does not exist any more."""
        bounds = connection.get_partition_bounds(self.stream, self.topic)
        return next((found.next_offset for found in bounds.partitions if found.partition_id == partition), 0)

    def _poll(self, connection: BackgroundClient, partition: int, start: int, end: int) -> "Future[PolledBatches]":
        return connection.begin(
            lambda client: client.poll_batches(
                self.stream,
                self.topic,
                partition,
                PollingStrategy.Offset(start),
                min(end - start, _COUNT_MAX),
                consumer=0,
                size_max=self.poll_size,
            )
        )

    def _check_identity(self, connection: BackgroundClient) -> None:
        try:
            bounds = connection.get_partition_bounds(self.stream, self.topic)
        except NotFound as error:
            raise ReadFailed(f"{self.stream}/{self.topic} was deleted while being read: {error}") from error
        if bounds.topic_uuid != self.topic_uuid:
            raise ReadFailed(f"{self.stream}/{self.topic} was deleted and recreated while being read")
