"""The options that SDK 0.10 knows: those of streams and users too, and what may be done with each.

A name, a user name and a status are options as well, because an update sets them like any other; a new stream, topic or
user has a field for them.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType
from typing import NoReturn

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.topic_options import MUTABLE, TOPIC_OPTIONS
from courser.records.user_headers import HeaderKind
from courser.wire.layouts import layout_of
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_options import OptionField, option_bytes, option_kind, read_options, topic_options_in
from courser.wire.writing import text8, text32, u8, u32

TOPIC, STREAM, USER = 1, 2, 3
"""Scopes."""


class Flag(IntFlag):
    """What may be done with an option."""

    UPDATABLE = 1
    RESETTABLE = 2
    SECRET = 4
    READ_ONLY = 8
    CRITICAL = 16


_CREATE_ONLY = Flag(0)
_CHANGEABLE = Flag.UPDATABLE | Flag.RESETTABLE


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """An option of one scope."""

    key: str
    kind: HeaderKind
    flags: Flag
    description: str
    default: bytes = b""
    """Unless the server's configuration says which it is."""
    is_column: bool = False
    """Whether a new stream, topic or user has a field for it."""


def _topic_entry(key: str, flags: Flag = _CREATE_ONLY) -> CatalogueEntry:
    """An option that older releases know too."""
    option = TOPIC_OPTIONS[key]
    return CatalogueEntry(key, option_kind(key), flags, option.description or option.meaning)


def _column(key: str, description: str) -> CatalogueEntry:
    return CatalogueEntry(key, HeaderKind.STRING, Flag.UPDATABLE, description, is_column=True)


def _computed(key: str, description: str) -> CatalogueEntry:
    return CatalogueEntry(key, HeaderKind.STRING, Flag.READ_ONLY, description)


def _by_key(*entries: CatalogueEntry) -> Mapping[str, CatalogueEntry]:
    return MappingProxyType({entry.key: entry for entry in entries})


_NAME = _column("name", "the name, 1 to 255 bytes, which no other has beside it")
_DESCRIBED: Mapping[int, Mapping[str, CatalogueEntry]] = {
    TOPIC: _by_key(
        _NAME,
        _topic_entry("compression_algorithm"),
        _topic_entry("message_expiry", _CHANGEABLE),
        _topic_entry("max_topic_size", _CHANGEABLE),
        _topic_entry("segment_size"),
        _topic_entry("durability"),
        _topic_entry("consumer_offset_durability"),
        CatalogueEntry(
            "partition_resize_policy",
            HeaderKind.STRING,
            _CREATE_ONLY,
            TOPIC_OPTIONS["partition_resize_policy"].meaning,
            MUTABLE.encode(),
        ),
        _topic_entry("messages_required_to_save"),
        _topic_entry("size_of_messages_required_to_save"),
        _topic_entry("preallocate_segments"),
        CatalogueEntry("replication_factor", HeaderKind.UINT32, _CREATE_ONLY, "accepted; there is one server"),
    ),
    STREAM: _by_key(
        _NAME,
        CatalogueEntry(
            "encryption_key",
            HeaderKind.RAW,
            Flag.SECRET | Flag.CRITICAL,
            "not available: the configuration of the server says whether and how messages are encrypted",
        ),
        _computed("encryption_key_source", "where the key of the stream comes from"),
        _computed("encryption_key_fingerprint", "which key encrypts the stream"),
        _computed("encryption_kek_fingerprint", "which key encrypts that key"),
    ),
    USER: _by_key(
        _column("username", "the name of the user, 3 to 50 bytes, which no other user has"),
        _column("status", "active or inactive; an inactive user cannot log in"),
    ),
}
"""By scope, in the order in which Iggy lists them."""
_INTERNAL: Mapping[int, frozenset[str]] = {
    TOPIC: frozenset({"critical_keys"}),
    STREAM: frozenset({"critical_keys", "encryption_key_wrapped"}),
    USER: frozenset({"critical_keys"}),
}
"""Options that servers of Iggy keep for themselves."""
_UNDESCRIBED = _by_key(_topic_entry("enforce_fsync"))
"""An option of topics that only older releases list; who still sends it is understood."""
_OWN = _by_key(
    *(
        _topic_entry(option.name, _CHANGEABLE if option.is_changeable else _CREATE_ONLY)
        for option in TOPIC_OPTIONS.values()
        if option.name not in _DESCRIBED[TOPIC] and option.name not in _UNDESCRIBED
    )
)
"""Courser's own options of topics."""
_ACCEPTED = {**_DESCRIBED, TOPIC: {**_DESCRIBED[TOPIC], **_UNDESCRIBED, **_OWN}}

