"""A blocking connection for whole frames, which both protocols use."""

import socket
import ssl
import struct

from courser.client.targets import Target
from courser.errors import ConnectionFailed, TimedOut

_BUFFER_SIZE = 1024 * 1024


class Line:
    """Sends whole requests, and receives into one reusable buffer."""

    def __init__(self, target: Target) -> None:
        """Connect.

        Raises:
            ConnectionFailed: no server listens at the address, or the TLS handshake failed.
        """
        self.address = target.address
        self._timeout = target.request_timeout
        try:
            self._socket = _connect(target)
        except (OSError, ssl.SSLError) as error:
            raise ConnectionFailed(self.address, f"cannot connect: {error.strerror or error}") from error
        self.buffer = memoryview(bytearray(_BUFFER_SIZE))

    def send(self, frame: bytes | bytearray | memoryview) -> None:
        """Send a whole frame.

        Raises:
            ConnectionFailed: the connection broke.
        """
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._broken(error) from error

    def receive(self, start: int, end: int) -> None:
        """Receive until ``end`` bytes are in the buffer, of which ``start`` are already there.

        Raises:
            ConnectionFailed: the connection broke.
            TimedOut: no data arrived in time.
        """
        if end > len(self.buffer):
            self._grow(end)
        buffer, receive = self.buffer, self._socket.recv_into
        try:
            while start < end:
                count = receive(buffer[start:end])
                if not count:
                    raise ConnectionFailed(self.address, "the server closed the connection")
                start += count
        except OSError as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Close the connection. Can be repeated."""
        self._socket.close()

    def _grow(self, size: int) -> None:
        larger = memoryview(bytearray(max(size, 2 * len(self.buffer))))
        larger[: len(self.buffer)] = self.buffer
        self.buffer = larger

    def _broken(self, error: OSError) -> ConnectionFailed:
        if isinstance(error, BlockingIOError | ssl.SSLWantReadError | ssl.SSLWantWriteError):
            return TimedOut(self.address, f"no answer within {self._timeout:g} seconds")
        return ConnectionFailed(self.address, f"the connection broke: {error.strerror or error}")


def _connect(target: Target) -> socket.socket:
    plain = socket.create_connection((target.host, target.port), timeout=target.connect_timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _secure(plain, target) if target.tls else plain
        line.settimeout(None)
        # The kernel enforces the timeout. Python's own timeouts would cost a system call per request.
        seconds = int(target.request_timeout)
        limit = struct.pack("@ll", seconds, int((target.request_timeout - seconds) * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            line.setsockopt(socket.SOL_SOCKET, option, limit)
    except BaseException:
        plain.close()
        raise
    return line


def _secure(plain: socket.socket, target: Target) -> socket.socket:
    context = ssl.create_default_context(cafile=target.tls_ca_file)
    if not target.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=target.tls_domain or target.host)
