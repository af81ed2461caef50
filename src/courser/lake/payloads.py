"""Decodes batches of payloads into typed columns: which become rows, and what is wrong with the others.

A payload becomes one row or one bad payload, whatever is beside it in its batch. A format says this twice: ``columns``
takes many payloads at once, and raises ``Unsure`` if it has the slightest doubt; ``values`` takes one, and decides.
What the first accepts, the second accepts too, with the same values. So only the part of a batch around a bad payload
is decoded slowly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.lake.schemas import MESSAGE_FIELDS
from courser.lake.text_values import Unsure

PIECE_SIZE = 1024 * 1024
"""Bytes of payloads to decode at once: enough for the full speed, and little to decode again if one of them is bad."""
SPLIT_COUNT = 16
"""Parts of a piece with a bad payload. All but those with a bad payload are decoded fast."""
SLOW_COUNT_MAX = 512
"""Payloads to decode one by one instead of splitting them further."""
SHOWN_LENGTH_MAX = 60
"""Characters of a wrong value in a reason."""


class BadPayload(ValueError):
    """A payload is no row of the schema. Its text is the reason, a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A payload that cannot be decoded."""

    index: int
    """Its place in the batch."""
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch. Each payload is in ``good`` or in ``bad``, once."""

    rows: Any
    """An Arrow table of the good rows, in the order of their payloads."""
    good: Any
    """An Arrow array: the place in the batch of the payload of each row."""
    bad: tuple[Bad, ...]


class PayloadFormat(Protocol):
    """How payloads become rows."""

    @property
    def schema(self) -> Any:
        """The Arrow schema of the rows."""

    def columns(self, payloads: Any) -> Sequence[Any]:
        """The columns of these payloads (a binary array without nulls). Raises ``Unsure``."""

    def values(self, payload: bytes) -> Sequence[Any]:
        """The values of one payload, by column. Raises ``BadPayload``."""


def decode(payload_format: PayloadFormat, payloads: Any) -> Decoded:
    """Decode a binary array. A null counts as an empty payload."""
    whole = payloads.fill_null(b"") if payloads.null_count else payloads
    collected = _Collected(payload_format.schema)
    for begin, count in _pieces(whole):
        _decode_piece(payload_format, whole.slice(begin, count), begin, collected)
    return collected.finish()


class _Collected:
    """The rows and bad payloads of the parts of a batch, in order."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._tables: list[Any] = []
        self._good: list[Any] = []
        self._bad: list[Bad] = []

    def add_rows(self, columns: Sequence[Any], indices: Any) -> None:
        self._tables.append(pa.Table.from_arrays(list(columns), schema=self._schema))
        self._good.append(pa.array(indices, pa.int64()))

    def add_bad(self, index: int, reason: str) -> None:
        self._bad.append(Bad(index, reason))

    def finish(self) -> Decoded:
        rows = pa.concat_tables(self._tables) if self._tables else self._schema.empty_table()
        good = pa.concat_arrays(self._good) if self._good else pa.array([], pa.int64())
        return Decoded(rows, good, tuple(sorted(self._bad, key=lambda bad: bad.index)))


def _pieces(payloads: Any) -> Iterator[tuple[int, int]]:
    """The begin and count of parts of about ``PIECE_SIZE`` bytes."""
    if not len(payloads):
        return
    ends = offsets_of(payloads)[1:].astype(np.int64)
    begin = 0
    while begin < len(payloads):
        start = ends[begin - 1] if begin else ends[0] - len(payloads[0].as_buffer())
        end = max(int(np.searchsorted(ends, start + PIECE_SIZE, "right")), begin + 1)
        yield begin, end - begin
        begin = end


def offsets_of(payloads: Any) -> Any:
    """Where each payload begins in the buffer of the array, and the end of the last one."""
    width = np.int64 if pa.types.is_large_binary(payloads.type) or pa.types.is_large_string(payloads.type) else np.int32
    return np.frombuffer(payloads.buffers()[1], width)[payloads.offset : payloads.offset + len(payloads) + 1]


def _decode_piece(payload_format: PayloadFormat, payloads: Any, first: int, collected: _Collected) -> None:
    """Decode a part of a batch that begins at ``first``."""
    count = len(payloads)
    try:
        collected.add_rows(payload_format.columns(payloads), np.arange(first, first + count))
    except Unsure:
        if count <= SLOW_COUNT_MAX:
            _decode_each(payload_format, payloads, first, collected)
            return
        step = -(-count // SPLIT_COUNT)
        for begin in range(0, count, step):
            _decode_piece(payload_format, payloads.slice(begin, step), first + begin, collected)


def _decode_each(payload_format: PayloadFormat, payloads: Any, first: int, collected: _Collected) -> None:
    rows: list[Sequence[Any]] = []
    indices: list[int] = []
    for index, payload in enumerate(payloads.to_pylist(), first):
        try:
            rows.append(payload_format.values(payload))
            indices.append(index)
        except BadPayload as error:
            collected.add_bad(index, str(error))
    if not rows:
        return
    try:
        collected.add_rows(_arrays(payload_format.schema, rows), indices)
    except _REFUSALS:
        # Values that a format has and a column does not, such as an Avro "int" of more than 32 bits.
        _add_one_by_one(payload_format.schema, rows, indices, collected)


_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow raises for a value that does not fit its type."""


