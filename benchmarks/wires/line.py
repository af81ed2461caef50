"""A blocking connection for whole frames, which all load generators use."""

import socket
import struct

_BUFFER_SIZE = 1024 * 1024
_TIMEOUT = 60
"""Seconds without a byte after which a request fails."""


class Line:
    """Sends whole requests, and receives into one reusable buffer."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel enforces the timeout. Python's own timeouts would cost a system call per request.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _TIMEOUT, 0))
        self.buffer = memoryview(bytearray(_BUFFER_SIZE))

    def send(self, frame: bytes | bytearray | memoryview) -> None:
        """Send a whole frame."""
        self.socket.sendall(frame)

    def receive(self, start: int, end: int) -> None:
        """Receive until ``end`` bytes are in the buffer, of which ``start`` are already there.

        Raises:
            ConnectionError: the server closed the connection.
        """
        if end > len(self.buffer):
            self._grow(end)
        buffer, receive = self.buffer, self.socket.recv_into
        while start < end:
            count = receive(buffer[start:end])
            if not count:
                raise ConnectionError("the server closed the connection")
            start += count

    def close(self) -> None:
        """Close the connection. Can be repeated."""
        self.socket.close()

    def _grow(self, size: int) -> None:
        larger = memoryview(bytearray(max(size, 2 * len(self.buffer))))
        larger[: len(self.buffer)] = self.buffer
        self.buffer = larger
