"""Options in the protocol of SDK 0.9: named values with a kind. Only topics have options.

A block is a sequence of entries, each a key and a value, each of these ``kind u8 | length u32 | bytes``. In a request
the block ends with the body; in a reply its size comes first. A client may send values in the kind of the key, or as an
equivalent text ("7 days"); the server sends them in the kind of the key, sorted by key.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from courser.errors import ErrorCode
from courser.model.quantities import parse_byte_size, parse_expiry, parse_max_topic_size
from courser.model.topic_options import COMPRESSION_NAMES, COMPRESSIONS, TopicOptions
from courser.records.user_headers import HeaderKind
from courser.wire.reading import Malformed, Reader

ENTRY_COUNT_MAX = 1024
BLOCK_SIZE_MAX = 100_000
_FIELD_SIZE_MAX = 255

_SEGMENT_SIZE_STEP = 512
_SEGMENT_SIZE_MIN, _SEGMENT_SIZE_MAX = 1024 * 1024, 1024 * 1024 * 1024
_SAVE_COUNT_MAX = 16_777_216
_SAVE_SIZE_MAX = 1024 * 1024 * 1024

_FIELD = Struct("<BI")
_U32 = Struct("<I")

_DURABILITIES = ("replicated", "persisted")
_BOOLEANS = {"true": True, "false": False}

OptionValue = str | int | bool


class _WrongValue(Exception):
    """A value that its key does not accept."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A value as it was received."""

    kind: int
    data: bytes

    def text(self) -> str | None:
        """The value if it is text."""
        if self.kind != HeaderKind.STRING:
            return None
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            raise _WrongValue from None

    def number(self, kind: HeaderKind) -> int:
        """The value if it is a number of that kind."""
        if self.kind != kind or len(self.data) != kind.width:
            raise _WrongValue
        return int.from_bytes(self.data, "little")


# --- values of each key -------------------------------------------------------------------------------
# None is "the server's default".


def _compression(field: _Field) -> int:
    text = field.text()
    number = field.number(HeaderKind.UINT8) if text is None else COMPRESSIONS.get(text)
    if number is None or number not in COMPRESSION_NAMES:
        raise _WrongValue
    return number


def _quantity(field: _Field, parse: Callable[[str], int | None]) -> int | None:
    """A 64-bit number, or a text with a unit; 0 is the server's default."""
    text = field.text()
    if text is None:
        return field.number(HeaderKind.UINT64) or None
    try:
        return parse(text) or None
    except ValueError:
        raise _WrongValue from None


def _message_expiry(field: _Field) -> int | None:
    return _quantity(field, parse_expiry)


def _max_topic_size(field: _Field) -> int | None:
    return _quantity(field, parse_max_topic_size)


def _segment_size(field: _Field) -> int | None:
    size = _quantity(field, parse_byte_size)
    if size is not None and (not _SEGMENT_SIZE_MIN <= size <= _SEGMENT_SIZE_MAX or size % _SEGMENT_SIZE_STEP):
        raise _WrongValue
    return size


def _boolean(field: _Field) -> bool:
    text = field.text()
    if text is None:
        number = field.number(HeaderKind.BOOL)
        if number > 1:
            raise _WrongValue
        return number == 1
    if text not in _BOOLEANS:
        raise _WrongValue
    return _BOOLEANS[text]


def _save_count(field: _Field) -> int:
    text = field.text()
    if text is None:
        count = field.number(HeaderKind.UINT32)
    elif text.isascii() and text.isdigit() and len(text) <= len(str(_SAVE_COUNT_MAX)):
        count = int(text)
    else:
        raise _WrongValue
    if not 1 <= count <= _SAVE_COUNT_MAX:
        raise _WrongValue
    return count


def _save_size(field: _Field) -> int | None:
    size = _quantity(field, parse_byte_size)
    if size is not None and size > _SAVE_SIZE_MAX:
        raise _WrongValue
    return size


def _durability(field: _Field) -> str:
    text = field.text()
    if text not in _DURABILITIES:
        raise _WrongValue
    return text


@dataclass(frozen=True, slots=True)
class _Key:
    """An option of topics."""

    name: str
    field: str
    """Of ``TopicOptions``."""
    kind: HeaderKind
    read: Callable[[_Field], OptionValue | None]
    is_updatable: bool = False
    is_own: bool = False
    """Whether Iggy does not have it. It is reported only if it was set, so that other clients see what they know."""


