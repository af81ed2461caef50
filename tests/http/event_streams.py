"""Server-sent events as a client reads them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.http.serving import HttpClient


@dataclass(frozen=True)
class Event:
    """An event, or a comment, whose kind is empty."""

    kind: str
    event_id: str
    data: Any


@dataclass
class Stream:
    """A reply that goes on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: Mapping[str, str]
    text: str = ""

    async def block(self) -> str:
        """The next block of lines."""
        while "\n\n" not in self.text:
            size = int(await self.reader.readline(), 16)
            self.text += (await self.reader.readexactly(size)).decode()
            assert await self.reader.readexactly(2) == b"\r\n"
            if not size:
                raise EOFError
        block, _, self.text = self.text.partition("\n\n")
        return block

    async def event(self) -> Event:
        """The next event; comments are passed over."""
        while True:
            lines = [line.partition(": ")[::2] for line in (await self.block()).split("\n")]
            fields = dict(lines)
            if "data" in fields:
                return Event(fields["event"], fields.get("id", ""), json.loads(fields["data"]))


@asynccontextmanager
async def opened(client: HttpClient, target: str, last_event_id: str = "") -> AsyncIterator[Stream]:
    """The stream of events at a path with a query."""
    reader, writer = await client.open()
    more = f"last-event-id: {last_event_id}\r\n" if last_event_id else ""
    head = f"GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {client.token}\r\n{more}\r\n"
    writer.write(head.encode())
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert " 200 " in lines[0], lines
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        yield Stream(reader, writer, headers)
    finally:
        writer.close()
