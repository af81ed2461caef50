"""Options in the protocol of SDK 0.9: named values with a kind. Only topics have options.

A block is a sequence of entries, each a key and a value, each of these ``kind u8 | length u32 | bytes``. In a request
the block ends with the body; in a reply its size comes first. A client may send values in the kind of the key, or as an
equivalent text ("7 days"); the server sends them in the kind of the key, sorted by key. Which options there are,
and what each accepts, says ``model.topic_options``.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from courser.errors import ErrorCode
from courser.model.topic_options import COMPRESSIONS, TOPIC_OPTIONS, OptionValue, TopicOption, TopicOptions
from courser.records.user_headers import HeaderKind
from courser.wire.reading import Malformed, Reader

ENTRY_COUNT_MAX = 1024
BLOCK_SIZE_MAX = 100_000
_FIELD_SIZE_MAX = 255

_FIELD = Struct("<BI")
_U32 = Struct("<I")

_KINDS: Mapping[str, HeaderKind] = {
    "choice": HeaderKind.STRING,
    "duration": HeaderKind.UINT64,
    "size": HeaderKind.UINT64,
    "count": HeaderKind.UINT32,
    "flag": HeaderKind.BOOL,
}
"""How the values of each kind are sent."""


class WrongValue(Exception):
    """A value that its key does not accept."""


@dataclass(frozen=True, slots=True)
class OptionField:
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
            raise WrongValue from None

    def number(self, kind: HeaderKind) -> int:
        """The value if it is a number of that kind."""
        if self.kind != kind or len(self.data) != kind.width:
            raise WrongValue
        return int.from_bytes(self.data, "little")


def _read_value(option: TopicOption, field: OptionField) -> OptionValue | None:
    """The value to set. None is the server's default."""
    text = field.text()
    value: OptionValue | None
    if text is None:
        value = _read_number(option, field)
    elif option.kind.words:
        value = option.kind.words.get(text)
        if value is None:
            raise WrongValue
    else:
        try:
            value = option.kind.parse(text)
        except ValueError:
            raise WrongValue from None
    if option.kind.unit and not value:
        return None
    if value is not None and not option.accepts(value):
        raise WrongValue
    return value


def _read_number(option: TopicOption, field: OptionField) -> OptionValue:
    if option.field == "compression":
        return field.number(HeaderKind.UINT8)
    number = field.number(_KINDS[option.kind.name])
    if option.kind.is_number:
        return number
    if number > 1:
        raise WrongValue
    return number == 1


_KNOWN_COUNT_MAX = 1000
"""Sets of options that are remembered in encoded form: most topics of a server have the same ones."""
_CHANGEABLE = frozenset(name for name, option in TOPIC_OPTIONS.items() if option.is_changeable)
_SORTED_OPTIONS = sorted(TOPIC_OPTIONS.values(), key=lambda option: option.name)


# --- reading ------------------------------------------------------------------------------------------


def read_options(reader: Reader, too_large: ErrorCode = ErrorCode.INVALID_COMMAND) -> dict[str, OptionField]:
    """The entries up to the end of the body, with any keys. ``too_large`` is the number of a block that is too large.

    Raises:
        Malformed: the bytes are not a block of options.
    """
    block, position = reader.rest(), 0
    if len(block) > BLOCK_SIZE_MAX:
        reason = f"{len(block)} bytes of options are more than the limit of {BLOCK_SIZE_MAX}"
        raise Malformed(reason, too_large)
    entries: dict[str, OptionField] = {}
    while position < len(block):
        key, position = _field_at(block, position)
        if key.kind != HeaderKind.STRING:
            raise Malformed("the key of an option is not a string")
        try:
            name = key.data.decode()
        except UnicodeDecodeError:
            raise Malformed("the key of an option is not valid UTF-8") from None
        if name in entries or len(entries) == ENTRY_COUNT_MAX:
            raise Malformed(f'option "{name}" is repeated, or there are too many options')
        entries[name], position = _field_at(block, position)
    return entries


def _field_at(block: memoryview, position: int) -> tuple[OptionField, int]:
    """The key or value at ``position``, and the position after it."""
    start = position + _FIELD.size
    if start > len(block):
        raise Malformed("the options end inside a field")
    kind, length = _FIELD.unpack_from(block, position)
    if not kind or not 1 <= length <= _FIELD_SIZE_MAX:
        raise Malformed(f"an option has a field of kind {kind} with {length} bytes")
    if start + length > len(block):
        raise Malformed("the options end inside a field")
    return OptionField(kind, bytes(block[start : start + length])), start + length


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
    return topic_options_in(read_options(reader), _CHANGEABLE if is_update else TOPIC_OPTIONS)


def topic_options_of_texts(texts: Mapping[str, str], *, is_update: bool = False) -> TopicOptions:
    """Read options whose values are all text, as in JSON. Raises ``Malformed``."""
    entries = {name: OptionField(HeaderKind.STRING, text.encode()) for name, text in texts.items()}
    return topic_options_in(entries, _CHANGEABLE if is_update else TOPIC_OPTIONS)


