"""Options of topics."""

import msgspec

NEVER = 2**64 - 1
"""Messages never expire; the size of a topic is unlimited."""


class TopicOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The options that were set for a topic. None is the server's default."""

    message_expiry: int | None = None
    """Microseconds; ``NEVER`` keeps messages forever."""
    max_topic_size: int | None = None
    """Bytes over all partitions; ``NEVER`` is unlimited."""
    compression: int | None = None
    """1 none, 2 gzip: only reported to clients, as in Iggy."""
    replication_factor: int | None = None
    segment_size: int | None = None
    """Bytes."""
    enforce_fsync: bool | None = None
    messages_required_to_save: int | None = None
    size_of_messages_required_to_save: int | None = None
    """Bytes."""
    preallocate_segments: bool | None = None
    durability: str | None = None
    """``replicated`` or ``persisted``."""
    consumer_offset_durability: str | None = None
    """``replicated`` or ``persisted``."""
