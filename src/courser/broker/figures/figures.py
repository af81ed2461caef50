"""Sizes, counts and bounds as clients are told them: sums over the open partitions; nothing is kept for them.

Each walk pauses. What it walks over is taken before its first pause: it may change in the meantime.
"""

from collections.abc import Iterable
from pathlib import Path

from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.messages.consuming import current_offset
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic, PartitionRegistry
from courser.broker.partition.peers import Sums, TopicSums
from courser.broker.partition.segment_verification import damage_of
from courser.broker.partition.topic_settings import reported_options
from courser.broker.partition.waiting import Pause, Steps, let_others_run
from courser.broker.upkeep.retention import Retention, SegmentLife
from courser.catalog import entities
from courser.catalog.entities import Stream, Topic
from courser.model.identifiers import TopicAddress
from courser.model.topic_options import TopicOptions
from courser.storage.ledger import SegmentFacts
from courser.storage.segment import Segment, SegmentState


class Figures:
    """Streams, topics, partitions and segments, described."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        retention: Retention,
        topic_defaults: TopicOptions,
        data_directory: Path,
        *,
        pause: Pause = let_others_run,
    ) -> None:
        self._partitions = partitions
        self._retention = retention
        self._topic_defaults = topic_defaults
        self._data_directory = data_directory
        self._pause = pause
        self.remote: Sums = {}
        """The figures of topics that other processes own, as of the last time that they were collected."""

    async def streams(self, streams: Iterable[Stream]) -> list[r.StreamInfo]:
        """Streams, each with the sums over its topics."""
        steps = self._steps()
        return [await self._stream(stream, steps) for stream in streams]

    async def stream(self, stream: Stream) -> r.StreamInfo:
        """A stream, with the sums over its topics."""
        return await self._stream(stream, self._steps())

    async def _stream(self, stream: Stream, steps: Steps) -> r.StreamInfo:
        size = message_count = 0
        for topic in list(stream.topics.values()):
            found = await self._sums(TopicAddress(stream.stream_id, topic.topic_id), steps)
            if found is not None:
                size += found.size
                message_count += found.message_count
        return r.StreamInfo(stream.stream_id, stream.created_at, len(stream.topics), size, message_count, stream.name)

    def _steps(self) -> Steps:
        return Steps(self._pause)

    async def _sums(self, address: TopicAddress, steps: Steps) -> TopicSums | None:
        topic = self._partitions.topics.get(address)
        if topic is not None:
            return await sums_of_topic(topic, steps)
        await steps.take()
        return self.remote.get(address)

    async def sums(self) -> Sums:
        """The figures of all topics that are open here."""
        found: dict[TopicAddress, TopicSums] = {}
        steps = self._steps()
        for key, topic in list(self._partitions.topics.items()):
            found[TopicAddress(*key)] = await sums_of_topic(topic, steps)
        return found

    async def topics(self, stream: Stream) -> list[r.TopicInfo]:
        """The topics of a stream, by id."""
        rows = []
        steps = self._steps()
        for _, topic in sorted(stream.topics.items()):
            rows.append(await self._topic(stream, topic, steps))
        return rows

    async def _topic(self, stream: Stream, topic: Topic, steps: Steps) -> r.TopicInfo:
        """A topic, with the sums over its partitions."""
        return self._info(topic, await self._sums(TopicAddress(stream.stream_id, topic.topic_id), steps))

    def _info(self, topic: Topic, found: TopicSums | None) -> r.TopicInfo:
        explicit, effective = reported_options(topic.options, self._topic_defaults)
        return r.TopicInfo(
            topic.topic_id,
            topic.created_at,
            len(topic.partitions),
            found.size if found is not None else 0,
            found.message_count if found is not None else 0,
            topic.name,
            explicit,
            effective,
        )

    def new_topic_details(self, topic: Topic) -> r.TopicDetails:
        """A topic that was just created, and its partitions. Iggy counts no segments then."""
        return r.TopicDetails(self._info(topic, None), [_partition(partition, None) for partition in topic.partitions])

    async def topic_details(self, stream: Stream, topic: Topic) -> r.TopicDetails:
        """A topic and its partitions."""
        opened = self._partitions.topics.get(TopicAddress(stream.stream_id, topic.topic_id))
        partitions = list(topic.partitions)
        at_work: list[Partition | None] = list(opened.partitions) if opened is not None else []
        # Partitions that are being created are in the catalog first.
        at_work += [None] * (len(partitions) - len(at_work))
        rows, steps = [], self._steps()
        info = await self._topic(stream, topic, steps)
        for partition, found in zip(partitions, at_work, strict=True):
            await steps.take()
            rows.append(_partition(partition, found))
        return r.TopicDetails(info, rows)

    async def bounds(self, address: TopicAddress, topic_uuid: bytes) -> r.TopicBounds:
        """What can be read of each partition now. Raises ``PartitionOffline`` if one of them cannot be read."""
        rows, steps = [], self._steps()
        for partition in list(self._partitions.at(address).partitions):
            await steps.take()
            rows.append(await _bounds(partition, steps))
        return r.TopicBounds(*address, topic_uuid, rows)

    async def offsets_at_time(self, address: TopicAddress, timestamp: int) -> o.OffsetsAtTime:
        """Where each partition is read from, from a time on. Raises ``CourserError`` if the disk cannot be read."""
        rows, steps = [], self._steps()
        for partition in list(self._partitions.at(address).partitions):
            await steps.take()
            offset = await partition.reader.offset_at_time(timestamp)
            rows.append(o.PartitionOffset(partition.log.identity.partition_id, offset))
        return o.OffsetsAtTime(rows)

    async def segments(self, address: TopicAddress, partition_id: int) -> r.SegmentList:
        """The segments of a partition, oldest first. Raises 3007."""
        topic = self._partitions.at(address)
        log = topic.partition(partition_id).log
        directory = log.directory.relative_to(self._data_directory)
        archive, steps = self._retention.guard, self._steps()
        # As they are before the first pause: what is deleted here meanwhile is in one of the two lists.
        remote, local = () if archive is None else archive.remote_segments(log), log.segments
        rows = []
        for facts in remote:
            await steps.take()
            rows.append(_remote_segment(facts))
        for segment in local:
            await steps.take()
            rows.append(_segment(segment, self._retention.life_of(topic, log, segment)))
        return r.SegmentList(partition_id, str(directory), rows)

    async def maintenance(self, address: TopicAddress) -> r.TopicMaintenance:
        """What was deleted from a topic since the start, and what is damaged in it."""
        topic = self._partitions.at(address)
        damages: list[r.Damage] = []
        steps = self._steps()
        for partition in list(topic.partitions):
            for segment in partition.log.segments:
                await steps.take()
                damages += (damage_of(partition.log, damage) for damage in segment.damages)
        return r.TopicMaintenance(list(topic.deletions), damages)


async def sums_of_topic(topic: OpenTopic, steps: Steps) -> TopicSums:
    """The figures of an open topic."""
    size = message_count = segment_count = 0
    for partition in list(topic.partitions):
        await steps.take()
        log = partition.log
        size += log.size
        message_count += log.message_count
        # An empty partition has no file yet; the segment that its first message creates counts.
        segment_count += max(len(log.segments), 1)
    return TopicSums(size, message_count, segment_count)


def _partition(partition: entities.Partition, found: Partition | None) -> r.PartitionInfo:
    """A partition; None if it is not open yet."""
    if found is None:
        return r.PartitionInfo(partition.partition_id, partition.created_at, 0, 0, 0, 0, partition.incarnation)
    log = found.log
    return r.PartitionInfo(
        partition.partition_id,
        partition.created_at,
        # The one that takes the next message counts, even if it has no file yet.
        len(log.segments) + (log.open_segment is None),
        current_offset(found),
        log.size,
        log.message_count,
        partition.incarnation,
    )


async def _bounds(partition: Partition, steps: Steps) -> r.PartitionBounds:
    log = partition.log
    # The bounds of an empty partition would make a reader of the whole topic skip it silently.
    log.check_readable()
    start_offset, end_offset = partition.reader.start_offset, max(log.visible_end, log.start_offset)
    size, message_count = log.size, log.message_count
    for piece in () if partition.reader.past is None else partition.reader.past.pieces(log):
        await steps.take()
        size += piece.size
        message_count += piece.message_count
    return r.PartitionBounds(log.identity.partition_id, start_offset, end_offset, size, message_count)


def _segment(segment: Segment, life: SegmentLife) -> r.SegmentInfo:
    return r.SegmentInfo(
        segment.base_offset,
        segment.end_offset,
        segment.size,
        segment.message_count,
        segment.first_timestamp,
        segment.last_timestamp,
        segment.state is SegmentState.SEALED,
        life.value,
        r.LOCAL,
    )


def _remote_segment(facts: SegmentFacts) -> r.SegmentInfo:
    return r.SegmentInfo(
        facts.base_offset,
        facts.end_offset,
        facts.size,
        facts.message_count,
        facts.first_timestamp,
        facts.last_timestamp,
        True,
        SegmentLife.ARCHIVED.value,
        r.REMOTE,
    )
