"""The options that a client can set, with the defaults of this server."""

from courser.api.replies import OptionDescription, OptionList
from courser.errors import CommandRejected, ErrorCode
from courser.model.topic_options import TopicOptions

_TOPIC, _STREAM, _USER = 1, 2, 3
_COMPRESSIONS = {1: "none", 2: "gzip"}

_DESCRIPTIONS: tuple[tuple[str, str, str], ...] = (
    ("compression_algorithm", "compression", "the compression that clients should use: none or gzip"),
    ("message_expiry", "message_expiry", "microseconds after which messages are deleted"),
    ("max_topic_size", "max_topic_size", "size limit in bytes over all partitions, at least 16 MiB"),
    ("segment_size", "segment_size", "bytes after which a partition starts a new file, 1 MiB to 1 GiB"),
    ("enforce_fsync", "enforce_fsync", "whether messages are synced to disk before they are acknowledged"),
    (
        "messages_required_to_save",
        "messages_required_to_save",
        "how many messages a power cut may lose if they are not synced before they are acknowledged",
    ),
    (
        "size_of_messages_required_to_save",
        "size_of_messages_required_to_save",
        "how many bytes a power cut may lose if they are not synced before they are acknowledged",
    ),
    ("preallocate_segments", "preallocate_segments", "accepted; disk space is always allocated ahead in steps"),
    ("durability", "durability", "persisted: synced before it is acknowledged; replicated: this server's default"),
    ("consumer_offset_durability", "consumer_offset_durability", "the same for stored consumer offsets"),
)
"""Key, field of ``TopicOptions``, description: in the order in which Iggy lists them."""


def describe_options(scope: int, defaults: TopicOptions) -> OptionList:
    """The options of a topic; streams and users have none. Raises ``CommandRejected`` (3) for anything else."""
    if scope in (_STREAM, _USER):
        return OptionList([])
    if scope != _TOPIC:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"unknown option scope {scope}")
    return OptionList([_describe(key, field, text, defaults) for key, field, text in _DESCRIPTIONS])


def _describe(key: str, field: str, text: str, defaults: TopicOptions) -> OptionDescription:
    default = getattr(defaults, field)
    return OptionDescription(key, _COMPRESSIONS[default] if field == "compression" else default, text)
