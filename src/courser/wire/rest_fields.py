"""How HTTP writes single values: as text in a path or a query, and as JSON in a body.

The kind of a field, given where it is declared, decides: a status is a word, a consumer is a number or a name.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from courser.api.fields import Kind
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import PollingKind
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
NAME_SIZE_MAX = 255
CONSUMER_DEFAULT = 1
PARTITION_DEFAULT = 0
"""The consumer and the partition of a request that names none, as in Iggy."""

BAD_REQUEST, UNSUPPORTED_MEDIA_TYPE, UNPROCESSABLE = 400, 415, 422


class RestRefused(Exception):
    """A request that cannot be read: a status and a sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


# --- text ---------------------------------------------------------------------------------------------


def identifier_of(text: str) -> Identifier:
    """A number if the text is one that an id can have, otherwise a name."""
    if text.isascii() and text.isdigit() and int(text) <= U32_MAX:
        return int(text)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_SIZE_MAX:
        raise CommandRejected(ErrorCode.INVALID_IDENTIFIER, f"a name must be UTF-8 of 1 to {NAME_SIZE_MAX} bytes")
    return text


def number_of(text: str, maximum: int) -> int:
    """A decimal number. Raises ``ValueError``."""
    if not (text.isascii() and text.isdigit()) or int(text) > maximum:
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {maximum}")
    return int(text)


def _flag_of(text: str) -> bool:
    # Iggy's own Rust SDK ends the path of a flush with fsync=true, which Iggy's server refuses.
    word = text.removeprefix("fsync=")
    if word not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return word == "true"


_POLLING_KINDS = {kind.name.lower(): kind for kind in PollingKind} | {
    kind.name[0].lower(): kind for kind in PollingKind
}


def _polling_kind_of(text: str) -> PollingKind:
    if text not in _POLLING_KINDS:
        raise ValueError(f"{text[:40]!r} is none of {', '.join(kind.name.lower() for kind in PollingKind)}")
    return _POLLING_KINDS[text]


def _consumer_of(text: str) -> Consumer:
    if not text:
        raise ValueError("it is empty")
    return Consumer(ConsumerKind.CONSUMER, identifier_of(text))


SCOPES = {"topic": 1, "stream": 2, "user": 3}


def _scope_of(text: str) -> int:
    if text not in SCOPES:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"unknown option scope {text[:40]!r}")
    return SCOPES[text]


_TEXT_READERS: Mapping[object, Callable[[str], object]] = {
    Kind.U8: _scope_of,
    Kind.U32: lambda text: number_of(text, U32_MAX),
    Kind.U64: lambda text: number_of(text, U64_MAX),
    Kind.ID: lambda text: number_of(text, U32_MAX),
    Kind.OPTIONAL_PARTITION: lambda text: number_of(text, U32_MAX),
    # Left out, or empty.
    Kind.OPTIONAL_U64: lambda text: number_of(text, U64_MAX) if text else None,
    Kind.FLAG: _flag_of,
    Kind.NAME: str,
    Consumer: _consumer_of,
    PollingKind: _polling_kind_of,
    Identifier: identifier_of,
}


def text_reader(kind: object) -> Callable[[str], object]:
    """What reads a field of this kind in a path or a query. It raises ``ValueError``."""
    return _TEXT_READERS[kind]


# --- JSON ---------------------------------------------------------------------------------------------

_U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
_U64 = Annotated[int, msgspec.Meta(ge=0)]
"""The upper bound is checked afterwards: the library's own bounds end at 63 bits."""
Status = Literal["active", "inactive"]
SNAPSHOT_COMPRESSIONS = ("Stored", "Deflated", "Bzip2", "Zstd", "Lzma", "Xz")
SNAPSHOT_KINDS = {
    "FilesystemOverview": 1,
    "ProcessList": 2,
    "ResourceUsage": 3,
    "Test": 4,
    "ServerLogs": 5,
    "ServerConfig": 6,
    "All": 100,
}


def _u64(value: int) -> int:
    if value > U64_MAX:
        raise RestRefused(UNPROCESSABLE, f"{value} is larger than {U64_MAX}")
    return value


def _consumer(value: int | str) -> Consumer:
    return Consumer(ConsumerKind.CONSUMER, identifier_of(value) if isinstance(value, str) else value)


def _snapshot_compression(word: str) -> int:
    return SNAPSHOT_COMPRESSIONS.index(word) + 1


