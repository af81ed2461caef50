"""How many partitions a topic has: asked once in a task; the topic is made if that is wanted."""

from courser.client.sync import SyncClient
from courser.errors import AlreadyExists, NotFound
from courser.spark.connections import patiently
from courser.spark.errors import WriteFailed
from courser.spark.write_options import WriteOptions


class TopicLookup:
    """The topics that a task writes to."""

    def __init__(self, client: SyncClient, options: WriteOptions) -> None:
        self._client = client
        self._options = options
        self._counts: dict[tuple[str, str], int] = {}

    def partition_count(self, stream: str, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            WriteFailed: there is no such topic, or it has no partitions.
        """
        count = self._counts.get((stream, topic))
        if count is None:
            count = patiently(lambda: self._ask(stream, topic), self._options.retries)
            self._counts[stream, topic] = count
        return count

    def _ask(self, stream: str, topic: str) -> int:
        try:
            count = len(self._client.get_partition_bounds(stream, topic).partitions)
        except NotFound:
            if self._options.create_partitions is None:
                raise WriteFailed(
                    f"there is no topic {stream}/{topic}: make it, or set the option createTopic to the number of "
                    "partitions that it shall have"
                ) from None
            return self._make(stream, topic, self._options.create_partitions)
        if not count:
            raise WriteFailed(f"topic {stream}/{topic} has no partitions")
        return count

    def _make(self, stream: str, topic: str, count: int) -> int:
        for make in (
            lambda: self._client.create_stream(stream),
            lambda: self._client.create_topic(stream, topic, count),
        ):
            try:
                make()
            except AlreadyExists:
                # Another task was faster, or the stream is there.
                continue
        return len(self._client.get_partition_bounds(stream, topic).partitions)
