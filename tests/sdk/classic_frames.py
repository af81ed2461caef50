"""A few frames of the protocol of 0.5 to 0.8, by hand.

The Python SDKs before 0.9 neither send nor show ids and headers of a message. The SDKs of the same releases in other
languages do; this connection says what those would say.
"""

import enum
import socket
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.wire.classic_client import REPLY_HEAD_SIZE, frame, reply_head

PING, LOGIN, POLL, SEND = 1, 38, 100, 101
TEXT_KIND = 2


class Layout(enum.Enum):
    """A message's header on the wire: what the client says at login, its size, whether keys of headers have a kind."""

    RELEASE_0_5 = ("0.7.0", 56, False)
    RELEASE_0_6 = ("0.8.0", 56, False)
    RELEASE_0_7 = ("0.9.0", 64, True)
    RELEASE_0_8 = ("0.10.0", 64, True)

    def __init__(self, version: str, header_size: int, keys_have_kinds: bool) -> None:
        self.version = version
        self.header_size = header_size
        self.keys_have_kinds = keys_have_kinds

    @property
    def counts_from_one(self) -> bool:
        return self is Layout.RELEASE_0_5


@dataclass(frozen=True)
class Message:
    """A message with all that the protocol can carry; headers are text to text."""

    payload: bytes
    id: int
    headers: dict[str, str] = field(default_factory=dict)


class ClassicConnection:
    """One logged-in connection."""

    def __init__(self, address: str, layout: Layout) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._layout = layout
        # As the SDKs of the Rust family do when they connect.
        self._call(PING, b"")
        self._call(LOGIN, short("iggy") + short("iggy") + long(layout.version) + long(""))

    def send(self, stream: str, topic: str, index: int, messages: list[Message]) -> None:
        """To the partition with this index."""
        partitioning = struct.pack("<BBI", 2, 4, self._partition(index))
        metadata = name(stream) + name(topic) + partitioning + struct.pack("<I", len(messages))
        encoded = [self._encode(message) for message in messages]
        ends = [sum(map(len, encoded[: count + 1])) for count in range(len(encoded))]
        table = b"".join(struct.pack("<IIQ", 0, end, 0) for end in ends)
        self._call(SEND, struct.pack("<I", len(metadata)) + metadata + table + b"".join(encoded))

    def poll(self, stream: str, topic: str, index: int) -> list[Message]:
        """All messages of the partition with this index, up to a thousand."""
        number = self._partition(index)
        partition = struct.pack("<I", number) if self._layout.counts_from_one else struct.pack("<BI", 1, number)
        consumer = struct.pack("<BBBI", 1, 1, 4, 9)
        request = consumer + name(stream) + name(topic) + partition + struct.pack("<BQIB", 3, 0, 1000, 0)
        reply = self._call(POLL, request)
        _, _, count = struct.unpack_from("<IQI", reply)
        messages, position = [], 16
        for _ in range(count):
            message, position = self._decode(reply, position)
            messages.append(message)
        assert position == len(reply)
        return messages

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- messages ---

    def _encode(self, message: Message) -> bytes:
        headers = b"".join(
            (bytes([TEXT_KIND]) if self._layout.keys_have_kinds else b"") + long(key) + bytes([TEXT_KIND]) + long(value)
            for key, value in message.headers.items()
        )
        fixed = struct.pack("<Q", 0) + message.id.to_bytes(16, "little") + struct.pack("<QQQ", 0, 0, 1_700_000_000)
        lengths = struct.pack("<II", len(headers), len(message.payload))
        return (fixed + lengths).ljust(self._layout.header_size, b"\0") + message.payload + headers

    def _decode(self, data: bytes, position: int) -> tuple[Message, int]:
        number = int.from_bytes(data[position + 8 : position + 24], "little")
        headers_size, payload_size = struct.unpack_from("<II", data, position + 48)
        position += self._layout.header_size
        payload = data[position : position + payload_size]
        position += payload_size
        headers = self._decode_headers(data[position : position + headers_size])
        return Message(payload, number, headers), position + headers_size

    def _decode_headers(self, block: bytes) -> dict[str, str]:
        headers, position = {}, 0
        while position < len(block):
            parts = []
            for has_kind in (self._layout.keys_have_kinds, True):
                position += has_kind
                (size,) = struct.unpack_from("<I", block, position)
                parts.append(block[position + 4 : position + 4 + size].decode())
                position += 4 + size
            headers[parts[0]] = parts[1]
        return headers

    # --- frames ---

    def _partition(self, index: int) -> int:
        return index + self._layout.counts_from_one

    def _call(self, code: int, payload: bytes) -> bytes:
        self._socket.sendall(frame(code, payload))
        status, size = reply_head(self._read(REPLY_HEAD_SIZE))
        assert status == 0, f"command {code} was answered with {status}"
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the server closed the connection"
            data += part
        return data


def short(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def long(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def name(text: str) -> bytes:
    return b"\x02" + short(text)
