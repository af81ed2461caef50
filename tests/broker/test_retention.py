"""Retention: the plan from facts alone, and the cleaner that carries it out."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import DELETION_COUNT_MAX
from courser.broker.partition.waiting import Steps
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.broker.upkeep.retention import (
    DeletionReason,
    Limits,
    RetainedSegment,
    Retention,
    Roll,
    Step,
    Trim,
    plan,
    retained_segments,
)
from courser.errors import ErrorCode, PartitionReadOnly
from courser.model.messaging import PollingKind
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.storage.ledger import SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment
from tests.fakes.clocks import ManualClock
from tests.handlers.messaging import (
    ME,
    add_topic,
    fill_segments,
    log_of,
    open_topic,
    partition_of,
    poll_command,
    send,
    send_command,
    texts,
)
from tests.handlers.scenes import Scene, opened

MIB = 1024 * 1024
HOUR = 3600 * 1_000_000
TEN_YEARS = 10 * 365 * 24 * HOUR


def segment(number: int, first: int, last: int, *, size: int = 10, sealed: bool = True) -> RetainedSegment:
    """The n-th segment of its partition, with ten messages."""
    return RetainedSegment(10 * (number + 1), size, first, last, sealed)


# --- the plan ---


def test_without_limits_everything_stays() -> None:
    assert plan([[segment(0, 0, 1)]], Limits(), now=10**9) == []


def test_segments_go_when_their_newest_message_has_expired() -> None:
    segments = [segment(0, 0, 10), segment(1, 11, 20), segment(2, 21, 30)]
    for now, expected in ((109, []), (110, [10]), (119, [10]), (120, [20]), (500, [30])):
        steps: list[Step] = [Trim(0, offset, DeletionReason.EXPIRED) for offset in expected]
        assert plan([segments], Limits(expiry=100), now) == steps


def test_each_partition_expires_by_itself() -> None:
    partitions = [[segment(0, 0, 10)], [], [segment(0, 50, 60), segment(1, 61, 70)]]
    expected = [Trim(0, 10, DeletionReason.EXPIRED), Trim(2, 10, DeletionReason.EXPIRED)]
    assert plan(partitions, Limits(expiry=100), now=165) == expected


def test_an_expired_segment_behind_one_that_is_not_stays() -> None:
    # A clock that jumped: messages go from the beginning of the log, never out of its middle.
    assert plan([[segment(0, 0, 500), segment(1, 1, 2)]], Limits(expiry=100), now=200) == []


def test_an_open_segment_is_rolled_when_its_oldest_message_has_expired() -> None:
    open_segment = segment(0, 0, 90, sealed=False)
    assert plan([[open_segment]], Limits(expiry=100), now=99) == []
    assert plan([[open_segment]], Limits(expiry=100), now=100) == [Roll(0)]


def test_over_the_limit_the_segment_with_the_oldest_message_goes_whichever_partition_it_is_in() -> None:
    partitions = [[segment(0, 5, 6), segment(1, 30, 31)], [segment(0, 1, 2), segment(1, 10, 11)]]
    assert plan(partitions, Limits(size=40), now=0) == []
    assert plan(partitions, Limits(size=39), now=0) == [Trim(1, 10, DeletionReason.SIZE)]
    assert plan(partitions, Limits(size=11), now=0) == [
        Trim(1, 10, DeletionReason.SIZE),
        Trim(0, 10, DeletionReason.SIZE),
        Trim(1, 20, DeletionReason.SIZE),
    ]


def test_with_nothing_sealed_the_open_segment_with_the_oldest_message_is_rolled() -> None:
    partitions = [[segment(0, 5, 6, sealed=False)], [segment(0, 1, 9, sealed=False)]]
    assert plan(partitions, Limits(size=15), now=0) == [Roll(1)]


def test_what_expired_counts_no_more_against_the_limit() -> None:
    segments = [segment(0, 0, 10), segment(1, 100, 110), segment(2, 120, 130, sealed=False)]
    assert plan([segments], Limits(expiry=50, size=20), now=120) == [Trim(0, 10, DeletionReason.EXPIRED)]


_segments = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20), st.integers(1, 50)), max_size=5).map(
    lambda rows: [
        segment(
            number,
            sum(row[0] for row in rows[: number + 1]),
            sum(row[0] for row in rows[: number + 1]) + last,
            size=size,
        )
        for number, (_, last, size) in enumerate(rows)
    ]
)


@given(st.lists(_segments, max_size=4), st.integers(0, 200), st.integers(0, 600))
def test_the_plan_keeps_to_the_limits_and_deletes_no_more_than_needed(
    partitions: list[list[RetainedSegment]], size_max: int, now: int
) -> None:
    steps = plan(partitions, Limits(expiry=100, size=size_max), now)
    starts = dict.fromkeys(range(len(partitions)), 0)
    for step in steps:
        assert isinstance(step, Trim), "all are sealed"
        assert step.before_offset > starts[step.partition_id]
        starts[step.partition_id] = step.before_offset
    kept = [[s for s in segments if s.end_offset > starts[number]] for number, segments in enumerate(partitions)]
    total = sum(s.size for segments in kept for s in segments)
    assert total <= size_max
    assert all(segments[0].last_timestamp > now - 100 for segments in kept if segments)
    last_by_size = next((step for step in reversed(steps) if step.reason is DeletionReason.SIZE), None)  # type: ignore[union-attr]
    if last_by_size is not None:
        assert isinstance(last_by_size, Trim)
        gone = next(s for s in partitions[last_by_size.partition_id] if s.end_offset == last_by_size.before_offset)
        assert total + gone.size > size_max


# --- the cleaner ---


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(tmp_path) as scene:
        yield scene


async def kept(scene: Scene, partition_id: int = 0) -> list[str]:
    return await texts(scene, poll_command(PollingKind.FIRST, partition=partition_id))


async def test_expired_segments_are_deleted_logged_and_counted(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await add_topic(scene, message_expiry=2 * HOUR)
    for text in "abc":
        await fill_segments(scene, text)
        scene.clock.advance(HOUR)
    await scene.broker.retention.clean_all()
    assert await kept(scene) == ["c"]
    counters = scene.broker.retention.counters
    assert counters.segment_count == {DeletionReason.EXPIRED: 2}
    assert counters.message_count == {DeletionReason.EXPIRED: 2}
    assert counters.size == {DeletionReason.EXPIRED: 2 * 305}
    assert "reason=expired stream=0 topic=0 partition=0 segments=2 messages=2 size=610" in caplog.text


async def test_a_walk_over_many_segments_lets_others_run(scene: Scene) -> None:
    """Neither the partitions of a topic nor the segments of a partition are looked at in one go."""
    await add_topic(scene, partition_count=3, message_expiry=2 * HOUR)
    for partition_id in range(3):
        await fill_segments(scene, "abcd", partition_id)
    pauses: list[int] = []

    async def pause() -> None:
        pauses.append(1)

    partitions = next(iter(scene.broker.partitions)).partitions
    listed = await retained_segments(partitions, 0, Steps(pause, count_max=2))
    assert [[segment.end_offset for segment in segments] for segments in listed] == [[1, 2, 3, 4]] * 3
    assert len(pauses) == 5, "before each two segments but the first two"


async def test_the_cleaner_and_the_relief_of_the_disk_pause(scene: Scene) -> None:
    await add_topic(scene, partition_count=300, message_expiry=2 * HOUR)
    pauses: list[int] = []

    async def pause() -> None:
        pauses.append(1)

    retention = Retention(scene.broker.partitions, BrokerSettings(cleaner_enabled=False), scene.clock, pause)
    await retention.clean_all()
    assert pauses, "the limits of the topic"
    pauses.clear()
    retention.guard = Archive(1)
    await retention.relieve(1)
    assert pauses, "the oldest segment of all"


async def test_what_is_deleted_while_the_cleaner_pauses_does_not_stop_it(scene: Scene) -> None:
    await add_topic(scene, partition_count=300, message_expiry=HOUR)
    await fill_segments(scene, "a")
    scene.clock.advance(2 * HOUR)

    async def pause() -> None:
        if scene.broker.catalog.state.stream_by_name:
            await scene.ask(scene.root, c.DeleteStream("s"))

    retention = Retention(scene.broker.partitions, BrokerSettings(), scene.clock, pause)
    await retention.clean_all()
    assert not list(scene.broker.partitions)


async def test_a_dead_consumer_keeps_nothing(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "a")
    await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 0))
    await fill_segments(scene, "b")
    scene.clock.advance(2 * HOUR)
    await scene.broker.retention.clean_all()
    assert await kept(scene) == []
    assert (await send(scene, "c")).base_offset == 2


async def test_a_slow_topic_expires_too(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await send(scene, "lonely")
    scene.clock.advance(HOUR - 1)
    await scene.broker.retention.clean_all()
    assert await kept(scene) == ["lonely"]
    scene.clock.advance(1)
    await scene.broker.retention.clean_all()
    assert await kept(scene) == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_messages_of_a_clock_that_was_years_ahead_expire_and_so_do_later_ones(
    tmp_path: Path, restarts: bool
) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as scene:
        await add_topic(scene, message_expiry=2 * HOUR)
        clock.jump(TEN_YEARS)
        await fill_segments(scene, "x")
        if not restarts:
            clock.jump(-TEN_YEARS)
            await _expire_in_turn(scene)
    if restarts:
        clock.jump(-TEN_YEARS)
        async with opened(tmp_path, clock=clock) as scene:
            await _expire_in_turn(scene)


async def _expire_in_turn(scene: Scene) -> None:
    retention = scene.broker.retention
    scene.clock.advance(HOUR)
    await send(scene, "after")
    await retention.clean_all()
    assert await kept(scene) == ["x", "after"]
    scene.clock.advance(HOUR)
    await retention.clean_all()
    assert await kept(scene) == ["after"]
    scene.clock.advance(HOUR)
    await retention.clean_all()
    assert await kept(scene) == []


async def test_a_clock_set_forward_expires_nothing_for_an_hour(scene: Scene) -> None:
    """Long enough to put it right. What is old by the monotonic clock expires all the same."""
    retention = scene.broker.retention
    await add_topic(scene, message_expiry=2 * HOUR)
    await fill_segments(scene, "a")
    scene.clock.advance(HOUR)
    await fill_segments(scene, "b")
    scene.clock.jump(TEN_YEARS)
    await retention.clean_all()
    assert await kept(scene) == ["a", "b"]
    scene.clock.advance(HOUR - 1)
    await retention.clean_all()
    assert await kept(scene) == ["a", "b"]
    scene.clock.advance(1)
    await retention.clean_all()
    assert await kept(scene) == ["b"]


async def test_after_the_hour_a_clock_set_forward_is_believed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as scene:
        await add_topic(scene, message_expiry=2 * HOUR)
        await fill_segments(scene, "a")
    async with opened(tmp_path, clock=clock) as scene:
        clock.jump(TEN_YEARS)
        await scene.broker.retention.clean_all()
        assert await kept(scene) == ["a"]
        clock.advance(HOUR)
        await scene.broker.retention.clean_all()
        assert await kept(scene) == []


async def test_messages_of_a_clock_that_was_behind_live_as_long_as_others(scene: Scene) -> None:
    """A machine came up with a clock of last year, and its time daemon put it right."""
    retention = scene.broker.retention
    scene.clock.jump(-TEN_YEARS // 10)
    await add_topic(scene, message_expiry=2 * HOUR)
    await fill_segments(scene, "a")
    scene.clock.jump(TEN_YEARS // 10)
    scene.clock.advance(2 * HOUR - 1)
    await retention.clean_all()
    assert await kept(scene) == ["a"]
    scene.clock.advance(1)
    await retention.clean_all()
    assert await kept(scene) == []


async def test_a_topic_is_kept_below_its_limit_oldest_messages_first(scene: Scene) -> None:
    await add_topic(scene, partition_count=2, max_topic_size=16 * MIB)
    for number in range(5):
        scene.clock.advance(1)
        await fill_segments(scene, [str(number) + "x" * 4 * MIB], number % 2)
    await scene.broker.retention.clean_all()
    assert open_topic(scene).size <= 16 * MIB
    # Of 0 to 4, dealt to both in turn, 0 and 1 went.
    assert [log_of(scene, number).start_offset for number in range(2)] == [1, 1]


async def test_at_the_limit_with_nothing_sealed_the_oldest_open_segment_goes(scene: Scene) -> None:
    await add_topic(scene, partition_count=2, max_topic_size=16 * MIB)
    await send(scene, "old" + "x" * 9 * MIB, to=1)
    scene.clock.advance(1)
    await send(scene, "new" + "x" * 9 * MIB, to=0)
    await scene.broker.retention.clean_all()
    assert await kept(scene, 1) == []
    assert len(await kept(scene, 0)) == 1
    assert scene.broker.retention.counters.segment_count == {DeletionReason.SIZE: 1}


@pytest.mark.parametrize(
    ("own_options", "starts"), [({}, [1, 2]), ({"message_expiry": NEVER, "max_topic_size": NEVER}, [0, 0])]
)
async def test_what_the_server_sets_holds_for_topics_that_do_not_say_otherwise(
    tmp_path: Path, own_options: dict[str, int], starts: list[int]
) -> None:
    defaults = replace(USUAL_TOPIC_OPTIONS, message_expiry=HOUR, max_topic_size=16 * MIB)
    async with opened(tmp_path, BrokerSettings(topic_defaults=defaults)) as scene:
        await add_topic(scene, **own_options)
        await fill_segments(scene, ["x" * 9 * MIB, "x" * 9 * MIB])
        found = []
        for passed in (0, 2 * HOUR):
            scene.clock.advance(passed)
            await scene.broker.retention.clean_all()
            found.append(log_of(scene).start_offset)
        assert found == starts


async def test_a_limit_that_comes_down_holds_for_the_next_send(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(delete_oldest_segments=False)) as scene:
        await add_topic(scene, max_topic_size=100 * MIB)
        await send(scene, "x" * 15 * MIB)
        lower = c.UpdateTopic("s", "t", "t", TopicOptions(max_topic_size=16 * MIB), is_patch=True)
        await scene.ask(scene.root, lower)
        assert await scene.refusal(scene.root, send_command("x" * 2 * MIB)) is ErrorCode.TOPIC_FULL


async def test_nothing_is_deleted_by_size_if_that_is_not_wanted(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(delete_oldest_segments=False)) as scene:
        await add_topic(scene, max_topic_size=16 * MIB)
        await fill_segments(scene, ["x" * 9 * MIB, "x" * 6 * MIB])
        # The limit may come down later; still nothing goes.
        open_topic(scene).size_limit = 10 * MIB
        await scene.broker.retention.clean_all()
        assert log_of(scene).start_offset == 0


async def test_a_partition_that_takes_no_writes_does_not_stop_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path, is_clean=False) as scene:
        await add_topic(scene, partition_count=2, message_expiry=HOUR)
        await fill_segments(scene, "a", 0)
        await fill_segments(scene, "b", 1)
        log_of(scene, 0).fail("broken")
        scene.clock.advance(2 * HOUR)
        await scene.broker.retention.clean_all()
        assert await kept(scene, 0) == ["a"]
        assert await kept(scene, 1) == []


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_topic_that_is_deleted_meanwhile_is_no_trouble_and_a_disk_that_refuses_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_deleted: bool
) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "a")
    scene.clock.advance(2 * HOUR)

    async def trim(partition: Partition, _before_offset: int) -> None:
        if is_deleted:
            await scene.ask(scene.root, c.DeleteTopic("s", "t"))
        raise PartitionReadOnly(partition.log.directory, "for some reason")

    monkeypatch.setattr(Partition, "trim", trim)
    await scene.broker.retention.clean_all()
    assert ("retention stopped" in caplog.text) is not is_deleted


async def test_the_cleaner_runs_at_its_interval(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(cleaner_interval=1000)) as scene:
        await add_topic(scene, message_expiry=HOUR)
        await fill_segments(scene, "a")
        scene.clock.advance(2 * HOUR)
        cleaner = asyncio.ensure_future(scene.broker.retention.run())
        async with asyncio.timeout(30):
            while log_of(scene).segments:  # noqa: ASYNC110 - the cleaner runs beside it
                await asyncio.sleep(0)
        cleaner.cancel()


@pytest.mark.parametrize("ends_by", ["cleaning", "the end of the cleaner"])
async def test_far_beyond_the_limit_a_send_waits_for_the_cleaner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    """A disk that deletes more slowly than producers send would fill up."""
    await add_topic(scene, max_topic_size=16 * MIB)
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    seal = Partition.seal

    async def slow_seal(partition: Partition) -> None:
        begun.set()
        await may_go_on.wait()
        await seal(partition)

    monkeypatch.setattr(Partition, "seal", slow_seal)
    cleaner = asyncio.ensure_future(scene.broker.retention.run())
    await asyncio.sleep(0)
    for _ in range(2):
        await send(scene, "x" * 9 * MIB)
    async with asyncio.timeout(30):
        await begun.wait()
    assert open_topic(scene).size < 20 * MIB, "a little more than the limit is taken without a wait"
    await send(scene, "x" * 9 * MIB)
    waiting = asyncio.ensure_future(send(scene, "x" * 9 * MIB))
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    if ends_by == "cleaning":
        may_go_on.set()
    else:
        cleaner.cancel()
    async with asyncio.timeout(30):
        assert (await waiting).base_offset == 3
    cleaner.cancel()
    if ends_by == "cleaning":
        assert log_of(scene).start_offset == 2, "room was made first"


async def test_without_a_cleaner_no_send_waits_for_it(scene: Scene) -> None:
    await add_topic(scene, max_topic_size=16 * MIB)
    for number in range(4):
        assert (await send(scene, "x" * 9 * MIB)).base_offset == number


async def test_what_expired_before_a_restart_goes_after_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, message_expiry=HOUR)
        await send(scene, "a")
    async with opened(tmp_path) as scene:
        scene.clock.advance(2 * HOUR)
        await scene.broker.retention.clean_all()
        assert await kept(scene) == []
        assert (await send(scene, "b")).base_offset == 1


# --- every limit, by every source, for sealed and open segments ---


_EXPIRES, _OVERFLOWS = {"message_expiry": HOUR}, {"max_topic_size": 16 * MIB}
_NO_LIMITS = {"message_expiry": NEVER, "max_topic_size": NEVER}


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "active"])
@pytest.mark.parametrize("source", ["topic", "default", "topic over default"])
@pytest.mark.parametrize(
    ("limits", "reasons"),
    [
        ({}, []),
        (_EXPIRES, ["expired"]),
        (_OVERFLOWS, ["size"]),
        ({**_EXPIRES, **_OVERFLOWS}, ["size", "expired"]),
    ],
    ids=["none", "time", "size", "both"],
)
async def test_the_retention_matrix(
    tmp_path: Path, limits: dict[str, int], reasons: list[str], source: str, is_sealed: bool
) -> None:
    """Two messages, for a size limit too large together; then time passes. A dead consumer changes nothing."""
    stricter = {"message_expiry": 1, "max_topic_size": 1} if source == "topic over default" else {}
    defaults = replace(USUAL_TOPIC_OPTIONS, **(limits if source == "default" else stricter))
    own = {} if source == "default" else {**_NO_LIMITS, **limits}
    async with opened(tmp_path, BrokerSettings(topic_defaults=defaults)) as scene:
        await add_topic(scene, **own)
        size = 9 * MIB if "max_topic_size" in limits else 1
        await send(scene, "a" * size)
        await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 0))
        scene.clock.advance(1)
        await partition_of(scene, 0).roll()
        await send(scene, "b" * size)
        if is_sealed:
            await partition_of(scene, 0).roll()
        for passed in (0, 2 * HOUR):
            scene.clock.advance(passed)
            await scene.broker.retention.clean_all()
        found = [deletion.reason for deletion in (await maintenance(scene)).deletions]
        # An open segment that has expired is rolled first, and goes a moment later.
        assert list(dict.fromkeys(found)) == reasons
        left = {"": 2, "size": 1}.get("".join(reasons), 0)
        assert sum(segment.message_count for segment in log_of(scene).segments) == left


async def maintenance(scene: Scene) -> r.TopicMaintenance:
    reply = await scene.ask(scene.root, c.GetTopicMaintenance("s", "t"))
    assert isinstance(reply, r.TopicMaintenance)
    return reply


async def test_deletions_are_remembered_with_time_reason_and_range_up_to_a_limit(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "ab")
    scene.clock.advance(2 * HOUR)
    await scene.broker.retention.clean_all()
    expired_at = scene.clock.now()
    await fill_segments(scene, "cd")
    await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 1))
    scene.clock.advance(1)
    await scene.ask(scene.root, c.PurgeTopic("s", "t"))
    assert (await maintenance(scene)).deletions == [
        r.Deletion(expired_at, "expired", 0, 0, 2, 2, 2, 610),
        r.Deletion(expired_at, "requested", 0, 2, 3, 1, 1, 305),
        r.Deletion(expired_at + 1, "purged", 0, 3, 4, 1, 1, 305),
    ]
    for _ in range(DELETION_COUNT_MAX):
        await fill_segments(scene, "x")
        await scene.ask(scene.root, c.DeleteSegments("s", "t", 0, 1))
    assert {deletion.reason for deletion in (await maintenance(scene)).deletions} == {"requested"}


# --- what the archive has ---


class Archive:
    """Has confirmed the segments below an offset."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset

    def is_archived(self, _log: PartitionLog, segment: Segment) -> bool:
        return segment.end_offset <= self.end_offset

    def remote_segments(self, _log: PartitionLog) -> list[SegmentFacts]:
        return []

    def deletable_end(
        self, _log: PartitionLog, before_offset: int, *, is_expiry: bool = False, is_request: bool = False
    ) -> int:
        assert not (is_expiry and is_request)
        return min(before_offset, self.end_offset)


