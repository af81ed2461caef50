"""The options of topics. Each is a row: codecs, client, command line, console and catalog follow from it.

To add one: a field at the end of ``TopicOptions``, and a field with its row in ``TopicSettings``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, TypeAlias, TypedDict

import msgspec

from courser.model.durability import PERSISTED, REPLICATED, REQUESTS
from courser.model.quantities import NEVER, parse_byte_size, parse_expiry, parse_max_topic_size

COMPRESSIONS: Mapping[str, int] = MappingProxyType({"none": 1, "gzip": 2, "snappy": 3, "lz4": 4, "zstd": 5})
"""The algorithms by name. The first two have these numbers in Iggy, which has no others."""
NO_COMPRESSION = COMPRESSIONS["none"]
GZIP = COMPRESSIONS["gzip"]

_MIB = 1024 * 1024
_GIB = 1024 * _MIB


def compression_for_sdks(compression: int | None) -> int:
    """The number that an SDK is shown: gzip for every algorithm that it has no word for."""
    return min(compression or NO_COMPRESSION, GZIP)


class TopicOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The options that were set for a topic. None is the server's default.

    The catalog stores them in this order: new ones come last. Times are in microseconds, sizes in bytes.
    """

    message_expiry: int | None = None
    max_topic_size: int | None = None
    compression: int | None = None
    """A number of ``COMPRESSIONS``. *none* too is the server's default: SDKs always send one."""
    replication_factor: int | None = None
    """Only in requests of SDK 0.5 to 0.8; it has no row."""
    segment_size: int | None = None
    enforce_fsync: bool | None = None
    messages_required_to_save: int | None = None
    size_of_messages_required_to_save: int | None = None
    preallocate_segments: bool | None = None
    durability: str | None = None
    consumer_offset_durability: str | None = None
    keep_latest_by_key: bool | None = None
    local_retention_time: int | None = None
    local_retention_size: int | None = None
    partition_resize_policy: str | None = None


# --- kinds --------------------------------------------------------------------------------------------

OptionValue: TypeAlias = str | int | bool


@dataclass(frozen=True, slots=True)
class OptionKind:
    """How the values of an option are written as text."""

    name: str
    parse: Callable[[str], OptionValue | None]
    """Raises ``ValueError``, which says what is expected. None is the server's default."""
    unit: str = ""
    """Of numbers without a text."""
    examples: tuple[str, ...] = ()
    words: Mapping[str, OptionValue] = field(default_factory=dict)
    """Of a choice: the words on the wire, and the values that they stand for."""
    own_words: Mapping[str, str] = field(default_factory=dict)
    """Of a choice: what Courser calls the words on the wire."""
    is_number: bool = True
    """Whether values are numbers. Of those with a unit, clients may send 0 for the server's default."""

    def text(self, value: OptionValue) -> str:
        """The value as it is written on the wire."""
        if isinstance(value, bool):
            return str(value).lower()
        return next((word for word, meant in self.words.items() if meant == value), str(value))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(NEVER))):
        raise ValueError(f'a whole number, not "{text}"')
    return int(text)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f'true or false, not "{text}"')
    return text == "true"


def _choice(words: Mapping[str, OptionValue], own_words: Mapping[str, str] | None = None) -> OptionKind:
    known = own_words or {word: word for word in words}

    def parse(text: str) -> OptionValue:
        value = words.get(known.get(text, text))
        if value is None:
            *others, last = (f'"{word}"' for word in known)
            raise ValueError(f'{", ".join(others)} or {last}, not "{text}"')
        return value

    return OptionKind("choice", parse, words=words, own_words=known, is_number=False)


_DURATION = OptionKind("duration", parse_expiry, "microseconds", ("7 days", "none"))
_TOTAL_SIZE = OptionKind("size", parse_max_topic_size, "bytes", ("10 GiB", "unlimited"))
_SIZE = OptionKind("size", parse_byte_size, "bytes", ("256 MiB",))
_COUNT = OptionKind("count", _count)
_FLAG = OptionKind("flag", _flag, is_number=False)
_DURABILITY = _choice({PERSISTED: PERSISTED, REPLICATED: REPLICATED}, REQUESTS)
_COMPRESSION = _choice(COMPRESSIONS)
MUTABLE, FIXED = "mutable", "fixed"
_RESIZE_POLICY = _choice({MUTABLE: MUTABLE, FIXED: FIXED})


# --- rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOption:
    """What is declared about an option."""

    kind: OptionKind
    meaning: str
    """For people."""
    description: str = ""
    """For programs that ask which options there are; empty if it is the meaning."""
    title: str
    """In the console."""
    default: OptionValue | None
    """The server's default. None: the option is only shown where it was set."""
    low: int = 1
    high: int = NEVER
    step: int = 1
    field: str = ""
    """The field of ``TopicOptions``; empty if it has the name of the option."""
    is_own: bool = False
    """Whether Iggy does not have it. It is reported only where it was set, so that other clients see what they know."""
    has_effect: bool = True
    name: str = ""
    """In Python, on both wires and over HTTP. The fields of ``TopicSettings`` give it."""
    is_changeable: bool = False
    """Whether it can be changed later."""

    def accepts(self, value: OptionValue) -> bool:
        """Whether the value is within the bounds."""
        if not self.kind.is_number:
            return not self.kind.words or value in self.kind.words.values()
        return self.low <= int(value) <= self.high and not int(value) % self.step

    @property
    def sentence(self) -> str:
        """The meaning as a sentence."""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}."

    @property
    def bounds(self) -> str:
        """What is accepted, for messages."""
        if self.kind.words:
            return f"one of {', '.join(self.kind.words)}"
        return f"between {self.low} and {self.high}" + (f", a multiple of {self.step}" if self.step > 1 else "")


