"""Group members that get and lose partitions, and consumers that move, pause and go on."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from courser.api import commands as c
from courser.broker.groups.groups import HANDOVER_MAX
from courser.client.consumer import Consumer
from courser.errors import NotAssigned, NotFound
from tests.client.test_consumer import PATIENCE, PLACE, members, rest, send, stored, take, texts, until
from tests.client.twins import Twins, twins
from tests.fakes.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["async", "sync"])
async def scene(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Twins]:
    async with twins(request.param, clock) as scene:
        yield scene


async def _has_members(client: Any, count: int) -> bool:
    try:
        return len(await members(client)) == count
    except NotFound:
        return False


async def take_over(scene: Twins, clock: ManualClock) -> Any:
    """Another member gets partition 1 without waiting for the first one any longer."""
    plain = await scene.connect()
    await plain.join_consumer_group(PLACE, consumer_group="app")
    clock.advance(HANDOVER_MAX)
    assert (await plain.sync_consumer_group(PLACE, consumer_group="app")).partition_ids == (1,)
    return plain


# --- losing partitions --------------------------------------------------------------------------------


async def test_an_orderly_hand_over_repeats_nothing(scene: Twins, client: Any) -> None:
    count = 300
    for partition in range(3):
        await send(client, *(f"{partition}-{number}" for number in range(count)), partition=partition)
    found: list[str] = []
    is_done = asyncio.Event()

    async def work(consumer: Any) -> None:
        async for message in consumer:
            found.append(message.text())
            if len(found) >= 3 * count:
                is_done.set()

    # Nothing is committed except when a partition is given up, and at the end.
    options = {"group": "app", "commit_interval": 60, "sync_interval": 0.01, "batch_count": 50}
    tasks: list[asyncio.Task[None]] = []
    async with asyncio.timeout(PATIENCE):
        consumers = [(await scene.connect()).consumer(PLACE, **options) for _ in range(3)]
        for number, consumer in enumerate(consumers, 1):
            tasks.append(asyncio.create_task(work(consumer)))
            await until(partial(_has_members, client, number))
        await is_done.wait()
        for consumer in consumers:
            await consumer.close()
        await asyncio.gather(*tasks)
    assert sorted(found) == sorted(f"{partition}-{number}" for partition in range(3) for number in range(count))


async def test_fetched_messages_are_dropped_on_a_rebalance(scene: Twins, client: Any) -> None:
    await send(client, *"abcde", partition=1)
    other = await scene.connect()
    async with client.consumer(PLACE, group="app", sync_interval=0, commit_interval=60) as first:
        assert texts(await take(first, 2)) == ["a", "b"]
        async with other.consumer(PLACE, group="app") as second:
            waiting = asyncio.create_task(take(first, 1))
            assert texts(await take(second, 3)) == ["c", "d", "e"]
            await send(client, "x", partition=0)
            assert texts(await waiting) == ["x"]


async def test_fetched_messages_are_dropped_at_the_first_refusal(scene: Twins, client: Any, clock: ManualClock) -> None:
    await send(client, *"abcde", partition=1)
    async with client.consumer(PLACE, group="app", sync_interval=60, commit="manual") as consumer:
        messages = await take(consumer, 2)
        await take_over(scene, clock)
        assert await messages[1].commit() is False
        await send(client, "x", partition=0)
        assert texts(await take(consumer, 1)) == ["x"], "not c, d or e, which were fetched"
        assert await stored(client, 1, group="app") is None


async def test_a_partition_that_was_another_members_is_read_after_its_commit(
    scene: Twins, client: Any, clock: ManualClock
) -> None:
    await send(client, *"abcde", partition=1)
    async with client.consumer(PLACE, group="app", sync_interval=60, commit="manual") as consumer:
        messages = await take(consumer, 2)
        plain = await take_over(scene, clock)
        await plain.store_consumer_offset(PLACE, None, 1, 3, group="app")
        await plain.leave_consumer_group(PLACE, consumer_group="app")
        assert await messages[1].commit() is False, "it would take the group back"
        assert texts(await take(consumer, 1)) == ["e"]
        assert await stored(client, 1, group="app") == 3


@pytest.mark.parametrize("is_back", [False, True], ids=["away", "back"])
async def test_late_commits_after_a_reconnect_do_not_take_the_group_back(
    scene: Twins, client: Any, is_back: bool
) -> None:
    await send(client, *"abcde", partition=1)
    # It reconnects only when it has something to ask.
    silent = await scene.connect(heartbeat_interval=3600)
    async with silent.consumer(PLACE, group="app", commit="manual") as consumer:
        messages = await take(consumer, 5)
        await until(lambda: _has_no_request(consumer))
        await scene.disconnect()
        async with client.consumer(PLACE, group="app") as second:
            await take(second, 5)
        if is_back:
            # On the new connection it is a member again, but does not know yet what happened.
            ping = _innermost(consumer)._link.request(c.Ping(), patient=True)
            await (asyncio.to_thread(scene.broker._thread.call, ping) if scene.is_sync else ping)
        assert await messages[1].commit() is True
        assert await stored(client, 1, group="app") == 4


def _innermost(consumer: Any) -> Any:
    """The async consumer that does the work."""
    while not isinstance(consumer, Consumer):
        consumer = consumer._original
    return consumer


async def _has_no_request(consumer: Any) -> bool:
    ahead = _innermost(consumer)._ahead
    return ahead is None or ahead[2].done()


# --- callbacks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_callbacks_are_told_what_came_and_went(scene: Twins, client: Any, kind: str) -> None:
    log: list[tuple[str, tuple[int, ...]]] = []

    def note(name: str) -> Any:
        async def note_later(partition_ids: tuple[int, ...]) -> None:
            log.append((name, partition_ids))

        return note_later if kind == "async" else lambda partition_ids: log.append((name, partition_ids))

    other = await scene.connect()
    async with client.consumer(PLACE, group="app", on_assigned=note("got"), on_revoked=note("lost")) as first:
        assert log == [("got", (0, 1, 2))]
        waiting = asyncio.create_task(take(first, 1))
        async with other.consumer(PLACE, group="app") as second:
            await send(client, "a", partition=1)
            await take(second, 1)
            assert log[1:] == [("lost", (1,))]
        await send(client, "b", partition=1)
        await waiting
        assert log[2:] == [("got", (1,))]


async def test_a_revoked_partition_can_be_committed_in_the_callback(scene: Twins, client: Any) -> None:
    await send(client, *"abc", partition=1)
    other = await scene.connect()
    results: list[Any] = []
    messages: list[Any] = []

    def commit(partition_ids: tuple[int, ...]) -> Any:
        results.append(messages[-1].commit())
        return results[-1] if asyncio.iscoroutine(results[-1]) else None

    async def commit_later(partition_ids: tuple[int, ...]) -> None:
        results.append(await messages[-1].commit())

    callback = commit if scene.is_sync else commit_later
    async with client.consumer(PLACE, group="app", commit="manual", on_revoked=callback) as first:
        messages += [getattr(message, "_original", message) for message in await take(first, 3)]
        waiting = asyncio.create_task(take(first, 1))
        async with other.consumer(PLACE, group="app") as second:
            await send(client, "d", partition=1)
            assert texts(await take(second, 1)) == ["d"]
        await send(client, "x")
        await waiting
    assert results == [True]


async def test_an_error_of_a_callback_is_the_readers(client: Any) -> None:
    def fail(partition_ids: tuple[int, ...]) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await rest(client.consumer(PLACE, group="app", on_assigned=fail))


# --- where a group starts -----------------------------------------------------------------------------


async def test_a_group_that_starts_late_has_no_lag(client: Any) -> None:
    for partition in range(3):
        await send(client, *"abc", partition=partition)
    async with client.consumer(PLACE, group="app", start=datetime(2100, 1, 1, tzinfo=UTC)):
        pass
    assert [await stored(client, partition, group="app") for partition in range(3)] == [2, 2, 2]


async def test_who_takes_over_starts_where_the_group_started(client: Any) -> None:
    await send(client, *"abc", partition=1)
    async with client.consumer(PLACE, group="app", start="end"):
        await send(client, "d", partition=1)
    assert await rest(client.consumer(PLACE, group="app", start="end", stop_at_end=True)) == ["d"]


async def test_a_group_that_starts_at_the_beginning_stores_nothing(client: Any) -> None:
    await send(client, *"abc")
    async with client.consumer(PLACE, group="app", start="first"):
        pass
    assert await stored(client, group="app") is None


# --- seek, pause, resume ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"), [(1, "b"), ("first", "a"), ("last", "e"), (datetime(1970, 1, 1, tzinfo=UTC), "a")], ids=str
)
async def test_seek(client: Any, start: Any, expected: str) -> None:
    await send(client, *"abcde")
    async with client.consumer(PLACE, group="app") as consumer:
        await take(consumer, 3)
        await consumer.seek(0, start)
        assert texts(await take(consumer, 1)) == [expected]
        with pytest.raises(NotAssigned):
            await consumer.seek(7, start)
        with pytest.raises(ValueError, match="negative"):
            await consumer.seek(0, -1)


async def test_a_seek_back_is_not_undone_by_an_older_commit(client: Any) -> None:
    await send(client, *"abcde")
    async with client.consumer(PLACE, group="app", commit_interval=60) as consumer:
        await take(consumer, 4)
        await consumer.seek(0, 1)
    assert await stored(client, group="app") is None


async def test_a_seek_ends_a_wait(client: Any) -> None:
    await send(client, *"abc")
    async with client.consumer(PLACE, group="app") as consumer:
        await take(consumer, 3)
        waiting = asyncio.create_task(take(consumer, 1))
        await until(lambda: _is_waiting(consumer))
        await consumer.seek(0, "last")
        assert texts(await waiting) == ["c"]


async def _is_waiting(consumer: Any) -> bool:
    return bool(_innermost(consumer)._is_waiting)


async def test_a_paused_partition_is_left_out_until_it_is_resumed(client: Any) -> None:
    for partition in range(2):
        await send(client, *(f"{partition}-{number}" for number in range(4)), partition=partition)
    async with client.consumer(PLACE, group="app", batch_count=2) as consumer:
        (first,) = await take(consumer, 1)
        await consumer.pause(first.partition_id)
        assert consumer.paused == (first.partition_id,)
        other = 1 - first.partition_id
        assert texts(await take(consumer, 4)) == [f"{other}-{number}" for number in range(4)]
        waiting = asyncio.create_task(take(consumer, 3))
        await until(lambda: _is_waiting(consumer))
        await consumer.resume(first.partition_id)
        assert texts(await waiting) == [f"{first.partition_id}-{number}" for number in range(1, 4)]
        assert consumer.paused == ()


async def test_all_partitions_can_be_paused(client: Any) -> None:
    await send(client, *"ab")
    async with client.consumer(PLACE, name="app") as consumer:
        await consumer.pause()
        assert consumer.paused == (0, 1, 2)
        waiting = asyncio.create_task(take(consumer, 2))
        await until(lambda: _is_waiting(consumer))
        await consumer.resume()
        assert texts(await waiting) == ["a", "b"]
        with pytest.raises(NotAssigned):
            await consumer.pause(7)


# --- a group that is reset ----------------------------------------------------------------------------


async def test_a_running_member_follows_a_forced_reset(scene: Twins, client: Any) -> None:
    await send(client, "a", "b", "c", "d")
    async with asyncio.timeout(PATIENCE):
        consumer = (await scene.connect()).consumer(PLACE, group="app", sync_interval=0.01, commit_interval=0)
        messages = await take(consumer, 3)
        assert texts(messages) == ["a", "b", "c"]
        await consumer.commit(messages[-1])
        await client.reset_consumer_group(PLACE, consumer_group="app", to=1, force=True)
        found: list[str] = []
        while found[-3:] != ["b", "c", "d"]:
            found += texts(await take(consumer, 1))
        assert found in (["b", "c", "d"], ["d", "b", "c", "d"])
        await consumer.close()
    assert await stored(client, 0, group="app") == 3
