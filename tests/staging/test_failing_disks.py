"""A full disk and a failed sync at every call of a publish: an error, and the publish goes on later."""

import contextlib
import errno
import random

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.publishing import staging
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.storage import staged_file
from tests.fakes.files import FaultPlan
from tests.staging.lives import EXPECTED, PARTS, SINK, Life


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=lambda error: errno.errorcode[error])
async def test_a_failure_of_every_call(error: int, seed: int) -> None:
    """What the disk refuses is told to the client; a repetition, or a restart if need be, brings the batch in once."""
    source = random.Random(seed)
    counting = Life(1, level="replicated")
    await counting.begin()
    before = sum(counting.server.disk.calls.values())
    await counting.work()
    count = sum(counting.server.disk.calls.values()) - before
    restarted_count = 0
    for call in range(1, count + 1):
        life = Life(source.getrandbits(32), level="replicated")
        await life.begin()
        life.server.disk.plan = FaultPlan().fail(None, error, call=call)
        with contextlib.suppress(CourserError):
            await life.work()
        life.server.disk.plan = FaultPlan()
        try:
            await life.work()
        except CourserError:
            # After a failed sync nothing is believed before a restart; the cut is what such a failure may mean.
            restarted_count += 1
            await life.server.restart(with_power_cut=True)
            seen = await life.seen()
            assert seen == EXPECTED or not (seen or life.is_answered), f"call {call}: {seen}"
            await life.work()
        assert await life.seen() == EXPECTED, f"call {call}"
        await life.server.restart(with_power_cut=True)
        assert await life.seen() == EXPECTED, f"call {call}, after a power cut"
        life.server.broker.pool.shutdown()
    print(f"{count} calls, {restarted_count} restarts")
    # A full disk heals by itself, and so does most else: only failed syncs do not.
    assert restarted_count < count / 2


async def test_a_full_disk_in_the_middle_is_an_error_and_the_publish_goes_on_later() -> None:
    life = Life(1, level="replicated")
    await life.begin()
    parts = await life.stage()
    life.server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, call=2, name="*.log", onwards=True)
    with pytest.raises(CourserError) as raised:
        await life.publish(parts)
    assert raised.value.code is ErrorCode.DISK_FULL
    sink = await life.server.ask(c.GetSink(SINK))
    assert isinstance(sink, r.SinkInfo)
    assert (sink.batch, sink.is_open, sink.part_count) == (0, True, 2)
    # What is decided cannot be discarded.
    await life.server.ask(c.DiscardStaged(SINK, None, False))
    life.server.disk.plan = FaultPlan()
    await life.publish(parts)
    assert await life.seen() == EXPECTED
    assert life.staged_files() == []


async def test_logs_that_cannot_be_synced_behind_the_answer(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(seed, level="replicated")
    await life.begin()
    parts = await life.stage()
    life.server.disk.plan = FaultPlan().fail("sync", errno.EIO, name="*.log")
    await life.publish(parts)
    await life.server.broker.publishing.idle()
    assert "publish acknowledged but not finalized" in caplog.text
    assert await life.is_open()
    assert len(life.staged_files()) == 2, "they are what a power cut leaves"
    # Nothing is believed any more before a restart, and nobody else is told that all is well.
    with pytest.raises(CourserError):
        await life.publish(parts)
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == EXPECTED
    assert life.staged_files() == []


async def test_a_publish_whose_end_cannot_be_written_is_ended_later(caplog: pytest.LogCaptureFixture) -> None:
    life = Life(1, level="replicated")
    await life.begin()
    parts = await life.stage()
    # The second entry.
    life.server.disk.plan = FaultPlan().fail("write_at", errno.ENOSPC, call=2, name="journal.wal")
    await life.publish(parts)
    await life.server.broker.publishing.idle()
    assert "publish acknowledged but not finalized" in caplog.text
    assert await life.is_open()
    # As once a minute.
    await life.server.broker.look_after_staging()
    assert not await life.is_open()
    assert life.staged_files() == []
    assert await life.seen() == EXPECTED


@pytest.mark.parametrize("step", ["sync_directory", "sync_file"])
async def test_a_part_with_a_defect_at_its_end_is_not_finished_when_its_task_asks_again(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(1, level="replicated")
    await life.begin()

    def broken(*_: object) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(staging if step == "sync_directory" else staged_file, step, broken)
        with pytest.raises(ValueError, match="a defect"):
            await life.stage()
    with pytest.raises(CommandRejected) as refused:
        await life.server.ask(c.FinishStage(c.StagedPartName(SINK, 0, 0, life.attempt), len(PARTS[0])))
    assert refused.value.code is ErrorCode.STAGED_PART_NOT_FOUND
    await life.work()
    assert await life.seen() == EXPECTED


async def test_a_stop_settles_what_was_answered() -> None:
    life = Life(1, level="replicated")
    await life.begin()
    await life.work(to_the_end=False)
    assert await life.server.broker.close()
    assert life.staged_files() == []
    await life.server.open()
    assert await life.seen() == EXPECTED
    life.server.broker.pool.shutdown()
