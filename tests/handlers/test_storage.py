"""Commands about what is stored: offsets at a time, the check of a segment, the report of the start."""

from pathlib import Path

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.storage.paths import log_path
from tests.handlers.messaging import add_topic, damage, fill_segments, log_of, send
from tests.handlers.scenes import Scene, opened


async def test_offsets_at_a_time(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    await send(scene, "a")
    scene.clock.advance(10)
    await send(scene, "b")
    now = scene.clock.now()
    for timestamp, offsets in ((0, (0, 0)), (now - 5, (1, 0)), (now, (1, 0)), (now + 1, (2, 0))):
        reply = await scene.ask(scene.root, c.GetOffsetsAtTime("s", "t", timestamp))
        assert reply == r.OffsetsAtTime([r.PartitionOffset(number, offset) for number, offset in enumerate(offsets)])


async def verify(scene: Scene, first_offset: int) -> r.VerifiedSegment:
    reply = await scene.ask(scene.root, c.VerifySegment("s", "t", 0, first_offset))
    assert isinstance(reply, r.VerifiedSegment)
    return reply


async def test_a_segment_is_checked_on_request(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "ab")
    await send(scene, "open")
    assert await verify(scene, 0) == r.VerifiedSegment(0, 1, 305, False, [])
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
        assert isinstance(reply, r.StartReport)
        assert (reply.finding_count, reply.findings) == (0, [])
        await add_topic(scene)
        await fill_segments(scene, "ab")
        log = log_of(scene)
        (log.directory / "00000000000000000000.log").rename(log.directory / "elsewhere")
    async with opened(tmp_path) as scene:
        reply = await scene.ask(scene.root, c.GetStartReport())
        assert isinstance(reply, r.StartReport)
        assert reply.last_stop == "clean"
        assert reply.finding_count == len(reply.findings) > 0
        assert reply.findings[0].level == "error"
        assert "recovery case=" in reply.findings[0].text
