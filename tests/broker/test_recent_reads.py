"""Readers that follow a partition together share what was read for one of them, and see what they would see alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from courser.api import commands as c
from courser.broker.access.sessions import Session
from courser.model.messaging import PollingKind
from tests.handlers.messaging import add_topic, log_of, partition_of, poll, poll_command, send, texts, texts_of
from tests.handlers.scenes import Scene, opened
from tests.http.serving import until

COUNT = 100
"""Messages of a poll: 100 KB. Smaller reads are not shared."""


def written(start: int, count: int = COUNT) -> list[str]:
    return [f"{number:04d}".ljust(1000, "x") for number in range(start, start + count)]


def asked(offset: int, count: int = COUNT) -> c.PollMessages:
    return poll_command(PollingKind.OFFSET, offset, count=count)


@asynccontextmanager
async def followed(path: Path) -> AsyncIterator[tuple[Scene, list[Session]]]:
    """A partition with 400 messages, and readers that have asked for the first ones, one after the other."""
    async with opened(path) as scene:
        await add_topic(scene)
        for start in range(0, 4 * COUNT, COUNT):
            await send(scene, *written(start))
        readers = [scene.connect(0) for _ in range(4)]
        for reader in readers[:2]:
            assert await texts(scene, asked(0), reader) == written(0)
        yield scene, readers


def size_read(scene: Scene) -> int:
    """Bytes that were read from files so far."""
    return partition_of(scene, 0).reader.disk.counters.size


async def test_a_read_serves_all_readers_that_follow(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        for start in (COUNT, 2 * COUNT):
            assert await texts(scene, asked(start), readers[0]) == written(start)
            before = size_read(scene)
            for reader in readers[1:]:
                assert await texts(scene, asked(start), reader) == written(start)
            assert size_read(scene) == before, "the others cost no read"


async def test_nothing_is_kept_for_a_single_reader(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        buffers, alone = scene.broker.buffers, readers[3]
        # The partition was followed by two; they are gone.
        for _ in range(20):
            for start in range(0, 4 * COUNT, COUNT):
                assert await texts(scene, asked(start), alone) == written(start)
        first = (await poll(scene, asked(0), alone)).pieces[0].obj
        scene.broker.buffers.give_back(alone)
        second = (await poll(scene, asked(COUNT), alone)).pieces[0].obj
        assert first is second, "the same memory, which is still in the caches"
        scene.broker.buffers.give_back(alone)
        await until(lambda: not scene.broker.polls.recent.is_holding)
        assert buffers.ledger.size == 0


async def test_a_reader_at_the_end_sees_what_arrived_after_the_read(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        question = asked(3 * COUNT, 2 * COUNT)
        for reader in readers[:3]:
            assert await texts(scene, question, reader) == written(3 * COUNT)
        await send(scene, *written(4 * COUNT, 1))
        assert await texts(scene, question, readers[3]) == written(3 * COUNT, COUNT + 1)


async def test_a_purge_ends_it(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        for reader in readers[:3]:
            await texts(scene, asked(COUNT), reader)
        await scene.ask(scene.root, c.PurgeTopic("s", "t"))
        assert await texts(scene, asked(COUNT), readers[3]) == []
        await send(scene, *[text.replace("x", "y") for text in written(0, 2 * COUNT)])
        found = await texts(scene, asked(COUNT), readers[3])
        assert not any("x" in text for text in found), "messages that were deleted"


async def test_a_slow_reader_keeps_its_bytes_while_others_go_on(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        slow = readers[3]
        await texts(scene, asked(COUNT), readers[0])
        reply = await poll(scene, asked(COUNT), slow)
        for _ in range(5):
            for start in range(0, 4 * COUNT, COUNT):
                for reader in readers[:3]:
                    assert await texts(scene, asked(start), reader) == written(start)
        await until(lambda: not scene.broker.polls.recent.is_holding)
        for start in range(0, 4 * COUNT, COUNT):
            assert await texts(scene, asked(start), readers[0]) == written(start)
        assert texts_of(reply) == written(COUNT)
        await until(lambda: not scene.broker.polls.recent.is_holding)
        assert 100_000 < scene.broker.buffers.ledger.size < 200_000, "it is counted once, and as long as it is needed"
        scene.broker.buffers.give_back(slow)
        assert scene.broker.buffers.ledger.size == 0


async def test_memory_is_free_again_when_the_readers_are_gone(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        for reader in readers:
            await texts(scene, asked(2 * COUNT), reader)
        assert scene.broker.polls.recent.is_holding
        assert 100_000 < scene.broker.buffers.ledger.size < 200_000, "it counts, though no reply is on its way"
        await until(lambda: not scene.broker.polls.recent.is_holding)
        assert scene.broker.buffers.ledger.size == 0
        assert scene.broker.buffers.kept_size > 100_000


async def test_damage_is_found_by_the_next_read(tmp_path: Path) -> None:
    async with followed(tmp_path) as (scene, readers):
        for reader in readers[:3]:
            await texts(scene, asked(3 * COUNT), reader)
        with next(log_of(scene).directory.glob("*.log")).open("r+b") as file:
            # The last byte of the last message.
            file.seek(log_of(scene).segments[-1].size - 1)
            file.write(b"y")
        await until(lambda: not scene.broker.polls.recent.is_holding)
        assert await texts(scene, asked(3 * COUNT), readers[3]) == []
        assert scene.broker.polls.counters.damaged_count == 1