_KEYS: Mapping[str, _Key] = {
    key.name: key
    for key in (
        _Key("compression_algorithm", "compression", HeaderKind.STRING, _compression, is_updatable=True),
        _Key("message_expiry", "message_expiry", HeaderKind.UINT64, _message_expiry, is_updatable=True),
        _Key("max_topic_size", "max_topic_size", HeaderKind.UINT64, _max_topic_size, is_updatable=True),
        _Key("segment_size", "segment_size", HeaderKind.UINT64, _segment_size),
        _Key("enforce_fsync", "enforce_fsync", HeaderKind.BOOL, _boolean),
        _Key("messages_required_to_save", "messages_required_to_save", HeaderKind.UINT32, _save_count),
        _Key("size_of_messages_required_to_save", "size_of_messages_required_to_save", HeaderKind.UINT64, _save_size),
        _Key("preallocate_segments", "preallocate_segments", HeaderKind.BOOL, _boolean),
        _Key("durability", "durability", HeaderKind.STRING, _durability, is_updatable=True),
        _Key(
            "consumer_offset_durability",
            "consumer_offset_durability",
            HeaderKind.STRING,
            _durability,
            is_updatable=True,
        ),
        _Key("keep_latest_by_key", "keep_latest_by_key", HeaderKind.BOOL, _boolean, is_updatable=True, is_own=True),
        # Ours: a topic that does not set them is shown without them.
        _Key(
            "local_retention_time",
            "local_retention_time",
            HeaderKind.UINT64,
            _message_expiry,
            is_updatable=True,
            is_own=True,
        ),
        _Key(
            "local_retention_size",
            "local_retention_size",
            HeaderKind.UINT64,
            _max_topic_size,
            is_updatable=True,
            is_own=True,
        ),
    )
}
_KNOWN_COUNT_MAX = 1000
"""Sets of options that are remembered in encoded form: most topics of a server have the same ones."""
_SORTED_KEYS = sorted(_KEYS.values(), key=lambda key: key.name)


# --- reading ------------------------------------------------------------------------------------------


def read_options(reader: Reader) -> dict[str, _Field]:
    """The entries up to the end of the body, with any keys.

    Raises:
        Malformed: the bytes are not a block of options.
    """
    if reader.remaining > BLOCK_SIZE_MAX:
        raise Malformed(f"{reader.remaining} bytes of options are more than the limit of {BLOCK_SIZE_MAX}")
    entries: dict[str, _Field] = {}
    while reader.remaining:
        key = _read_field(reader)
        if key.kind != HeaderKind.STRING:
            raise Malformed("the key of an option is not a string")
        try:
            name = key.data.decode()
        except UnicodeDecodeError:
            raise Malformed("the key of an option is not valid UTF-8") from None
        if name in entries or len(entries) == ENTRY_COUNT_MAX:
            raise Malformed(f'option "{name}" is repeated, or there are too many options')
        entries[name] = _read_field(reader)
    return entries


def _read_field(reader: Reader) -> _Field:
    kind = reader.u8()
    length = reader.u32()
    if not kind or not 1 <= length <= _FIELD_SIZE_MAX:
        raise Malformed(f"an option has a field of kind {kind} with {length} bytes")
    return _Field(kind, bytes(reader.take(length)))


def read_no_options(reader: Reader) -> None:
    """The options of streams and users, which have none.

    Raises:
        Malformed: there is an option.
    """
    for name in read_options(reader):
        raise Malformed(f'unknown option "{name}"', ErrorCode.UNSUPPORTED_OPTION_KEY)


def read_topic_options(reader: Reader, *, is_update: bool = False) -> TopicOptions:
    """The options to set for a topic.

    Raises:
        Malformed: an unknown key, a key that cannot be changed, or a value that the key does not accept.
    """
    return _topic_options(read_options(reader), is_update=is_update)


def topic_options_of_texts(texts: Mapping[str, str], *, is_update: bool = False) -> TopicOptions:
    """The same from values that are all text, as in JSON. Raises ``Malformed``."""
    entries = {name: _Field(HeaderKind.STRING, text.encode()) for name, text in texts.items()}
    return _topic_options(entries, is_update=is_update)


