"""Settings of the broker. Each has a unit and a reason; ``server`` fills them from the configuration."""

from dataclasses import dataclass, field

from courser.archive.settings import ArchiveSettings
from courser.broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from courser.model.topic_options import TOPIC_OPTIONS, TopicOptions
from courser.records.encryption import NO_KEYS, KeyRing
from courser.records.stored_body import Encryption
from courser.storage.engine_limits import DEFAULT_LIMITS, EngineLimits
from courser.storage.message_window import Deduplication
from courser.storage.segment_index import IndexCache

_SECOND = 1_000_000
_MIB = 1024 * 1024

USUAL_TOPIC_OPTIONS = TopicOptions(
    replication_factor=1,
    **{option.field: option.default for option in TOPIC_OPTIONS.values()},  # type: ignore[arg-type]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How the broker behaves."""

    topic_defaults: TopicOptions = USUAL_TOPIC_OPTIONS
    """Default options of topics. No field is None."""
    saver_interval: int | None = _SECOND
    """Microseconds that unsynced data waits at most at level `bounded`: the message saver. None if it is off."""
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
    condensing_percent: int = 50
    """Condense a partition when so much of its sealed segments, or more, is new since the last time."""
    tombstone_delay: int = 24 * 3600 * _SECOND
    """Microseconds after which a message without a payload is removed from a topic that keeps the latest by key."""
    condensing_rate: int = 64 * _MIB
    """Bytes that are read per second at most while segments are condensed: other disk work goes first."""
    free_space_min: int = 0
    """Bytes that stay free on the disk: below this, archived segments are deleted, then sends are refused. 0: none."""
    scrub_rate: int = 8 * _MIB
    """Bytes a second at which the scrubber reads sealed segments again. 0: it is off."""
    scrub_interval: int = 7 * 24 * 3600 * _SECOND
    """Microseconds from the beginning of one round of the scrubber to the next: it reads everything once a round."""
    heartbeat_enabled: bool = True
    heartbeat_interval: int = 30 * _SECOND
    """Microseconds: a group member that is silent for 1.2 times as long is removed from its groups."""
    group_count_max: int = 1000
    """Consumer groups of one topic: all users who may read it can create some, and each change rewrites all of them."""
    token_count_max: int = 100
    """Personal access tokens of one user."""
    token_cleaner_enabled: bool = True
    token_cleaner_interval: int = 60 * _SECOND
    """Microseconds between two checks for expired tokens."""
    poll_size_max: int = 8 * _MIB
    """Bytes of a poll's reply, unless a single message is larger: limits the memory of a connection."""
    reply_memory: int = 512 * _MIB
    """Bytes of polled messages that are not sent yet: above this, polls get smaller replies."""
    validate_checksum: bool = False
    """Whether each sealed segment is verified before its first read after a start."""
    verify_frames: bool = False
    """Whether the checksum of each message is verified when it is sent."""
    recreate_missing_state: bool = False
    """Whether a start rebuilds damaged or missing metadata from the descriptors next to the data."""
    staging_size_max: int = 64 * 1024 * _MIB
    """Bytes of staged, unpublished messages of all sinks: limits what abandoned jobs cost."""
    staging_expiry: int = 24 * 3600 * _SECOND
    """Microseconds after which a staged part that was neither extended nor published is removed."""
    encryption: Encryption | None = None
    """Encrypts new messages on disk."""
    keys: KeyRing = NO_KEYS
    """The keys for reading, that of ``encryption`` included."""
    deduplication: Deduplication | None = None
    """For how long ids of messages are remembered, to drop what is sent again. None: not at all."""
    series_count_max: int = 1000
    """Partitions that have time series of their own in metrics, and partitions of consumer groups: limits what a
    monitoring system has to store."""
    archive: ArchiveSettings | None = None
    """None: nothing is archived."""
    limits: BrokerLimits = DEFAULT_BROKER_LIMITS
    """Limits of the broker itself. No operator sets them; tests do."""
    engine_limits: EngineLimits = DEFAULT_LIMITS
    """Limits of the storage engine. No operator sets them either."""
    disk_thread_count: int = field(default=4)
    """Threads for syncs, cold reads and other disk work."""
