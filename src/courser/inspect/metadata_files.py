"""Inspect one snapshot or one descriptor: header, checksums, contents. Secrets are masked."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from courser.catalog.descriptors import StreamDescriptor, TopicDescriptor, decode_descriptor
from courser.catalog.entities import Stream, Topic, UsedIds, User
from courser.catalog.state import CatalogState
from courser.errors import DamagedData, MetadataDamaged
from courser.inspect.small_files import BadRecordRow, read_whole
from courser.storage.files import FileSystem
from courser.storage.snapshot import HEADER_SIZE, decode_snapshot, unpack_header

CatalogRecord: TypeAlias = dict[str, Any]
"""A thing of the catalog by the names of its fields; ``kind`` says what it is."""
_UNCHECKED = "unchecked"


# --- masking ---

HIDDEN = "***"
"""Replaces a secret."""
_PASSWORD = re.compile(
    r"\$(argon2(?:id|i|d))\$(?:v=[0-9]{1,10}\$)?(m=[0-9]{1,10},t=[0-9]{1,10},p=[0-9]{1,10})"
    r"\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+"
)
"""An argon2 string. Parts are shown only if the whole string matches."""


def password_text(password_hash: object) -> str:
    """The algorithm and its parameters, without salt and hash. A string of another form is masked."""
    found = _PASSWORD.fullmatch(password_hash) if isinstance(password_hash, str) else None
    return f"{found[1]} {found[2]}" if found is not None else HIDDEN


SECRETS: Mapping[str, Callable[[object], str]] = {"password_hash": password_text, "token_hash": lambda _: HIDDEN}
"""Secret fields, and functions that return the text to show instead."""


def readable(value: object) -> object:
    """Convert to plain values: structures become dicts, bytes become hex, secrets are masked."""
    if isinstance(value, msgspec.Struct):
        return readable_fields(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    return value


def readable_fields(structure: msgspec.Struct) -> dict[str, object]:
    """The fields of a change or an entity, by name."""
    fields: dict[str, object] = {}
    for name in structure.__struct_fields__:
        value = getattr(structure, name)
        mask = SECRETS.get(name)
        fields[name] = mask(value) if mask is not None else readable(value)
    return fields


# --- the catalog as records ---


def _records_of_state(state: CatalogState) -> Iterator[CatalogRecord]:
    """All of the state; each thing is followed by its parts."""
    for _, stream in sorted(state.streams.items()):
        yield _stream_record(stream, len(stream.topics))
        for _, topic in sorted(stream.topics.items()):
            yield from _records_of_topic(stream.stream_id, topic)
    for _, user in sorted(state.users.items()):
        yield from _records_of_user(user)
    yield _used_ids_record("streams", state.stream_ids)
    yield _used_ids_record("users", state.user_ids)
    for _, deleted in sorted(state.deleted.items()):
        # Its removal may not be durable yet.
        yield {"kind": "deleted_directory", "directory": deleted.path, "uuid": deleted.uuid.hex()}


def _stream_record(stream: Stream | StreamDescriptor, topic_count: int | None) -> CatalogRecord:
    """A stream. A descriptor does not contain the number of its topics."""
    return {
        "kind": "stream",
        "stream_id": stream.stream_id,
        "uuid": stream.uuid.hex(),
        "name": stream.name,
        "created_at": stream.created_at,
        "topic_count": topic_count,
        "topic_ids": readable(stream.topic_ids),
    }


def _records_of_topic(stream_id: int, topic: Topic) -> Iterator[CatalogRecord]:
    """A topic with its partitions and groups. An option that is None has the server's default."""
    ids = {"stream_id": stream_id, "topic_id": topic.topic_id}
    yield {
        "kind": "topic",
        **ids,
        "uuid": topic.uuid.hex(),
        "name": topic.name,
        "created_at": topic.created_at,
        "options": readable_fields(topic.options),
        "partition_count": len(topic.partitions),
        "group_count": len(topic.groups),
        "group_ids": readable(topic.group_ids),
        "purge_count": topic.purge_count,
    }
    for partition in topic.partitions:
        yield {
            "kind": "partition",
            **ids,
            "partition_id": partition.partition_id,
            "incarnation": partition.incarnation,
            "created_at": partition.created_at,
        }
    for _, group in sorted(topic.groups.items()):
        yield {
            "kind": "group",
            **ids,
            "group_id": group.group_id,
            "name": group.name,
            "created_at": group.created_at,
        }


