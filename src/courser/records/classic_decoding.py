"""Classic messages to batches: check everything that a client may have sent wrong, then build the stored frames.

The *section* of a SendMessages command is its index block and the messages after it. An index entry says where its
message ends. The last entry is ignored, as in the original servers: the end of the section counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from courser.errors import ErrorCode, InvalidBatch
from courser.records import layout
from courser.records.batch import Batch
from courser.records.classic_layout import (
    FRAME_HEADER,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    LENGTHS_POSITION,
    LONG_HEADER_SIZE,
    SHORT_HEADER_SIZE,
    Dialect,
    Headers,
    read_headers,
    write_headers,
)
from courser.records.classic_single import decode_single
from courser.records.classic_tails import (
    Places,
    convert_user_headers,
    copy_tails,
    places_of,
    write_checksums,
    xxh3_of_each,
)
from courser.records.frame_walk import frames_from_classic, survey_classic
from courser.records.frames import FrameLayout
from courser.records.user_headers import USER_HEADERS_SIZE_MAX, typed_from_untyped

_BODY_SIZE_MAX = layout.BATCH_SIZE_MAX - layout.BATCH_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class ClassicLimits:
    """How large the parts of one message may be."""

    payload_size_max: int = 64_000_000
    user_headers_size_max: int = USER_HEADERS_SIZE_MAX


USUAL_LIMITS = ClassicLimits()
"""Those of the original servers from 0.6 on."""


@dataclass(frozen=True, slots=True)
class _Messages:
    """Checked messages, and the contents of their frames."""

    places: Places
    headers: Headers
    user_headers_lengths: NDArray[np.int64]
    frame_sizes: NDArray[np.int64]
    converted: dict[int, bytes]

    def part(self, first: int, end: int) -> "_Messages":
        """Only the messages ``first`` to ``end``."""
        count = len(self.headers)
        if (first, end) == (0, count):
            return self
        start = int(self.places.starts[first])
        stop = int(self.places.starts[end]) if end < count else len(self.places.buffer)
        places = Places(
            self.places.buffer[start:stop],
            self.places.header_size,
            self.places.starts[first:end] - start,
            self.places.stride,
        )
        converted = {number - first: tail for number, tail in self.converted.items() if first <= number < end}
        return _Messages(
            places,
            self.headers[first:end],
            self.user_headers_lengths[first:end],
            self.frame_sizes[first:end],
            converted,
        )


def header_size_of(section: memoryview, count: int) -> int:
    """56 or 64, from the structure of the first message.

    If neither size fits, ``decode_classic`` reports the same error with any dialect. The other messages are not
    checked: one with another header does not fit its index entry and is refused there. (A 64-byte message whose
    length fields are wrong by exactly eight cannot be distinguished from a 56-byte one.)

    Raises:
        InvalidBatch: the section is truncated, or the lengths of its first message contradict the index.
    """
    index, block = _split(section, count)
    end = int(index["end"][0]) if count > 1 else len(block)
    if not SHORT_HEADER_SIZE <= end <= len(block):
        raise InvalidBatch(
            ErrorCode.MISSING_INDEX, f"message 0: its index entry says that it ends at byte {end} of {len(block)}"
        )
    lengths = np.ndarray((2,), "<u4", block, LENGTHS_POSITION)
    header_size = end - int(lengths[0]) - int(lengths[1])
    if header_size > LONG_HEADER_SIZE:
        raise InvalidBatch(ErrorCode.INVALID_MESSAGES_SIZE, "message 0: it is longer than its lengths say")
    if header_size not in (SHORT_HEADER_SIZE, LONG_HEADER_SIZE):
        raise InvalidBatch(ErrorCode.MISSING_INDEX, "message 0: its lengths reach beyond its end")
    return header_size


def decode_classic(
    section: memoryview,
    count: int,
    *,
    dialect: Dialect,
    ids: Callable[[int], bytes],
    limits: ClassicLimits = USUAL_LIMITS,
) -> list[Batch]:
    """The messages of a SendMessages command as batches: one, unless their creation times or sizes need several.

    Messages keep their order. Checksum, timestamp and offset from the client are dropped.

    Args:
        section: the index block and the messages, to the end of the command.
        count: the number of messages that the command declares.
        dialect: decides the size of the headers and the form of the user headers.
        ids: returns a number of random ids of 16 bytes, for messages without an id.
        limits: of the parts of a message.

    Raises:
        InvalidBatch: with the error number for the client, and the number of the message.
    """
    batch = decode_usual(section, count, dialect=dialect, ids=ids, limits=limits)
    if batch is None and count == 1:
        batch = decode_single(
            section,
            dialect=dialect,
            ids=ids,
            payload_size_max=limits.payload_size_max,
            user_headers_size_max=limits.user_headers_size_max,
        )
    if batch is not None:
        return [batch]
    return decode_many(section, count, dialect=dialect, ids=ids, limits=limits)


def decode_usual(
    section: memoryview,
    count: int,
    *,
    dialect: Dialect,
    ids: Callable[[int], bytes],
    limits: ClassicLimits,
) -> Batch | None:
    """Decode valid messages that fit into one batch and keep their user headers, in one compiled pass.

    None if that is not possible, or if the compiled part is missing: then ``decode_many`` does it or reports the error.
    """
    header_size = dialect.header_size
    found = survey_classic(section, count, header_size, limits.payload_size_max, limits.user_headers_size_max)
    if found is None:
        return None
    absent_id_count, size, origin_timestamp = found
    new_ids = ids(absent_id_count) if absent_id_count else b""
    # Not zeroed: every byte is overwritten.
    body = np.empty(size, np.uint8).data
    made = frames_from_classic(section, new_ids, body, count, header_size, origin_timestamp)
    assert made is not None, "the survey has looked at all lengths"
    frame_size, starts, checksums = made
    return Batch(origin_timestamp, count, body, FrameLayout(count, frame_size, starts, size), checksums)


def decode_many(
    section: memoryview, count: int, *, dialect: Dialect, ids: Callable[[int], bytes], limits: ClassicLimits
) -> list[Batch]:
    """``decode_classic`` for any messages, without its fast paths."""
    places, sizes = _find_messages(section, count, dialect)
    headers = read_headers(places.buffer, places.starts, places.stride, dialect.header)
    _check_headers(headers, sizes, dialect, limits)
    messages = _measure(places, headers, dialect)
    origins = headers["origin_timestamp"]
    return [_build(messages.part(first, end), ids) for first, end in _parts(origins, messages.frame_sizes)]


def _split(section: memoryview, count: int) -> tuple[Headers, memoryview]:
    """The index entries and the messages."""
    if count < 1:
        raise InvalidBatch(ErrorCode.INVALID_MESSAGES_COUNT, "it has no messages")
    index_size = count * INDEX_ENTRY_SIZE
    if len(section) < index_size:
        reason = f"an index of {count} messages does not fit into {len(section)} bytes"
        raise InvalidBatch(ErrorCode.INVALID_COMMAND, reason)
    return np.ndarray((count,), INDEX_ENTRY, section), section[index_size:]


def _find_messages(section: memoryview, count: int, dialect: Dialect) -> tuple[Places, NDArray[np.int64]]:
    """Positions and sizes of the messages, from the index."""
    index, block = _split(section, count)
    _refuse(index["offset"] != 0, ErrorCode.NON_ZERO_OFFSET, "the offset in its index entry is not 0")
    _refuse(index["timestamp"] != 0, ErrorCode.NON_ZERO_TIMESTAMP, "the timestamp in its index entry is not 0")
    # Signed, so that a decreasing position gives a negative size instead of a huge one.
    edges = np.zeros(count + 1, np.int64)
    edges[1:] = index["end"]
    edges[count] = len(block)
    sizes = edges[1:] - edges[:-1]
    _refuse(sizes < dialect.header_size, ErrorCode.MISSING_INDEX, "its index entry leaves no room for its header")
    stride = int(sizes[0]) if bool((sizes == sizes[0]).all()) else 0
    return Places(block, dialect.header_size, edges[:-1], stride), sizes


def _check_headers(headers: Headers, sizes: NDArray[np.int64], dialect: Dialect, limits: ClassicLimits) -> None:
    payload_lengths, user_headers_lengths = headers["payload_length"], headers["user_headers_length"]
    claimed = payload_lengths.astype(np.int64) + user_headers_lengths + dialect.header_size
    missing = claimed - sizes
    _refuse(missing > 0, ErrorCode.MISSING_INDEX, "its lengths reach beyond its end")
    reason = f"its payload has more than {limits.payload_size_max} bytes"
    _refuse(payload_lengths > limits.payload_size_max, ErrorCode.TOO_BIG_MESSAGE_PAYLOAD, reason)
    reason = f"its user headers have more than {limits.user_headers_size_max} bytes"
    _refuse(user_headers_lengths > limits.user_headers_size_max, ErrorCode.TOO_BIG_USER_HEADERS, reason)
    _refuse(missing < 0, ErrorCode.INVALID_MESSAGES_SIZE, "it is longer than its lengths say")
    offsets = headers["offset"]
    falling = np.zeros(len(offsets), np.bool_)
    np.less(offsets[1:], offsets[:-1], out=falling[1:])
    _refuse(falling, ErrorCode.INVALID_OFFSET, "its offset is smaller than that of the message before")
    if dialect.has_long_header:
        _refuse(headers["reserved"] != 0, ErrorCode.INVALID_RESERVED_FIELD, "its reserved bytes are not zero")


def _refuse(wrong: NDArray[np.bool_], code: ErrorCode, reason: str) -> None:
    """Raise for the first invalid message, if there is one."""
    if wrong.any():
        raise InvalidBatch(code, f"message {int(wrong.argmax())}: {reason}")


def _measure(places: Places, headers: Headers, dialect: Dialect) -> _Messages:
    """The size of every frame, which depends on the form of the user headers."""
    converted: dict[int, bytes] = {}
    user_headers_lengths = headers["user_headers_length"].astype(np.int64)
    if not dialect.has_long_header and user_headers_lengths.any():
        user_headers_lengths, converted = convert_user_headers(places, headers, typed_from_untyped)
    frame_sizes = user_headers_lengths + headers["payload_length"] + layout.FRAME_HEADER_SIZE
    _refuse(frame_sizes > _BODY_SIZE_MAX, ErrorCode.TOO_BIG_MESSAGE_PAYLOAD, "it does not fit into a batch")
    return _Messages(places, headers, user_headers_lengths, frame_sizes, converted)


def _parts(origins: NDArray[np.uint64], frame_sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and end of the messages of each batch: each batch takes as many as possible."""
    count = len(origins)
    spread = int(origins.max()) - int(origins.min())
    if spread <= layout.TIMESTAMP_DELTA_MAX and int(frame_sizes.sum()) <= _BODY_SIZE_MAX:
        yield 0, count
        return
    first = earliest = latest = size = 0
    for number, (origin, frame_size) in enumerate(zip(origins.tolist(), frame_sizes.tolist(), strict=True)):
        if number > first:
            earliest, latest, size = min(earliest, origin), max(latest, origin), size + frame_size
            if latest - earliest <= layout.TIMESTAMP_DELTA_MAX and size <= _BODY_SIZE_MAX:
                continue
            yield first, number
        first, earliest, latest, size = number, origin, origin, frame_size
    yield first, count


