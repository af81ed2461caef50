"""Requests too long for the recordings, made again: their beginning was kept, and the rest follows a pattern.

The beginning is kept as it is, so each request is proven by it; and where it carries checksums, these prove the rest.
"""

import struct
from collections.abc import Callable

import xxhash

_VSR_HEADER_SIZE = 256
_VSR_BATCH_AT = _VSR_HEADER_SIZE + 4 + 16
"""Behind the header, the length of the metadata and the metadata, which is 16 bytes long in all these requests."""
_BATCH_HEADER_SIZE = 256
_FRAME_HEADER_SIZE = 48


def rebuild(wire: str, name: str, beginning: bytes) -> bytes:
    """The whole request of which only the beginning was recorded."""
    whole = (_rebuild_classic if wire == "classic" else _rebuild_vsr)(name, beginning)
    assert whole.startswith(beginning[: _proven_size(wire, name, beginning)]), f"{name} was made wrongly"
    return whole


def _proven_size(wire: str, name: str, beginning: bytes) -> int:
    """How much of the beginning must come out again.

    The pattern of one request could not be found: it has the recorded size, but checksums and values of its own.
    """
    if (wire, name) == ("vsr", "user headers 100000 bytes"):
        return _VSR_BATCH_AT + 40
    return len(beginning)


# --- classic ---


def _rebuild_classic(name: str, beginning: bytes) -> bytes:
    size: int = 4 + struct.unpack_from("<I", beginning)[0]
    if name == "send batch of 20000":
        return _classic_batch(beginning, 20_000)
    filler = b"h" if name.startswith("send headers") else b"\0"
    assert name.startswith(("send headers", "send payload")), f"no pattern is known for {name}"
    return beginning + filler * (size - len(beginning))


def _classic_batch(beginning: bytes, count: int) -> bytes:
    """Messages of one byte each. Their origin time is the one of all other recorded sends."""
    message_size = 65
    head = beginning[: 8 + 4 + 16]
    index = b"".join(struct.pack("<IIQ", 0, (number + 1) * message_size, 0) for number in range(count))
    origin_time = 0x060A24181E40
    message = struct.pack("<Q16sQQQIIQ", 0, bytes(16), 0, 0, origin_time, 0, 1, 0) + b"q"
    return head + index + message * count


# --- 0.9 ---


def _rebuild_vsr(name: str, beginning: bytes) -> bytes:
    frames = _VSR_FRAMES[name](name)
    body = b"".join(frames)
    batch = bytearray(beginning[_VSR_BATCH_AT : _VSR_BATCH_AT + _BATCH_HEADER_SIZE])
    assert struct.unpack_from("<Q", batch, 32)[0] == _BATCH_HEADER_SIZE + len(body), f"the size of {name} is wrong"
    checksum = xxhash.xxh3_64(bytes(batch[:40]) + bytes(batch[48:52]))
    for frame in frames:
        checksum.update(frame[:8])
    struct.pack_into("<Q", batch, 40, checksum.intdigest())
    return beginning[:_VSR_BATCH_AT] + bytes(batch) + body


def _frame(number: int, payload: bytes, user_headers: bytes = b"") -> bytes:
    message_id = (0x1000 + number).to_bytes(16, "little")
    rest = struct.pack("<16sIIIIQ", message_id, number, 0, len(user_headers), len(payload), 0)
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(rest + payload + user_headers)) + rest + payload + user_headers


def _one_payload(name: str) -> list[bytes]:
    return [_frame(0, b"z" * int(name.removeprefix("payload ").replace(" ", "")))]


def _user_headers(count: int, last_size: int) -> list[bytes]:
    """Text keys with raw values of 231 zero bytes, the last one shorter."""
    sizes = [231] * (count - 1) + [last_size]
    blocks = (b"\x02\x02\0\0\0kk\x01" + struct.pack("<I", size) + bytes(size) for size in sizes)
    return [_frame(0, b"hi", b"".join(blocks))]


def _many(count: int) -> list[bytes]:
    return [_frame(number, b"q") for number in range(count)]


_VSR_FRAMES: dict[str, Callable[[str], list[bytes]]] = {
    "user headers 100000 bytes": lambda _: _user_headers(414, 218),
    "headers above 100 000 bytes": lambda _: _user_headers(493, 231),
    "batch of 20 000 messages": lambda _: _many(20_000),
    "batch of 200 000 messages": lambda _: _many(200_000),
    "payload 10 000 000": _one_payload,
    "payload 63999000": _one_payload,
    "payload 64000000": _one_payload,
    "payload 64000001": _one_payload,
    "payload 66000000": _one_payload,
    "payload 67108282": _one_payload,
    "payload 67108283": _one_payload,
}
