"""Polls of many megabytes, which must not hold others up."""

import asyncio
import threading
from typing import Any

import pytest

from courser import PollingStrategy
from courser.storage.limits import DEFAULT_LIMITS
from courser.storage.partition_log import PartitionLog
from courser.testing.broker import TestBroker

PLACE = "demo/orders"
COUNT = 8
PAYLOAD = bytes(DEFAULT_LIMITS.quick_read_size // COUNT)
"""Eight with their headers are more than is read without another thread."""


async def test_others_are_answered_while_a_large_poll_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()
    read, loop_thread = PartitionLog.read, threading.current_thread()

    def held_up(log: PartitionLog, offset: int, count: int, *rest: Any) -> Any:
        if count == COUNT and threading.current_thread() is not loop_thread:
            has_begun.set()
            may_go_on.wait()
        return read(log, offset, count, *rest)

    async with TestBroker() as broker:
        client, other = await broker.connect(), await broker.connect()
        await client.create_stream("demo")
        await client.create_topic(PLACE)
        for _ in range(COUNT):
            await client.send_messages(PLACE, None, 0, PAYLOAD)
        monkeypatch.setattr(PartitionLog, "read", held_up)
        try:
            large = asyncio.create_task(
                client.poll_batches(PLACE, None, 0, PollingStrategy.First(), COUNT, size_max=len(PAYLOAD) * 2 * COUNT)
            )
            while not has_begun.is_set() and not large.done():  # noqa: ASYNC110 - it is about to be
                await asyncio.sleep(0)
            few = await other.poll_batches(
                PLACE, None, 0, PollingStrategy.First(), 1, size_max=len(PAYLOAD) * 2 * COUNT
            )
            assert few.message_count == 1
            assert not large.done()
        finally:
            may_go_on.set()
        assert (await large).message_count == COUNT
