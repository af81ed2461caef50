"""Polls and sends of many megabytes: other connections are served while one is read, written or converted."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition, Transport
from courser.records import classic as classic_messages
from courser.storage import partition_log
from courser.storage.log_reader import LogReader
from courser.storage.settings import DEFAULT_LIMITS
from courser.wire import classic
from tests.torture.clients import WIRES, Client
from tests.transports.whole_servers import PATIENCE, WholeServer, whole_server

LARGE = 2 * DEFAULT_LIMITS.inline_size + 1_000_000
"""Bytes: more than every step does on the event loop."""


class Gate:
    """Holds work up on its thread, if that is not the event loop's."""

    def __init__(self) -> None:
        self._loop_thread = threading.current_thread()
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def put_before(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not self._loop_thread:
                self.has_begun.set()
                assert self.may_go_on.wait(PATIENCE)
            return work(*arguments, **options)

        return held


def poll(partition: int, count: int) -> c.PollMessages:
    consumer = Consumer(ConsumerKind.CONSUMER, 1)
    return c.PollMessages(consumer, "s", "t", partition, PollingKind.FIRST, 0, count, False)


def send(partition: int) -> c.SendMessages:
    return c.SendMessages("s", "t", ToPartition(partition), [])


STEPS = {
    "reading": (LogReader, "read", "poll"),
    "writing": (partition_log, "write_all", "send"),
    "encoding": (classic, "encode_polled", "poll"),
    "decoding": (classic_messages, "frames_from_classic", "send"),
}


async def connect(server: WholeServer, wire: str) -> Client:
    address = server.addresses[Transport.TCP]
    return await asyncio.to_thread(lambda: WIRES[wire](address.port).login())


@pytest.mark.parametrize(
    ("wire", "step"),
    [("vsr", "reading"), ("vsr", "writing"), *(("classic", step) for step in STEPS)],
)
async def test_others_are_served_during_each_step_of_a_large_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str, step: str
) -> None:
    place, name, kind = STEPS[step]
    async with whole_server(tmp_path / "data", "system.partition.poll_size_max=64 MiB") as server:
        await server.add_topic(partition_count=2)
        large, other = await connect(server, wire), await connect(server, wire)
        try:
            payload = bytes(LARGE)
            if kind == "poll":
                await asyncio.to_thread(large.do, send(0), [payload])
            await asyncio.to_thread(other.do, send(1), [b"small"])
            gate = Gate()
            monkeypatch.setattr(place, name, gate.put_before(getattr(place, name)))
            command = poll(0, 1) if kind == "poll" else send(0)
            task = asyncio.create_task(asyncio.to_thread(large.do, command, [payload] if kind == "send" else ()))
            try:
                assert await asyncio.to_thread(gate.has_begun.wait, PATIENCE)
                await asyncio.to_thread(other.do, c.Ping())
                await asyncio.to_thread(other.do, send(1), [b"another"])
                assert b"another" in await asyncio.to_thread(other.do, poll(1, 10))
                assert not task.done()
            finally:
                gate.may_go_on.set()
            reply = await task
            if kind == "poll":
                assert len(reply) > LARGE
            else:
                assert len(await asyncio.to_thread(other.do, poll(0, 1))) > LARGE
        finally:
            large.close()
            other.close()
