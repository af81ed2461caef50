"""A front for fake-gcs-server, an emulator of Google Cloud Storage that lacks half of its XML API.

obstore writes objects with that half: a ``PUT``, with the condition in a header, or an upload in parts. The front makes
requests of the JSON API of them, which the emulator knows, conditions included. Everything else passes unchanged.
"""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

_CONDITION = "x-goog-if-generation-match"
_OWN = ("connection", "content-length", "date", "host", "server", "transfer-encoding")
"""Headers that each connection has of its own."""


class Front(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, emulator: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.emulator = emulator
        self.ignores_conditions = False
        self.created: list[tuple[str, str | None]] = []
        """The objects that were asked for, and the condition of each."""
        self.uploads: dict[str, dict[int, bytes]] = {}
        """The parts of uploads that are not complete, by number."""


@contextmanager
def running_front(host: str, port: int) -> Iterator[Front]:
    """A front of the emulator at an address, on a port of its own (``server_port``)."""
    front = Front((host, port))
    thread = threading.Thread(target=front.serve_forever)
    thread.start()
    try:
        yield front
    finally:
        front.shutdown()
        thread.join()
        front.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def do_GET(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        query = self._query()
        if "uploadId" in query:
            parts = self.server.uploads[query["uploadId"]]
            parts[int(query["partNumber"])] = self._body()
            self._answer(200, headers={"ETag": f'"part-{query["partNumber"]}"'})
        else:
            self._create(self._body(), self.headers[_CONDITION])

    def do_POST(self) -> None:
        query = self._query()
        if "uploads" in query:
            self._body()
            upload_id = f"upload-{len(self.server.uploads)}"
            self.server.uploads[upload_id] = {}
            tag = "InitiateMultipartUploadResult"
            self._answer(200, f"<{tag}><UploadId>{upload_id}</UploadId></{tag}>".encode())
        else:
            wanted = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", self._body())]
            parts = self.server.uploads[query["uploadId"]]
            assert wanted == sorted(parts)
            self._create(b"".join(parts[number] for number in wanted), self.headers[_CONDITION])

    # --- what the emulator is asked ---

    def _create(self, data: bytes, condition: str | None) -> None:
        bucket, _, name = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        self.server.created.append((name, condition))
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
        if condition is not None and not self.server.ignores_conditions:
            path += f"&ifGenerationMatch={condition}"
        status, headers, body = self._ask("POST", path, data, {"Content-Type": "application/octet-stream"})
        if status >= 300:
            self._answer(status, body)
            return
        generation = re.search(rb'"generation":\s*"(\d+)"', body)
        assert generation is not None
        tag = headers.get("Etag", '"none"')
        if "uploadId" in self._query():
            result = "CompleteMultipartUploadResult"
            self._answer(200, f"<{result}><ETag>{tag}</ETag></{result}>".encode())
        else:
            self._answer(200, headers={"ETag": tag, "x-goog-generation": generation[1].decode()})

    def _pass_on(self) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        status, found, body = self._ask(self.command, self.path, self._body(), headers)
        if self.command == "HEAD":
            self._answer(status, headers=_passed(found), length=found.get("Content-Length", "0"))
        else:
            self._answer(status, body, _passed(found))

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(*self.server.emulator)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    # --- the exchange with the client ---

    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, *, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", length if length is not None else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Not to the terminal."""


def _passed(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN}
