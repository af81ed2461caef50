"""Options of topics."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NEVER = 2**64 - 1
"""Messages never expire; the size of a topic is unlimited."""
COMPRESSIONS: Mapping[str, int] = MappingProxyType({"none": 1, "gzip": 2, "snappy": 3, "lz4": 4, "zstd": 5})
"""The algorithms by name. The first two have these numbers in Iggy, which has no others."""
COMPRESSION_NAMES: Mapping[int, str] = MappingProxyType({number: name for name, number in COMPRESSIONS.items()})
NO_COMPRESSION = COMPRESSIONS["none"]
GZIP = COMPRESSIONS["gzip"]


def compression_for_sdks(compression: int | None) -> int:
    """The number that an SDK is shown: gzip for every algorithm that it has no word for."""
    return min(compression or NO_COMPRESSION, GZIP)


class TopicOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The options that were set for a topic. None is the server's default."""

    message_expiry: int | None = None
    """Microseconds; ``NEVER`` keeps messages forever."""
    max_topic_size: int | None = None
    """Bytes over all partitions; ``NEVER`` is unlimited."""
    compression: int | None = None
    """A number of ``COMPRESSIONS``: of messages on disk. *none* too is the server's default: SDKs always send one."""
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
    keep_latest_by_key: bool | None = None
    """Whether messages are removed once a newer one with the same key is stored."""
    local_retention_time: int | None = None
    """Microseconds after which an archived segment is deleted here. The archive keeps it. ``NEVER``, None: never."""
    local_retention_size: int | None = None
    """Bytes over all partitions from which on archived segments are deleted here. ``NEVER``, None: never."""
