"""The options of topics: their effective values, the resulting storage settings, and descriptions for clients.

Pure. Options are checked before they are journaled. Journaled options are used as well as possible, because a start
must not fail because of an option that an older version allowed.
"""

from collections.abc import Collection
from functools import lru_cache

import msgspec

from courser.api.replies import OptionDescription, OptionList, TopicDurability
from courser.broker.settings import TOPIC_SIZE_MIN, BrokerSettings
from courser.errors import CommandRejected, ErrorCode
from courser.model.durability import PERSISTED, Durability, DurabilityPolicy
from courser.model.quantities import NEVER
from courser.model.topic_options import NO_COMPRESSION, TOPIC_OPTIONS, TopicOption, TopicOptions
from courser.records.compression import check_available
from courser.records.layout import Compression
from courser.records.stored_body import PLAIN, Encoding
from courser.storage.settings import SEGMENT_SIZE_LIMIT, LogSettings

_UNBOUNDED = 2**62
"""A bound that is never reached."""
_SEGMENT_AGE_USUAL = LogSettings().segment_age_max
_SEGMENT_AGE_MIN = 60 * 1_000_000
"""Microseconds: a segment per second would cost more than keeping messages a minute longer."""

_KNOWN_COUNT_MAX = 1000
"""Sets of options whose effective values are remembered: most topics of a server have the same ones."""

_CLASSIC_FIELDS = ("message_expiry", "max_topic_size", "compression", "replication_factor")
"""What an update of SDK 0.5 to 0.8 replaces."""
_ZERO_IS_DEFAULT = (
    "replication_factor",
    *(option.field for option in TOPIC_OPTIONS.values() if option.kind.is_number),
)


def stored_options(options: TopicOptions) -> TopicOptions:
    """Options as they are stored: "0", with which clients request the server's default, becomes None.

    Raises:
        CommandRejected: a value is invalid, on whichever wire it came.
        CodecMissing: messages cannot be compressed in this way, because the codec is not installed.
    """
    unset = {name: None for name in _ZERO_IS_DEFAULT if getattr(options, name) == 0}
    if unset:
        options = msgspec.structs.replace(options, **unset)
    size = options.max_topic_size
    if size is not None and size < TOPIC_SIZE_MIN:
        reason = f"the size limit of a topic must be at least {TOPIC_SIZE_MIN} bytes, not {size}"
        raise CommandRejected(ErrorCode.INVALID_TOPIC_SIZE, reason)
    if options.replication_factor is not None and not 1 <= options.replication_factor <= 255:
        reason = f"replication_factor must be between 1 and 255, not {options.replication_factor}"
        raise CommandRejected(ErrorCode.INVALID_OPTION_VALUE, reason)
    for option in TOPIC_OPTIONS.values():
        value = getattr(options, option.field)
        if value is not None and not option.accepts(value):
            raise CommandRejected(ErrorCode.INVALID_OPTION_VALUE, f"{option.name} must be {option.bounds}, not {value}")
    if options.compression not in (None, NO_COMPRESSION):
        check_available(codec_of(options.compression))
    return options


def merged_options(
    present: TopicOptions, update: TopicOptions, reset: Collection[str] = (), *, is_patch: bool
) -> TopicOptions:
    """The options after an update: a patch keeps options that it does not name, others replace the classic four.

    Raises as ``stored_options`` does.
    """
    names = TopicOptions.__struct_fields__ if is_patch else _CLASSIC_FIELDS
    changes = {name: getattr(update, name) for name in names}
    if is_patch:
        changes = {name: value for name, value in changes.items() if value is not None}
    changes.update(dict.fromkeys(reset))
    return stored_options(msgspec.structs.replace(present, **changes))


@lru_cache(_KNOWN_COUNT_MAX)
def effective_options(options: TopicOptions, defaults: TopicOptions) -> TopicOptions:
    """The options that hold for a topic: its own, else the defaults."""
    unset = {name: getattr(defaults, name) for name in TopicOptions.__struct_fields__ if getattr(options, name) is None}
    if options.compression == NO_COMPRESSION:
        # SDKs always name an algorithm, and this one if their caller named none.
        unset["compression"] = defaults.compression
    return msgspec.structs.replace(options, **unset) if unset else options


def reported_options(options: TopicOptions, defaults: TopicOptions) -> tuple[TopicOptions, TopicOptions]:
    """The options of a topic as clients see them: those that were set and have an effect, and all that hold."""
    effective = effective_options(options, defaults)
    if options.compression == effective.compression:
        return options, effective
    return msgspec.structs.replace(options, compression=None), effective


# --- storage settings ---


def log_settings(options: TopicOptions, partition_count: int, settings: BrokerSettings) -> LogSettings:
    """How the partitions of a topic store their messages."""
    effective = effective_options(options, settings.topic_defaults)
    return LogSettings(
        segment_size=_segment_size(effective, partition_count),
        segment_age_max=_segment_age(effective),
        index_interval=settings.index_interval,
        index_cache=settings.index_cache,
        durability=durability_of(options, settings),
        encoding=_encoding(effective, settings),
        keys=settings.keys,
        deduplication=settings.deduplication,
        producers=settings.producers,
        limits=settings.engine_limits,
    )


def codec_of(compression: int | None) -> Compression:
    """The codec of a compression algorithm."""
    return Compression((compression or NO_COMPRESSION) - NO_COMPRESSION)


def _encoding(effective: TopicOptions, settings: BrokerSettings) -> Encoding:
    encoding = Encoding(codec_of(effective.compression), settings.encryption)
    # Partitions recognise this one value.
    return PLAIN if encoding == PLAIN else encoding


