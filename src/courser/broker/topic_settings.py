"""What holds for a topic: its own options over the server's defaults, and the storage settings that follow.

Pure. Options are checked before they are journaled; what is journaled already is taken as well as it can be, because a
start must not fail over an option that an older version allowed.
"""

import msgspec

from courser.broker.settings import PERSISTED, REPLICATED, BrokerSettings
from courser.errors import CommandRejected, ErrorCode
from courser.model.durability import Durability, DurabilityPolicy
from courser.model.topic_options import NEVER, TopicOptions
from courser.storage.settings import SEGMENT_SIZE_LIMIT, LogSettings

_MIB = 1024 * 1024
TOPIC_SIZE_MIN = 16 * _MIB
"""Bytes: the smallest limit of a topic, and the smallest segment of a topic that has one."""
SEGMENT_SIZE_MIN = _MIB
"""Bytes: smaller segments would be mostly files."""
_MESSAGES_REQUIRED_MAX = 16 * 1024 * 1024
_SIZE_REQUIRED_MAX = 1024 * _MIB
_UNBOUNDED = 2**62
"""A bound that is never reached."""
_SEGMENT_AGE_USUAL = LogSettings().segment_age_max
_SEGMENT_AGE_MIN = 60 * 1_000_000
"""Microseconds: a segment for every second would cost more than keeping messages a minute longer."""

_CLASSIC_FIELDS = ("message_expiry", "max_topic_size", "compression", "replication_factor")
"""What an update of SDK 0.5 to 0.8 replaces."""
_ZERO_IS_DEFAULT = (
    "message_expiry",
    "max_topic_size",
    "replication_factor",
    "segment_size",
    "messages_required_to_save",
    "size_of_messages_required_to_save",
)


def stored_options(options: TopicOptions) -> TopicOptions:
    """Options as they are kept: "0", with which clients ask for the server's default, is nothing set."""
    unset = {name: None for name in _ZERO_IS_DEFAULT if getattr(options, name) == 0}
    return msgspec.structs.replace(options, **unset) if unset else options


def merged_options(present: TopicOptions, update: TopicOptions, *, is_patch: bool) -> TopicOptions:
    """What a topic has after an update: a patch leaves what it does not name, others replace the classic four."""
    names = TopicOptions.__struct_fields__ if is_patch else _CLASSIC_FIELDS
    changes = {name: getattr(update, name) for name in names}
    if is_patch:
        changes = {name: value for name, value in changes.items() if value is not None}
    return stored_options(msgspec.structs.replace(present, **changes))


def effective_options(options: TopicOptions, defaults: TopicOptions) -> TopicOptions:
    """What holds: no field is None."""
    unset = {name: getattr(defaults, name) for name in TopicOptions.__struct_fields__ if getattr(options, name) is None}
    return msgspec.structs.replace(options, **unset) if unset else options


# --- checks ---


def check_options(options: TopicOptions) -> None:
    """Raise ``CommandRejected`` for values that make no sense, whichever wire they came by."""
    size = options.max_topic_size
    if size is not None and size < TOPIC_SIZE_MIN:
        reason = f"a topic is limited to at least {TOPIC_SIZE_MIN} bytes, not to {size}"
        raise CommandRejected(ErrorCode.INVALID_TOPIC_SIZE, reason)
    _check_range("message_expiry", options.message_expiry, 1, NEVER)
    _check_range("max_topic_size", size, TOPIC_SIZE_MIN, NEVER)
    _check_range("compression", options.compression, 1, 2)
    _check_range("replication_factor", options.replication_factor, 1, 255)
    _check_range("segment_size", options.segment_size, SEGMENT_SIZE_MIN, SEGMENT_SIZE_LIMIT)
    _check_range("messages_required_to_save", options.messages_required_to_save, 1, _MESSAGES_REQUIRED_MAX)
    required = options.size_of_messages_required_to_save
    _check_range("size_of_messages_required_to_save", required, 1, _SIZE_REQUIRED_MAX)
    for name in ("durability", "consumer_offset_durability"):
        value = getattr(options, name)
        if value not in (None, REPLICATED, PERSISTED):
            reason = f"{name} is {REPLICATED!r} or {PERSISTED!r}, not {value!r}"
            raise CommandRejected(ErrorCode.INVALID_OPTION_VALUE, reason)


