"""What clients see after a power cut, when the numbering continues after a gap."""

import shutil
from pathlib import Path

from courser import PollingStrategy
from courser.api.replies import TopicDetails
from courser.testing.broker import TestBroker

PLACE = "demo/orders"


async def test_lag_reaches_zero_before_the_next_message_arrives(tmp_path: Path) -> None:
    async with TestBroker(tmp_path / "first") as broker, await broker.connect() as client:
        await client.create_stream("demo")
        await client.create_topic(PLACE)
        await client.send_messages(PLACE, None, 0, [b"one", b"two", b"three"])
        # A copy of the files of a running server looks like the files after a power cut.
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
    async with TestBroker(tmp_path / "copy") as broker, await broker.connect() as client:
        (bounds,) = (await client.get_partition_bounds(PLACE)).partitions
        assert bounds.next_offset > 3
        await client.store_consumer_offset(PLACE, None, 0, 2, consumer="reader")
        stored = await client.get_consumer_offset(PLACE, consumer="reader")
        assert stored.current_offset - stored.stored_offset == 0
        polled = await client.poll_batches(PLACE, None, 0, PollingStrategy.First(), 10)
        assert (polled.current_offset, polled.next_offset) == (2, 3)
        details = await client.get_topic(PLACE)
        assert isinstance(details, TopicDetails)
        assert details.partitions[0].current_offset == 2


async def test_a_gap_at_the_end_does_not_end_a_wait(tmp_path: Path) -> None:
    """Otherwise a consumer would ask for messages again and again."""
    async with TestBroker(tmp_path / "first") as broker, await broker.connect() as client:
        await client.create_stream("demo")
        await client.create_topic(PLACE)
        await client.send_messages(PLACE, None, 0, [b"one"])
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
    async with TestBroker(tmp_path / "copy") as broker, await broker.connect() as client:
        arrivals = await client.wait_for_arrivals(PLACE, positions={0: 1}, wait=0.01)
        assert arrivals.partition_ids == ()
        await client.send_messages(PLACE, None, 0, [b"two"])
        arrivals = await client.wait_for_arrivals(PLACE, positions={0: 1}, wait=20.0)
        assert arrivals.partition_ids == (0,)
