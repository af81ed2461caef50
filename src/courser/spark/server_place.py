"""Messages from the server: polls that skip nothing, the next one under way while the last one is decoded."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from courser.client.batches import PolledBatches
from courser.client.messages import PollingStrategy
from courser.client.targets import Target
from courser.errors import ErrorCode, NotFound, OffsetsUnavailable
from courser.spark.connections import Connection, connection_to, patiently
from courser.spark.errors import ReadFailed
from courser.spark.places import Piece

_COUNT_MAX = 2**32 - 1
"""Messages that a poll can ask for."""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """One topic at one server."""

    target: Target
    stream: str
    topic: str
    topic_uuid: bytes
    """The topic that the read was planned for: another one may have got its name."""
    poll_size: int
    """Bytes of one answer."""
    retries: int

    def pieces(self, partition: int, start: int, end: int) -> Iterator[Piece]:
        """See ``Place``. Raises ``ReadFailed`` if it is another topic by now."""
        connection = patiently(lambda: connection_to(self.target), self.retries)
        self._check_identity(connection)
        position = start
        coming = self._poll(connection, partition, position, end)
        while position < end:
            polled = coming.result()
            if not polled.message_count:
                if (head := polled.current_offset + 1) < end:
                    reason = f"beyond the head of the partition, which is {head} now and was {end} at planning at least"
                    raise OffsetsUnavailable(
                        ErrorCode.OFFSET_GONE, first_offset=max(position, head), end_offset=end, reason=reason
                    )
                # Numbers that no message ever had: the server jumps over them after a power cut, and says nothing.
                yield Piece(memoryview(b""), end)
                return
            behind = polled.next_offset
            assert behind is not None, "there are messages"
            if behind < end:
                coming = self._poll(connection, partition, behind, end)
            for records in polled.pieces[:-1]:
                yield Piece(records, position)
            yield Piece(polled.pieces[-1], min(behind, end))
            position = behind

    def _poll(self, connection: Connection, partition: int, start: int, end: int) -> "Future[PolledBatches]":
        return connection.begin(
            connection.client.poll_batches(
                self.stream,
                self.topic,
                partition,
                PollingStrategy.Offset(start),
                min(end - start, _COUNT_MAX),
                consumer=0,
                size_max=self.poll_size,
            )
        )

    def _check_identity(self, connection: Connection) -> None:
        try:
            bounds = connection.sync.get_partition_bounds(self.stream, self.topic)
        except NotFound as error:
            raise ReadFailed(f"{self.stream}/{self.topic} was deleted while it was read: {error}") from error
        if bounds.topic_uuid != self.topic_uuid:
            raise ReadFailed(f"{self.stream}/{self.topic} was deleted and created again while it was read")