def topic_options_in(entries: Mapping[str, OptionField], known: Container[str] = TOPIC_OPTIONS) -> TopicOptions:
    """The values of options that may be set. Raises ``Malformed``: 4041 for a key that is not ``known``, else 4042."""
    # All keys are checked before any value, like in the original server.
    for name in entries:
        if name not in known:
            raise Malformed(f'option "{name}" cannot be set', ErrorCode.UNSUPPORTED_OPTION_KEY)
    values: dict[str, OptionValue | None] = {}
    for name, field in entries.items():
        option = TOPIC_OPTIONS[name]
        try:
            values[option.field] = _read_value(option, field)
        except WrongValue:
            reason = f'option "{name}" does not accept {field.data!r} of kind {field.kind}'
            raise Malformed(reason, ErrorCode.INVALID_OPTION_VALUE) from None
    return TopicOptions(**values)  # type: ignore[arg-type]  # each key's reader gives what its field takes


# --- writing ------------------------------------------------------------------------------------------


def _encode_value(option: TopicOption, value: OptionValue) -> bytes:
    kind = _KINDS[option.kind.name]
    return option.kind.text(value).encode() if kind is HeaderKind.STRING else int(value).to_bytes(kind.width, "little")


def _encode_entries(entries: Iterable[tuple[TopicOption, OptionValue]]) -> bytes:
    parts: list[bytes] = []
    for option, value in entries:
        data = _encode_value(option, value)
        parts += (
            _FIELD.pack(HeaderKind.STRING, len(option.name)),
            option.name.encode(),
            _FIELD.pack(_KINDS[option.kind.name], len(data)),
            data,
        )
    return b"".join(parts)


def write_block_of_text(key: str, text: str) -> bytes:
    entry = _text_field(key) + _text_field(text)
    return _U32.pack(len(entry)) + entry


def _text_field(text: str) -> bytes:
    data = text.encode()
    return _FIELD.pack(HeaderKind.STRING, len(data)) + data


def _encode_block(entries: Iterable[tuple[TopicOption, OptionValue]]) -> bytes:
    block = _encode_entries(entries)
    return _U32.pack(len(block)) + block


def _set_entries(options: TopicOptions) -> list[tuple[TopicOption, OptionValue]]:
    return [(option, value) for option in _SORTED_OPTIONS if (value := getattr(options, option.field)) is not None]


def write_wanted_options(options: TopicOptions) -> bytes:
    """The options that a client sets: the end of a request. Replication has no key, so it cannot be set."""
    return _encode_entries(_set_entries(options))


@lru_cache(_KNOWN_COUNT_MAX)
def write_topic_options(
    options: TopicOptions,
    effective: TopicOptions,
    hidden: frozenset[str] = frozenset(),
    known: frozenset[str] = frozenset(),
) -> bytes:
    """Two blocks: the options that were set, and the defaults of the others.

    Both are without those that are ``hidden``. Options of Courser's own have no defaults here, unless they are known.
    """
    derived = [
        (option, value)
        for option in _SORTED_OPTIONS
        if getattr(options, option.field) is None
        and (not option.is_own or option.name in known)
        and option.name not in hidden
        and (value := getattr(effective, option.field)) is not None
    ]
    explicit = [(option, value) for option, value in _set_entries(options) if option.name not in hidden]
    return _encode_block(explicit) + _encode_block(derived)


@lru_cache(_KNOWN_COUNT_MAX)
def describe_topic_options(options: TopicOptions, effective: TopicOptions) -> tuple[tuple[str, str, bool], ...]:
    """Every option as text, by name: its value, and whether it was set."""
    described = []
    for option in _SORTED_OPTIONS:
        wanted: OptionValue | None = getattr(options, option.field)
        value = getattr(effective, option.field) if wanted is None and not option.is_own else wanted
        if value is not None:
            described.append((option.name, option.kind.text(value), wanted is not None))
    return tuple(described)


def option_kind(name: str) -> HeaderKind:
    """The kind in which the value of an option is sent."""
    return _KINDS[TOPIC_OPTIONS[name].kind.name]


def option_bytes(name: str, value: OptionValue) -> bytes:
    """The value of an option as it is sent."""
    return _encode_value(TOPIC_OPTIONS[name], value)


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
        option = TOPIC_OPTIONS.get(name)
        if option is not None:
            values[option.field] = reported_value(field.kind, field.data)
    if "compression" in values:
        values["compression"] = COMPRESSIONS.get(str(values["compression"]), 0)
    return TopicOptions(**values)  # type: ignore[arg-type]  # servers send values in the kind of the key


def reported_value(kind: int, data: bytes) -> OptionValue:
    """The value of an option in a reply."""
    if kind == HeaderKind.STRING:
        return data.decode(errors="replace")
    if kind == HeaderKind.BOOL:
        return data != b"\0"
    return int.from_bytes(data, "little")