def _check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        reason = f"{name} lies between {low} and {high}, not at {value}"
        raise CommandRejected(ErrorCode.INVALID_OPTION_VALUE, reason)


# --- what follows for the storage ---


def log_settings(options: TopicOptions, partition_count: int, settings: BrokerSettings) -> LogSettings:
    """How the partitions of a topic store their messages."""
    effective = effective_options(options, settings.topic_defaults)
    return LogSettings(
        segment_size=_segment_size(effective, partition_count),
        segment_age_max=_segment_age(effective),
        index_interval=settings.index_interval,
        index_cache=settings.index_cache,
        durability=durability_of(options, settings),
        limits=settings.limits,
    )


def _segment_size(effective: TopicOptions, partition_count: int) -> int:
    assert effective.segment_size is not None
    size = effective.segment_size
    limit = size_limit(effective)
    if limit is not None:
        # Two segments a partition at least, so that the oldest half can go while the newest stays.
        size = min(size, max(limit // (2 * max(partition_count, 1)), TOPIC_SIZE_MIN))
    return min(max(size, 1), SEGMENT_SIZE_LIMIT)


def _segment_age(effective: TopicOptions) -> int:
    expiry = expiry_of(effective)
    if expiry is None:
        return _SEGMENT_AGE_USUAL
    # A segment goes when its newest message expires: half keeps the oldest no longer than one and a half times.
    return min(_SEGMENT_AGE_USUAL, max(expiry // 2, _SEGMENT_AGE_MIN))


def size_limit(effective: TopicOptions) -> int | None:
    """Bytes that a topic may have over all partitions; None is without limit."""
    limit = effective.max_topic_size
    return None if limit is None or limit == NEVER else max(limit, TOPIC_SIZE_MIN)


def expiry_of(effective: TopicOptions) -> int | None:
    """Microseconds after which a message may go; None is never."""
    expiry = effective.message_expiry
    return None if expiry is None or expiry in (0, NEVER) else expiry


def persists_offsets(effective: TopicOptions) -> bool:
    """Whether stored offsets are synced before they are acknowledged."""
    return effective.consumer_offset_durability == PERSISTED


def durability_of(options: TopicOptions, settings: BrokerSettings) -> DurabilityPolicy:
    """What an acknowledgement promises in this topic."""
    effective = effective_options(options, settings.topic_defaults)
    level = _level(options, effective, settings)
    message_count_max = effective.messages_required_to_save or 1
    size_max = effective.size_of_messages_required_to_save or 1
    if not effective.enforce_fsync:
        # Only the saver's own flag asks for syncs: it promises a time, not a number of messages.
        message_count_max = size_max = _UNBOUNDED
    return DurabilityPolicy(
        level=level,
        message_count_max=message_count_max,
        size_max=size_max,
        interval=_sync_interval(effective, settings),
    )


def _level(options: TopicOptions, effective: TopicOptions, settings: BrokerSettings) -> Durability:
    if effective.durability == PERSISTED:
        return Durability.SYNCED
    if options.enforce_fsync:
        # Who asks for it for one topic means it, unless a bound of the topic's own says how much may be lost.
        own_bound = options.messages_required_to_save or 1
        return Durability.BOUNDED if own_bound > 1 else Durability.SYNCED
    if effective.enforce_fsync:
        is_every_message = effective.messages_required_to_save == 1
        return Durability.SYNCED if is_every_message else Durability.BOUNDED
    has_saver = settings.saver_interval is not None and settings.saver_enforce_fsync is True
    return Durability.BOUNDED if has_saver else Durability.WRITTEN


def _sync_interval(effective: TopicOptions, settings: BrokerSettings) -> int:
    """How long unsynced data waits for the saver at most."""
    saves = settings.saver_enforce_fsync
    if saves is None:
        saves = bool(effective.enforce_fsync)
    return settings.saver_interval if saves and settings.saver_interval is not None else _UNBOUNDED
