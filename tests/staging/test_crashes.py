"""A crash at every call of a publish, a full disk and a failed sync at every call: all or nothing, exactly once.

The server dies in each call that changes the disk, by a kill or by a power cut, from the first chunk that is staged to
the removal of the staged files; so does the start that finishes a publish. Then a driver does what Spark's would: it
stages again if nobody told it that the batch is published, and publishes under the same number.
"""

import asyncio
import contextlib
import errno
import random
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker import staging
from courser.broker.publishing import Publishing
from courser.broker.settings import BrokerSettings
from courser.errors import CourserError, ErrorCode
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.storage.limits import EngineLimits
from courser.storage.staged_file import StagedFileWriter
from courser.testing.faults import CrashMoment
from courser.testing.files import FaultPlan, SimulatedCrash
from tests.broker.fake_disks import PATH, FakeServer

SINK = "a query"
PARTS = {0: [(0, "a"), (1, "b"), (0, "c")], 1: [(1, "d"), (0, "e")]}
"""By part: partition and text of each chunk."""
EXPECTED = Counter({(0, "a"): 1, (1, "b"): 1, (0, "c"): 1, (1, "d"): 1, (0, "e"): 1})
ONE_THREAD = BrokerSettings(disk_thread_count=1)


class Life:
    """A server on a disk that exists only here, and what a driver does with it."""

    def __init__(self, seed: int, *, level: str, settings: BrokerSettings = ONE_THREAD) -> None:
        self.server = FakeServer(seed, settings)
        self.level = level
        self.attempt = 0
        self.is_answered = False
        """Whether the driver was told that the batch is published."""

    async def begin(self) -> None:
        await self.server.open()
        await self.server.ask(c.CreateStream("s"))
        await self.server.add_topic("t", 2, TopicOptions(durability=self.level))
        await self.server.send("t", "before", 0)

    async def stage(self) -> dict[int, int]:
        """All parts, under an attempt of their own."""
        self.attempt += 1
        for part, chunks in PARTS.items():
            name = c.StagedPartName(SINK, 0, part, self.attempt)
            for chunk, (partition, text) in enumerate(chunks):
                batch = build_batch([NewMessage(text.encode())])
                await self.server.ask(c.StageMessages(name, chunk, "s", "t", ToPartition(partition), batch))
            await self.server.ask(c.FinishStage(name, len(chunks)))
        return dict.fromkeys(PARTS, self.attempt)

    async def publish(self, parts: dict[int, int]) -> r.Published:
        reply = await self.server.ask(c.PublishStaged(SINK, 0, tuple(parts.items()), 0))
        assert isinstance(reply, r.Published)
        return reply

    async def work(self, *, to_the_end: bool = True) -> None:
        """A whole batch, as tasks and driver of Spark do it, after whatever happened before.

        ``to_the_end``: with what the server does behind its answer.
        """
        try:
            parts = await self.stage()
        except CourserError as error:
            if error.code is not ErrorCode.BATCH_ALREADY_PUBLISHED:
                raise
            parts = {}
        await self.publish(parts)
        self.is_answered = True
        if to_the_end:
            await self.server.broker.publishing.idle()

    async def check_shown(self) -> None:
        """A whole batch; what is answered can be read."""
        await self.work(to_the_end=False)
        assert await self.seen() == EXPECTED

    async def seen(self) -> Counter[tuple[int, str]]:
        found: Counter[tuple[int, str]] = Counter()
        for partition in range(2):
            found.update((partition, text) for text in (await self.server.read("t", partition)).values())
        # Sent and not synced: a power cut may have taken it.
        del found[0, "before"]
        return found

    async def is_open(self) -> bool:
        """Whether the publish is decided and not ended."""
        sink = await self.server.ask(c.GetSink(SINK))
        assert isinstance(sink, r.SinkInfo)
        return sink.is_open

    def staged_files(self) -> list[Path]:
        return [path for path in self.server.disk.files() if path.parent == PATH / "staging"]


class CountingPlan(FaultPlan):
    """Counts the calls in which a crash may happen."""

    @property
    def count(self) -> int:
        return self._mutations


async def mutation_count(level: str) -> int:
    life = Life(1, level=level)
    await life.begin()
    plan = life.server.disk.plan = CountingPlan()
    await life.work()
    assert await life.seen() == EXPECTED
    return plan.count


async def check_all_or_nothing(life: Life, where: str) -> None:
    """What a start shows; then the batch once more, as Spark repeats it."""
    seen = await life.seen()
    assert seen == EXPECTED or not (seen or life.is_answered), f"{where}: {seen}"
    await life.work()
    assert await life.seen() == EXPECTED, f"{where}, and once more"
    assert life.staged_files() == [], where
    await life.server.restart(with_power_cut=True)
    assert await life.seen() == EXPECTED, f"{where}, and after another power cut"