def _records_of_user(user: User) -> Iterator[CatalogRecord]:
    """A user with its tokens. A token that expires at 0 never does."""
    yield {
        "kind": "user",
        "user_id": user.user_id,
        "name": user.name,
        "password_hash": password_text(user.password_hash),
        "is_active": user.is_active,
        "created_at": user.created_at,
        "permissions": readable(user.permissions),
        "token_count": len(user.tokens),
    }
    for _, token in sorted(user.tokens.items()):
        yield {
            "kind": "token",
            "user_id": user.user_id,
            "name": token.name,
            "created_at": token.created_at,
            "expires_at": token.expires_at,
        }


def _used_ids_record(owner: str, ids: UsedIds) -> CatalogRecord:
    """The ids of a kind that were ever assigned. Those of topics and groups are in the records of their owners."""
    return {"kind": "used_ids", "owner": owner, "next_id": ids.next_id, "holes": readable(ids.holes)}


# --- files ---


_HEADER_FIELDS = (
    *("checksum", "body_checksum", "format_version", "body_size"),
    *("op", "entry_checksum", "state_hash", "timestamp"),
)


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """Facts about the whole snapshot."""

    path: Path
    size: int
    fields: dict[str, Any] | None
    """The fields of the header, unverified; None if it is not a header."""
    header: str
    """``ok``, or the problem."""
    body: str
    """``ok``, ``unchecked``, or the problem."""
    state: str
    """``ok`` if the state has the stored hash, ``unchecked``, or the problem."""


class SnapshotInspection:
    """Reads a snapshot of the metadata."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        self._state: CatalogState | None = None
        verdict = self._check(path)
        header = unpack_header(self.data)
        found = None if header is None else {name: readable(getattr(header, name)) for name in _HEADER_FIELDS}
        self.head = SnapshotHead(path, len(self.data), found, *verdict)

    def _check(self, path: Path) -> tuple[str, str, str]:
        """The results for header, body and state."""
        try:
            snapshot = decode_snapshot(self.data, path)
        except MetadataDamaged as damage:
            if damage.position < HEADER_SIZE:
                return damage.damage, _UNCHECKED, _UNCHECKED
            return "ok", damage.damage, _UNCHECKED
        try:
            state = CatalogState.decode(snapshot.body)
        except ValueError as error:
            return "ok", "ok", str(error)
        # Show only an intact body: in a damaged one, a secret may be in the field of a name.
        self._state = state
        is_same = state.hash() == snapshot.state_hash
        return "ok", "ok", "ok" if is_same else "the state does not have the stored hash"

    def rows(self) -> Iterator[CatalogRecord | BadRecordRow]:
        """Problems, and the whole state if it is intact."""
        head, end = self.head, len(self.data)
        for start, stop, verdict in (
            (0, min(HEADER_SIZE, end), head.header),
            (HEADER_SIZE, end, head.body),
            (HEADER_SIZE, end, head.state),
        ):
            if verdict not in ("ok", _UNCHECKED):
                yield BadRecordRow(start, stop, verdict)
        if self._state is not None:
            yield from _records_of_state(self._state)


@dataclass(frozen=True, slots=True)
class DescriptorHead:
    """Facts about the whole descriptor."""

    path: Path
    size: int
    describes: str
    """``stream``, ``topic``, or ``unknown`` if it is damaged."""
    stream_uuid: str | None
    """The UUID of the stream, or of the stream of the topic."""


class DescriptorInspection:
    """Reads the descriptor of a stream or topic."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        self._contents: StreamDescriptor | TopicDescriptor | BadRecordRow
        describes, uuid = "unknown", None
        try:
            self._contents = decode_descriptor(self.data, path)
        except DamagedData as damage:
            self._contents = BadRecordRow(0, len(self.data), damage.reason)
        match self._contents:
            case StreamDescriptor() as stream:
                describes, uuid = "stream", stream.uuid.hex()
            case TopicDescriptor() as topic:
                describes, uuid = "topic", topic.stream_uuid.hex()
        self.head = DescriptorHead(path, len(self.data), describes, uuid)

    def rows(self) -> Iterator[CatalogRecord | BadRecordRow]:
        """The stream, or the topic with its partitions and groups."""
        contents = self._contents
        match contents:
            case StreamDescriptor():
                yield _stream_record(contents, None)
            case TopicDescriptor():
                yield from _records_of_topic(contents.stream_id, contents.topic)
            case BadRecordRow():
                yield contents
