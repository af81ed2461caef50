"""What an operator can set about the broker's behaviour. Each has a unit and a reason; ``server`` fills it."""

from dataclasses import dataclass, field

from courser.model.topic_options import NEVER, TopicOptions
from courser.storage.limits import DEFAULT_LIMITS, EngineLimits
from courser.storage.segment_index import IndexCache

_SECOND = 1_000_000
_MIB = 1024 * 1024

REPLICATED = "replicated"
"""As the server's default says; the name is Iggy's."""
PERSISTED = "persisted"
"""Synced before the acknowledgement."""

USUAL_TOPIC_OPTIONS = TopicOptions(
    message_expiry=NEVER,
    max_topic_size=NEVER,
    compression=1,
    replication_factor=1,
    segment_size=1024 * _MIB,
    enforce_fsync=False,
    messages_required_to_save=1024,
    size_of_messages_required_to_save=_MIB,
    preallocate_segments=False,
    durability=REPLICATED,
    consumer_offset_durability=REPLICATED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How the broker behaves."""

    topic_defaults: TopicOptions = USUAL_TOPIC_OPTIONS
    """What holds for a topic that does not say otherwise. No field is None."""
    saver_interval: int | None = _SECOND
    """Microseconds that unsynced data waits at most at `bounded`: the message saver. None if it is switched off."""
    saver_enforce_fsync: bool | None = None
    """The saver's own flag; None follows `partition.enforce_fsync`. True makes every partition at least `bounded`."""
    index_interval: int = 4096
    """Bytes between index entries."""
    index_cache: IndexCache = IndexCache.OPEN_SEGMENT
    delete_oldest_segments: bool = True
    """At the size limit of a topic: True deletes its oldest segments, False refuses sends."""
    cleaner_enabled: bool = True
    cleaner_interval: int = 60 * _SECOND
    """Microseconds between two runs of retention."""
    heartbeat_enabled: bool = True
    heartbeat_interval: int = 30 * _SECOND
    """Microseconds: a group member silent for 1.2 times as long is dropped from its groups."""
    group_count_max: int = 1000
    """Consumer groups of one topic: everybody who may read it can make some, and each change writes all of them."""
    token_count_max: int = 100
    """Personal access tokens of one user."""
    token_cleaner_enabled: bool = True
    token_cleaner_interval: int = 60 * _SECOND
    """Microseconds between two looks for expired tokens."""
    poll_size_max: int = 8 * _MIB
    """Bytes of a poll's reply, unless a single message is larger: bounds the memory of a connection."""
    reply_memory: int = 512 * _MIB
    """Bytes of polled messages on their way to clients: when they are used up, polls get smaller replies."""
    validate_checksum: bool = False
    """Whether each sealed segment is verified before its first read after a start."""
    verify_frames: bool = False
    """Whether the checksum of each message is verified when it is sent."""
    recreate_missing_state: bool = False
    """Whether a start rebuilds damaged or missing metadata from the descriptors beside the data."""
    staging_size_max: int = 64 * 1024 * _MIB
    """Bytes of staged messages that are not published yet, of all sinks together: bounds what abandoned jobs cost."""
    staging_expiry: int = 24 * 3600 * _SECOND
    """Microseconds after which a staged part to which nothing was added, and that nobody published, is removed."""
    limits: EngineLimits = DEFAULT_LIMITS
    """Limits of the storage engine. No operator sets them; tests do."""
    disk_thread_count: int = field(default=4)
    """Threads for syncs, cold reads and other disk work."""
