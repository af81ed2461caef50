"""What the catalog remembers. These structures are also what a snapshot holds, field by field.

Arrays on disk, so that 100,000 topics stay small: new fields go to the end, with a default.
"""

import msgspec

from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions

ID_MAX = 2**32 - 1
"""The largest id that fits into a request."""


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a topic."""

    partition_id: int
    incarnation: int
    """The journal op that made it; part of its directory's name, and of every batch in it."""
    created_at: int


class ConsumerGroup(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group. Its members are connections, and not remembered."""

    group_id: int
    name: str
    created_at: int


class Topic(msgspec.Struct, array_like=True):
    """A topic and what belongs to it."""

    topic_id: int
    uuid: bytes
    name: str
    created_at: int
    options: TopicOptions
    partitions: list[Partition]
    groups: dict[int, ConsumerGroup]
    group_ids: "UsedIds"
    purge_count: int
    """Grows with every purge. A partition whose ledger has a smaller number has missed one."""


class Stream(msgspec.Struct, array_like=True):
    """A stream and its topics."""

    stream_id: int
    uuid: bytes
    name: str
    created_at: int
    topics: dict[int, Topic]
    topic_ids: "UsedIds"


class Token(msgspec.Struct, frozen=True, array_like=True):
    """A personal access token, known only by its hash."""

    name: str
    token_hash: bytes
    created_at: int
    expires_at: int
    """Microseconds since 1970; 0 is never."""


class User(msgspec.Struct, array_like=True):
    """An account."""

    user_id: int
    name: str
    password_hash: str
    """An argon2id string, parameters and salt included."""
    is_active: bool
    created_at: int
    permissions: Permissions | None
    tokens: dict[str, Token]


class DeletedDirectory(msgspec.Struct, frozen=True, array_like=True):
    """A directory whose removal may not be durable yet: a start removes it again, if it is still the same one."""

    path: str
    """Relative to the data directory."""
    uuid: bytes
    """Of the stream or topic that it belonged to."""


class PublishedPart(msgspec.Struct, frozen=True, array_like=True):
    """A staged part that is published: what a task wrote, in one of its attempts."""

    part: int
    attempt: int
    size: int
    """Bytes of its file: another file of this name is not what was published."""
    digest: int
    """Of all the records in it."""


class PublishTarget(msgspec.Struct, frozen=True, array_like=True):
    """A partition that a publish appends to."""

    stream_id: int
    topic_id: int
    topic_uuid: bytes
    partition_id: int
    incarnation: int
    offset: int
    """The partition's next offset before the publish: what is appended lies there or behind."""
    batch_count: int = 0
    """How many batches the publish appends to it: the log alone tells whether all are there. 0 is not known."""


class Publish(msgspec.Struct, frozen=True, array_like=True):
    """A batch of a sink that is decided, and whose messages may not all be in their logs yet."""

    op: int
    """The journal op that decided it; with the nonce, the producer of its messages."""
    nonce: bytes
    """8 random bytes: ops come again if metadata is restored from a backup, these do not."""
    parts: tuple[PublishedPart, ...]
    targets: tuple[PublishTarget, ...]
    """Those of a topic go when it is purged: nothing more is appended to them."""


class Sink(msgspec.Struct, array_like=True):
    """A writer that publishes numbered batches, each exactly once."""

    name: str
    user_id: int
    """Whose it is: nobody else can make its next batch look published."""
    batch: int
    """The highest one that is decided."""
    published_at: int
    expires_at: int
    """Microseconds since 1970; 0 is never."""
    open: Publish | None = None
    """The batch above, while its messages are on their way into the logs."""


class PurgedTopic(msgspec.Struct, frozen=True, array_like=True):
    """What a purge of a stream means for one of its topics."""

    topic_id: int
    count: int
    """The topic's number of purges afterwards."""
    ends: tuple[int, ...]
    """The next offset of each partition when the purge was journaled."""


class PurgeEnds(msgspec.Struct, frozen=True, array_like=True):
    """How far the last purge of a topic reaches: a partition that missed it removes nothing from there on."""

    topic_uuid: bytes
    ends: tuple[int, ...]
    """By partition number. Partitions that were made later have none: they have missed nothing."""


class UsedIds(msgspec.Struct, array_like=True):
    """Which ids were ever given out. None is given out twice, deleted or not."""

    next_id: int = 0
    holes: list[tuple[int, int]] = []
    """Ranges below ``next_id`` that were never used: left by clients that name an id themselves."""

    def is_used(self, number: int) -> bool:
        """Whether this id was ever given out."""
        return number < self.next_id and not any(start <= number < end for start, end in self.holes)

    @property
    def is_exhausted(self) -> bool:
        """Whether no id is left."""
        return self.next_id > ID_MAX and not self.holes

    def use(self, number: int | None) -> int:
        """Give out an id: the next one, or the one that was asked for."""
        if number is None:
            # A client that names the largest id itself must not keep others from getting one.
            number = self.next_id if self.next_id <= ID_MAX else self.holes[0][0]
        if number >= self.next_id:
            if number > self.next_id:
                self.holes.append((self.next_id, number))
            self.next_id = number + 1
            return number
        self.holes = [part for hole in self.holes for part in _split(hole, number)]
        return number

    def merge(self, other: "UsedIds") -> None:
        """Call used what either calls used."""
        end = max(self.next_id, other.next_id)
        mine, theirs = ([*ids.holes, (ids.next_id, end)] for ids in (self, other))
        shared = ((max(hole[0], free[0]), min(hole[1], free[1])) for hole in mine for free in theirs)
        self.holes = [hole for hole in shared if hole[0] < hole[1]]
        self.next_id = end


def _split(hole: tuple[int, int], number: int) -> list[tuple[int, int]]:
    start, end = hole
    if not start <= number < end:
        return [hole]
    return [part for part in ((start, number), (number + 1, end)) if part[0] < part[1]]