def _topic_options(entries: Mapping[str, _Field], *, is_update: bool) -> TopicOptions:
    # All keys are checked before any value, like in the original server.
    for name in entries:
        key = _KEYS.get(name)
        if key is None or (is_update and not key.is_updatable):
            raise Malformed(f'option "{name}" cannot be set', ErrorCode.UNSUPPORTED_OPTION_KEY)
    values: dict[str, OptionValue | None] = {}
    for name, field in entries.items():
        key = _KEYS[name]
        try:
            values[key.field] = key.read(field)
        except _WrongValue:
            reason = f'option "{name}" does not accept {field.data!r} of kind {field.kind}'
            raise Malformed(reason, ErrorCode.INVALID_OPTION_VALUE) from None
    return TopicOptions(**values)  # type: ignore[arg-type]  # each key's reader gives what its field takes


# --- writing ------------------------------------------------------------------------------------------


def _value_of(key: _Key, options: TopicOptions) -> OptionValue | None:
    value: OptionValue | None = getattr(options, key.field)
    if key.field == "compression" and value is not None:
        return COMPRESSION_NAMES[int(value)]
    return value


def _encode_value(kind: HeaderKind, value: OptionValue) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return int(value).to_bytes(kind.width, "little")


def _encode_entries(entries: Iterable[tuple[_Key, OptionValue]]) -> bytes:
    parts: list[bytes] = []
    for key, value in entries:
        data = _encode_value(key.kind, value)
        parts += (
            _FIELD.pack(HeaderKind.STRING, len(key.name)),
            key.name.encode(),
            _FIELD.pack(key.kind, len(data)),
            data,
        )
    return b"".join(parts)


def _encode_block(entries: Iterable[tuple[_Key, OptionValue]]) -> bytes:
    block = _encode_entries(entries)
    return _U32.pack(len(block)) + block


def _set_entries(options: TopicOptions) -> list[tuple[_Key, OptionValue]]:
    return [(key, value) for key in _SORTED_KEYS if (value := _value_of(key, options)) is not None]


def write_wanted_options(options: TopicOptions) -> bytes:
    """The options that a client sets: the end of a request. Replication has no key, so it cannot be set."""
    return _encode_entries(_set_entries(options))


@lru_cache(_KNOWN_COUNT_MAX)
def write_topic_options(options: TopicOptions, effective: TopicOptions) -> bytes:
    """Two blocks: the options that were set, and the defaults of the other keys."""
    explicit = _set_entries(options)
    set_keys = {key.name for key, _ in explicit}
    derived = [
        (key, value)
        for key in _SORTED_KEYS
        if key.name not in set_keys and not key.is_own and (value := _value_of(key, effective)) is not None
    ]
    return _encode_block(explicit) + _encode_block(derived)


@lru_cache(_KNOWN_COUNT_MAX)
def describe_topic_options(options: TopicOptions, effective: TopicOptions) -> tuple[tuple[str, str, bool], ...]:
    """Every option as text, by key: its value, and whether it was set."""
    described = []
    for key in _SORTED_KEYS:
        wanted = _value_of(key, options)
        value = _value_of(key, effective) if wanted is None and not key.is_own else wanted
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            described.append((key.name, text, wanted is not None))
    return tuple(described)


def option_kind(name: str) -> HeaderKind:
    """The kind of the value of an option."""
    return _KEYS[name].kind


def option_bytes(name: str, value: OptionValue) -> bytes:
    """The value of an option as it is sent."""
    return _encode_value(_KEYS[name].kind, value)


# --- the client's side --------------------------------------------------------------------------------


def read_reported_options(reader: Reader) -> tuple[TopicOptions, TopicOptions]:
    """The options of a topic in a reply: those that were set, and the defaults of the other keys."""
    return _read_block(reader), _read_block(reader)


def _read_block(reader: Reader) -> TopicOptions:
    return _options_in(bytes(reader.take(reader.u32())))


@lru_cache(_KNOWN_COUNT_MAX)
def _options_in(block: bytes) -> TopicOptions:
    values: dict[str, OptionValue] = {}
    for name, field in read_options(Reader(memoryview(block))).items():
        key = _KEYS.get(name)
        if key is not None:
            values[key.field] = _reported_value(field)
    if "compression" in values:
        values["compression"] = COMPRESSIONS.get(str(values["compression"]), 0)
    return TopicOptions(**values)  # type: ignore[arg-type]  # servers send values in the kind of the key


def _reported_value(field: _Field) -> OptionValue:
    if field.kind == HeaderKind.STRING:
        return field.data.decode(errors="replace")
    if field.kind == HeaderKind.BOOL:
        return field.data != b"\0"
    return int.from_bytes(field.data, "little")
