"""``FindMessages``: the server looks for messages, a limited number at a time."""

import asyncio

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.messages.searching import SEARCH_COUNT, SEARCH_SIZE
from courser.errors import ErrorCode, OffsetsUnavailable
from tests.handlers.messaging import add_topic, fill_segments, send
from tests.handlers.scenes import Scene


async def find(scene: Scene, *conditions: str, offset: int = 0) -> tuple[int, int, int]:
    reply = await scene.ask(scene.root, c.FindMessages("s", "t", 0, offset, conditions))
    assert isinstance(reply, r.FoundMessages)
    return reply.first_offset, reply.end_offset, reply.next_offset


async def test_the_range_holds_all_that_match(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "apple", "pear")
    await send(scene, "plum", "apricot", "cherry")
    assert await find(scene, "ap") == (0, 4, 5)
    assert await find(scene, "p", "l") == (0, 3, 5)
    assert await find(scene, "ap", offset=1) == (3, 4, 5)
    assert await find(scene, "kiwi") == (5, 5, 5)
    assert await find(scene, "ap", offset=5) == (5, 5, 5)
    assert await find(scene, "ap", offset=100) == (100, 100, 100)


async def test_a_search_is_limited_and_goes_on(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, *["x"] * (SEARCH_COUNT + 10))
    await send(scene, "needle")
    assert await find(scene, "needle") == (SEARCH_COUNT, SEARCH_COUNT, SEARCH_COUNT)
    end = SEARCH_COUNT + 11
    assert await find(scene, "needle", offset=SEARCH_COUNT) == (end - 1, end, end)


async def test_large_messages_are_left_to_the_client(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, "small", "x" * SEARCH_SIZE)
    await send(scene, "small")
    assert await find(scene, "needle") == (1, 1, 1)
    assert await find(scene, "needle", offset=1) == (1, 2, 2)


async def test_others_take_their_turn_during_a_search(scene: Scene) -> None:
    await add_topic(scene)
    await send(scene, *["x"] * 1000)
    search = asyncio.create_task(find(scene, "needle"))
    turn_count = 0
    while not search.done():
        await asyncio.sleep(0)
        turn_count += 1
    assert turn_count >= 1000 // 50 - 1
    assert await search == (1000, 1000, 1000)


async def test_deleted_messages_are_not_passed_over_in_silence(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abc")
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 1))
    with pytest.raises(OffsetsUnavailable) as caught:
        await find(scene, "b")
    assert caught.value.end_offset == 1
    assert await find(scene, "b", offset=1) == (1, 2, 3)


async def test_what_cannot_be_searched(scene: Scene) -> None:
    await add_topic(scene)
    wrong = c.FindMessages("s", "t", 0, 0, (".a..b=1",))
    assert await scene.refusal(scene.root, wrong) is ErrorCode.INVALID_COMMAND
    missing = c.FindMessages("s", "t", 1, 0, ("x",))
    assert await scene.refusal(scene.root, missing) is ErrorCode.PARTITION_NOT_FOUND
