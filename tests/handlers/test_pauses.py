"""Figures of many partitions, segments and parts: others have their turns meanwhile. Counted in turns, not timed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import Command
from courser.broker.figures.message_counts import MessageCounts
from courser.broker.messages.consuming import group_key
from courser.broker.partition.partition_reader import Past
from courser.broker.partition.waiting import Steps
from courser.errors import PartitionOffline
from courser.model.messaging import ToPartition
from courser.records.batch import NewMessage, build_batch
from courser.storage.ledger import SegmentFacts
from tests.handlers.messaging import add_topic, fill_segments, log_of, open_topic, partition_of, send
from tests.handlers.scenes import Scene

if TYPE_CHECKING:
    from courser.storage.partition_log import PartitionLog

MANY = 1000
AT_ONCE = 200
"""What may be looked at without a pause, at most."""


async def turns_of(scene: Scene, command: Command) -> int:
    """How often others had their turn while a command was carried out."""
    work, count = asyncio.ensure_future(scene.ask(scene.root, command)), 0
    while not work.done():
        count += 1
        await asyncio.sleep(0)
    await work
    return count


@contextmanager
def with_many_partitions(scene: Scene) -> Iterator[None]:
    """The topic has a thousand partitions; in fact they are always the same."""
    opened = open_topic(scene)
    topic = scene.broker.catalog.state.topic(opened.stream_id, opened.topic_id)
    assert topic is not None
    partitions, known = list(opened.partitions), list(topic.partitions)
    opened.partitions *= MANY // len(partitions)
    topic.partitions *= MANY // len(known)
    try:
        yield
    finally:
        opened.partitions[:], topic.partitions[:] = partitions, known


@pytest.mark.parametrize(
    "command",
    [
        c.GetTopic("s", "t"),
        c.GetTopics("s"),
        c.GetStream("s"),
        c.GetStreams(),
        c.GetTopicMaintenance("s", "t"),
        c.GetPartitionBounds("s", "t"),
        c.GetOffsetsAtTime("s", "t", 2**60),
        c.GetTopicFigures(),
        c.GetGroupLag("s", "t", "g"),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_walk_over_the_partitions_of_one_topic_pauses(scene: Scene, command: Command) -> None:
    await add_topic(scene, partition_count=2)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await fill_segments(scene, "a")
    with with_many_partitions(scene):
        assert await turns_of(scene, command) >= MANY // AT_ONCE


async def test_the_figures_of_the_server_pause(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    count = 0
    with with_many_partitions(scene):
        work = asyncio.ensure_future(scene.broker.figures.sums())
        while not work.done():
            count += 1
            await asyncio.sleep(0)
    assert count >= MANY // AT_ONCE
    assert [sums.segment_count for sums in work.result().values()] == [MANY]


@pytest.mark.parametrize("command", [c.GetSegments("s", "t", 0), c.GetTopicMaintenance("s", "t")])
async def test_a_walk_over_the_segments_of_one_partition_pauses(scene: Scene, command: Command) -> None:
    await add_topic(scene)
    await fill_segments(scene, "a")
    log = log_of(scene)
    before = log.segments
    log.segments = before * MANY
    try:
        assert await turns_of(scene, command) >= MANY // AT_ONCE
    finally:
        log.segments = before


async def test_a_walk_over_what_only_the_archive_has_pauses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_topic(scene)
    guard = ArchiveOfMany()
    monkeypatch.setattr(scene.broker.retention, "guard", guard)
    assert await turns_of(scene, c.GetSegments("s", "t", 0)) >= MANY // AT_ONCE


class ArchiveOfMany:
    """Has many segments that the server does not have."""

    def remote_segments(self, _: "PartitionLog") -> Iterator[SegmentFacts]:
        return (SegmentFacts(number, number + 1, 1, 1, 1, 1, 1) for number in range(MANY))


@pytest.mark.parametrize("command", [c.GetSink("sink"), c.GetSinks(), c.GetStagedParts("sink")])
async def test_a_walk_over_staged_parts_pauses(scene: Scene, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_topic(scene)
    batch = build_batch([NewMessage(b"a")])
    await scene.ask(scene.root, c.StageMessages(c.StagedPartName("sink", 0, 0, 1), 0, "s", "t", ToPartition(0), batch))
    table = scene.broker.staging._parts
    parts = list(table.all()) * MANY
    monkeypatch.setattr(table, "all", lambda: parts)
    monkeypatch.setattr(table, "of_sink", lambda *_: parts)
    assert await turns_of(scene, command) >= MANY // AT_ONCE


# --- lag ---


class Looks:
    """Counts what is looked at."""

    def __init__(self) -> None:
        self.count = 0
        self.steps = Steps(self._note, 1)

    async def _note(self) -> None:
        self.count += 1


async def test_the_messages_behind_many_groups_are_added_up_once(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abcdef")
    await send(scene, "open", "open too")
    partition, looks = partition_of(scene), Looks()
    counts = MessageCounts(looks.steps)
    assert [await counts.count_from(partition, offset) for offset in range(10)] == [
        partition.reader.count_from(offset) for offset in range(10)
    ]
    assert looks.count < len(log_of(scene).segments)
    # A group that is at the end asks about one segment.
    looks = Looks()
    assert await MessageCounts(looks.steps).count_from(partition, 7) == 1
    assert looks.count == 0


@dataclass
class FakePiece:
    """Of the archive."""

    first_offset: int
    end_offset: int
    message_count: int


class FakePast:
    """An archive that has what is below offset 4; or that cannot be reached."""

    def __init__(self, *pieces: FakePiece, is_gone: bool = False) -> None:
        self._pieces, self._is_gone = pieces, is_gone

    def pieces(self, _: "PartitionLog", offset: int = 0) -> tuple[FakePiece, ...]:
        if self._is_gone:
            raise PartitionOffline(Path("archive"), "the archive is gone")
        return tuple(piece for piece in self._pieces if piece.end_offset > offset)


async def test_the_messages_of_the_archive_count_as_well(scene: Scene) -> None:
    await add_topic(scene)
    await fill_segments(scene, "abcdefg")
    partition = partition_of(scene)
    await scene.broker.retention.delete_segments(scene.broker.finder.address(scene.root, c.GetTopic("s", "t")), 0, 4)
    assert log_of(scene).start_offset == 4
    try:
        # One message of the second piece is superseded.
        partition.reader.past = cast("Past", FakePast(FakePiece(0, 2, 2), FakePiece(2, 4, 1)))
        counts = MessageCounts(Steps())
        assert [await counts.count_from(partition, offset) for offset in range(8)] == [6, 5, 4, 4, 3, 2, 1, 0]
        partition.reader.past = cast("Past", FakePast(is_gone=True))
        assert await MessageCounts(Steps()).count_from(partition, 4) == 3
    finally:
        partition.reader.past = None


async def test_the_lag_in_lists_is_that_of_the_group_that_is_furthest_behind(scene: Scene) -> None:
    await add_topic(scene, partition_count=2)
    for name in ("g", "h"):
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", name))
    await fill_segments(scene, "abcd")
    await fill_segments(scene, "ef", 1)
    for group_id, offset in ((1, 0), (2, 2)):
        await partition_of(scene).store_offset(group_key(group_id), offset)
    found = (await scene.broker.operating.topic_figures.read()).topics
    lags = [await scene.ask(scene.root, c.GetGroupLag("s", "t", name)) for name in ("g", "h")]
    sums = [sum(row.message_count or 0 for row in lag.partitions) for lag in lags if isinstance(lag, r.GroupLag)]
    assert [row.lag for row in found] == [max(sums)]
