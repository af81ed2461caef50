"""Consumers of both kinds: where they begin, what they commit, how groups share, and connections that break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from courser.client.consumer import Consumer, ConsumerSettings
from courser.client.messages import PollingStrategy
from courser.errors import ClientClosed, ErrorCode, NotAssigned, NotFound, OffsetsUnavailable
from courser.testing.broker import TestBroker
from tests.client.twins import Twins

PLACE = "demo/orders"
PATIENCE = 60.0


async def send(client: Any, *texts: str, partition: int = 0) -> None:
    await client.send_messages(PLACE, partitioning=partition, messages=list(texts))


async def take(consumer: Any, count: int) -> list[Any]:
    """The next messages."""
    messages: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while len(messages) < count:
            messages.append(await anext(consumer))
    return messages


async def rest(consumer: Any) -> list[str]:
    """All that is left."""
    async with asyncio.timeout(PATIENCE):
        return [message.text() async for message in consumer]


def texts(messages: list[Any]) -> list[str]:
    return [message.text() for message in messages]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - it happens on another thread, or inside the consumer
            await asyncio.sleep(0.001)


async def has(consumer: Any, *partition_ids: int) -> bool:
    return set(consumer.partitions) == set(partition_ids)


async def members(client: Any) -> list[tuple[int, ...]]:
    """The partitions of each member of the group, according to the server."""
    details = await client.get_consumer_group(PLACE, consumer_group="app")
    return [member.partition_ids for member in details.members]


async def stored(client: Any, partition_id: int = 0, **who: str) -> int | None:
    try:
        return int((await client.get_consumer_offset(PLACE, None, partition_id, **who)).stored_offset)
    except NotFound:
        return None


# --- where it begins ----------------------------------------------------------------------------------


async def test_all_partitions_are_read(client: Any) -> None:
    for partition in range(3):
        await send(client, f"{partition}a", f"{partition}b", partition=partition)
    found = await rest(client.consumer(PLACE, stop_at_end=True))
    assert sorted(found) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert sorted(found, key=lambda text: text[0]) == ["0a", "0b", "1a", "1b", "2a", "2b"]


async def test_partitions_can_be_chosen(client: Any) -> None:
    for partition in range(3):
        await send(client, str(partition), partition=partition)
    assert sorted(await rest(client.consumer(PLACE, partitions=[0, 2], stop_at_end=True))) == ["0", "2"]
    with pytest.raises(NotFound, match="no partition 7"):
        await rest(client.consumer(PLACE, partitions=[7]))


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", "abcde"),
        ("earliest", "abcde"),
        ("next", "abcde"),
        ("last", "e"),
        ("end", ""),
        ("latest", ""),
        (3, "de"),
        ({0: 2}, "cde"),
        ({1: 2}, "abcde"),
        (PollingStrategy.Offset(4), "e"),
        (PollingStrategy.Last(), "e"),
        (datetime(1970, 1, 1, tzinfo=UTC), "abcde"),
        (datetime(2100, 1, 1, tzinfo=UTC), ""),
    ],
    ids=str,
)
async def test_where_it_starts(client: Any, start: Any, expected: str) -> None:
    await send(client, *"abcde")
    consumer = client.consumer(PLACE, partitions=[0], start=start, stop_at_end=True)
    assert "".join(await rest(consumer)) == expected


async def test_the_last_message_is_found_in_front_of_missing_numbers(tmp_path: Path) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await client.create_stream("demo")
        await client.create_topic(PLACE)
        await send(client, *"abc")
    # As for a restored backup: a start then leaves out numbers.
    (tmp_path / "data" / "session").unlink()
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        (bounds,) = (await client.get_partition_bounds(PLACE)).partitions
        assert bounds.next_offset > 3
        assert await rest(client.consumer(PLACE, start="last", stop_at_end=True)) == ["c"]
        await send(client, "d")
        assert await rest(client.consumer(PLACE, start="last", stop_at_end=True)) == ["d"]


async def test_it_starts_at_a_time(client: Any) -> None:
    await send(client, "a")
    await send(client, "b")
    second = (await client.poll_messages(PLACE, None, 0, PollingStrategy.Offset(1)))[0]
    consumer = client.consumer(PLACE, start=PollingStrategy.Timestamp(second.timestamp), stop_at_end=True)
    assert (await rest(consumer))[-1] == "b"


async def test_a_start_that_makes_no_sense_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="earliest"):
        client.consumer(PLACE, start="beginning")
    with pytest.raises(ValueError, match="cannot have a name"):
        client.consumer(PLACE, group="g", name="n")
    for wrong in ({"wait": 21.0}, {"batch_count": 0}, {"commit": "sometimes"}, {"on_gap": "hide"}):
        with pytest.raises(ValueError, match="a consumer"):
            ConsumerSettings(**wrong)


async def test_it_waits_for_what_comes_later_in_any_partition(client: Any) -> None:
    consumer = client.consumer(PLACE, start="end")
    async with consumer:
        for number in range(6):
            waiting = asyncio.create_task(take(consumer, 1))
            await send(client, str(number), partition=number % 3)
            assert texts(await waiting) == [str(number)]


async def test_partitions_that_are_added_are_read_too(client: Any) -> None:
    async with client.consumer(PLACE, wait=0.05) as consumer:
        waiting = asyncio.create_task(take(consumer, 1))
        await client.create_partitions(PLACE)
        await send(client, "there", partition=3)
        assert texts(await waiting) == ["there"]


async def test_a_consumer_can_go_elsewhere(client: Any) -> None:
    await send(client, *"abcde")
    async with client.consumer(PLACE, partitions=[0], batch_count=2) as consumer:
        assert texts(await take(consumer, 3)) == ["a", "b", "c"]
        assert consumer.position(0) == 3
        await consumer.seek(0, 1)
        assert texts(await take(consumer, 2)) == ["b", "c"]
        with pytest.raises(NotAssigned):
            await consumer.seek(1, 0)


async def test_large_messages_come_one_by_one(client: Any) -> None:
    for number in range(5):
        await send(client, str(number) * 300_000)
    found = await rest(client.consumer(PLACE, batch_size=1, stop_at_end=True))
    assert [text[0] for text in found] == list("01234")


# --- commits ------------------------------------------------------------------------------------------


async def test_what_the_body_is_done_with_is_committed(client: Any) -> None:
    await send(client, *"abcde")
    async with client.consumer(PLACE, partitions=[0], name="app", commit_interval=60) as consumer:
        await take(consumer, 3)
        assert await stored(client, consumer="app") is None
    assert await stored(client, consumer="app") == 2
    assert await rest(client.consumer(PLACE, partitions=[0], name="app", stop_at_end=True)) == ["d", "e"]
    assert await stored(client, consumer="app") == 4


async def test_a_body_that_fails_does_not_commit_its_message(client: Any) -> None:
    await send(client, *"abc")

    async def fail() -> None:
        async with client.consumer(PLACE, partitions=[0], name="app") as consumer:
            await take(consumer, 2)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await fail()
    assert await stored(client, consumer="app") == 0
    assert await rest(client.consumer(PLACE, partitions=[0], name="app", stop_at_end=True)) == ["b", "c"]


async def test_commits_are_made_when_nothing_is_left_to_read(client: Any) -> None:
    await send(client, *"abc")
    async with client.consumer(PLACE, partitions=[0], name="app", commit_interval=60) as consumer:
        await take(consumer, 3)
        waiting = asyncio.create_task(take(consumer, 1))

        async def is_stored() -> bool:
            return await stored(client, consumer="app") == 2

        await until(is_stored)
        await send(client, "d")
        await waiting


async def test_commits_are_made_now_and_then(client: Any) -> None:
    await send(client, *"abc")
    async with client.consumer(PLACE, partitions=[0], name="app", commit_interval=0, batch_count=1) as consumer:
        await take(consumer, 3)
        assert await stored(client, consumer="app") in (0, 1)


async def test_explicit_commits(client: Any) -> None:
    await send(client, *"abcde")
    async with client.consumer(PLACE, partitions=[0], name="app", commit="manual") as consumer:
        messages = await take(consumer, 4)
        assert await messages[1].commit() is True
        assert await stored(client, consumer="app") == 1
    assert await stored(client, consumer="app") == 1
    assert await rest(client.consumer(PLACE, partitions=[0], name="app", stop_at_end=True)) == ["c", "d", "e"]


async def test_a_consumer_without_a_name_commits_nothing(client: Any) -> None:
    await send(client, "a")
    async with client.consumer(PLACE, partitions=[0]) as consumer:
        (message,) = await take(consumer, 1)
        with pytest.raises(ClientClosed, match="cannot store offsets"):
            await message.commit()
    assert await stored(client) is None


# --- gaps ---------------------------------------------------------------------------------------------


async def test_messages_that_are_gone_are_named(client: Any) -> None:
    await send(client, *"abc")
    await client.purge_topic(PLACE)
    await send(client, "d")
    async with client.consumer(PLACE, partitions=[0], start=1) as consumer:
        with pytest.raises(OffsetsUnavailable) as gap:
            await take(consumer, 1)
        assert (gap.value.code, gap.value.first_offset, gap.value.end_offset) == (ErrorCode.OFFSET_GONE, 1, 3)
        await consumer.seek(0, gap.value.end_offset)
        assert texts(await take(consumer, 1)) == ["d"]


async def test_messages_that_are_gone_can_be_passed_over(client: Any) -> None:
    await send(client, *"abc")
    await client.purge_topic(PLACE)
    await send(client, "d")
    async with client.consumer(PLACE, partitions=[0], start=1, on_gap="skip") as consumer:
        assert texts(await take(consumer, 1)) == ["d"]
        assert consumer.skipped_count == 2


# --- groups -------------------------------------------------------------------------------------------


async def test_a_group_is_made_and_left(client: Any) -> None:
    await send(client, "a")
    async with client.consumer(PLACE, group="app") as consumer:
        assert texts(await take(consumer, 1)) == ["a"]
        details = await client.get_consumer_group(PLACE, consumer_group="app")
        assert [member.partition_ids for member in details.members] == [(0, 1, 2)]
        assert consumer.partitions == (0, 1, 2)
    assert (await client.get_consumer_group(PLACE, consumer_group="app")).members == []
    assert await stored(client, group="app") == 0


async def test_a_group_that_nobody_made_can_be_an_error(client: Any) -> None:
    with pytest.raises(NotFound, match="group"):
        await rest(client.consumer(PLACE, group="app", create_group=False))


async def test_a_client_that_closes_takes_its_consumers_along(scene: Twins, client: Any) -> None:
    await send(client, "a", "b")
    other = await scene.connect()
    consumer = other.consumer(PLACE, group="app")
    await take(consumer, 2)
    await other.close()
    assert (await client.get_consumer_group(PLACE, consumer_group="app")).members == []
    assert await stored(client, group="app") == 1


async def test_members_share_the_partitions(scene: Twins, client: Any) -> None:
    for partition in range(3):
        await send(client, *(f"{partition}-{number}" for number in range(100)), partition=partition)
    other = await scene.connect()
    found: list[str] = []

    async def work(consumer: Any) -> None:
        async for message in consumer:
            found.append(message.text())
            if len(set(found)) == 300:
                return

    first = client.consumer(PLACE, group="app", batch_count=7, sync_interval=0.01)
    found += texts(await take(first, 1))
    second = other.consumer(PLACE, group="app", batch_count=7, sync_interval=0.01)
    async with first, second, asyncio.timeout(PATIENCE):
        both = [asyncio.create_task(work(first)), asyncio.create_task(work(second))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert set(first.partitions) | set(second.partitions) == {0, 1, 2}
        assert not set(first.partitions) & set(second.partitions)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    assert {text[0] for text in found} == {"0", "1", "2"}


async def test_a_waiting_member_gets_the_partitions_of_one_who_leaves(scene: Twins, client: Any) -> None:
    other = await scene.connect()
    first = client.consumer(PLACE, group="app")
    second = other.consumer(PLACE, group="app")
    async with first:
        waiting = asyncio.create_task(take(first, 1))
        async with second:
            await until(partial(has, first, 0, 2))
            assert await members(client) == [(0, 2), (1,)]
        await until(partial(has, first, 0, 1, 2))
        await send(client, "for all", partition=1)
        assert texts(await waiting) == ["for all"]


async def test_who_takes_a_partition_over_goes_on_behind_the_last_commit(scene: Twins, client: Any) -> None:
    await send(client, *"abcdef", partition=1)
    other = await scene.connect()
    async with other.consumer(PLACE, group="app", commit="manual") as first:
        messages = await take(first, 4)
        assert await messages[1].commit() is True
    async with client.consumer(PLACE, group="app") as second:
        assert texts(await take(second, 4)) == ["c", "d", "e", "f"]


async def test_a_commit_for_a_partition_that_is_anothers_is_no_error(scene: Twins, client: Any) -> None:
    await send(client, "a", partition=1)
    other = await scene.connect()
    async with client.consumer(PLACE, group="app", commit="manual") as first:
        (message,) = await take(first, 1)
        async with other.consumer(PLACE, group="app") as second:
            assert await message.commit() is True, "the member has not given up the partition"
            waiting = asyncio.create_task(take(first, 1))
            await send(client, "b", partition=1)
            assert texts(await take(second, 1)) == ["b"]
            assert await message.commit() is False
            await send(client, "c", partition=0)
            assert texts(await waiting) == ["c"]


async def test_more_members_than_partitions(scene: Twins, client: Any) -> None:
    await client.create_topic("demo/narrow", partitions_count=1)
    first = client.consumer("demo/narrow", group="app")
    second = (await scene.connect()).consumer("demo/narrow", group="app")
    async with first, second:
        assert second.partitions == ()
        waiting = asyncio.create_task(take(second, 1))
        await first.close()
        await client.send_messages("demo/narrow", messages=["x"])
        assert texts(await waiting) == ["x"]


async def test_a_group_that_is_deleted_is_made_again(client: Any) -> None:
    async with client.consumer(PLACE, group="app", wait=0.05) as consumer:
        waiting = asyncio.create_task(take(consumer, 1))
        await client.delete_consumer_group(PLACE, consumer_group="app")
        await send(client, "x")
        assert texts(await waiting) == ["x"]


# --- connections that break ---------------------------------------------------------------------------


async def test_reading_goes_on_after_connections_break(scene: Twins, client: Any) -> None:
    async with client.consumer(PLACE, group="app", batch_count=10) as consumer:
        found = []
        for number in range(0, 200, 10):
            await send(client, *(str(n) for n in range(number, number + 10)), partition=number // 10 % 3)
            found += texts(await take(consumer, 5))
            if number % 50 == 0:
                await scene.disconnect()
            found += texts(await take(consumer, 5))
    assert sorted(map(int, found)) == list(range(200))
    assert [await stored(client, partition_id, group="app") for partition_id in range(3)] == [69, 69, 59]


async def test_reading_goes_on_after_a_restart(scene: Twins, client: Any) -> None:
    await send(client, *"abc")
    async with client.consumer(PLACE, group="app", commit_interval=60) as consumer:
        assert texts(await take(consumer, 2)) == ["a", "b"]
        await scene.restart()
        await send(client, "d")
        assert texts(await take(consumer, 2)) == ["c", "d"]
        details = await client.get_consumer_group(PLACE, consumer_group="app")
        assert [member.partition_ids for member in details.members] == [(0, 1, 2)]
    assert await stored(client, group="app") == 3


async def test_a_wait_ends_with_the_connection_and_begins_anew(scene: Twins, client: Any) -> None:
    async with client.consumer(PLACE, group="app") as consumer:
        waiting = asyncio.create_task(take(consumer, 1))
        for _ in range(3):
            await scene.disconnect()
        await send(client, "at last")
        assert texts(await waiting) == ["at last"]


async def test_a_consumer_that_was_closed_has_nothing_more(client: Any) -> None:
    await send(client, "a")
    consumer = client.consumer(PLACE)
    await take(consumer, 1)
    await consumer.close()
    await consumer.close()
    assert await rest(consumer) == []


async def test_it_is_no_other_task_that_reads(client: Any) -> None:
    """The iteration is the consumer itself: it can be left and taken up again."""
    await send(client, *"abcd")
    consumer = client.consumer(PLACE, partitions=[0])
    found: list[str] = []
    async for message in consumer:
        found.append(message.text())
        if len(found) == 2:
            break
    found += texts(await take(consumer, 2))
    assert found == list("abcd")
    assert isinstance(getattr(consumer, "_original", consumer), Consumer) or isinstance(consumer, AsyncIterator)