def _arrays(schema: Any, rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]


def _add_one_by_one(schema: Any, rows: Sequence[Sequence[Any]], indices: Sequence[int], collected: _Collected) -> None:
    for index, row in zip(indices, rows, strict=True):
        columns = []
        for value, field in zip(row, schema, strict=True):
            try:
                columns.append(pa.array([value], field.type))
            except _REFUSALS:
                reason = f"the field {field.name} is {shown(str(value))}, which a column of {field.type} cannot hold"
                collected.add_bad(index, reason)
                break
        else:
            collected.add_rows(columns, [index])


# --- rows and their messages ---------------------------------------------------------------------------

BAD_ROWS = pa.schema(
    [*MESSAGE_FIELDS, pa.field("payload", pa.binary(), nullable=False), pa.field("reason", pa.string(), nullable=False)]
)
"""The columns of a table of bad payloads."""


def rows_with_messages(decoded: Decoded, messages: Any) -> Any:
    """The good rows, each with the columns of its message. ``messages``: a table of those, a row for each payload."""
    table = decoded.rows
    own = messages.take(decoded.good)
    for field in own.schema:
        table = table.append_column(field, own.column(field.name))
    return table


def bad_rows(decoded: Decoded, payloads: Any, messages: Any) -> Any:
    """The bad payloads, as they came, with the reasons. Columns of messages that are not known are null."""
    indices = pa.array([bad.index for bad in decoded.bad], pa.int64())
    found = {
        **{name: messages.column(name).take(indices) for name in messages.schema.names},
        "payload": payloads.fill_null(b"").take(indices),
        "reason": pa.array([bad.reason for bad in decoded.bad], pa.string()),
    }
    nothing = pa.nulls(len(indices))
    columns = [found.get(field.name, nothing).cast(field.type) for field in BAD_ROWS]
    return pa.Table.from_arrays(columns, schema=BAD_ROWS)


# --- what formats share -------------------------------------------------------------------------------


def texts_of(payloads: Any) -> Any:
    """Payloads as an array of strings. Raises ``Unsure`` if one is not UTF-8."""
    try:
        return payloads.cast(pa.large_string() if pa.types.is_large_binary(payloads.type) else pa.string())
    except pa.ArrowException as error:
        raise Unsure from error


def text_of(payload: bytes) -> str:
    """A payload as text. Raises ``BadPayload`` if it is not UTF-8."""
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise BadPayload(f"the payload is not UTF-8 text: byte {error.start + 1} of {len(payload)} is wrong") from error


def shown(text: str) -> str:
    """A value for a reason, cut if it is long."""
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[: SHOWN_LENGTH_MAX - 1]}…"


class RawFormat:
    """Payloads as they are."""

    schema = pa.schema([pa.field("payload", pa.binary(), nullable=False)])

    def columns(self, payloads: Any) -> Sequence[Any]:
        return [payloads.cast(pa.binary())]

    def values(self, payload: bytes) -> Sequence[Any]:
        return [payload]


class TextFormat:
    """Payloads that are text, in a column ``text``. An empty one is an empty text."""

    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])

    def columns(self, payloads: Any) -> Sequence[Any]:
        return [texts_of(payloads).cast(pa.string())]

    def values(self, payload: bytes) -> Sequence[Any]:
        return [text_of(payload)]
