"""The frames of WebSocket (RFC 6455), as bytes: headers, masks, and messages in fragments. Pure functions.

A library would collect whole frames in memory of its own, which no limit of this server counts. Here a header is read
as soon as it is there, and the payload behind it is unmasked piece by piece, wherever it is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from courser.model.buffers import Buffer

CODE_SIZE = 2
"""Bytes of the code that the payload of a close begins with."""
CONTROL_SIZE_MAX = 125
"""Bytes of the payload of a ping, pong or close."""
FRAGMENT_SIZE_MAX = 8 * 1024 * 1024
"""Bytes of a frame that the server sends. The library in Iggy's SDKs takes frames of 16 MiB, in messages of 64 MiB."""

_FINAL = 0x80
_RESERVED_BITS = 0x70
_OPCODE_BITS = 0x0F
_MASKED = 0x80
_SIZE_BITS = 0x7F
_SIZE_16, _SIZE_64 = 126, 127
_MASK_SIZE = 4


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


_OPCODES = frozenset(Opcode)


class CloseCode(IntEnum):
    """Why a connection is closed."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009


class WebSocketRefused(Exception):
    """The client breaks the rules: the connection is closed with this code and reason."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame from a client."""

    opcode: Opcode
    is_final: bool
    mask: bytes
    payload_size: int
    size: int
    """Of the header itself."""

    @property
    def is_control(self) -> bool:
        """Whether the frame may come between the fragments of a message."""
        return self.opcode >= Opcode.CLOSE


def read_header(data: memoryview) -> FrameHeader | None:
    """The header that ``data`` begins with; None if more bytes are needed.

    Raises:
        WebSocketRefused: a client must not send such a frame.
    """
    if len(data) < 2:
        return None
    first, second = data[0], data[1]
    _check_first_bytes(first, second)
    payload_size, mask_start = second & _SIZE_BITS, 2
    if payload_size >= _SIZE_16:
        mask_start = 4 if payload_size == _SIZE_16 else 10
        payload_size = int.from_bytes(data[2:mask_start], "big")
    size = mask_start + _MASK_SIZE
    if len(data) < size:
        return None
    return FrameHeader(
        Opcode(first & _OPCODE_BITS), bool(first & _FINAL), bytes(data[mask_start:size]), payload_size, size
    )


def _check_first_bytes(first: int, second: int) -> None:
    opcode = first & _OPCODE_BITS
    if first & _RESERVED_BITS:
        raise WebSocketRefused(CloseCode.PROTOCOL_ERROR, "a frame with reserved bits, but no extension is in use")
    if opcode not in _OPCODES:
        raise WebSocketRefused(CloseCode.PROTOCOL_ERROR, f"a frame with the unknown opcode {opcode}")
    if not second & _MASKED:
        raise WebSocketRefused(CloseCode.PROTOCOL_ERROR, "a frame without a mask")
    if opcode >= Opcode.CLOSE and (not first & _FINAL or second & _SIZE_BITS > CONTROL_SIZE_MAX):
        raise WebSocketRefused(
            CloseCode.PROTOCOL_ERROR, f"a control frame in fragments, or of more than {CONTROL_SIZE_MAX} bytes"
        )


def unmask(source: memoryview, target: memoryview, mask: bytes, position: int) -> None:
    """Write the bytes of ``source`` to ``target``, unmasked. The first one is at ``position`` of its frame."""
    size, turn = len(source), position % _MASK_SIZE
    if not size:
        return
    turned = mask[turn:] + mask[:turn]
    repeated = np.frombuffer(turned * (size // _MASK_SIZE + 1), np.uint8, size)
    np.bitwise_xor(np.frombuffer(source, np.uint8), repeated, out=np.frombuffer(target, np.uint8))


def message(
    buffers: Sequence[Buffer], fragment_size_max: int = FRAGMENT_SIZE_MAX, *, opcode: Opcode = Opcode.BINARY
) -> list[Buffer]:
    """One message, in as few frames as possible. The payload is not copied."""
    size = sum(map(len, buffers))
    if size <= fragment_size_max:
        return [_header(opcode, size, is_final=True), *buffers]
    return list(_fragments(opcode, buffers, size, fragment_size_max))


def _fragments(opcode: Opcode, buffers: Sequence[Buffer], left_size: int, fragment_size_max: int) -> Iterator[Buffer]:
    room = 0
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            if not room:
                room = min(left_size, fragment_size_max)
                left_size -= room
                yield _header(opcode, room, is_final=not left_size)
                opcode = Opcode.CONTINUATION
            piece = rest[:room]
            yield piece
            rest = rest[len(piece) :]
            room -= len(piece)


def control_frame(opcode: Opcode, payload: bytes) -> bytes:
    """A ping, pong or close."""
    return _header(opcode, len(payload), is_final=True) + payload


def close_frame(code: CloseCode, reason: str) -> bytes:
    """A close. A long reason is cut."""
    text = reason.encode()[: CONTROL_SIZE_MAX - CODE_SIZE].decode(errors="ignore")
    return control_frame(Opcode.CLOSE, code.to_bytes(CODE_SIZE, "big") + text.encode())


def _header(opcode: Opcode, size: int, *, is_final: bool) -> bytes:
    first = opcode | (_FINAL if is_final else 0)
    if size < _SIZE_16:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, _SIZE_16)) + size.to_bytes(2, "big")
    return bytes((first, _SIZE_64)) + size.to_bytes(8, "big")
