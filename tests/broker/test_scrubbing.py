"""The scrubber: finds damage, at a bounded rate, where it left off, and repairs what it has a copy of."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.settings import BrokerSettings
from courser.broker.upkeep.scrubbing import Scrubber
from courser.errors import StorageFailure
from courser.model.messaging import PollingKind
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import QUARANTINE, SCRUBBER, log_path
from courser.storage.segment import Segment
from tests.fakes.clocks import ManualClock
from tests.handlers.messaging import add_topic, damage, fill_segments, log_of, poll_command, send, texts
from tests.handlers.scenes import Scene, opened

KIB = 1024
DAY = 24 * 3600 * 1_000_000
ONE_SEGMENT = 305
"""Bytes of a segment with one message of one byte."""


class StoppedError(Exception):
    """The server stops during a pause."""


class Pauses:
    """Records the pauses of a scrubber, and ends it after some of them."""

    def __init__(self, count_max: int | None = None) -> None:
        self.seconds: list[float] = []
        self._count_max = count_max

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._count_max:
            raise StoppedError


def scrubber_of(scene: Scene, pauses: Pauses, **settings: int) -> Scrubber:
    broker = scene.broker
    return Scrubber(
        broker.partitions,
        broker.data.file_system,
        broker.data.path,
        broker.pool,
        scene.clock,
        BrokerSettings(**settings),  # type: ignore[arg-type]
        pause=pauses,
    )


@asynccontextmanager
async def with_segments(path: Path, contents: str = "abc", clock: ManualClock | None = None) -> AsyncIterator[Scene]:
    """A topic with one sealed segment for each letter, and an open one."""
    async with opened(path, clock=clock) as scene:
        await add_topic(scene)
        await fill_segments(scene, contents)
        await send(scene, "open")
        yield scene


def path_of(scene: Scene, offset: int) -> Path:
    return log_path(log_of(scene).directory, offset)


async def damages(scene: Scene) -> list[r.Damage]:
    reply = await scene.ask(scene.root, c.GetTopicMaintenance("s", "t"))
    assert isinstance(reply, r.TopicMaintenance)
    return reply.damages


async def test_a_round_reads_every_sealed_segment_and_reports_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_segments(tmp_path) as scene:
        damage(path_of(scene, 1))
        scrubber = scrubber_of(scene, Pauses())
        await scrubber.scrub()
        counters = scrubber.counters
        assert (counters.segment_count, counters.size, counters.damage_count) == (3, 3 * ONE_SEGMENT, 1)
        assert await damages(scene) == [r.Damage(0, 1, 1, 2, 0, ONE_SEGMENT)]
        assert "damage found in a sealed segment" in caplog.text
        assert await texts(scene, poll_command(PollingKind.OFFSET, 1)) == ["c", "open"]
        await scrubber.scrub()
        assert (counters.damage_count, counters.round_count) == (1, 2), "known damage is not counted again"


async def test_the_rate_is_bounded_and_small_segments_count_too(tmp_path: Path) -> None:
    async with with_segments(tmp_path, "a") as scene:
        await fill_segments(scene, ["x" * 3000 * KIB])
        pauses = Pauses()
        await scrubber_of(scene, pauses, scrub_rate=1000 * KIB).scrub()
        size = sum(segment.size for segment in log_of(scene).segments)
        assert sum(pauses.seconds) == pytest.approx((size + 64 * KIB - ONE_SEGMENT) / (1000 * KIB), rel=0.01)


async def test_a_round_continues_after_a_restart_where_it_was(tmp_path: Path) -> None:
    clock = ManualClock()
    async with with_segments(tmp_path, "abcd", clock) as scene:
        scrubber = scrubber_of(scene, Pauses(5))
        save_at_once(scrubber)
        with pytest.raises(StoppedError):
            await scrubber.scrub()
        assert scrubber.counters.segment_count == 2
    async with opened(tmp_path, clock=clock) as scene:
        damage(path_of(scene, 0))
        damage(path_of(scene, 3))
        # The third pause is the one before the next round, which is not due.
        scrubber = scrubber_of(scene, Pauses(6))
        with pytest.raises(StoppedError):
            await scrubber.run()
        assert [found.first_offset for found in await damages(scene)] == [3], "what was read before is not read again"
        clock.advance(8 * DAY)
        scrubber = scrubber_of(scene, Pauses())
        await scrubber.scrub()
        assert [found.first_offset for found in await damages(scene)] == [0, 3]


def save_at_once(scrubber: Scrubber) -> None:
    """Every time instead of once a minute."""
    save = scrubber._save

    async def save_and_forget(progress: object) -> None:
        await save(progress)  # type: ignore[arg-type]
        scrubber._saved_at = None

    scrubber._save = save_and_forget  # type: ignore[method-assign]


async def test_rounds_begin_at_the_interval_also_if_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = ManualClock()
    async with with_segments(tmp_path, "a", clock) as scene:
        for step, expected in ((0, 1), (6 * DAY, 0), (1 * DAY, 1), (-30 * DAY, 1), (0, 0)):
            if step < 0:
                clock.jump(step)
            else:
                clock.advance(step)
            # One pause before it looks, three for a round: before and behind the segment, and before it looks again.
            scrubber = scrubber_of(scene, Pauses(4))
            with pytest.raises(StoppedError):
                await scrubber.run()
            assert scrubber.counters.round_count == expected, step


@pytest.mark.parametrize("contents", [b"", b"{", b'{"started_at": "soon"}', b"[1]"])
async def test_a_damaged_file_of_the_scrubber_begins_a_new_round(tmp_path: Path, contents: bytes) -> None:
    async with with_segments(tmp_path) as scene:
        (tmp_path / SCRUBBER).write_bytes(contents)
        scrubber = scrubber_of(scene, Pauses())
        await scrubber.scrub()
        assert scrubber.counters.segment_count == 3


async def test_a_topic_that_is_deleted_meanwhile_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_segments(tmp_path) as scene:
        deletes = Pauses()

        async def delete_then_go_on(seconds: float) -> None:
            if not deletes.seconds:
                await scene.ask(scene.root, c.DeleteTopic("s", "t"))
            await deletes(seconds)

        scrubber = scrubber_of(scene, Pauses())
        scrubber._pause = delete_then_go_on
        await scrubber.scrub()
        assert scrubber.counters.unreadable_count == 0
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_segment_that_cannot_be_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with with_segments(tmp_path) as scene:
        path_of(scene, 1).unlink()
        scrubber = scrubber_of(scene, Pauses())
        await scrubber.scrub()
        assert (scrubber.counters.segment_count, scrubber.counters.unreadable_count) == (2, 1)
        assert "could not read a sealed segment" in caplog.text


# --- repairs ---


class Copies:
    """Copies of segments in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def keep(self, scene: Scene) -> None:
        shutil.copytree(log_of(scene).directory, self.directory)

    async def fetch(self, _log: PartitionLog, segment: Segment, target: Path) -> bool:
        source = log_path(self.directory, segment.base_offset)
        if not source.exists():
            return False
        shutil.copyfile(source, target)
        return True


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_damaged_segment_is_replaced_by_a_good_copy_and_kept(tmp_path: Path, restarts: bool) -> None:
    data, copies = tmp_path / "data", Copies(tmp_path / "copies")
    data.mkdir()
    async with with_segments(data) as scene:
        copies.keep(scene)
        damage(path_of(scene, 1))
        bad = path_of(scene, 1).read_bytes()
        scrubber = scrubber_of(scene, Pauses())
        scrubber.copies = copies
        await scrubber.scrub()
        assert (scrubber.counters.damage_count, scrubber.counters.repair_count) == (1, 1)
        assert await damages(scene) == []
        (kept,) = (log_of(scene).directory / QUARANTINE).iterdir()
        assert kept.read_bytes() == bad
        if not restarts:
            assert await texts(scene, poll_command(PollingKind.FIRST)) == ["a", "b", "c", "open"]
    if restarts:
        async with opened(data) as scene:
            assert await texts(scene, poll_command(PollingKind.FIRST)) == ["a", "b", "c", "open"]
            assert not list(log_of(scene).directory.glob("*.tmp"))


