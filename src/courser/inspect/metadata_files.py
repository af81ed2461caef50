"""Inspect one snapshot or one descriptor: header, checksums, contents."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from courser.catalog.descriptors import StreamDescriptor, TopicDescriptor, decode_descriptor
from courser.catalog.state import CatalogState
from courser.errors import DamagedData, MetadataDamaged
from courser.inspect.catalog_rows import CatalogRow, StreamRow, rows_of_state, rows_of_topic
from courser.inspect.identity import read_whole
from courser.inspect.masking import readable
from courser.inspect.small_files import BadRecordRow
from courser.storage.files import FileSystem
from courser.storage.snapshot import HEADER_SIZE, decode_snapshot, unpack_header

_UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class SnapshotFields:
    """The header of a snapshot, unverified."""

    checksum: str
    body_checksum: str
    format_version: int
    body_size: int
    op: int
    entry_checksum: str
    state_hash: str
    timestamp: int


def _fields_of(data: bytes) -> SnapshotFields | None:
    header = unpack_header(data)
    if header is None:
        return None
    return SnapshotFields(
        header.checksum.hex(),
        header.body_checksum.hex(),
        header.format_version,
        header.body_size,
        header.op,
        header.entry_checksum.hex(),
        header.state_hash.hex(),
        header.timestamp,
    )


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """Facts about the whole snapshot."""

    path: Path
    size: int
    fields: SnapshotFields | None
    """The fields of the header; None if it is not a header."""
    header: str
    """``ok``, or the problem."""
    body: str
    """``ok``, ``unchecked``, or the problem."""
    state: str
    """``ok`` if the state has the stored hash, ``unchecked``, or the problem."""


class SnapshotInspection:
    """Reads one snapshot."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        self._state: CatalogState | None = None
        verdict = self._check(path)
        self.head = SnapshotHead(path, len(self.data), _fields_of(self.data), *verdict)

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

    def rows(self) -> Iterator[CatalogRow | BadRecordRow]:
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
            yield from rows_of_state(self._state)


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
    """Reads one descriptor."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self.data = read_whole(file_system, path)
        self._contents: StreamDescriptor | TopicDescriptor | BadRecordRow
        describes, uuid = "unknown", None
        try:
            self._contents = decode_descriptor(self.data, path)
        except DamagedData as damage:
            self._contents = BadRecordRow(0, len(self.data), damage.reason)
        else:
            is_stream = isinstance(self._contents, StreamDescriptor)
            describes = "stream" if is_stream else "topic"
            uuid = _stream_uuid(self._contents).hex()
        self.head = DescriptorHead(path, len(self.data), describes, uuid)

    def rows(self) -> Iterator[CatalogRow | BadRecordRow]:
        """The stream, or the topic with its partitions and groups."""
        contents = self._contents
        match contents:
            case StreamDescriptor():
                uuid, ids = contents.uuid.hex(), readable(contents.topic_ids)
                yield StreamRow(contents.stream_id, uuid, contents.name, contents.created_at, None, ids)
            case TopicDescriptor():
                yield from rows_of_topic(contents.stream_id, contents.topic)
            case BadRecordRow():
                yield contents


def _stream_uuid(descriptor: StreamDescriptor | TopicDescriptor) -> bytes:
    return descriptor.uuid if isinstance(descriptor, StreamDescriptor) else descriptor.stream_uuid
