"""Read lines of stdin on an event loop as they become available, from a file, a pipe or a keyboard."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

_CHUNK_SIZE = 256 * 1024
LINE_SIZE_MAX = 64_000_000
"""Bytes: the maximum size of a message."""


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lists of available lines without line ends. An incomplete last line counts.

    A daemon thread reads stdin: reading from a keyboard cannot be interrupted.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(4)
    """Chunks that may be queued."""

    def read() -> None:
        data: bytes | OSError = b"-"
        while data and isinstance(data, bytes):
            room.acquire()
            try:
                data = os.read(descriptor, _CHUNK_SIZE)
            except OSError as error:
                data = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, data)
            except RuntimeError:
                # The loop is closed: the line is not needed.
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest: list[bytes] = []
    while data := await chunks.get():
        if isinstance(data, OSError):
            raise data
        room.release()
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*rest, lines[0]))
            rest = []
            yield [line.removesuffix(b"\r") for line in lines]
        rest.append(last)
    if end := b"".join(rest):
        yield [end.removesuffix(b"\r")]