class ChangeableTopicSettings(TypedDict, total=False):
    """Settings that can be changed at any time. If not given: the server's default on creation, unchanged on update.

    Example:
        await client.update_topic("shop/orders", message_expiry="7 days", max_topic_size="unlimited")
    """

    message_expiry: Annotated[
        int | str | None,
        TopicOption(
            kind=_DURATION,
            meaning="how long messages are kept; expired ones are deleted a segment at a time",
            description="microseconds after which messages are deleted",
            title="Keep messages for",
            default=NEVER,
        ),
    ]
    max_topic_size: Annotated[
        int | str | None,
        TopicOption(
            kind=_TOTAL_SIZE,
            meaning="the maximum size of all partitions, at least 16 MiB; a full topic deletes its oldest messages or "
            "rejects new ones, as the server is configured",
            description="size limit in bytes over all partitions, at least 16 MiB",
            title="Largest size",
            default=NEVER,
        ),
    ]
    durability: Annotated[
        str | None,
        TopicOption(
            kind=_DURABILITY,
            meaning="when sends are acknowledged: synced, after a sync; default, at the level of the server",
            description="persisted: synced before it is acknowledged; replicated: this server's default",
            title="Durability",
            default=REPLICATED,
        ),
    ]
    consumer_offset_durability: Annotated[
        str | None,
        TopicOption(
            kind=_DURABILITY,
            meaning="the same for stored offsets",
            description="the same for stored consumer offsets",
            title="Durability of stored offsets",
            default=REPLICATED,
        ),
    ]
    compression_algorithm: Annotated[
        str | None,
        TopicOption(
            kind=_COMPRESSION,
            meaning="compression of messages on disk; none: the default of the server",
            description="compression on disk: gzip, snappy, lz4 or zstd; none: the default of the server",
            title="Compression on disk",
            default=NO_COMPRESSION,
            field="compression",
        ),
    ]
    keep_latest_by_key: Annotated[
        bool | None,
        TopicOption(
            kind=_FLAG,
            meaning="whether to remove messages once a newer one with the same key is stored; a message without a "
            "payload removes its key",
            description="whether messages are removed once a newer one with the same key is stored",
            title="Keep only the latest message of each key",
            default=False,
            is_own=True,
        ),
    ]
    local_retention_time: Annotated[
        int | str | None,
        TopicOption(
            kind=_DURATION,
            meaning="how long the server keeps archived messages on its own disk; older ones are read from the archive",
            title="Keep archived messages here for",
            default=None,
            is_own=True,
        ),
    ]
    local_retention_size: Annotated[
        int | str | None,
        TopicOption(
            kind=_TOTAL_SIZE,
            meaning="how many bytes of archived messages the server keeps on its own disk, over all partitions",
            title="Keep archived messages here up to",
            default=None,
            is_own=True,
        ),
    ]


class TopicSettings(ChangeableTopicSettings, total=False):
    """Settings of a new topic. The fields added here cannot be changed after creation.

    Example:
        await client.create_topic("shop/payments", durability="persisted", segment_size="256 MiB")
    """

    segment_size: Annotated[
        int | str | None,
        TopicOption(
            kind=_SIZE,
            meaning="the size at which a partition starts a new file, 1 MiB to 1 GiB",
            description="bytes after which a partition starts a new file, 1 MiB to 1 GiB",
            title="Size of a segment",
            default=_GIB,
            low=_MIB,
            high=_GIB,
            step=512,
        ),
    ]
    enforce_fsync: Annotated[
        bool | None,
        TopicOption(
            kind=_FLAG,
            meaning="whether messages are synced to disk before they are acknowledged",
            title="Sync messages",
            default=False,
        ),
    ]
    messages_required_to_save: Annotated[
        int | None,
        TopicOption(
            kind=_COUNT,
            meaning="how many messages a power cut may lose if messages are synced; 1 loses none",
            description="how many messages a power cut may lose if they are not synced before they are acknowledged",
            title="Messages that a power cut may lose",
            default=1024,
            high=16 * 1024 * 1024,
        ),
    ]
    size_of_messages_required_to_save: Annotated[
        int | str | None,
        TopicOption(
            kind=_SIZE,
            meaning="how many bytes a power cut may lose if messages are synced",
            description="how many bytes a power cut may lose if they are not synced before they are acknowledged",
            title="Bytes that a power cut may lose",
            default=_MIB,
            high=_GIB,
        ),
    ]
    preallocate_segments: Annotated[
        bool | None,
        TopicOption(
            kind=_FLAG,
            meaning="accepted; disk space is always allocated ahead in steps",
            title="Allocate segments ahead",
            default=False,
            has_effect=False,
        ),
    ]
    partition_resize_policy: Annotated[
        str | None,
        TopicOption(
            kind=_RESIZE_POLICY,
            meaning="whether partitions can be added and deleted later: mutable, the default, or fixed",
            title="Number of partitions",
            # SDKs before 0.10 do not know it.
            default=None,
            is_own=True,
        ),
    ]


def _rows() -> Iterator[TopicOption]:
    for name, hint in TopicSettings.__annotations__.items():
        (row,) = hint.__metadata__
        is_changeable = name in ChangeableTopicSettings.__annotations__
        yield replace(row, name=name, field=row.field or name, is_changeable=is_changeable)


TOPIC_OPTIONS: Mapping[str, TopicOption] = MappingProxyType({row.name: row for row in _rows()})
"""By name: first those that can be changed."""
