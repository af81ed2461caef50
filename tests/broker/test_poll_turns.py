"""Large polls share a budget for each turn of the event loop; small ones are served in between."""

import asyncio
from itertools import pairwise
from pathlib import Path

from courser.api import replies as r
from courser.broker.messages.poll_turns import TURN_SIZE_MAX, PollTurns
from courser.broker.partition.waiting import Waiting
from courser.model.messaging import PollingKind
from tests.handlers.messaging import add_topic, poll_command, send_command
from tests.handlers.scenes import opened

MIB = 1024 * 1024


async def test_large_polls_wait_when_the_turn_is_spent_and_come_in_their_order() -> None:
    turns, served = PollTurns(), []

    async def poll(number: int) -> None:
        await turns.wait()
        served.append(number)
        turns.note(MIB)

    turns.note(TURN_SIZE_MAX)
    assert turns.is_spent
    tasks = [asyncio.create_task(poll(number)) for number in range(10)]
    await asyncio.sleep(0)
    assert served == []
    counts = []
    while len(served) < 10:
        await asyncio.sleep(0)
        counts.append(len(served))
    await asyncio.gather(*tasks)
    assert served == list(range(10))
    # A few in each turn: whoever asks for little comes between them.
    assert all(later - earlier <= 4 for earlier, later in pairwise(counts))
    await asyncio.sleep(0)
    assert not turns.is_spent


async def test_a_client_that_polls_little_does_not_wait_for_those_that_poll_much(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        # Few enough to be read without another thread.
        await scene.ask(scene.root, send_command(*["x" * 1000] * 1500))
        small, everything = poll_command(PollingKind.FIRST, count=1), poll_command(PollingKind.FIRST, count=100_000)
        light = scene.connect(0)
        await scene.ask(light, small)
        answers = [scene.dispatcher.begin(scene.connect(0), everything) for _ in range(30)]
        waiting = [answer for answer in answers if isinstance(answer, Waiting)]
        assert 10 < len(waiting) < 30
        assert isinstance(scene.dispatcher.begin(light, small), r.Polled)
        replies = await asyncio.gather(*waiting)
        assert {reply.message_count for reply in replies if isinstance(reply, r.Polled)} == {1500}


async def test_polls_that_get_memory_at_the_same_moment_are_served_a_few_in_each_turn(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene)
        await scene.ask(scene.root, send_command(*["x" * 1000] * 100))
        buffers, deaf = scene.broker.buffers, scene.connect(0)
        buffers.unread(deaf, buffers.ledger.size_max, is_copied=True)
        command = poll_command(PollingKind.FIRST, count=100)
        polls = [scene.dispatcher.begin(scene.connect(0), command) for _ in range(30)]
        futures = [poll.future for poll in polls if isinstance(poll, Waiting)]
        assert len(futures) == 30
        await asyncio.sleep(0)
        assert not any(future.done() for future in futures)
        buffers.drop(deaf)
        counts = [0]
        while counts[-1] < 30:
            await asyncio.sleep(0)
            counts.append(sum(future.done() for future in futures))
        assert all(later - earlier <= 8 for earlier, later in pairwise(counts))
