"""What will be deleted by a time: the plan of the cleaner, ahead of time."""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.retention import Limits, RetainedSegment
from courser.broker.retention_forecast import foresee
from courser.broker.sessions import Session
from tests.handlers.messaging import add_topic, fill_segments, send
from tests.handlers.permission_table import permissions_of
from tests.handlers.scenes import Scene

HOUR = 3600 * 1_000_000


def segment(end_offset: int, first: int, last: int, *, is_sealed: bool = True, size: int = 100) -> RetainedSegment:
    return RetainedSegment(end_offset, size, first, last, is_sealed)


SEGMENTS = [segment(10, 0, 10), segment(20, 11, 20), segment(30, 21, 30, is_sealed=False)]


def foreseen(limits: Limits, until: int, *partitions: list[RetainedSegment]) -> list[tuple[int, str, list[int], int]]:
    return [
        (row.partition_id, row.reason.value, [one.end_offset for one in row.segments], row.due_at)
        for row in foresee(partitions, limits, 0, until)
    ]


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (109, []),
        (110, [(0, "expired", [10], 110)]),
        (120, [(0, "expired", [10, 20], 110)]),
        (129, [(0, "expired", [10, 20], 110)]),
        # The open segment is rolled when its first message expires, and goes when its last one does.
        (130, [(0, "expired", [10, 20], 110), (0, "expired", [30], 130)]),
    ],
)
def test_segments_go_when_their_newest_message_expires(until: int, expected: object) -> None:
    assert foreseen(Limits(expiry=100), until, SEGMENTS) == expected


def test_what_is_above_the_size_is_due_now() -> None:
    assert foreseen(Limits(size=250), 0, SEGMENTS) == [(0, "size", [10], 0)]
    assert foreseen(Limits(size=50), 0, SEGMENTS) == [
        (0, "size", [10], 0),
        (0, "size", [20], 0),
        (0, "size", [30], 0),
    ]


def test_the_oldest_messages_of_all_partitions_go_first() -> None:
    other = [segment(5, 5, 6), segment(9, 40, 41)]
    assert foreseen(Limits(size=300), 0, SEGMENTS, other) == [(0, "size", [10], 0), (1, "size", [5], 0)]


async def plan(scene: Scene, until: int, session: Session | None = None) -> r.RetentionPlan:
    reply = await scene.ask(session or scene.root, c.GetRetentionPlan(until))
    assert isinstance(reply, r.RetentionPlan)
    return reply


async def test_the_plan_says_what_the_cleaner_then_does(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "ab")
    began = scene.clock.now()
    await send(scene, "open")
    assert (await plan(scene, began + HOUR - 1)).deletions == []
    (row,) = (await plan(scene, began + HOUR)).deletions
    assert row.segment_count == 3
    assert (row.reason, row.first_offset, row.next_offset, row.message_count) == ("expired", 0, 3, 3)
    assert row.due_at == began + HOUR
    assert not row.is_archived
    scene.clock.advance(HOUR)
    await scene.broker.retention.clean_all()
    (deleted,) = [*{deletion.reason for deletion in scene.broker.partitions.topics[0, 0].deletions}]
    assert deleted == "expired"
    assert (await plan(scene, began + 2 * HOUR)).deletions == []


async def test_topics_that_a_user_may_not_view_are_left_out(scene: Scene) -> None:
    await add_topic(scene, message_expiry=HOUR)
    await fill_segments(scene, "ab")
    until = scene.clock.now() + HOUR
    users = [
        await scene.add_user(f"user-of-{grant}", permissions_of(grant))
        for grant in ("everywhere.send_messages", "topic.read_topic")
    ]
    stranger, viewer = (scene.connect(user.user_id) for user in users)
    assert (await plan(scene, until, stranger)).deletions == []
    assert len((await plan(scene, until, viewer)).deletions) == 1
