"""Settings of the broker, each with the key of the configuration that sets it. Durations are in microseconds."""

from dataclasses import asdict, dataclass, field

import msgspec

from courser.archive.settings import ArchiveSettings
from courser.catalog.rules import SINK_COUNT_MAX, TOKEN_COUNT_MAX
from courser.configuration.key import Key, setting
from courser.configuration.loading import Configuration
from courser.model import setting_kinds as kinds
from courser.model.quantities import NEVER, SECOND
from courser.model.topic_options import COMPRESSIONS, TOPIC_OPTIONS, TopicOptions
from courser.records.encryption import NO_KEYS, KeyRing
from courser.records.stored_body import Encryption
from courser.storage.message_window import Deduplication
from courser.storage.producer_table import ProducerLimits
from courser.storage.segment_index import IndexCache
from courser.storage.settings import DEFAULT_LIMITS, EngineLimits

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_DAY = 24 * 3600 * SECOND

TOPIC_SIZE_MIN = 16 * _MIB
"""Bytes: a smaller topic could not hold two segments of the smallest useful size."""

USUAL_TOPIC_OPTIONS = TopicOptions(
    replication_factor=1,
    **{option.field: option.default for option in TOPIC_OPTIONS.values()},  # type: ignore[arg-type]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Counts at which the broker refuses a request, and how soon it retries.

    Operators cannot set them. Tests pass smaller ones: a few requests then reach what takes thousands in production.
    """

    stream_count_max: int = 10_000
    """Streams: each is a directory and a row in the lists that clients request."""
    topic_count_of_stream_max: int = 10_000
    """Topics of a stream, for the same reason."""
    partition_count_of_topic_max: int = 10_000
    """Partitions of a topic: each is a directory, open files and about 10 KiB of memory."""
    group_count_of_server_max: int = 100_000
    """Consumer groups of all topics: limits the snapshot, and what a user who may read many topics can add to it."""
    member_count_max: int = 1000
    """Members of a group: every join and leave affects all other members."""
    membership_count_max: int = 1000
    """How many groups one connection may join."""
    connectionless_count_max: int = 4000
    """Members of groups over HTTP, which outlive their connections: they are not limited by those."""
    connectionless_count_of_user_max: int = 3000
    """The same for one user: a quarter is always left for other users."""
    row_count_max: int = 200_000
    """Partitions that all waits for arrivals together may wait for: about 50 MiB."""
    row_count_of_user_max: int = 50_000
    """The same for one user, so that nobody uses it up: 50 connections that each wait for a thousand partitions."""
    scan_count_max: int = 8
    """Searches over HTTP at the same time: each holds up to 32 MiB, and they take turns."""
    scan_count_of_user_max: int = 6
    """The same for one user: a quarter is always left for other users."""
    sink_count_of_user_max: int = SINK_COUNT_MAX * 3 // 4
    """Sinks of one user: a quarter of all is left for other users."""
    unfinished_count_max: int = 1000
    """Staged parts that are being written at the same time: each has an open file."""
    unfinished_count_of_user_max: int = 750
    """The same for one user: a quarter is always left for other users."""
    part_count_max: int = 100_000
    """All staged parts: each is a file in one directory, and a start checks all of them."""
    part_count_of_user_max: int = 75_000
    """The same for one user."""
    change_retry_delay: float = 0.1
    """Seconds before a metadata change that the disk refused is applied to it again, while its client waits."""
    disk_retry_delay: float = 1.0
    """Seconds before failed disk work that is still due is retried: a full disk does not empty faster."""


DEFAULT_BROKER_LIMITS = BrokerLimits()
"""What production uses."""


# --- options of topics that have no setting of their own ----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TopicDefaults:
    """The fields of ``TopicOptions`` whose defaults can be configured."""

    enforce_fsync: bool = setting(
        "system.partition.enforce_fsync",
        kinds.BOOL,
        bool(USUAL_TOPIC_OPTIONS.enforce_fsync),
        "whether messages are synced: a power cut then loses at most what the next keys allow",
    )
    messages_required_to_save: int = setting(
        "system.partition.messages_required_to_save",
        kinds.integer(1, 16_777_216),
        USUAL_TOPIC_OPTIONS.messages_required_to_save or 0,
        "with fsync: how many messages a power cut may lose; 1 loses none",
    )
    size_of_messages_required_to_save: int = setting(
        "system.partition.size_of_messages_required_to_save",
        kinds.size(1, _GIB),
        USUAL_TOPIC_OPTIONS.size_of_messages_required_to_save or 0,
        "with fsync: how many bytes a power cut may lose",
    )
    segment_size: int = setting(
        "system.segment.size",
        kinds.size(512, _GIB, multiple=512),
        USUAL_TOPIC_OPTIONS.segment_size or 0,
        "bytes after which the server starts a new segment file",
    )
    message_expiry: int = setting(
        "system.topic.message_expiry",
        kinds.EXPIRY,
        NEVER,
        "age at which messages are deleted, for topics without their own setting",
        aliases=("system.segment.message_expiry",),
    )
    max_topic_size: int = setting(
        "system.topic.max_size",
        kinds.topic_size(TOPIC_SIZE_MIN),
        NEVER,
        "maximum bytes on disk of a topic, over all its partitions, for topics without their own setting",
        aliases=("topic.max_topic_size", "system.topic.max_topic_size"),
    )
    compression: int = setting(
        "system.compression.default_algorithm",
        kinds.named(COMPRESSIONS),
        COMPRESSIONS["none"],
        "compression of stored messages in topics that name no algorithm; all but none and gzip need the extra "
        "`compression`",
    )


# --- keys that are checked together, or make up a value together --------------------------------------


def _cache_from_toml(value: object) -> IndexCache:
    if isinstance(value, bool):
        return IndexCache.ALL if value else IndexCache.NONE
    return _cache_from_text(kinds.checked_text(value))


def _cache_from_text(text: str) -> IndexCache:
    word = text.strip().lower()
    return IndexCache({"true": "all", "false": "none"}.get(word, word))


INDEX_CACHE = kinds.SettingKind(
    "word",
    'true or "all", "open_segment", false or "none"',
    _cache_from_toml,
    _cache_from_text,
    lambda value: kinds.quoted(value.value),
)

SAVER_ENABLED = Key(
    "message_saver.enabled",
    kinds.BOOL,
    True,
    "with fsync: whether unsynced messages are also synced after an interval",
    aliases=("system.partition.message_saver.enabled",),
)
CACHE_TIME_INDEXES: Key[bool | None] = Key(
    "system.segment.cache_time_indexes",
    kinds.OPTIONAL_BOOL,
    None,
    "true is the same as `cache_indexes = true`: one index holds offsets and times",
)
SCRUBBER_ENABLED = Key(
    "data_maintenance.scrubber.enabled",
    kinds.BOOL,
    True,
    "whether the server reads all sealed segments again from time to time, to find damage early",
)
DEDUPLICATION_ENABLED = Key(
    "system.message_deduplication.enabled",
    kinds.BOOL,
    False,
    "whether messages whose id was stored recently in the same partition are dropped",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How the broker behaves."""

    recreate_missing_state: bool = setting(
        "system.recovery.recreate_missing_state",
        kinds.BOOL,
        False,
        "whether to rebuild missing or damaged metadata at start, from the descriptors stored with the data",
    )
    disk_thread_count: int = setting(
        "system.disk_thread_count", kinds.integer(1, 64), 4, "threads for syncs, cold reads and other disk work"
    )
    staging_size_max: int = setting(
        "system.staging.size_max",
        kinds.size(_MIB, 2**62),
        64 * _GIB,
        "maximum bytes of staged, unpublished messages, over all jobs",
    )
    staging_expiry: int = setting(
        "system.staging.expiry",
        kinds.duration(1),
        _DAY,
        "how long to keep staged messages that are neither added to nor published",
    )
    topic_defaults: TopicOptions = USUAL_TOPIC_OPTIONS
    """Default options of topics. None: the option has no default."""
    saver_enforce_fsync: bool | None = setting(
        "message_saver.enforce_fsync",
        kinds.OPTIONAL_BOOL,
        None,
        "whether the saver syncs; if not set, it follows `system.partition.enforce_fsync`",
        aliases=("system.partition.message_saver.enforce_fsync",),
    )
    """True makes every partition at least `bounded`."""
    saver_interval: int | None = setting(
        "message_saver.interval",
        kinds.duration(1),
        SECOND,
        "how long messages may stay unsynced (Iggy: 30s)",
        aliases=("system.partition.message_saver.interval",),
    )
    """None if the message saver is off."""
    index_cache: IndexCache = setting(
        "system.segment.cache_indexes",
        INDEX_CACHE,
        IndexCache.OPEN_SEGMENT,
        "which indexes stay in memory",
    )
    index_interval: int = setting(
        "system.segment.index_interval",
        kinds.size(64, 16 * _MIB),
        4096,
        "bytes between index entries: smaller means faster lookups and larger indexes",
    )
    delete_oldest_segments: bool = setting(
        "system.topic.delete_oldest_segments",
        kinds.BOOL,
        True,
        "at the size limit: true deletes the oldest segments, false rejects sends (Iggy 0.6: false)",
    )
    cleaner_enabled: bool = setting(
        "data_maintenance.messages.cleaner_enabled",
        kinds.BOOL,
        True,
        "whether expiry and size limits are enforced at all (Iggy up to 0.8: false)",
    )
    cleaner_interval: int = setting(
        "data_maintenance.messages.interval",
        kinds.duration(),
        60 * SECOND,
        "time between two runs of the cleaner, and between two looks for topics to condense",
    )
    condensing_percent: int = setting(
        "data_maintenance.condensing.percent",
        kinds.integer(1, 100),
        50,
        "a partition that keeps the latest message by key is condensed when so many percent of its sealed "
        "segments are new since the last time",
    )
    tombstone_delay: int = setting(
        "data_maintenance.condensing.tombstone_delay",
        kinds.duration(),
        _DAY,
        "how long a message without a payload, which deletes its key, is kept for readers",
    )
    condensing_rate: int = setting(
        "data_maintenance.condensing.rate",
        kinds.size(64 * 1024, 2**40),
        64 * _MIB,
        "bytes that are read per second at most while segments are condensed",
    )
    free_space_min: int = setting(
        "data_maintenance.disk.min_free_space",
        kinds.size(),
        0,
        "bytes that stay free on the disk: below this, archived segments are deleted, oldest first, and "
        "if that is not enough, sends are refused; 0: no minimum",
    )
    scrub_rate: int = setting(
        "data_maintenance.scrubber.rate",
        kinds.size(64 * 1024),
        8 * _MIB,
        "bytes a second that the scrubber reads at most",
    )
    """0: the scrubber is off."""
    scrub_interval: int = setting(
        "data_maintenance.scrubber.interval",
        kinds.duration(60 * SECOND),
        7 * _DAY,
        "time from the beginning of one round of the scrubber to the next; a round reads every segment once",
    )
    validate_checksum: bool = setting(
        "system.partition.validate_checksum",
        kinds.BOOL,
        False,
        "whether to verify each sealed segment before its first read after a start; reads always check the "
        "batches that they return",
        aliases=("system.segment.validate_checksum",),
    )
    verify_frames: bool = setting(
        "system.partition.verify_frames",
        kinds.BOOL,
        False,
        "whether to verify the checksum of each sent message, in addition to that of its batch",
    )
    poll_size_max: int = setting(
        "system.partition.poll_size_max",
        kinds.size(64 * 1024, _GIB),
        8 * _MIB,
        "maximum bytes of a poll's reply, unless a single message is larger",
    )
    group_count_max: int = setting(
        "consumer_group.max_groups_per_topic",
        kinds.integer(1, 10_000),
        1000,
        "maximum consumer groups of one topic; any user who may read the topic can create some",
    )
    """Each change of a group rewrites all groups of its topic."""
    token_count_max: int = setting(
        "personal_access_token.max_tokens_per_user",
        kinds.integer(1, TOKEN_COUNT_MAX),
        100,
        "maximum personal access tokens of one user",
    )
    token_cleaner_enabled: bool = setting(
        "personal_access_token.cleaner.enabled",
        kinds.BOOL,
        True,
        "whether expired tokens are deleted; they are rejected in any case",
    )
    token_cleaner_interval: int = setting(
        "personal_access_token.cleaner.interval",
        kinds.duration(),
        60 * SECOND,
        "time between two checks for expired tokens",
    )
    heartbeat_enabled: bool = setting(
        "heartbeat.enabled",
        kinds.BOOL,
        True,
        "whether silent members are removed from their consumer groups",
    )
    heartbeat_interval: int = setting(
        "heartbeat.interval",
        kinds.duration(),
        30 * SECOND,
        "a member that sends no request for 1.2 times as long is removed",
    )
    reply_memory: int = setting(
        "tcp.reply_memory",
        kinds.size(_MIB),
        512 * _MIB,
        "memory in bytes for replies of all connections; when it is used up, polls return less and the slowest "
        "readers are disconnected",
    )
    encryption: Encryption | None = None
    """Encrypts new messages on disk."""
    keys: KeyRing = NO_KEYS
    """The keys for reading, that of ``encryption`` included."""
    deduplication: Deduplication | None = None
    """None: messages that are sent again are stored again, unless their producer is idempotent."""
    producers: ProducerLimits = field(default_factory=ProducerLimits)
    """What is remembered of idempotent producers."""
    series_count_max: int = setting(
        "http.metrics.max_series",
        kinds.integer(0, 100_000),
        1000,
        "partitions with time series of their own, and the same for partitions of consumer groups; further "
        "ones are added up by topic or group",
    )
    archive: ArchiveSettings | None = None
    """None: nothing is archived."""
    limits: BrokerLimits = DEFAULT_BROKER_LIMITS
    """Limits of the broker itself. No operator sets them; tests do."""
    engine_limits: EngineLimits = DEFAULT_LIMITS
    """Limits of the storage engine. No operator sets them either."""


def broker_settings(
    configuration: Configuration, *, encryption: Encryption | None, keys: KeyRing, archive: ArchiveSettings | None
) -> BrokerSettings:
    """The settings that the configuration makes."""
    defaults = asdict(configuration.fill(TopicDefaults))
    others: dict[str, object] = {"producers": configuration.fill(ProducerLimits)}
    if not configuration[SAVER_ENABLED]:
        others["saver_interval"] = None
    if not configuration[SCRUBBER_ENABLED]:
        others["scrub_rate"] = 0
    # One index holds offsets and times: it is cached if either is requested.
    if configuration[CACHE_TIME_INDEXES]:
        others["index_cache"] = IndexCache.ALL
    if configuration[DEDUPLICATION_ENABLED]:
        others["deduplication"] = configuration.fill(Deduplication)
    return configuration.fill(
        BrokerSettings,
        topic_defaults=msgspec.structs.replace(USUAL_TOPIC_OPTIONS, **defaults),
        encryption=encryption,
        keys=keys,
        archive=archive,
        **others,
    )
