"""What the data source raises: each with the facts, and with what can be done about it."""

from courser.errors import ClientFailure, ErrorCode


class ReadFailed(ClientFailure):
    """A read that cannot go on, or that found less than it was planned for."""


class DataLost(ReadFailed):
    """Messages that a read must have are gone."""

    code = ErrorCode.OFFSET_GONE

    def __init__(self, reason: str, *, partition: int, wanted: int, earliest: int, lost: int) -> None:
        super().__init__(reason)
        self.args = (reason,)
        self.partition = partition
        self.wanted = wanted
        """The offset that should be read next."""
        self.earliest = earliest
        """The first offset that can be read instead."""
        self.lost = lost
        """How many messages are missing."""

    def __reduce__(self) -> tuple[object, ...]:
        return _lost, (self.reason, self.partition, self.wanted, self.earliest, self.lost)


def _lost(reason: str, partition: int, wanted: int, earliest: int, lost: int) -> DataLost:
    return DataLost(reason, partition=partition, wanted=wanted, earliest=earliest, lost=lost)


_REMEDIES = (
    "read the missing range from a backup of the segment files (source=segments), start with a new checkpoint, "
    "or go on without these messages with the option failOnDataLoss=false"
)


def retention_overtook(topic: str, partition: int, wanted: int, earliest: int) -> DataLost:
    """What is wanted was deleted."""
    lost = earliest - wanted
    return DataLost(
        f"{topic}: partition {partition}: offset {wanted} is wanted, but {earliest} is the earliest that is kept: "
        f"{lost} messages are gone; {_REMEDIES}",
        partition=partition,
        wanted=wanted,
        earliest=earliest,
        lost=lost,
    )


def beyond_the_head(topic: str, partition: int, wanted: int, head: int) -> DataLost:
    """What is wanted does not exist, though it did when it was planned."""
    lost = wanted - head
    return DataLost(
        f"{topic}: partition {partition}: offset {wanted} is wanted, but {head} is the next that will be written: "
        f"the topic was cut back, and {lost} messages that were there are gone; {_REMEDIES}",
        partition=partition,
        wanted=wanted,
        earliest=head,
        lost=lost,
    )


def partition_gone(topic: str, partition: int, wanted: int) -> DataLost:
    """The whole partition was deleted."""
    return DataLost(
        f"{topic}: partition {partition} does not exist any more, and offset {wanted} of it is wanted: nobody knows "
        f"how many messages are gone; {_REMEDIES}",
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
    """A task got less than it should."""
    return ReadFailed(
        f"{topic}: partition {partition}: offsets {start} to {end - 1} were planned, but only those below {reached} "
        f"came: {end - reached} are missing"
    )


def topic_left_out(query: str, topic: str) -> ReadFailed:
    """A query does not read a topic any more that its checkpoint knows."""
    return ReadFailed(
        f'{query}: the checkpoint knows topic "{topic}" too, which the option "topic" does not name any more: its '
        "messages would not be read from here on; name it again, start with a new checkpoint, or give it up with the "
        "option failOnDataLoss=false, and how far the query got in it is forgotten"
    )


class RowRefused(ClientFailure):
    """A row, or a column, that cannot become messages."""

    code = ErrorCode.INVALID_FORMAT


class WriteFailed(ClientFailure):
    """A write that cannot be carried out as it was asked for."""