def _build(messages: _Messages, ids: Callable[[int], bytes]) -> Batch:
    """The frames of messages that fit into one batch."""
    count = len(messages.headers)
    starts, stride, size = places_of(messages.frame_sizes)
    # Not zeroed: every byte is overwritten below.
    body = np.empty(size, np.uint8).data
    frames = Places(body, layout.FRAME_HEADER_SIZE, starts, stride)

    origins = messages.headers["origin_timestamp"]
    origin_timestamp = int(origins.min())
    headers = np.zeros(count, FRAME_HEADER)
    headers["id"] = _with_ids(messages.headers["id"], ids)
    headers["offset_delta"] = np.arange(count, dtype=np.uint32)
    headers["timestamp_delta"] = origins - np.uint64(origin_timestamp)
    headers["user_headers_length"] = messages.user_headers_lengths
    headers["payload_length"] = messages.headers["payload_length"]
    write_headers(body, starts, stride, headers)
    copy_tails(messages.places, frames, messages.converted)
    checksums = xxh3_of_each(frames)
    write_checksums(frames, checksums)

    same_split = stride and bool((headers["payload_length"] == headers["payload_length"][0]).all())
    placed = FrameLayout(count, stride, b"", size) if same_split else FrameLayout(count, 0, starts.tobytes(), size)
    return Batch(origin_timestamp, count, body, placed, checksums.tobytes())


def _with_ids(sent: NDArray[np.void], ids: Callable[[int], bytes]) -> NDArray[np.void]:
    """The ids as sent, with random ids instead of zeros."""
    kept = np.ascontiguousarray(sent)
    halves = kept.view("<u8").reshape(-1, 2)
    absent = (halves[:, 0] | halves[:, 1]) == 0
    count = int(np.count_nonzero(absent))
    if count:
        kept = kept.copy()
        kept[absent] = np.frombuffer(ids(count), "V16")
    return kept
