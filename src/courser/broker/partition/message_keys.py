"""Stores the key of a send as a user header of each of its messages.

Iggy uses a key to choose the partition and then forgets it. Jobs that group or compact by key need it later, so Courser
stores it in a header of its own. A header block that cannot be parsed, because the client encrypted it, is left alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, batch_of
from courser.records.checksum import xxh3
from courser.records.frame_walk import fill_checksums
from courser.records.message_keys import KEY_HEADER, key_header
from courser.records.user_headers import (
    FIELD_SIZE_MAX,
    USER_HEADERS_SIZE_MAX,
    build_user_headers,
    is_typed,
    iterate_user_headers,
)

_LENGTHS = layout.FRAME_LENGTHS
_FEW = 32
"""Up to this many messages the fixed cost of numpy exceeds the work."""


def with_key(batch: Batch, key: bytes) -> Batch:
    """The batch with the key added to every message that has none. A batch that would become too large is unchanged."""
    if not 1 <= len(key) <= FIELD_SIZE_MAX:
        return batch
    block = build_user_headers([key_header(key)])
    if batch.size + batch.count * len(block) > layout.BATCH_SIZE_MAX:
        return batch
    user_headers_length, payload_length = _LENGTHS.unpack_from(batch.body, layout.FRAME_LENGTHS_POSITION)
    if batch.frames.frame_size and not user_headers_length:
        return _extend_alike(batch, block, payload_length)
    return _extend_few(batch, block) if batch.count <= _FEW else extend_many(batch, block)


def _extend_alike(batch: Batch, block: bytes, payload_length: int) -> Batch:
    """Messages of one size without headers, which is the usual case: all at once."""
    size, count = batch.frames.frame_size, batch.count
    new_size = size + len(block)
    frames = np.empty((count, new_size), np.uint8)
    frames[:, :size] = np.frombuffer(batch.body, np.uint8).reshape(count, size)
    frames[:, size:] = np.frombuffer(block, np.uint8)
    lengths = np.frombuffer(_LENGTHS.pack(len(block), payload_length), np.uint8)
    frames[:, layout.FRAME_LENGTHS_POSITION : layout.FRAME_LENGTHS_POSITION + _LENGTHS.size] = lengths
    body = frames.reshape(-1).data
    fill_checksums(body, count)
    return batch_of(batch.origin_timestamp, count, body)


def _extend_few(batch: Batch, block: bytes) -> Batch:
    """Messages of any form, one by one."""
    body = batch.body
    pieces: list[Buffer] = []
    starts = batch.frames.starts.tolist()
    for start, end in zip(starts, [*starts[1:], len(body)], strict=True):
        user_headers_length, payload_length = _LENGTHS.unpack_from(body, start + layout.FRAME_LENGTHS_POSITION)
        if not _takes_key(bytes(body[end - user_headers_length : end]), block):
            pieces.append(bytes(body[start:end]))
            continue
        covered = bytearray(body[start + layout.FRAME_ID_POSITION : end])
        covered += block
        position = layout.FRAME_LENGTHS_POSITION - layout.FRAME_ID_POSITION
        _LENGTHS.pack_into(covered, position, user_headers_length + len(block), payload_length)
        pieces += (xxh3(covered).to_bytes(layout.FRAME_ID_POSITION, "little"), covered)
    return batch_of(batch.origin_timestamp, batch.count, memoryview(b"".join(pieces)))


def extend_many(batch: Batch, block: bytes) -> Batch:
    """Add the block to many messages. Python only splits them: a request may have hundreds of thousands."""
    body, starts, count = bytes(batch.body), batch.frames.starts, batch.count
    ends = np.append(starts[1:], len(body))
    lengths = _fields(np.frombuffer(body, np.uint8), starts + layout.FRAME_LENGTHS_POSITION, 4).view("<u4").reshape(-1)
    takes = lengths == 0
    pieces = [body[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    known: dict[bytes, bool] = {}
    with_headers = np.flatnonzero(~takes)
    for number, length in zip(with_headers.tolist(), lengths[with_headers].tolist(), strict=True):
        user_headers = pieces[number][-length:]
        if user_headers not in known:
            known[user_headers] = _takes_key(user_headers, block)
        takes[number] = known[user_headers]
    if takes.all():
        joined = bytearray(block).join((*pieces, b""))
    else:
        joined = bytearray().join(
            piece + block if takes_key else piece for piece, takes_key in zip(pieces, takes.tolist(), strict=True)
        )
    frames = np.frombuffer(joined, np.uint8)
    added = takes * np.int64(len(block))
    starts = starts + np.cumsum(added) - added
    _set_fields(frames, starts + layout.FRAME_LENGTHS_POSITION, (lengths + added).astype("<u4"))
    # An unchanged message keeps its checksum, right or wrong.
    untouched = starts[~takes]
    checksums = _fields(frames, untouched, layout.FRAME_ID_POSITION)
    fill_checksums(frames.data, count)
    _set_fields(frames, untouched, checksums)
    return batch_of(batch.origin_timestamp, count, frames.data)


def _fields(body: NDArray[np.uint8], positions: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """The bytes at these positions, one row each."""
    rows: NDArray[np.uint8] = body[positions[:, None] + np.arange(size)]
    return rows


def _set_fields(body: NDArray[np.uint8], positions: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Store values, one row or number each, at these positions."""
    if len(positions):
        rows = values.view(np.uint8).reshape(len(positions), -1)
        body[positions[:, None] + np.arange(rows.shape[1])] = rows


def _takes_key(user_headers: bytes, block: bytes) -> bool:
    """Whether a key can be added to these headers, and is not among them."""
    if not user_headers:
        return True
    if len(user_headers) + len(block) > USER_HEADERS_SIZE_MAX or not is_typed(user_headers):
        return False
    return all(header.key != KEY_HEADER for header in iterate_user_headers(user_headers))