@pytest.mark.parametrize(
    ("level", "with_power_cut"),
    [("replicated", False), ("replicated", True), ("persisted", True)],
    ids=["kill", "power cut", "power cut of a synced topic"],
)
async def test_a_crash_at_every_call(level: str, with_power_cut: bool, seed: int) -> None:
    count = await mutation_count(level)
    assert count > 20
    source = random.Random(seed)
    answered_count = 0
    for position in range(1, count + 2):
        life = Life(source.getrandbits(32), level=level)
        await life.begin()
        life.server.disk.plan = FaultPlan().crash_at(position, source.choice(tuple(CrashMoment)))
        with contextlib.suppress(SimulatedCrash):
            await life.work()
        answered_count += life.is_answered
        await life.server.restart(with_power_cut=with_power_cut)
        await check_all_or_nothing(life, f"call {position}")
        life.server.broker.pool.shutdown()
    # The last one is no crash; those before it come when the driver has its answer, and the logs may not be synced.
    assert answered_count >= 5
    print(f"{count + 1} positions, {answered_count} behind the answer")


@pytest.mark.parametrize("level", ["replicated", "persisted"])
async def test_the_power_fails_right_behind_the_answer(level: str, seed: int) -> None:
    """Nothing was done in the background yet: the entry and the parts are all there is."""
    source = random.Random(seed)
    for _ in range(20):
        life = Life(source.getrandbits(32), level=level)
        await life.begin()
        await life.check_shown()
        await life.server.restart(with_power_cut=True)
        await check_all_or_nothing(life, "behind the answer")
        life.server.broker.pool.shutdown()


@pytest.mark.parametrize("level", ["replicated", "persisted"])
async def test_a_crash_in_the_start_that_finishes_a_publish(level: str, seed: int) -> None:
    """The power fails behind the entry that decides; then the start that finishes it dies at each of its calls."""
    source = random.Random(seed)
    position, has_died = 1, True
    while has_died:
        life = Life(source.getrandbits(32), level=level)
        await life.begin()
        parts = await life.stage()
        # The entry is written and synced; the first append to a log is fatal.
        life.server.disk.plan = FaultPlan().crash_at(3, CrashMoment.BEFORE)
        with contextlib.suppress(SimulatedCrash):
            await life.publish(parts)
        life.server.broker.pool.shutdown(cancel_futures=True)
        life.server.disk.power_cut()
        life.server.disk.plan = FaultPlan().crash_at(position)
        has_died = False
        try:
            await life.server.open()
        except SimulatedCrash:
            has_died = True
            await life.server.restart(with_power_cut=source.random() < 0.5)
        assert await life.seen() == EXPECTED, f"call {position} of the start"
        await check_all_or_nothing(life, f"call {position} of the start")
        life.server.broker.pool.shutdown()
        position += 1
    assert position > 8
    print(f"{position - 1} positions")


async def settle_nothing(*_: object) -> None:
    return


async def check_clients_that_go_on_after_a_kill(seed: int) -> int:
    """The server is killed in the middle of staging; tasks finish what they have; the power fails behind the answer."""
    source = random.Random(seed)
    counting = Life(1, level="replicated")
    await counting.begin()
    plan = counting.server.disk.plan = CountingPlan()
    await counting.stage()
    published_count = 0
    # All calls; then the sync of the last part again and again: a power cut has to take its messages from the log as
    # well, before anybody misses it.
    for position in [*range(1, plan.count + 1), *[plan.count - 1] * 20]:
        life = Life(source.getrandbits(32), level="replicated")
        await life.begin()
        life.server.disk.plan = FaultPlan().crash_at(position, CrashMoment.BEFORE)
        with contextlib.suppress(SimulatedCrash):
            await life.stage()
        await life.server.restart(with_power_cut=False)
        try:
            for part, chunks in PARTS.items():
                await life.server.ask(c.FinishStage(c.StagedPartName(SINK, 0, part, life.attempt), len(chunks)))
        except CourserError:
            # Its tasks are run again.
            pass
        else:
            # Nothing is settled before the power fails, however quick the disk threads are.
            with mock.patch.object(Publishing, "_settle_quietly", settle_nothing):
                await life.publish(dict.fromkeys(PARTS, life.attempt))
                published_count += 1
                await life.server.restart(with_power_cut=True)
            assert await life.seen() == EXPECTED, f"call {position}"
        life.server.broker.pool.shutdown()
    return published_count


async def test_parts_that_a_kill_left_unsynced_are_synced_before_they_count(seed: int) -> None:
    assert await check_clients_that_go_on_after_a_kill(seed) >= 2


# --- a disk that fails instead of dying ---


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


async def test_a_stop_settles_what_was_answered() -> None:
    life = Life(1, level="replicated")
    await life.begin()
    await life.work(to_the_end=False)
    assert await life.server.broker.close()
    assert life.staged_files() == []
    await life.server.open()
    assert await life.seen() == EXPECTED
    life.server.broker.pool.shutdown()


