"""The client of the bare server. It sends the same bytes as a real client."""

import socket
import struct

from courser.bench.samples import SampleBatch
from courser.records.batch import encode_batch

_SIZE = struct.Struct("<I")
_VSR_HEADER_SIZE = 256


class Socket:
    """Whole frames over a blocking socket."""

    def __init__(self, port: int, buffer_size: int = 16 * 1024 * 1024) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = memoryview(bytearray(buffer_size))

    def exchange(self, request: bytes, head_size: int) -> None:
        """Send a request and receive at least the header of its reply."""
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


class BareClient:
    """Requests for the bare server, with the same bytes as real ones."""

    def __init__(self, port: int) -> None:
        self._socket = Socket(port)

    def make_send(self, batch: SampleBatch) -> bytes:
        header = bytearray(_VSR_HEADER_SIZE)
        _SIZE.pack_into(header, 48, _VSR_HEADER_SIZE + batch.stored_size)
        header[176] = 160
        return bytes(header) + encode_batch(batch.batch())

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
