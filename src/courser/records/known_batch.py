"""One batch with known results: does the compiled part work with this Python, on this machine?

A compiled library can be present and still be wrong: damaged, built for another processor, or built with headers that
do not suit the running version of Python. It is tried once, at import, before any message depends on it.

This module needs nothing but the standard library, so that tests can run it with Pythons that have no packages.
"""

import struct
from collections.abc import Callable
from types import ModuleType
from zlib import crc32

_FRAME_HEADER = struct.Struct("<QQQIIIIQ")
_BATCH_HEADER = struct.Struct("<QQQQQQI204x")
_CLASSIC_HEADER_SIZE = 64
_ORIGIN = 3000
"""The creation time of the first message."""

# Sizes differ, so that the functions return the start of each frame. The first is long enough for all ways of hashing.
_PAYLOADS = [bytes(range(256)) * 5, b"two"]
_HEADS = [_FRAME_HEADER.pack(0, number + 1, 0, number, 10 * number, 0, 0, 0) for number in range(2)]
_CHECKSUMS = struct.pack("<2Q", 0xC7CF2C3D7FB69027, 0x820CB3DC7CB900D4)
_BODY = b"".join(
    _CHECKSUMS[8 * number :][:8] + _HEADS[number][8:36] + struct.pack("<I8x", len(payload)) + payload
    for number, payload in enumerate(_PAYLOADS)
)
_STARTS = struct.pack("<2q", 0, _FRAME_HEADER.size + len(_PAYLOADS[0]))
_BATCH = _BATCH_HEADER.pack(0, 0, 0, _ORIGIN, _BATCH_HEADER.size + len(_BODY), 0x5F3BA542A133B479, 2) + _BODY
_PRODUCER = struct.pack("<QHxxI", 7, 8, 9)
_SENT_BATCH = _BATCH[:40] + struct.pack("<QII", 0x9308C0F49820835D, 2, 1) + _PRODUCER + _BATCH[72:]
"""The same from an idempotent producer."""


def _write_frames(walk: ModuleType) -> object:
    into = bytearray(len(_BODY))
    walk.write_frames(_PAYLOADS, None, b"".join(_HEADS), memoryview(into))
    return into


def _fill_checksums(walk: ModuleType) -> object:
    body = bytearray(_BODY)
    body[:8] = bytes(8)
    walk.fill_checksums(body, 2)
    return body


def _stamp_header(walk: ModuleType) -> object:
    return crc32(walk.stamp_header(bytes(_BATCH_HEADER.size), _CHECKSUMS, _BODY, 1000, 2000, _ORIGIN, 2, 0))


def _good_batches(walk: ModuleType) -> object:
    blank = bytes(_BATCH_HEADER.size)
    header = walk.stamp_header(blank, _CHECKSUMS, _BODY, 1000, 2000, _ORIGIN, 2, 0)
    return walk.good_batches(bytes(header) + _BODY + _BODY, blank, 1000)


def _classic_section(walk: ModuleType) -> bytes:
    """The messages as a classic client sends them: an index, then the messages."""
    sizes = [_CLASSIC_HEADER_SIZE + len(payload) for payload in _PAYLOADS]
    into = bytearray(sum(sizes))
    walk.classic_from_frames(_BODY, memoryview(into), 0, 2, _CLASSIC_HEADER_SIZE, 0, 0, _ORIGIN)
    return struct.pack("<4xI12xI8x", sizes[0], sum(sizes)) + into


def _frames_from_classic(walk: ModuleType) -> object:
    into, section = bytearray(len(_BODY)), _classic_section(walk)
    return walk.frames_from_classic(section, b"", memoryview(into), 2, _CLASSIC_HEADER_SIZE, _ORIGIN), into


def _take_classic_send(walk: ModuleType) -> object:
    """The messages as a whole request to partition 1 of topic 1 of stream 1."""
    metadata, section = bytes((1, 4, 1, 0, 0, 0) * 2 + (2, 4, 1, 0, 0, 0, 2, 0, 0, 0)), _classic_section(walk)
    frame = struct.pack("<III", 8 + len(metadata) + len(section), 101, len(metadata)) + metadata + section
    limits = _CLASSIC_HEADER_SIZE, 10_000, 10_000, 10_000
    return walk.take_classic_send(memoryview(bytearray(frame)), bytes, *limits) == (
        *(metadata, len(_PAYLOADS), _ORIGIN, memoryview(_BODY)),
        *(0, _STARTS, _CHECKSUMS),
    )


def _take_vsr_send(walk: ModuleType) -> object:
    """The batch as a whole request with number 9 in session 8, of which the destination is not looked at."""
    header = struct.pack("<48xI8xB67x16s16x8xQB7xQ64x", 256 + 9 + len(_BATCH), 5, b"client", 9, 160, 8)
    assert len(header) == _BATCH_HEADER.size
    known = b"client".ljust(16, b"\0"), bytes(16), 9, b"\5\0\0\0where" + _BATCH[:52], b"where", _ORIGIN, 2
    return walk.take_vsr_send(memoryview(header + known[3][:9] + _BATCH)) == (
        *known,
        *(memoryview(_BODY), 0, _STARTS, _CHECKSUMS),
    )


KNOWN: dict[str, tuple[Callable[[ModuleType], object], object]] = {
    "write_frames": (_write_frames, _BODY),
    "fill_checksums": (_fill_checksums, _BODY),
    "survey": (lambda walk: walk.survey(_BODY, 2), (0, _STARTS, _CHECKSUMS, False, True)),
    "check_batch": (
        lambda walk: (walk.check_batch(_BATCH), walk.check_batch(_SENT_BATCH)),
        ((_ORIGIN, 2, 0, _STARTS, _CHECKSUMS), (_ORIGIN, 2, 0, _STARTS, _CHECKSUMS, _PRODUCER)),
    ),
    "stamp_header": (_stamp_header, 0xEA598861),
    "first_in_cells": (
        lambda walk: walk.first_in_cells(_STARTS, 0, 2, 256, 7, 1024, -1),
        (struct.pack("<2I", 7, 8), struct.pack("<2I", 256, 256 + 1328), 1),
    ),
    "cut_frames": (lambda walk: walk.cut_frames(_BODY, 1, 5, 1000), (1328, len(_BODY), 1)),
    "good_batches": (_good_batches, (_BATCH_HEADER.size + len(_BODY), 1002)),
    "classic_from_frames": (lambda walk: crc32(_classic_section(walk)), 0xAED2B56B),
    "survey_classic": (
        lambda walk: walk.survey_classic(_classic_section(walk), 2, _CLASSIC_HEADER_SIZE, 10_000, 10_000),
        (0, len(_BODY), _ORIGIN),
    ),
    "take_classic_send": (_take_classic_send, True),
    "take_vsr_send": (_take_vsr_send, True),
    "spread_ids": (lambda walk: crc32(walk.spread_ids(bytes(range(16)), 5, 3)), 0xAED1FE88),
    "frames_from_classic": (_frames_from_classic, ((0, _STARTS, _CHECKSUMS), _BODY)),
}
"""For each function, a call and its result. Of long results, the CRC-32."""


def find_failure(walk: ModuleType) -> str | None:
    """What the functions of a module do wrong; None if all of them return the known results."""
    for name, (call, expected) in KNOWN.items():
        try:
            is_right = call(walk) == expected
        except Exception as error:  # noqa: BLE001 -- whatever it is, the module cannot be used
            return f"{name} raises {error!r}"
        if not is_right:
            return f"{name} returns a wrong result"
    return None
