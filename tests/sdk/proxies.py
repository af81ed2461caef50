"""A TCP proxy between a program and the server: it breaks connections, and holds replies back."""

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHUNK_SIZE = 65536
HEADER_SIZE = 256


class Proxy:
    """Forwards connections to the server until it is told to break them. It runs in a thread of its own."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._server = (host, int(port))
        self.address = ""
        self.connection_count = 0
        self.requests: Counter[tuple[int, int]] = Counter()
        """Requests by operation and code, of clients whose frames have a header of 256 bytes."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._holds_replies = False
        self._loop = asyncio.new_event_loop()
        self._has_begun = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    def hold_replies(self) -> None:
        """Forward requests, and no replies, until the connections are broken."""
        self._holds_replies = True

    def break_connections(self) -> None:
        """Break all connections that there are; new ones are forwarded as usual."""
        self._ask(self._break)

    def _break(self) -> None:
        self._holds_replies = False
        for writer in self._writers:
            writer.transport.abort()

    def _ask(self, act: Callable[[], None]) -> None:
        """Have the thread do something, and wait until it is done."""
        done = threading.Event()

        def do() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._forward_connection, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._has_begun.set()
        async with server:
            await self._stop.wait()
            self._break()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _forward_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        writers = {writer}
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server)
            writers.add(server_writer)
            self._writers |= writers
            requests = self._forward(reader, server_writer, is_reply=False)
            await asyncio.gather(requests, self._forward(server_reader, writer, is_reply=True))
        except OSError:
            pass  # One end is gone, and the other one follows.
        finally:
            self._writers -= writers
            for end in writers:
                end.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_reply: bool) -> None:
        pending = bytearray()
        while data := await source.read(CHUNK_SIZE):
            if not is_reply:
                pending += data
                self._count(pending)
            if not (is_reply and self._holds_replies):
                target.write(data)
                await target.drain()
        target.transport.abort()

    def _count(self, pending: bytearray) -> None:
        """Count the whole frames, and drop them."""
        while len(pending) >= HEADER_SIZE and len(pending) >= (size := struct.unpack_from("<I", pending, 48)[0]):
            self.requests[pending[176], struct.unpack_from("<I", pending, 196)[0]] += 1
            del pending[:size]

    def __enter__(self) -> Self:
        self._thread.start()
        self._has_begun.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask(self._stop.set)
        self._thread.join()
        self._loop.close()
