"""The client of the bare server. It sends the same bytes as a real client."""

import struct

from benchmarks.samples import SampleBatch
from benchmarks.wires.line import Line

_SIZE = struct.Struct("<I")
_HEADER_SIZE = 256


class BareClient:
    """Requests for the bare server, with the same bytes as real ones."""

    def __init__(self, port: int) -> None:
        self._line = Line("127.0.0.1", port)

    def make_send(self, batch: SampleBatch) -> bytes:
        header = bytearray(_HEADER_SIZE)
        _SIZE.pack_into(header, 48, _HEADER_SIZE + batch.stored_size)
        header[176] = 160
        return bytes(header) + batch.encoded_batch()

    def send(self, request: bytes) -> None:
        self._line.send(request)
        self._line.receive(0, _HEADER_SIZE)

    def poll(self, size: int) -> int:
        header = bytearray(_HEADER_SIZE)
        _SIZE.pack_into(header, 48, _HEADER_SIZE + 4)
        header[176] = 2
        self._line.send(bytes(header) + _SIZE.pack(size))
        self._line.receive(0, _HEADER_SIZE)
        total = _SIZE.unpack_from(self._line.buffer, 48)[0]
        self._line.receive(_HEADER_SIZE, total)
        return int(total)

    def close(self) -> None:
        self._line.close()