_REPLICATION_FACTOR_MAX = 255
KEY_SIZE = 32
"""Bytes of the key of a stream."""


def entry_of(scope: int, key: str) -> CatalogueEntry:
    """The option with a key. Raises ``Malformed``: there is none that a client may name."""
    if key in _INTERNAL[scope]:
        raise Malformed(f'option "{key}" is internal', ErrorCode.READ_ONLY_OPTION)
    entry = _ACCEPTED[scope].get(key)
    if entry is None:
        raise Malformed(f'unknown option "{key}"', ErrorCode.UNSUPPORTED_OPTION_KEY)
    if entry.flags & Flag.READ_ONLY:
        raise Malformed(f'option "{key}" is read-only', ErrorCode.READ_ONLY_OPTION)
    return entry


def refuse_value(key: str, field: OptionField, code: ErrorCode = ErrorCode.INVALID_OPTION_VALUE) -> NoReturn:
    """Raise ``Malformed`` for a value that its key does not accept."""
    raise Malformed(f'option "{key}" does not accept a value of kind {field.kind} with {len(field.data)} bytes', code)


# --- new streams, topics and users --------------------------------------------------------------------


def _read_new_options(reader: Reader, scope: int) -> dict[str, OptionField]:
    """The options that are set on creation; each has a key that may be set."""
    entries = read_options(reader, ErrorCode.OPTIONS_TOO_LARGE)
    columns = [entry for entry in [entry_of(scope, key) for key in entries] if entry.is_column]
    for entry in columns:
        refuse_value(entry.key, entries[entry.key])
    return entries


def create_topic(reader: Reader) -> c.Command:
    """A topic, with the options of this release and the older ones."""
    stream, partition_count, name = reader.identifier(), reader.u32(), reader.name()
    entries = _read_new_options(reader, TOPIC)
    replication = entries.pop("replication_factor", None)
    options = topic_options_in(entries)
    if replication is not None:
        if replication.kind != HeaderKind.UINT32 or len(replication.data) != HeaderKind.UINT32.width:
            refuse_value("replication_factor", replication)
        factor = int.from_bytes(replication.data, "little")
        if not 1 <= factor <= _REPLICATION_FACTOR_MAX:
            refuse_value("replication_factor", replication, ErrorCode.INVALID_REPLICATION_FACTOR)
    return c.CreateTopic(stream, name, partition_count, options)


_create_stream_layout = layout_of(c.CreateStream)
_create_user_layout = layout_of(c.CreateUser)


def create_stream(reader: Reader) -> c.Command:
    """A stream. Messages are encrypted for the whole server, or not at all."""
    command = _create_stream_layout.read(reader)
    key = _read_new_options(reader, STREAM).get("encryption_key")
    if key is None:
        return command
    if not _is_key(key):
        refuse_value("encryption_key", key, ErrorCode.INVALID_ENCRYPTION_KEY)
    reason = "a stream cannot have an encryption key of its own; the server's configuration says how it encrypts"
    raise Malformed(reason, ErrorCode.STREAM_ENCRYPTION_UNAVAILABLE)


def _is_key(field: OptionField) -> bool:
    """Whether it is a key, as it is or in base64."""
    if field.kind == HeaderKind.RAW:
        return len(field.data) == KEY_SIZE
    if field.kind != HeaderKind.STRING:
        return False
    try:
        key = base64.b64decode(field.data, validate=True)
    except binascii.Error:
        return False
    return len(key) == KEY_SIZE and base64.b64encode(key) == field.data


def create_user(reader: Reader) -> c.Command:
    """A user, which has no options besides its columns."""
    command = _create_user_layout.read(reader)
    _read_new_options(reader, USER)
    return command


# --- the list of all ----------------------------------------------------------------------------------


def write_described(command: c.DescribeOptions, reply: r.OptionList) -> bytes:
    """The options of a scope. The defaults of topics are the server's."""
    defaults = {option.key: option_bytes(option.key, option.default) for option in reply.options}
    own = [_OWN[key] for key in defaults if key in _OWN]
    entries = [*_DESCRIBED[command.scope].values(), *own]
    parts = [u32(len(entries))]
    for entry in entries:
        default = defaults.get(entry.key, entry.default)
        kind, flags = u8(entry.kind), u8(entry.flags)
        parts += (text8(entry.key), kind, flags, u32(len(default)), default, text32(entry.description))
    return b"".join(parts)
