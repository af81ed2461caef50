"""Commands about what is stored: offsets at a time, the check of a segment, the start, what will be deleted."""

from pathlib import Path

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.errors import ErrorCode
from courser.storage.paths import log_path
from tests.handlers.messaging import add_topic, damage, fill_segments, log_of, send
from tests.handlers.permission_table import permissions_of
from tests.handlers.scenes import Scene, opened

HOUR = 3600 * 1_000_000


async def test_offsets_at_a_time(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a")
    scene.clock.advance(10)
    await send(scene, "b")
    now = scene.clock.now()
    for timestamp, offsets in ((0, (0, 0)), (now - 5, (1, 0)), (now, (1, 0)), (now + 1, (2, 0))):
        reply = await scene.ask(scene.root, c.GetOffsetsAtTime("s", "t", timestamp))
        assert reply == o.OffsetsAtTime([o.PartitionOffset(number, offset) for number, offset in enumerate(offsets)])


async def verify(scene: Scene, first_offset: int) -> o.VerifiedSegment:
    reply = await scene.ask(scene.root, c.VerifySegment("s", "t", 0, first_offset))
    assert isinstance(reply, o.VerifiedSegment)
    return reply


async def test_a_segment_is_checked_on_request(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "ab")
    await send(scene, "open")
    assert await verify(scene, 0) == o.VerifiedSegment(0, 1, 305, False, [])
    damage(log_path(log_of(scene).directory, 1))
    (found,) = (await verify(scene, 1)).damages
    assert (found.segment_offset, found.first_offset, found.next_offset) == (1, 1, 2)
    reply = await scene.ask(scene.root, c.GetTopicMaintenance("s", "t"))
    assert isinstance(reply, r.TopicMaintenance)
    assert reply.damages == [found]
    for missing in (2, 7):
        assert await scene.refusal(scene.root, c.VerifySegment("s", "t", 0, missing)) is ErrorCode.RESOURCE_NOT_FOUND
    assert await scene.refusal(scene.root, c.VerifySegment("s", "t", 9, 0)) is ErrorCode.PARTITION_NOT_FOUND


async def test_the_report_of_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        reply = await scene.ask(scene.root, c.GetStartReport())
        assert isinstance(reply, o.StartReport)
        assert (reply.finding_count, reply.findings) == (0, [])
        await add_topic(scene)
        await fill_segments(scene, "ab")
        log = log_of(scene)
        (log.directory / "00000000000000000000.log").rename(log.directory / "elsewhere")
    async with opened(tmp_path) as scene:
        reply = await scene.ask(scene.root, c.GetStartReport())
        assert isinstance(reply, o.StartReport)
        assert reply.last_stop == "clean"
        assert reply.finding_count == len(reply.findings) > 0
        assert reply.findings[0].level == "error"
        assert "recovery case=" in reply.findings[0].text


# --- retention ---


async def plan(scene: Scene, until: int, session: Session | None = None) -> o.RetentionPlan:
    reply = await scene.ask(session or scene.root, c.GetRetentionPlan(until))
    assert isinstance(reply, o.RetentionPlan)
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
