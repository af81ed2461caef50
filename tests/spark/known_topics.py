"""Topics without a server: tests say what is in them, and what time it is."""

from courser.spark.topic_metadata import Bounds, Following, ListedSegment, TopicFacts

UUID = bytes(range(16))


def facts(*heads: int, size: int = 100, first: int = 0, uuid: bytes = UUID) -> TopicFacts:
    """Partitions with messages of one size."""
    return TopicFacts(uuid, {number: Bounds(first, head, head * size, head) for number, head in enumerate(heads)})


class KnownTopic:
    """A topic that a test changes at will, and a clock that it turns."""

    def __init__(self, *heads: int, uuid: bytes = UUID) -> None:
        self.heads = list(heads)
        self.uuid = uuid
        self.now = 100.0
        self.asked = 0
        self.waits: list[float] = []
        """Seconds."""
        self.has_arrivals = False
        self.waited_for: dict[str, dict[int, int]] = {}
        """By topic, in the last wait."""

    def facts(self) -> TopicFacts:
        self.asked += 1
        return facts(*self.heads, uuid=self.uuid)

    def wait(self, following: Following, seconds: float) -> bool:
        self.waits.append(seconds)
        self.waited_for = {str(place[-1]): dict(heads) for place, heads in following.items()}
        return self.has_arrivals

    def segments(self, partition: int) -> list[ListedSegment]:
        return []

    def is_reserved(self, partition: int, first: int, end: int) -> bool:
        return False

    def offset_at_time(self, partition: int, moment: int) -> int | None:
        """A message at every microsecond."""
        return moment if moment < self.heads[partition] else None
