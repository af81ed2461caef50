"""Errors of the data source. Each message states the facts and what to do about them."""

from courser.errors import ClientFailure, ErrorCode


class ReadFailed(ClientFailure):
    """A read cannot continue, or found fewer messages than planned."""


class SourceMissing(ReadFailed):
    """The topic to read does not exist."""

    code = ErrorCode.TOPIC_NOT_FOUND


class DataLost(ReadFailed):
    """Messages that a read needs are gone."""

    code = ErrorCode.OFFSET_GONE

    def __init__(self, reason: str, *, partition: int, wanted: int, earliest: int, lost: int) -> None:
        super().__init__(reason)
        self.partition = partition
        self.wanted = wanted
        """The next offset to read."""
        self.earliest = earliest
        """The first offset that can be read instead."""
        self.lost = lost
        """How many messages are missing."""


_REMEDIES = (
    "read the missing range from the archive (source=archive) or from a backup of the segment files "
    "(source=segments), start with a new checkpoint, or set failOnDataLoss=false to continue without these messages"
)


def retention_overtook(topic: str, partition: int, wanted: int, earliest: int) -> DataLost:
    """The offset to read was deleted by retention."""
    lost = earliest - wanted
    return DataLost(
        f"{topic}: partition {partition}: offset {wanted} is needed, but the earliest available offset is {earliest}: "
        f"{lost} messages are gone; {_REMEDIES}",
        partition=partition,
        wanted=wanted,
        earliest=earliest,
        lost=lost,
    )


def beyond_the_head(topic: str, partition: int, wanted: int, head: int) -> DataLost:
    """The offset to read does not exist, although it did when the read was planned."""
    lost = wanted - head
    return DataLost(
        f"{topic}: partition {partition}: offset {wanted} is needed, but the next offset to be written is {head}: "
        f"the topic was truncated, and {lost} messages are gone; {_REMEDIES}",
        partition=partition,
        wanted=wanted,
        earliest=head,
        lost=lost,
    )


def partition_gone(topic: str, partition: int, wanted: int) -> DataLost:
    """The partition was deleted."""
    return DataLost(
        f"{topic}: partition {partition} no longer exists, but offset {wanted} of it is needed; the number of lost "
        f"messages is unknown; {_REMEDIES}",
        partition=partition,
        wanted=wanted,
        earliest=0,
        lost=0,
    )


def unavailable(topic: str, partition: int, first: int, end: int, reason: str) -> DataLost:
    """Messages inside a range are deleted, lost or damaged."""
    return DataLost(
        f"{topic}: partition {partition}: offsets {first} to {end - 1} are {reason}: {end - first} messages are "
        f"gone; {_REMEDIES}",
        partition=partition,
        wanted=first,
        earliest=end,
        lost=end - first,
    )


def fewer_than_planned(topic: str, partition: int, start: int, end: int, reached: int) -> ReadFailed:
    """A task received fewer messages than planned."""
    return ReadFailed(
        f"{topic}: partition {partition}: offsets {start} to {end - 1} were planned, but only offsets below {reached} "
        f"were received: {end - reached} are missing"
    )


def topic_left_out(query: str, topic: str) -> ReadFailed:
    """The checkpoint of a query contains a topic that the query no longer reads."""
    return ReadFailed(
        f'{query}: the checkpoint contains topic "{topic}", but the option "topic" no longer names it, so its new '
        "messages would not be read; name it again, start with a new checkpoint, or set failOnDataLoss=false to drop "
        "the topic and forget its offsets"
    )


class RowRefused(ClientFailure):
    """A row or a column cannot be written as messages."""

    code = ErrorCode.INVALID_FORMAT


class WriteFailed(ClientFailure):
    """A write cannot be carried out as requested."""


class TargetMissing(WriteFailed):
    """The topic to write to does not exist, and the options do not say to create it."""

    code = ErrorCode.TOPIC_NOT_FOUND

    def __init__(self, name: str) -> None:
        super().__init__(
            f"topic {name} does not exist; create it, or set the option createTopic to the number of partitions to "
            "create it with"
        )
        self.name = name
        """``stream/topic``."""
