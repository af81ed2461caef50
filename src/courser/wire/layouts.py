"""Commands and replies to bytes and back, derived from their fields.

A layout is compiled once per type, from the kinds that ``api`` gives its fields. What no kind can express (sends,
polls, logins, options, and differences between releases) is written by hand in the codec of its generation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from courser.api.fields import Counted, Kind, ToTheEnd
from courser.api.table import Command
from courser.errors import InvalidBatch
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import Partitioning, PollingKind
from courser.model.permissions import Permissions
from courser.records import layout as batch_layout
from courser.records.batch import Batch, encode_batch, parse_batch
from courser.wire import writing
from courser.wire.reading import Malformed, Reader

Value = TypeVar("Value")
Structure = TypeVar("Structure", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class FieldCodec(Generic[Value]):
    """How one value is encoded. ``first_id`` is the number of the first stream, topic, ... on the other side."""

    read: Callable[[Reader], Value]
    write: Callable[[Value, int], bytes]


@dataclass(frozen=True, slots=True)
class Layout(Generic[Structure]):
    """How a command or a reply is encoded."""

    kind: type[Structure]
    names: tuple[str, ...]
    fields: tuple[FieldCodec[Any], ...]
    is_in_order: bool
    """Whether the order on the wire is the declared one: then the fields can be passed by position."""

    def read(self, reader: Reader) -> Structure:
        """Decode a payload.

        Raises:
            Malformed: the payload ends too early, or a value does not exist.
        """
        if not self.fields:
            # Pings are frequent.
            return self.kind()
        values = [field.read(reader) for field in self.fields]
        if self.is_in_order:
            return self.kind(*values)
        return self.kind(**dict(zip(self.names, values, strict=True)))

    def write(self, value: Structure, first_id: int = 0) -> bytes:
        """Encode a command or a reply."""
        return b"".join(
            [field.write(getattr(value, name), first_id) for name, field in zip(self.names, self.fields, strict=True)]
        )

    def before(self, name: str) -> "Layout[Structure]":
        """The layout of the fields before one field, for encoding: that field is sent without a copy."""
        end = self.names.index(name)
        return Layout(self.kind, self.names[:end], self.fields[:end], is_in_order=False)


def layout_of(kind: type[Structure]) -> Layout[Structure]:
    """Compile the layout of a command or a reply from its fields. Do it once, not for every request."""
    hints = get_type_hints(kind, include_extras=True)
    order: Sequence[str] = kind.row.order if issubclass(kind, Command) else kind.__struct_fields__
    names = tuple(name for name in order if Kind.ABSENT not in getattr(hints[name], "__metadata__", ()))
    declared = kind.__struct_fields__[: len(names)]
    return Layout(kind, names, tuple(_field_of(hints[name]) for name in names), is_in_order=names == declared)


# --- fields by their kinds and types ------------------------------------------------------------------


def _plain(read: Callable[[Reader], Value], write: Callable[[Value], bytes]) -> FieldCodec[Value]:
    """A field with the same encoding in all dialects."""
    return FieldCodec(read, lambda value, _: write(value))


def _optional(present: FieldCodec[Value]) -> FieldCodec[Value | None]:
    """A field after a byte that says whether it is present."""

    def write(value: Value | None, first_id: int) -> bytes:
        return b"\x00" if value is None else b"\x01" + present.write(value, first_id)

    return FieldCodec(lambda reader: present.read(reader) if reader.is_present() else None, write)


def _read_optional_u64(reader: Reader) -> int | None:
    is_there, number = reader.is_present(), reader.u64()
    return number if is_there else None


def _write_optional_u64(value: int | None) -> bytes:
    return bytes(9) if value is None else b"\x01" + writing.u64(value)


_NAME = _plain(Reader.name, writing.text8)
_ACTIVE = _plain(Reader.is_active, lambda value: b"\x01" if value else b"\x02")

_BY_KIND: dict[Kind, FieldCodec[Any]] = {
    Kind.U8: _plain(Reader.u8, writing.u8),
    Kind.U32: _plain(Reader.u32, writing.u32),
    Kind.U64: _plain(Reader.u64, writing.u64),
    Kind.ID: FieldCodec(Reader.id, lambda value, first_id: writing.u32(writing.shifted(value, first_id))),
    Kind.FLAG: _plain(Reader.flag, lambda value: b"\x01" if value else b"\x00"),
    Kind.NAME: _NAME,
    Kind.TEXT8: _plain(Reader.text8, writing.text8),
    Kind.TEXT32: _plain(Reader.text32, writing.text32),
    Kind.ACTIVE: _ACTIVE,
    Kind.SNAPSHOT_COMPRESSION: _plain(Reader.snapshot_compression, writing.u8),
    Kind.SNAPSHOT_KINDS: _plain(Reader.snapshot_kinds, lambda value: bytes((len(value), *value))),
    Kind.UUID: _plain(lambda reader: bytes(reader.take(16)), bytes),
    Kind.OPTIONAL_PARTITION: _plain(Reader.optional_partition, writing.optional_partition),
    Kind.OPTIONAL_U64: _plain(_read_optional_u64, _write_optional_u64),
    Kind.MAYBE_U64: _optional(_plain(Reader.u64, writing.u64)),
    Kind.MAYBE_PERMISSIONS: _optional(FieldCodec(Reader.permissions, writing.permissions)),
    Kind.OPTIONAL_NAME: _optional(_NAME),
    Kind.OPTIONAL_ACTIVE: _optional(_ACTIVE),
}


def _read_batch(reader: Reader) -> Batch:
    size = batch_layout.WIRE_HEADER.unpack_from(reader.peek(batch_layout.BATCH_HEADER_SIZE))[4]
    try:
        return parse_batch(reader.take(size))
    except InvalidBatch as error:
        raise Malformed(error.reason, error.code) from error


_BY_TYPE: dict[Any, FieldCodec[Any]] = {
    Identifier: FieldCodec(Reader.identifier, writing.identifier),
    Consumer: FieldCodec(Reader.consumer, writing.consumer),
    Partitioning: FieldCodec(Reader.partitioning, writing.partitioning),
    PollingKind: _plain(Reader.polling_kind, writing.u8),
    Permissions | None: FieldCodec(Reader.optional_permissions, writing.optional_permissions_of_request),
    Batch: _plain(_read_batch, encode_batch),
}


def _field_of(hint: Any) -> FieldCodec[Any]:
    """The field for a declaration."""
    if get_origin(hint) is Annotated:
        declared, *marks = get_args(hint)
        for mark in marks:
            if isinstance(mark, Kind):
                return _BY_KIND[mark]
            if isinstance(mark, Counted | ToTheEnd):
                return _rows(declared, mark)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in _BY_TYPE:
        inner = layout_of(hint)
        return FieldCodec(inner.read, inner.write)
    assert not isinstance(hint, UnionType) or hint in _BY_TYPE, f"{hint} has no kind"
    return _BY_TYPE[hint]


def _rows(declared: Any, mark: Counted | ToTheEnd) -> FieldCodec[Any]:
    """Several values of one form: structures, tuples of numbers, or numbers."""
    collection: Callable[[list[Any]], Any] = get_origin(declared)
    row_hint = get_args(declared)[0]
    row = _tuple(row_hint) if get_origin(row_hint) is tuple else _field_of(row_hint)
    is_counted = isinstance(mark, Counted)

    def write(values: Sequence[Any], first_id: int) -> bytes:
        parts = [row.write(value, first_id) for value in values]
        return writing.u32(len(parts)) + b"".join(parts) if is_counted else b"".join(parts)

    def read(reader: Reader) -> Any:
        values = []
        if is_counted:
            count = reader.u32()
            _check_count(count, mark)
            values = [row.read(reader) for _ in range(count)]
        else:
            while reader.remaining:
                values.append(row.read(reader))
        return collection(values)

    return FieldCodec(read, write)


def _check_count(count: int, mark: Counted | ToTheEnd) -> None:
    if isinstance(mark, Counted) and mark.count_max is not None and count > mark.count_max:
        raise Malformed(f"it has {count} rows, but at most {mark.count_max} are allowed")


def _tuple(hint: Any) -> FieldCodec[tuple[Any, ...]]:
    fields = [_field_of(part) for part in get_args(hint)]

    def write(values: tuple[Any, ...], first_id: int) -> bytes:
        return b"".join([field.write(value, first_id) for field, value in zip(fields, values, strict=True)])

    return FieldCodec(lambda reader: tuple([field.read(reader) for field in fields]), write)
