"""The load generator: speaks both wires directly, with as little work per request as possible.

It shares no code with the server's codecs, so that a mistake there cannot hide here.
"""

import socket
import struct
import uuid
from dataclasses import dataclass
from typing import Protocol

_SIZE = struct.Struct("<I")
_NAME = b"\x02\x05bench"
_PARTITION = struct.Struct("<BBI")
_VSR_HEADER_SIZE = 256
_POLL_PREFIX = struct.Struct("<IQI")


@dataclass(frozen=True, slots=True)
class Polled:
    """What came back."""

    message_count: int
    size: int
    """Bytes of the reply."""
    current_offset: int


class WireClient(Protocol):
    """One connection that waits for each answer."""

    def create_topic(self, name: str, partition_count: int, *, is_synced: bool = False) -> None:
        """Make the stream, if it is not there, and a topic."""

    def make_send(self, topic: str, partition_id: int, batch: "SampleBatch") -> bytes:
        """A request that can be sent again and again."""

    def send(self, request: bytes) -> None:
        """Send it and wait for the answer."""

    def poll(self, topic: str, partition_id: int, offset: int, count: int) -> Polled:
        """Read messages; their bytes are received and dropped."""


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The same messages in both forms."""

    count: int
    vsr: bytes
    classic_index: bytes
    classic_messages: bytes


class Socket:
    """Whole frames over a blocking socket."""

    def __init__(self, port: int, buffer_size: int = 16 * 1024 * 1024) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = memoryview(bytearray(buffer_size))

    def exchange(self, request: bytes, head_size: int) -> None:
        """Send a request and receive at least the head of its answer."""
        self.socket.sendall(request)
        self.receive(0, head_size)

    def receive(self, start: int, end: int) -> None:
        """Receive until ``end`` bytes are in the buffer."""
        while start < end:
            count = self.socket.recv_into(self.buffer[start:end])
            if not count:
                raise ConnectionError("the server closed the connection")
            start += count

    def close(self) -> None:
        self.socket.close()


class VsrClient:
    """SDK 0.9."""

    def __init__(self, port: int, name: str = "iggy", password: str = "iggy") -> None:
        self._socket = Socket(port)
        self._client = uuid.uuid4().bytes
        self._session = 0
        self._request = 0
        body = bytes.fromhex("002c0000") + _text8("bench") + _text8("1") + _text8(name) + _text8(password) + bytes(4)
        reply = self._call(1, body)
        self._session = struct.unpack_from("<Q", reply, 8)[0]

    def _header(self, operation: int, body_size: int, code: int = 0) -> bytearray:
        header = bytearray(_VSR_HEADER_SIZE)
        _SIZE.pack_into(header, 48, _VSR_HEADER_SIZE + body_size)
        header[60] = 5
        header[128:144] = self._client
        struct.pack_into("<Q", header, 168, self._request)
        header[176] = operation
        struct.pack_into("<Q", header, 184, self._session)
        _SIZE.pack_into(header, 196, code)
        return header

    def _call(self, operation: int, body: bytes, code: int = 0) -> bytes:
        if operation != 1:
            self._request += 1
        self._socket.socket.sendall(bytes(self._header(operation, len(body), code)) + body)
        return bytes(self._receive_reply())

    def _receive_reply(self) -> memoryview:
        buffer = self._socket.buffer
        self._socket.receive(0, _VSR_HEADER_SIZE)
        size = _SIZE.unpack_from(buffer, 48)[0]
        status = _SIZE.unpack_from(buffer, 216)[0]
        if buffer[60] != 8 or status:
            raise RuntimeError(f"refused: command {buffer[60]}, status {status}, reason {buffer[255]}")
        self._socket.receive(_VSR_HEADER_SIZE, size)
        return buffer[_VSR_HEADER_SIZE:size]

    def create_topic(self, name: str, partition_count: int, *, is_synced: bool = False) -> None:
        self._call(128, b"\x05bench")  # refused in its result section if it is there already
        options = b""
        if is_synced:
            options = b"".join(b"\x02" + _text32(text) for text in ("durability", "persisted"))
        body = _NAME + struct.pack("<I", partition_count) + _text8(name) + options
        reply = self._call(132, body)
        if _SIZE.unpack_from(reply)[0]:
            raise RuntimeError(f"the topic was refused: {reply.hex()}")

    def make_send(self, topic: str, partition_id: int, batch: SampleBatch) -> bytes:
        target = _NAME + b"\x02" + _text8(topic) + _PARTITION.pack(2, 4, partition_id) + _SIZE.pack(batch.count)
        body = _SIZE.pack(len(target)) + target + batch.vsr
        return bytes(self._header(160, len(body))) + body

    def send(self, request: bytes) -> None:
        self._request += 1
        head = bytearray(request[:_VSR_HEADER_SIZE])
        struct.pack_into("<Q", head, 168, self._request)
        rest = memoryview(request)[_VSR_HEADER_SIZE:]
        sent = self._socket.socket.sendmsg([head, rest]) - _VSR_HEADER_SIZE
        if sent < len(rest):
            self._socket.socket.sendall(rest[sent:])
        self._receive_reply()

    def poll(self, topic: str, partition_id: int, offset: int, count: int) -> Polled:
        consumer = b"\x01\x01\x04" + bytes(4)
        strategy = struct.pack("<BIBQIB", 1, partition_id, 1, offset, count, 0)
        body = consumer + _NAME + b"\x02" + _text8(topic) + strategy
        self._socket.socket.sendall(bytes(self._header(2, len(body), 100)) + body)
        reply = self._receive_reply()
        _, current_offset, message_count = _POLL_PREFIX.unpack_from(reply)
        return Polled(message_count, _VSR_HEADER_SIZE + len(reply), current_offset)

    def close(self) -> None:
        self._socket.close()


class ClassicClient:
    """SDK 0.8."""

    def __init__(self, port: int, name: str = "iggy", password: str = "iggy") -> None:
        self._socket = Socket(port)
        self._call(38, _text8(name) + _text8(password) + _text32("0.10.0") + _text32(""))

    def _call(self, code: int, payload: bytes) -> memoryview:
        return self._exchange(struct.pack("<II", 4 + len(payload), code) + payload)

    def _exchange(self, request: bytes, *, may_fail: bool = False) -> memoryview:
        self._socket.exchange(request, 8)
        status, size = struct.unpack_from("<II", self._socket.buffer)
        if status and not may_fail:
            raise RuntimeError(f"refused: status {status}")
        self._socket.receive(8, 8 + size)
        return self._socket.buffer[8 : 8 + size]

    def create_topic(self, name: str, partition_count: int, *, is_synced: bool = False) -> None:
        if is_synced:
            raise ValueError("the classic wire has no way to ask for that")
        create = _text8("bench")
        self._exchange(struct.pack("<II", 4 + len(create), 202) + create, may_fail=True)
        self._call(302, _NAME + struct.pack("<IBQQB", partition_count, 1, 0, 0, 0) + _text8(name))

    def make_send(self, topic: str, partition_id: int, batch: SampleBatch) -> bytes:
        target = _NAME + b"\x02" + _text8(topic) + _PARTITION.pack(2, 4, partition_id) + _SIZE.pack(batch.count)
        payload = _SIZE.pack(len(target)) + target + batch.classic_index + batch.classic_messages
        return struct.pack("<II", 4 + len(payload), 101) + payload

    def send(self, request: bytes) -> None:
        self._exchange(request)

    def poll(self, topic: str, partition_id: int, offset: int, count: int) -> Polled:
        consumer = b"\x01\x01\x04" + bytes(4)
        strategy = struct.pack("<BIBQIB", 1, partition_id, 1, offset, count, 0)
        reply = self._call(100, consumer + _NAME + b"\x02" + _text8(topic) + strategy)
        _, current_offset, message_count = _POLL_PREFIX.unpack_from(reply)
        return Polled(message_count, 8 + len(reply), current_offset)

    def close(self) -> None:
        self._socket.close()


class BareClient:
    """For the bare server: the same bytes, nothing behind them."""

    def __init__(self, port: int) -> None:
        self._socket = Socket(port)

    def make_send(self, batch: SampleBatch) -> bytes:
        header = bytearray(_VSR_HEADER_SIZE)
        _SIZE.pack_into(header, 48, _VSR_HEADER_SIZE + len(batch.vsr))
        header[176] = 160
        return bytes(header) + batch.vsr

    def send(self, request: bytes) -> None:
        self._socket.exchange(request, _VSR_HEADER_SIZE)

    def poll(self, size: int) -> int:
        header = bytearray(_VSR_HEADER_SIZE)
        _SIZE.pack_into(header, 48, _VSR_HEADER_SIZE + 4)
        header[176] = 2
        self._socket.exchange(bytes(header) + _SIZE.pack(size), _VSR_HEADER_SIZE)
        total = _SIZE.unpack_from(self._socket.buffer, 48)[0]
        self._socket.receive(_VSR_HEADER_SIZE, total)
        return int(total)

    def close(self) -> None:
        self._socket.close()


def _text8(text: str) -> bytes:
    return struct.pack("<B", len(text)) + text.encode()


def _text32(text: str) -> bytes:
    return _SIZE.pack(len(text)) + text.encode()