async def lives(scene: Scene) -> list[str]:
    reply = await scene.ask(scene.root, c.GetSegments("s", "t", 0))
    assert isinstance(reply, r.SegmentList)
    assert {segment.location for segment in reply.segments} == {"local"}
    return [segment.state for segment in reply.segments]


async def test_segments_are_listed_with_their_state(scene: Scene) -> None:
    await add_topic(scene, message_expiry=2 * HOUR)
    await fill_segments(scene, "ab")
    scene.clock.advance(HOUR)
    await fill_segments(scene, "c")
    await send(scene, "d")
    assert await lives(scene) == ["rolled", "rolled", "rolled", "active"]
    scene.clock.advance(HOUR)
    assert await lives(scene) == ["expired", "expired", "rolled", "active"]
    scene.broker.retention.guard = Archive(1)
    assert await lives(scene) == ["archived", "expired", "rolled", "active"]


async def test_what_the_archive_does_not_have_stays_though_it_has_expired(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "abc")
    scene.clock.advance(2 * HOUR)
    scene.broker.retention.guard = Archive(1)
    await scene.broker.retention.clean_all()
    assert await kept(scene) == ["b", "c"]


async def test_pressure_deletes_archived_segments_oldest_first_and_nothing_else(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    for text in "abcd":
        scene.clock.advance(1)
        await fill_segments(scene, text, "abcd".index(text) % 2)
    retention = scene.broker.retention
    await retention.relieve(1)
    assert [await kept(scene, number) for number in range(2)] == [["a", "c"], ["b", "d"]], "there is no archive"
    retention.guard = Archive(1)
    await retention.relieve(305)
    assert [await kept(scene, number) for number in range(2)] == [["c"], ["b", "d"]]
    await retention.relieve(10**9)
    assert [await kept(scene, number) for number in range(2)] == [["c"], ["d"]]
    assert [deletion.reason for deletion in (await maintenance(scene)).deletions] == ["pressure"] * 2


@pytest.mark.parametrize("cleaner_enabled", [True, False])
async def test_pressure_first_applies_the_limits_of_topics(tmp_path: Path, cleaner_enabled: bool) -> None:
    async with opened(tmp_path, BrokerSettings(cleaner_enabled=cleaner_enabled)) as scene:
        await add_topic(scene, message_expiry=HOUR)
        await fill_segments(scene, "a")
        scene.clock.advance(2 * HOUR)
        await fill_segments(scene, "b")
        await scene.broker.retention.relieve(1)
        assert await kept(scene) == (["b"] if cleaner_enabled else ["a", "b"])


async def test_the_disk_and_the_cleaner_delete_nothing_twice(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "abc")
    scene.clock.advance(2 * HOUR)
    await asyncio.gather(scene.broker.retention.clean_all(), scene.broker.retention.relieve(10**9))
    assert sum(scene.broker.retention.counters.segment_count.values()) == 3
