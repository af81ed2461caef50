"""A QUIC client that sends what no library would: packets of its own making, with the keys of a real handshake."""

from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from qh3._hazmat import AeadAes128Gcm, AeadAes256Gcm
from qh3.quic.connection import QuicConnection

_ONE_RTT = 3
_SHORT_HEADER = 0x43
"""Fixed bit, and a packet number of four bytes."""
_SAMPLE_SIZE = 16


class Keys:
    """What protects the client's packets after the handshake."""

    def __init__(self, algorithm: str, key: bytes, iv: bytes, header_key: bytes) -> None:
        self._packets = (AeadAes128Gcm if algorithm == "aes-128-gcm" else AeadAes256Gcm)(key, iv)
        self._headers = Cipher(algorithms.AES(header_key), modes.ECB())

    def protect(self, target: bytes, number: int, frames: bytes) -> bytes:
        """A packet with frames, as it goes over the wire."""
        head = bytes([_SHORT_HEADER]) + target + number.to_bytes(4, "big")
        body = self._packets.encrypt(number, frames.ljust(4, b"\0"), head)
        encryptor = self._headers.encryptor()
        mask = encryptor.update(body[:_SAMPLE_SIZE])
        first = head[0] ^ (mask[0] & 0x1F)
        digits = bytes(a ^ b for a, b in zip(head[-4:], mask[1:5], strict=True))
        return bytes([first]) + target + digits + body


class AttackerConnection(QuicConnection):
    """A connection of the library that reveals its keys."""

    keys: Keys | None = None
    target: bytes = b""
    """The server's connection id."""
    number = 1_000_000
    """Of the last packet of our own: far above those of the library."""

    def _call_core(self, operation: Any, *args: Any) -> Any:
        if getattr(operation, "__name__", "") == "install_packet_key" and args[:2] == ("send", _ONE_RTT):
            self.keys = Keys(args[2][0], *args[3:6])
        return super()._call_core(operation, *args)

    def packet(self, *frames: bytes, skip: int = 0) -> bytes:
        """The next packet; ``skip`` numbers are left out before it."""
        assert self.keys is not None, "after the handshake"
        self.number += 1 + skip
        return self.keys.protect(self.target, self.number, b"".join(frames))


def varint(value: int) -> bytes:
    """A number as QUIC writes it."""
    return (value | 0b11 << 62).to_bytes(8, "big")


def frame(kind: int, *fields: int | bytes) -> bytes:
    """A frame of numbers and bytes."""
    return varint(kind) + b"".join(varint(each) if isinstance(each, int) else each for each in fields)


def stream(number: int, offset: int, data: bytes, *, ends: bool = False) -> bytes:
    """A piece of a stream."""
    return frame(0x0E | ends, number, offset, len(data), data)


def in_packets(frames: Sequence[bytes], size: int = 1100) -> list[bytes]:
    """Frames joined until a datagram is full."""
    joined: list[bytes] = []
    for each in frames:
        if joined and len(joined[-1]) + len(each) <= size:
            joined[-1] += each
        else:
            joined.append(each)
    return joined
