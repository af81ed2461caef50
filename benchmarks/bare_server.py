"""``python -m benchmarks.bare_server``: a server that does the same I/O as Courser and nothing else.

Frames of SDK 0.9 (256-byte header, size at byte 48), uvloop, one reusable buffer per connection. A send is one
positional write and a header-only reply; a poll is one positional read after a reply header. Nothing is checked, hashed
or looked up. With ``--sync``, a reply waits for ``fdatasync`` in a thread; all waiting replies share one.
"""

import argparse
import asyncio
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import uvloop

from benchmarks.harness import MIB

HEADER_SIZE = 256
_SIZE = struct.Struct("<I")
_SEND = 160
_ALLOCATION = 64 * MIB


class Log:
    """One file that grows."""

    def __init__(self, path: Path, *, syncs: bool) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.syncs = syncs
        self.position = 0
        self._allocated = 0
        self._waiting: list[Connection] = []
        self._pool = ThreadPoolExecutor(1)
        self._is_syncing = False

    def append(self, data: memoryview) -> None:
        if self.position + len(data) > self._allocated:
            os.posix_fallocate(self.descriptor, self._allocated, _ALLOCATION)
            self._allocated += _ALLOCATION
        os.pwrite(self.descriptor, data, self.position)
        self.position += len(data)

    def sync_for(self, connection: "Connection") -> None:
        self._waiting.append(connection)
        if not self._is_syncing:
            self._is_syncing = True
            asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        future = asyncio.get_running_loop().run_in_executor(self._pool, os.fdatasync, self.descriptor)

        def done(_: "asyncio.Future[None]") -> None:
            for connection in waiting:
                connection.reply()
            self._is_syncing = bool(self._waiting)
            if self._waiting:
                self._sync()

        future.add_done_callback(done)


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._buffer = np.empty(4 * MIB, np.uint8).data
        self._out = np.empty(4 * MIB, np.uint8).data
        self._end = 0
        self._read_position = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._end < HEADER_SIZE:
            return
        size = _SIZE.unpack_from(self._buffer, 48)[0]
        if self._end < size:
            return
        self._end = 0
        if self._buffer[176] == _SEND:
            self._log.append(self._buffer[HEADER_SIZE:size])
            if self._log.syncs:
                self._log.sync_for(self)
            else:
                self.reply()
        else:
            self._poll(_SIZE.unpack_from(self._buffer, HEADER_SIZE)[0])

    def reply(self) -> None:
        assert self._transport is not None
        reply = bytearray(HEADER_SIZE)
        _SIZE.pack_into(reply, 48, HEADER_SIZE)
        self._transport.write(reply)

    def _poll(self, size: int) -> None:
        assert self._transport is not None
        if self._read_position + size > self._log.position:
            self._read_position = 0
        out = self._out[: HEADER_SIZE + size]
        _SIZE.pack_into(out, 48, HEADER_SIZE + size)
        self._read_position += os.preadv(self._log.descriptor, [out[HEADER_SIZE:]], self._read_position)
        self._transport.write(out)


async def serve(directory: Path, *, syncs: bool) -> None:
    """Listen on a free port, print it, and run until killed."""
    log = Log(directory / "bare.log", syncs=syncs)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(log), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sync", action="store_true")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options.directory, syncs=options.sync))


if __name__ == "__main__":
    main()