async def test_damage_that_the_ledger_knows_is_forgotten_with_the_repair(tmp_path: Path) -> None:
    data, copies = tmp_path / "data", Copies(tmp_path / "copies")
    data.mkdir()
    async with with_segments(data) as scene:
        copies.keep(scene)
        damage(path_of(scene, 1))
        log = log_of(scene)
        await scrubber_of(scene, Pauses()).scrub()
        log.ledger.note(log.segments[1].damages[0])
        scrubber = scrubber_of(scene, Pauses())
        scrubber.copies = copies
        await scrubber.scrub()
        assert log.ledger.state.damages == []
    async with opened(data) as scene:
        assert await damages(scene) == []
        assert await texts(scene, poll_command(PollingKind.FIRST)) == ["a", "b", "c", "open"]


@pytest.mark.parametrize("trouble", ["none", "damaged", "short", "failing"])
async def test_without_an_intact_copy_the_segment_stays_as_it_is(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, copies = tmp_path / "data", Copies(tmp_path / "copies")
    data.mkdir()
    async with with_segments(data) as scene:
        copies.keep(scene)
        damage(path_of(scene, 1))
        copy = log_path(copies.directory, 1)
        if trouble == "none":
            copy.unlink()
        elif trouble == "damaged":
            damage(copy)
        elif trouble == "short":
            copy.write_bytes(b"")
        else:

            async def fetch(_log: PartitionLog, _segment: Segment, target: Path) -> bool:
                raise StorageFailure("read", target, OSError(5, "Input/output error"))

            copies.fetch = fetch  # type: ignore[method-assign, assignment]
        before = path_of(scene, 1).read_bytes()
        scrubber = scrubber_of(scene, Pauses())
        scrubber.copies = copies
        await scrubber.scrub()
        assert scrubber.counters.repair_count == 0
        assert path_of(scene, 1).read_bytes() == before
        assert not list(log_of(scene).directory.glob("*.tmp"))
        assert len(await damages(scene)) == 1
        assert any(text in caplog.text for text in ("could not repair", "no copy", "is not intact"))
