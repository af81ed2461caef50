"""What may happen between the answer to a publish and its end: purges, deletions, clients that go away."""

import asyncio
import contextlib
import errno
import threading
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest

from courser.api import commands as c
from courser.broker.publishing.publishing import Publishing
from courser.broker.publishing.redo import Redo
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.messaging import ToPartition
from courser.records.batch import NewMessage, build_batch
from courser.storage.settings import EngineLimits
from courser.storage.staged_file import StagedFileWriter
from tests.fakes.files import FaultPlan
from tests.staging.lives import EXPECTED, ONE_THREAD, PARTS, SINK, Life, not_yet


async def purge_right_behind_the_answer(life: Life, *, is_slow: bool) -> None:
    """``is_slow``: what follows the answer in the background has not begun."""
    await life.begin()
    held = mock.patch.object(Publishing, "_settle_quietly", not_yet) if is_slow else contextlib.nullcontext()
    with held:
        await life.work(to_the_end=False)
        await life.server.ask(c.PurgeTopic("s", "t"))
    assert await life.seen() == Counter()
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == Counter(), "messages that were purged are back"
    life.server.broker.pool.shutdown()


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("level", ["replicated", "persisted"])
async def test_a_purge_takes_what_was_published_before_it_for_good(level: str, is_slow: bool, seed: int) -> None:
    for number in range(10):
        await purge_right_behind_the_answer(Life(seed + number, level=level), is_slow=is_slow)


async def forget_what_cannot_be_synced(life: Life) -> None:
    """Either the sink is not forgotten, or what it has published does not need its parts any more."""
    await life.begin()
    life.server.disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log", onwards=True)
    await life.work()
    with contextlib.suppress(CourserError):
        await life.server.ask(c.DiscardStaged(SINK, None, True))
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == EXPECTED, "messages are gone with the memory of their sink"
    life.server.broker.pool.shutdown()


async def test_a_sink_that_is_forgotten_leaves_what_it_has_published(seed: int) -> None:
    life = Life(seed, level="replicated")
    await life.begin()
    await life.work(to_the_end=False)
    await life.server.ask(c.DiscardStaged(SINK, None, True))
    assert life.staged_files() == []
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == EXPECTED
    await forget_what_cannot_be_synced(Life(seed, level="replicated"))


async def test_a_topic_that_is_deleted_behind_the_answer_does_not_keep_the_publish_open() -> None:
    life = Life(1, level="replicated")
    await life.begin()
    await life.work(to_the_end=False)
    await life.server.ask(c.DeleteTopic("s", "t"))
    await life.server.broker.publishing.idle()
    assert life.staged_files() == []
    assert not await life.is_open()
    # Deleted directories are removed behind the answer: nothing may be left when the event loop ends.
    assert await life.server.broker.close()


async def test_batches_of_a_sink_follow_one_another_without_a_pause(seed: int) -> None:
    """Each finishes the one before it, if that is not settled yet."""
    life = Life(seed, level="replicated")
    await life.begin()
    for number in range(5):
        name = c.StagedPartName(SINK, number, 0, 1)
        batch = build_batch([NewMessage(f"batch {number}".encode())])
        await life.server.ask(c.StageMessages(name, 0, "s", "t", ToPartition(0), batch))
        await life.server.ask(c.FinishStage(name, 1))
        await life.server.ask(c.PublishStaged(SINK, number, ((0, 1),), 0))
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == Counter((0, f"batch {number}") for number in range(5))
    life.server.broker.pool.shutdown()


async def test_a_topic_that_is_deleted_after_the_decision_does_not_keep_the_publish_open() -> None:
    life = Life(1, level="replicated")
    await life.begin()
    parts = await life.stage()
    life.server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, call=2, name="*.log", onwards=True)
    with pytest.raises(CourserError):
        await life.publish(parts)
    life.server.disk.plan = FaultPlan()
    await life.server.ask(c.DeleteTopic("s", "t"))
    assert (await life.publish(parts)).is_repeated
    assert life.staged_files() == []
    # Deleted directories are removed behind the answer: nothing may be left when the event loop ends.
    assert await life.server.broker.close()


@pytest.mark.parametrize("number", range(8))
async def test_a_client_that_goes_away_leaves_no_part_that_only_looks_finished(
    number: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()
    finish = StagedFileWriter.finish

    def finish_slowly(writer: StagedFileWriter) -> None:
        has_begun.set()
        may_go_on.wait()
        finish(writer)

    monkeypatch.setattr(StagedFileWriter, "finish", finish_slowly)
    loop = asyncio.get_running_loop()
    life = Life(seed + number, level="replicated")
    await life.begin()
    name = c.StagedPartName(SINK, 0, 0, 1)
    batch = build_batch([NewMessage(b"a")])
    await life.server.ask(c.StageMessages(name, 0, "s", "t", ToPartition(0), batch))
    leaving = asyncio.ensure_future(life.server.ask(c.FinishStage(name, 1)))
    await loop.run_in_executor(None, has_begun.wait)
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaving
    may_go_on.set()
    # Behind the work of the one thread that there is.
    await loop.run_in_executor(life.server.broker.pool, has_begun.is_set)
    # It comes back, is told that the part is finished, and the power fails.
    await life.server.ask(c.FinishStage(name, 1))
    await life.server.restart(with_power_cut=True)
    await life.publish({0: 1})
    assert await life.seen() == Counter({(0, "a"): 1})


async def test_the_kernel_is_asked_early_to_write_what_is_staged() -> None:
    settings = replace(ONE_THREAD, engine_limits=EngineLimits(staged_writeback_size=100))
    life = Life(1, level="replicated", settings=settings)
    await life.begin()
    before = life.server.disk.calls["start_writeback"]
    await life.stage()
    assert life.server.disk.calls["start_writeback"] > before
    await life.server.restart(with_power_cut=True)
    await life.publish(dict.fromkeys(PARTS, life.attempt))
    assert await life.seen() == EXPECTED


async def test_a_publish_that_is_decided_is_never_refused(seed: int) -> None:
    """A process that is being restarted keeps it from being finished: whoever asked must not take it for undone."""
    life = Life(seed, level="replicated")
    await life.begin()
    parts = await life.stage()
    away = CommandRejected(ErrorCode.SERVER_BUSY, "the process is being restarted")
    with mock.patch.object(Redo, "append", side_effect=away):
        # The second time, the publish is open.
        for _ in range(2):
            with pytest.raises(CommandRejected) as refusal:
                await life.publish(parts)
            assert refusal.value.code is ErrorCode.PUBLISH_UNFINISHED
        assert await life.is_open()
    await life.publish(parts)
    assert await life.seen() == EXPECTED
    assert await life.server.broker.close()
