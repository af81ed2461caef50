"""What can be set for a topic."""

import msgspec

NEVER = 2**64 - 1
"""A message expiry that never comes, a topic size without limit."""


class TopicOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What somebody set for a topic. None is "the server's default"."""

    message_expiry: int | None = None
    """Microseconds; ``NEVER`` keeps messages for ever."""
    max_topic_size: int | None = None
    """Bytes over all partitions; ``NEVER`` is without limit."""
    compression: int | None = None
    """1 none, 2 gzip: what clients are told, as in Iggy."""
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