def _snapshot_kinds(words: list[str]) -> tuple[int, ...]:
    if "All" in words and len(words) > 1:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, "the snapshot type All includes all others")
    return tuple(SNAPSHOT_KINDS[word] for word in words)


class JsonTopicPermissions(msgspec.Struct):
    """Permissions for a topic: no flag may be left out."""

    manage_topic: bool
    read_topic: bool
    poll_messages: bool
    send_messages: bool


class JsonStreamPermissions(msgspec.Struct):
    """Permissions for a stream."""

    manage_stream: bool
    read_stream: bool
    manage_topics: bool
    read_topics: bool
    poll_messages: bool
    send_messages: bool
    topics: dict[_U32, JsonTopicPermissions] | None = None


class JsonGlobalPermissions(msgspec.Struct):
    """Permissions for the whole server."""

    manage_servers: bool
    read_servers: bool
    manage_users: bool
    read_users: bool
    manage_streams: bool
    read_streams: bool
    manage_topics: bool
    read_topics: bool
    poll_messages: bool
    send_messages: bool


class JsonPermissions(msgspec.Struct, rename={"everywhere": "global"}):
    """All permissions of a user."""

    everywhere: JsonGlobalPermissions
    streams: dict[_U32, JsonStreamPermissions] | None = None


def _permissions(value: JsonPermissions | None) -> Permissions | None:
    if value is None:
        return None
    streams = {stream_id: _stream_permissions(stream) for stream_id, stream in (value.streams or {}).items()}
    return Permissions(GlobalPermissions(*msgspec.structs.astuple(value.everywhere)), streams)


def _stream_permissions(stream: JsonStreamPermissions) -> StreamPermissions:
    flags = {name: getattr(stream, name) for name in JsonStreamPermissions.__struct_fields__ if name != "topics"}
    topics = {
        topic_id: TopicPermissions(*msgspec.structs.astuple(topic)) for topic_id, topic in (stream.topics or {}).items()
    }
    return StreamPermissions(**flags, topics=topics)


def permissions_to_json(permissions: Permissions | None) -> JsonPermissions | None:
    """The JSON form of permissions; streams and topics without any are null."""
    if permissions is None:
        return None
    streams = {stream_id: _json_stream(stream) for stream_id, stream in permissions.streams.items()}
    return JsonPermissions(JsonGlobalPermissions(**_flags(permissions.everywhere)), streams or None)


def _json_stream(stream: StreamPermissions) -> JsonStreamPermissions:
    topics = {topic_id: JsonTopicPermissions(**_flags(topic)) for topic_id, topic in stream.topics.items()}
    return JsonStreamPermissions(**_flags(stream), topics=topics or None)


def _flags(permissions: msgspec.Struct) -> dict[str, bool]:
    return {name: getattr(permissions, name) for name in permissions.__struct_fields__ if name != "topics"}


def _same(value: Any) -> Any:
    return value


def _is_active(word: str | None) -> bool | None:
    return None if word is None else word == "active"


JSON_KINDS: Mapping[object, tuple[Any, Callable[[Any], object], Any]] = {
    Kind.U32: (_U32, _same, msgspec.NODEFAULT),
    Kind.U64: (_U64, _u64, msgspec.NODEFAULT),
    Kind.NAME: (str, _same, msgspec.NODEFAULT),
    Kind.TEXT8: (str, _same, msgspec.NODEFAULT),
    Kind.TEXT32: (str | None, lambda text: text or "", None),
    Kind.ACTIVE: (Status, _is_active, msgspec.NODEFAULT),
    Kind.OPTIONAL_NAME: (str | None, _same, None),
    Kind.OPTIONAL_ACTIVE: (Status | None, _is_active, None),
    Kind.OPTIONAL_PARTITION: (_U32 | None, lambda value: value or PARTITION_DEFAULT, None),
    Kind.SNAPSHOT_COMPRESSION: (Literal[SNAPSHOT_COMPRESSIONS], _snapshot_compression, msgspec.NODEFAULT),
    Kind.SNAPSHOT_KINDS: (list[Literal[tuple(SNAPSHOT_KINDS)]], _snapshot_kinds, msgspec.NODEFAULT),  # type: ignore[misc]
    Consumer: (_U32 | str, _consumer, CONSUMER_DEFAULT),
    Permissions: (JsonPermissions | None, _permissions, None),
}
"""By kind: the type in JSON, what makes our value of it, and the default."""
