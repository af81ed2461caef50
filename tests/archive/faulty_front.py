"""A front for an HTTP server that breaks what passes through: a store on a bad day, as its client sees it."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Fault(Enum):
    """What happens to every request that writes."""

    DOWN = "down"
    """The connection is closed without an answer."""
    SLOW = "slow"
    """No answer comes within the time that the client waits."""
    ERROR_500 = "500"
    FORBIDDEN = "403"
    BUCKET_MISSING = "bucket missing"
    WRONG_BYTES = "wrong bytes"
    """Other bytes of the same size are stored, and the answer is that of a success."""
    PARTIAL = "partial upload"
    """Half of the bytes are taken, and the connection is closed."""
    REPLY_LOST = "reply lost"
    """It is done, and the connection is closed without an answer."""


_STATUS = {Fault.ERROR_500: 500, Fault.FORBIDDEN: 403, Fault.BUCKET_MISSING: 404}
_CODES = {Fault.ERROR_500: "InternalError", Fault.FORBIDDEN: "AccessDenied", Fault.BUCKET_MISSING: "NoSuchBucket"}


class FaultyFront(ThreadingHTTPServer):
    """A front with a switch. ``fault``: what goes wrong now; None is nothing."""

    daemon_threads = True

    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or FrontHandler)
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self.behind = parts.hostname, parts.port
        self.fault: Fault | None = None
        self.broken_count = 0
        """Requests that were broken."""
        self.is_over = threading.Event()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_front(address: str) -> Iterator[FaultyFront]:
    """A front of the server at an address."""
    front = FaultyFront(address)
    thread = threading.Thread(target=front.serve_forever)
    thread.start()
    try:
        yield front
    finally:
        front.is_over.set()
        front.shutdown()
        thread.join()
        front.server_close()


class FrontHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyFront

    def do_GET(self) -> None:
        self._pass_on(self._body())

    def do_HEAD(self) -> None:
        self._pass_on(self._body())

    def do_DELETE(self) -> None:
        self._write()

    def do_PUT(self) -> None:
        self._write()

    def do_POST(self) -> None:
        self._write()

    def _write(self) -> None:
        fault = self.server.fault
        if fault is None:
            self._pass_on(self._body())
            return
        self.server.broken_count += 1
        match fault:
            case Fault.DOWN:
                self._close()
            case Fault.PARTIAL:
                self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
                self._close()
            case Fault.SLOW:
                self._body()
                self.server.is_over.wait()
                self._close()
            case Fault.REPLY_LOST:
                self._ask(self._body())
                self._close()
            case Fault.WRONG_BYTES:
                body = self._body()
                self._pass_on(body[:-1] + bytes([body[-1] ^ 1]) if body else body)
            case _:
                self._body()
                error = f"<Error><Code>{_CODES[fault]}</Code><Message>a test</Message></Error>"
                self._answer(_STATUS[fault], {"Content-Type": "application/xml"}, error.encode())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _pass_on(self, body: bytes) -> None:
        self._answer(*self._ask(body))

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The headers stay as they are: they are signed, the name of the host included."""
        connection = http.client.HTTPConnection(*self.server.behind)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return reply.status, dict(reply.headers.items()), reply.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        given = {name.lower() for name in headers}
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        if "content-length" not in given:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _close(self) -> None:
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Not to the terminal."""
