"""The entities of the catalog. A snapshot stores these structures field by field.

They are arrays on disk, so that 100,000 topics stay small: add new fields at the end, with a default.
"""

from typing import Any, cast

import msgspec

from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions

ID_MAX = 2**32 - 1
"""The largest id that fits into a request."""


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a topic."""

    partition_id: int
    incarnation: int
    """The journal op that created it; part of its directory's name and of every batch in it."""
    created_at: int


class ConsumerGroup(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group. Its members are connections and are not stored."""

    group_id: int
    name: str
    created_at: int


class Topic(msgspec.Struct, array_like=True):
    """A topic with its options, partitions and consumer groups."""

    topic_id: int
    uuid: bytes
    name: str
    created_at: int
    options: TopicOptions
    partitions: list[Partition]
    groups: dict[int, ConsumerGroup]
    group_ids: "UsedIds"
    purge_count: int
    """How often the topic was purged. A partition with a smaller number in its ledger missed a purge."""


_FIRST_OPTION_COUNT = 11
"""The options of the first format. Later ones follow them."""
_FirstOptions = msgspec.defstruct(
    "_FirstOptions", [(name, Any) for name in TopicOptions.__struct_fields__[:_FIRST_OPTION_COUNT]], array_like=True
)


def options_as_written(options: TopicOptions) -> TopicOptions:
    """Options in the form in which they are written: without the later ones, unless one of them is set.

    So a directory in which none was ever set has the same bytes, and the same hashes, as with an earlier version.
    """
    values = msgspec.structs.astuple(options)
    if any(value is not None for value in values[_FIRST_OPTION_COUNT:]):
        return options
    return cast("TopicOptions", _FirstOptions(*values[:_FIRST_OPTION_COUNT]))


def topic_as_written(topic: Topic) -> Topic:
    """A topic in the form in which it is written."""
    return msgspec.structs.replace(topic, options=options_as_written(topic.options))


class Stream(msgspec.Struct, array_like=True):
    """A stream and its topics."""

    stream_id: int
    uuid: bytes
    name: str
    created_at: int
    topics: dict[int, Topic]
    topic_ids: "UsedIds"


class Token(msgspec.Struct, frozen=True, array_like=True):
    """A personal access token. Only its hash is stored."""

    name: str
    token_hash: bytes
    created_at: int
    expires_at: int
    """Microseconds since 1970; 0 if it never expires."""

    def is_expired(self, now: int) -> bool:
        """Whether it is valid no more."""
        return 0 < self.expires_at <= now


class User(msgspec.Struct, array_like=True):
    """A user account with its permissions."""

    user_id: int
    name: str
    password_hash: str
    """An argon2id string with parameters and salt."""
    is_active: bool
    created_at: int
    permissions: Permissions | None
    tokens: dict[str, Token]


class DeletedDirectory(msgspec.Struct, frozen=True, array_like=True):
    """A directory whose removal may not be durable yet. A start removes it again if it is still the same directory."""

    path: str
    """Relative to the data directory."""
    uuid: bytes
    """Of the stream or topic that it belonged to."""


class PublishedPart(msgspec.Struct, frozen=True, array_like=True):
    """A staged part that is published: the messages that one attempt of a task staged."""

    part: int
    attempt: int
    size: int
    """Size of its file in bytes: a file of another size is not the one that was published."""
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
    """The offset up to which the partition was synced when the publish was decided: its messages get this offset or a
    higher one. The next offset may be higher, but a power cut can lose unsynced messages and reuse their offsets."""
    batch_count: int = 0
    """How many batches the publish appends, so that the log alone shows whether all are present. 0 if not known."""


class Publish(msgspec.Struct, frozen=True, array_like=True):
    """A publish that is decided: its messages may not all be in their logs yet."""

    op: int
    """The journal op that decided it. Op and nonce are the producer of its messages."""
    nonce: bytes
    """8 random bytes. Ops are reused if metadata is restored from a backup; the nonce is not."""
    parts: tuple[PublishedPart, ...]
    targets: tuple[PublishTarget, ...]
    """Those of a topic go when it is purged: nothing more is appended to them."""


class Sink(msgspec.Struct, array_like=True):
    """A writer that publishes numbered batches, each exactly once."""

    name: str
    user_id: int
    """Its owner: no other user can make its next batch look published."""
    batch: int
    """The highest batch whose publish is decided."""
    published_at: int
    expires_at: int
    """Microseconds since 1970; 0 if it never expires."""
    open: Publish | None = None
    """The publish of ``batch``, until all its messages are in the logs and synced."""


class PurgedTopic(msgspec.Struct, frozen=True, array_like=True):
    """One topic in the purge of a stream."""

    topic_id: int
    count: int
    """How often the topic has been purged, including this purge."""
    ends: tuple[int, ...]
    """The next offset of each partition when the purge was journaled."""


class PurgeEnds(msgspec.Struct, frozen=True, array_like=True):
    """Where the last purge of a topic ends: a partition that missed the purge deletes nothing from there on."""

    topic_uuid: bytes
    ends: tuple[int, ...]
    """By partition number. Partitions created later have none: they missed nothing."""


class UsedIds(msgspec.Struct, array_like=True):
    """The ids that were ever assigned. An id is never reused, even after a deletion."""

    next_id: int = 0
    holes: list[tuple[int, int]] = []
    """Ranges below ``next_id`` that were never used, because clients can choose ids."""

    def is_used(self, number: int) -> bool:
        """Whether this id was ever assigned."""
        return number < self.next_id and not any(start <= number < end for start, end in self.holes)

    def use(self, number: int | None) -> int:
        """Assign an id: the requested one, or the next free one."""
        if number is None:
            # A client that chooses the largest id must not use up all ids.
            number = self.next_id if self.next_id <= ID_MAX else self.holes[0][0]
        if number >= self.next_id:
            if number > self.next_id:
                self.holes.append((self.next_id, number))
            self.next_id = number + 1
            return number
        self.holes = [part for hole in self.holes for part in _split(hole, number)]
        return number

    def merge(self, other: "UsedIds") -> None:
        """Add the ids that are used in ``other``."""
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