def _segment_size(effective: TopicOptions, partition_count: int) -> int:
    assert effective.segment_size is not None
    size = effective.segment_size
    limits = [limit for limit in (size_limit(effective), local_size_limit(effective)) if limit is not None]
    for limit in limits:
        # At least two segments per partition, so that the older half can be deleted while the newer stays.
        size = min(size, max(limit // (2 * max(partition_count, 1)), TOPIC_SIZE_MIN))
    return min(max(size, 1), SEGMENT_SIZE_LIMIT)


def _segment_age(effective: TopicOptions) -> int:
    expiry = min(expiry_of(effective) or NEVER, local_time_limit(effective) or NEVER)
    # A segment is deleted when its newest message expires. With half the expiry as the maximum age of a segment, the
    # oldest message is kept for at most one and a half times the expiry.
    return min(_SEGMENT_AGE_USUAL, max(expiry // 2, _SEGMENT_AGE_MIN))


def size_limit(effective: TopicOptions) -> int | None:
    """The size limit of a topic over all partitions in bytes; None is no limit."""
    limit = effective.max_topic_size
    return None if limit is None or limit == NEVER else max(limit, TOPIC_SIZE_MIN)


def expiry_of(effective: TopicOptions) -> int | None:
    """Microseconds after which a message may be deleted; None is never."""
    expiry = effective.message_expiry
    return None if expiry is None or expiry in (0, NEVER) else expiry


def local_size_limit(effective: TopicOptions) -> int | None:
    """Bytes over all partitions from which on archived segments are deleted here; None is no limit."""
    return None if effective.local_retention_size in (None, 0, NEVER) else effective.local_retention_size


def local_time_limit(effective: TopicOptions) -> int | None:
    """Microseconds after which archived segments are deleted here; None is never."""
    return None if effective.local_retention_time in (None, 0, NEVER) else effective.local_retention_time


def persists_offsets(effective: TopicOptions) -> bool:
    """Whether stored offsets are synced before they are acknowledged."""
    return effective.consumer_offset_durability == PERSISTED


def durability_of(options: TopicOptions, settings: BrokerSettings) -> DurabilityPolicy:
    """The durability level of a topic: what an acknowledgement guarantees."""
    effective = effective_options(options, settings.topic_defaults)
    level = _level(options, effective, settings)
    message_count_max = effective.messages_required_to_save or 1
    size_max = effective.size_of_messages_required_to_save or 1
    if not effective.enforce_fsync:
        # Only the saver's own flag requests syncs: it guarantees a time, not a number of messages.
        message_count_max = size_max = _UNBOUNDED
    return DurabilityPolicy(
        level=level,
        message_count_max=message_count_max,
        size_max=size_max,
        interval=_sync_interval(effective, settings),
    )


def describe_durability(options: TopicOptions, settings: BrokerSettings) -> TopicDurability:
    """The durability of a topic, for clients. A bound that is never reached is left out."""
    policy = durability_of(options, settings)
    is_bounded = policy.level is Durability.BOUNDED

    def bound(value: int) -> int | None:
        return value if is_bounded and value < _UNBOUNDED else None

    are_offsets_synced = persists_offsets(effective_options(options, settings.topic_defaults))
    return TopicDurability(
        policy.level.value,
        bound(policy.message_count_max),
        bound(policy.size_max),
        bound(policy.interval),
        (Durability.SYNCED if are_offsets_synced else Durability.WRITTEN).value,
    )


def _level(options: TopicOptions, effective: TopicOptions, settings: BrokerSettings) -> Durability:
    if effective.durability == PERSISTED:
        return Durability.SYNCED
    if options.enforce_fsync:
        # An explicit option of the topic counts, unless a bound of the topic says how much may be lost.
        own_bound = options.messages_required_to_save or 1
        return Durability.BOUNDED if own_bound > 1 else Durability.SYNCED
    if effective.enforce_fsync:
        is_every_message = effective.messages_required_to_save == 1
        return Durability.SYNCED if is_every_message else Durability.BOUNDED
    has_saver = settings.saver_interval is not None and settings.saver_enforce_fsync is True
    return Durability.BOUNDED if has_saver else Durability.WRITTEN


def _sync_interval(effective: TopicOptions, settings: BrokerSettings) -> int:
    """The maximum time that unsynced data waits for the saver."""
    saves = settings.saver_enforce_fsync
    if saves is None:
        saves = bool(effective.enforce_fsync)
    return settings.saver_interval if saves and settings.saver_interval is not None else _UNBOUNDED


# --- descriptions for clients ---

_TOPIC, _STREAM, _USER = 1, 2, 3

_IGGY_ORDER = (
    "compression_algorithm",
    "message_expiry",
    "max_topic_size",
    "segment_size",
    "enforce_fsync",
    "messages_required_to_save",
    "size_of_messages_required_to_save",
    "preallocate_segments",
    "durability",
    "consumer_offset_durability",
)
"""The order in which Iggy lists its options. Our own follow."""


def describe_options(scope: int, defaults: TopicOptions) -> OptionList:
    """The options of a topic; streams and users have none. Raises ``CommandRejected`` (3) for anything else."""
    if scope in (_STREAM, _USER):
        return OptionList([])
    if scope != _TOPIC:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"unknown option scope {scope}")
    names = (*_IGGY_ORDER, *(name for name in TOPIC_OPTIONS if name not in _IGGY_ORDER))
    options = (TOPIC_OPTIONS[name] for name in names)
    return OptionList([_describe(option, defaults) for option in options if option.default is not None])


def _describe(option: TopicOption, defaults: TopicOptions) -> OptionDescription:
    default = getattr(defaults, option.field)
    value = option.kind.text(default) if option.kind.words else default
    return OptionDescription(option.name, value, option.description or option.meaning)
