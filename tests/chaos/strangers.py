"""A program: clients that mean harm, until they are killed. One line is printed when they are at work.

Arguments: the attack, the port, a seed, name and password of a user without any rights.
"""

import asyncio
import contextlib
import os
import random
import struct
import sys
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable

from courser.api import commands as c
from courser.records.classic import Dialect
from tests.chaos.plan import Attack
from tests.chaos.sandbox import CONNECTION_COUNT_MAX
from tests.servers import ROOT_NAME
from tests.wire.classic_client import request

PING = request(c.Ping(), Dialect.SDK_0_8)
PIPELINE = 8_000
"""Requests in one write: they fill the server's buffer for a connection."""
LARGE_FRAME = 60 * 1024 * 1024
"""Bytes that a slow request declares."""
_SEND_CODE = 101
_READY_WITHIN = 10.0
"""Seconds that connections get to be made before the measurement begins without them."""
_HOMES = (2, 9)
"""The last number of the addresses that they come from; healthy clients are at 127.0.0.1."""
_COUNTS = {
    Attack.PINGS: 10,
    Attack.HALF_FRAMES: 100,
    Attack.GARBAGE: 20,
    Attack.LOGINS: 300,
    Attack.SLOTS: CONNECTION_COUNT_MAX + 50,
    Attack.SLOW_FRAMES: 9,
    Attack.NO_READING: 50,
}
"""Connections of each attack."""


class Strangers:
    """All connections of one attack."""

    def __init__(self, attack: Attack, port: int, seed: int, login: tuple[str, str]) -> None:
        self._attack = attack
        self._port = port
        self._source = random.Random(seed)
        self._login = request(c.LoginUser(*login, "0.10.0", ""), Dialect.SDK_0_8)
        self._waiting = _COUNTS[attack]
        self._ready = asyncio.Event()

    async def run(self) -> None:
        behaviour: Callable[[Reader, Writer], Awaitable[None]] = {
            Attack.PINGS: self._ping,
            Attack.HALF_FRAMES: self._begin_frames,
            Attack.GARBAGE: self._babble,
            Attack.LOGINS: self._guess_passwords,
            Attack.SLOTS: self._keep_slot,
            Attack.SLOW_FRAMES: self._dawdle,
            Attack.NO_READING: self._never_read,
        }[self._attack]
        tasks = [asyncio.create_task(self._come_again(behaviour)) for _ in range(_COUNTS[self._attack])]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), _READY_WITHIN)
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        await asyncio.gather(*tasks)

    async def _come_again(self, behaviour: Callable[[Reader, Writer], Awaitable[None]]) -> None:
        is_first = True
        while True:
            with contextlib.suppress(OSError, EOFError):
                home = f"127.0.0.{self._source.randint(*_HOMES)}"
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(home, 0))
                try:
                    self._note_arrival(is_first=is_first)
                    is_first = False
                    await behaviour(reader, writer)
                finally:
                    writer.close()
            self._note_arrival(is_first=is_first)
            is_first = False
            await asyncio.sleep(self._source.uniform(0.01, 0.1))

    def _note_arrival(self, *, is_first: bool) -> None:
        self._waiting -= is_first
        if not self._waiting:
            self._ready.set()

    # --- what they do ---------------------------------------------------------------------------------

    async def _ping(self, reader: Reader, writer: Writer) -> None:
        reading = asyncio.create_task(_swallow(reader))
        try:
            while not reading.done():
                writer.write(PING * PIPELINE)
                await writer.drain()
        finally:
            reading.cancel()

    async def _begin_frames(self, reader: Reader, writer: Writer) -> None:
        frame = struct.pack("<II", 4 + 8_000, self._source.choice((1, 38, 101))) + bytes(8_000)
        for byte in frame[: self._source.randrange(1, 200)]:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0.01)
        await reader.read()

    async def _babble(self, reader: Reader, writer: Writer) -> None:
        reading = asyncio.create_task(_swallow(reader))
        try:
            while not reading.done():
                writer.write(self._source.randbytes(self._source.choice((10, 1_000, 60_000))))
                await writer.drain()
                await asyncio.sleep(0.005)
        finally:
            reading.cancel()

    async def _guess_passwords(self, reader: Reader, writer: Writer) -> None:
        name = self._source.choice((ROOT_NAME, ROOT_NAME, f"user{self._source.randrange(1000)}"))
        while True:
            password = f"guess {self._source.randrange(10**9)}"
            writer.write(request(c.LoginUser(name, password, "0.10.0", ""), Dialect.SDK_0_8))
            await writer.drain()
            await reader.readexactly(8)

    async def _keep_slot(self, reader: Reader, writer: Writer) -> None:
        while True:
            writer.write(PING)
            await writer.drain()
            await reader.readexactly(8)
            await asyncio.sleep(1.0)

    async def _dawdle(self, reader: Reader, writer: Writer) -> None:
        await self._log_in(reader, writer)
        writer.write(struct.pack("<II", 4 + LARGE_FRAME, _SEND_CODE))
        while not reader.at_eof():
            writer.write(bytes(8 * 1024))
            await writer.drain()
            await asyncio.sleep(0.1)

    async def _never_read(self, reader: Reader, writer: Writer) -> None:
        await self._log_in(reader, writer)
        # The window of this side is small: what the server answers piles up there.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        question = request(c.GetMe(), Dialect.SDK_0_8)
        while True:
            writer.write(question * 1_000)
            await writer.drain()

    async def _log_in(self, reader: Reader, writer: Writer) -> None:
        writer.write(self._login)
        await writer.drain()
        status, size = struct.unpack("<II", await reader.readexactly(8))
        if status:
            raise EOFError
        await reader.readexactly(size)


async def _swallow(reader: Reader) -> None:
    while await reader.read(1 << 20):
        pass


def main(attack: str, port: str, seed: str, name: str, password: str) -> None:
    # Strangers are on machines of their own: here they must not take the processor from server and clients.
    os.nice(19)
    asyncio.run(Strangers(Attack[attack], int(port), int(seed), (name, password)).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
