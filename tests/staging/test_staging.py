"""Staged writes as a client sees them: nothing before the publish, everything after it, once."""

import asyncio

import pytest

from courser.client.client import Client
from courser.errors import CourserError, ErrorCode, NotFound
from courser.model.permissions import Permissions, StreamPermissions, GlobalPermissions
from courser.testing.broker import TestBroker

SINK = "a query"


async def stage_part(client: Client, batch: int, part: int, attempt: int, *texts: str, partition: int = 0) -> None:
    """A part with a chunk for each text."""
    for chunk, text in enumerate(texts):
        await client.stage(SINK, batch, part, attempt, chunk, "s/t", None, partition, text)
    await client.finish_stage(SINK, batch, part, attempt, len(texts))


async def read(client: Client, partition: int = 0, topic: str = "s/t") -> list[str]:
    bounds = await client.get_partition_bounds(topic)
    count = bounds.partitions[partition].message_count
    messages = await client.poll_messages(topic, None, partition, first(), max(count, 1), auto_commit=False)
    return [bytes(message.payload).decode() for message in messages]


def first():
    from courser.client.messages import PollingStrategy

    return PollingStrategy.First()


async def prepared(broker: TestBroker) -> Client:
    client = await broker.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t", 2)
    return client


async def test_a_publish_shows_all_parts_at_once() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 0, 0, 10, "a", "b")
        await stage_part(client, 0, 1, 11, "c", partition=1)
        assert await read(client) == [] and await read(client, 1) == []
        published = await client.publish_staged(SINK, 0, {0: 10, 1: 11})
        assert (published.is_repeated, published.message_count) == (False, 3)
        assert await read(client) == ["a", "b"] and await read(client, 1) == ["c"]
        sink = await client.get_sink(SINK)
        assert (sink.batch, sink.is_open, sink.part_count, sink.staged_size) == (0, False, 0, 0)


async def test_a_repeated_publish_changes_nothing() -> None:
    async with TestBroker() as broker:
        client = await prepared(broker)
        await stage_part(client, 3, 0, 1, "a")
        await client.publish_staged(SINK, 3, {0: 1})
        assert (await client.publish_staged(SINK, 3, {0: 1})).is_repeated
        assert (await client.publish_staged(SINK, 2, {0: 9})).is_repeated
        assert await read(client) == ["a"]