# --- what else may happen between the answer and the end ---


async def not_yet(*_: object) -> None:
    return


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
    finish_file = staging._finish_file

    def finish_slowly(writer: StagedFileWriter) -> None:
        has_begun.set()
        may_go_on.wait()
        finish_file(writer)

    monkeypatch.setattr(staging, "_finish_file", finish_slowly)
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


# --- chance ---


class Chance:
    """Batches one after another, with retried tasks, zombies, lost answers, crashes and sends of others between."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.server = FakeServer(self.source.getrandbits(32), ONE_THREAD)
        self.published: Counter[tuple[int, str]] = Counter()
        self.attempt = 0
        self.zombies: list[c.StagedPartName] = []
        self.crash_count = 0

    async def live(self, batch_count: int) -> None:
        await self.server.open()
        await self.server.ask(c.CreateStream("s"))
        level = self.source.choice(["replicated", "persisted"])
        await self.server.add_topic("t", 2, TopicOptions(durability=level))
        for batch in range(batch_count):
            rows = self.draw_rows(batch)
            while not await self.run_batch(batch, rows):
                self.crash_count += 1
            for chunks in rows.values():
                self.published.update(chunks)
            await self.check(f"after batch {batch}")
        await self.server.restart(with_power_cut=True)
        await self.check("at the end")
        self.server.broker.pool.shutdown()

    def draw_rows(self, batch: int) -> dict[int, list[tuple[int, str]]]:
        """What the tasks of a batch produce: the same whenever they are run."""
        draw = self.source.randint
        return {
            part: [(draw(0, 1), f"{batch}/{part}/{number}") for number in range(draw(0, 4))]
            for part in range(draw(1, 3))
        }

    async def run_batch(self, batch: int, rows: dict[int, list[tuple[int, str]]]) -> bool:
        """One try of Spark; False if the server died in it, or the driver did not hear of its success."""
        plan = FaultPlan()
        if self.source.random() < 0.5:
            plan.crash_at(self.source.randint(1, 40))
        self.server.disk.plan = plan
        try:
            parts = {}
            for part, chunks in rows.items():
                if self.source.random() < 0.3:
                    # A speculative task, or one that is run again.
                    await self.stage(batch, part, chunks[: self.source.randint(0, len(chunks))], finish=False)
                if chunks:
                    parts[part] = await self.stage(batch, part, chunks, finish=True)
            await self.haunt()
            await self.server.ask(c.PublishStaged(SINK, batch, tuple(parts.items()), 0))
            if self.source.random() < 0.3:
                # The driver has its answer, and the power fails: at once, or somewhat later.
                if self.source.random() < 0.5:
                    await self.server.broker.publishing.idle()
                await self.server.restart(with_power_cut=True)
                return True
            await self.server.broker.publishing.idle()
            if self.server.disk._crashed:
                # In the background.
                await self.server.restart(with_power_cut=self.source.random() < 0.5)
                return True
        except SimulatedCrash:
            await self.server.restart(with_power_cut=self.source.random() < 0.5)
            return False
        except CourserError as error:
            if self.server.disk._crashed:
                # In a job of the pool, and this is what was made of it.
                await self.server.restart(with_power_cut=self.source.random() < 0.5)
                return False
            if error.code is not ErrorCode.BATCH_ALREADY_PUBLISHED:
                raise
        self.server.disk.plan = FaultPlan()
        return self.source.random() < 0.7

    async def stage(self, batch: int, part: int, chunks: list[tuple[int, str]], *, finish: bool) -> int:
        self.attempt += 1
        name = c.StagedPartName(SINK, batch, part, self.attempt)
        for chunk, (partition, text) in enumerate(chunks):
            message = build_batch([NewMessage(text.encode())])
            await self.server.ask(c.StageMessages(name, chunk, "s", "t", ToPartition(partition), message))
        if finish:
            await self.server.ask(c.FinishStage(name, len(chunks)))
        elif chunks:
            self.zombies.append(name)
        return self.attempt

    async def haunt(self) -> None:
        """A task that Spark gave up goes on, whenever."""
        if self.zombies and self.source.random() < 0.5:
            name = self.source.choice(self.zombies)
            with contextlib.suppress(CourserError):
                batch = build_batch([NewMessage(b"a zombie's")])
                await self.server.ask(c.StageMessages(name, 9, "s", "t", ToPartition(0), batch))
            with contextlib.suppress(CourserError):
                await self.server.ask(c.FinishStage(name, 1))

    async def check(self, when: str) -> None:
        found: Counter[tuple[int, str]] = Counter()
        for partition in range(2):
            found.update((partition, text) for text in (await self.server.read("t", partition)).values())
        assert found == self.published, when


@pytest.mark.parametrize("number", range(6))
async def test_lives_by_chance(number: int, seed: int) -> None:
    chance = Chance(seed + number)
    await chance.live(8)
    print(f"{chance.crash_count} repeated batches")
