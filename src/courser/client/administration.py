"""Commands for streams, topics, partitions, segments and consumer groups."""

from typing import Unpack

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.client.argument_checks import check_names
from courser.client.asking import Asking, place_of
from courser.model.identifiers import Identifier
from courser.model.topic_options import (
    TOPIC_OPTIONS,
    ChangeableTopicSettings,
    TopicOption,
    TopicOptions,
    TopicSettings,
)


def topic_options(settings: ChangeableTopicSettings) -> TopicOptions:
    """The settings in the form of the API.

    Raises:
        ValueError: a text is not a size or duration, or a word is unknown.
    """
    given = ((TOPIC_OPTIONS[name], value) for name, value in settings.items())
    values = {option.field: _value(option, value) for option, value in given}
    return TopicOptions(**values)  # type: ignore[arg-type]  # their types are checked when they are sent


def _value(option: TopicOption, value: object) -> object:
    """A text in the form of the API: "7 days" as a number. Other values are as they are."""
    if not isinstance(value, str):
        return value
    try:
        return option.kind.parse(value)
    except ValueError as error:
        raise ValueError(f"{option.name} must be {error}") from None


class Administration(Asking):
    """Streams, topics and groups. Things are given by id or by name; a topic also as ``"stream/topic"``."""

    # --- streams --------------------------------------------------------------------------------------

    async def create_stream(self, name: str, *, if_not_exists: bool = False) -> r.StreamInfo:
        """Create a stream.

        Args:
            name: 1 to 255 bytes.
            if_not_exists: Return an existing stream of this name instead of raising.

        Raises:
            AlreadyExists: there is a stream of this name, and ``if_not_exists`` is not set.

        Example:
            stream = await client.create_stream("warehouse")
            print(stream.stream_id, stream.name)
        """
        command = c.CreateStream(name)
        if not if_not_exists:
            return await self._ask(command, r.StreamInfo)

        async def find() -> r.StreamInfo:
            return (await self.get_stream(name)).stream

        return await self._ensure(command, r.StreamInfo, find)

    async def get_stream(self, stream: Identifier) -> r.StreamDetails:
        """One stream with its topics."""
        return await self._ask(c.GetStream(stream), r.StreamDetails)

    async def get_streams(self) -> list[r.StreamInfo]:
        """All streams, by id."""
        return (await self._ask(c.GetStreams(), r.StreamList)).streams

    async def update_stream(self, stream: Identifier, name: str) -> None:
        """Rename a stream.

        Raises:
            AlreadyExists: another stream has the new name.
        """
        await self._tell(c.UpdateStream(stream, name))

    async def delete_stream(self, stream: Identifier) -> None:
        """Delete a stream with all its topics and messages."""
        await self._tell(c.DeleteStream(stream))

    async def purge_stream(self, stream: Identifier) -> None:
        """Delete all messages of a stream. Offsets are not reused."""
        await self._tell(c.PurgeStream(stream))

    # --- topics ---------------------------------------------------------------------------------------

    async def create_topic(
        self,
        stream: Identifier,
        name: str | None = None,
        partitions_count: int = 1,
        *,
        if_not_exists: bool = False,
        **settings: Unpack[TopicSettings],
    ) -> r.TopicDetails:
        """Create a topic.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            name: The name of the topic, 1 to 255 bytes.
            partitions_count: How many partitions it gets.
            if_not_exists: Return an existing topic of this name, unchanged, instead of raising.
            settings: The fields of ``TopicSettings``.

        Raises:
            AlreadyExists: there is a topic of this name, and ``if_not_exists`` is not set.
            ValueError: a text is not a size or duration, or a word is unknown.

        Example:
            details = await client.create_topic("shop/returns", partitions_count=4, message_expiry="7 days")
            print(details.topic.topic_id, len(details.partitions))
        """
        place, topic = place_of(stream, name)
        if not isinstance(topic, str):
            raise TypeError(f"the name of a topic must be a str, not {topic!r}")
        check_names("a topic", settings, TOPIC_OPTIONS)
        command = c.CreateTopic(place, topic, partitions_count, topic_options(settings))
        if not if_not_exists:
            return await self._ask(command, r.TopicDetails)
        return await self._ensure(command, r.TopicDetails, lambda: self.get_topic(place, topic))

    async def get_topic(self, stream: Identifier, topic: Identifier | None = None) -> r.TopicDetails:
        """One topic with its partitions.

        Example:
            details = await client.get_topic("shop/orders")
            for partition in details.partitions:
                print(partition.partition_id, partition.message_count)
        """
        return await self._ask(c.GetTopic(*place_of(stream, topic)), r.TopicDetails)

    async def get_topics(self, stream: Identifier) -> list[r.TopicInfo]:
        """All topics of a stream, by id."""
        return (await self._ask(c.GetTopics(stream), r.TopicList)).topics

    async def update_topic(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        name: str | None = None,
        **settings: Unpack[ChangeableTopicSettings],
    ) -> None:
        """Change a topic. Settings that are not given stay unchanged.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            name: A new name.
            settings: The fields of ``ChangeableTopicSettings``.

        Raises:
            AlreadyExists: another topic of the stream has the new name.
            ValueError: a setting cannot be changed, or a text is not a size or duration.

        Example:
            await client.update_topic("shop/orders", message_expiry="30 days", max_topic_size="10 GiB")
        """
        for setting in settings:
            if setting not in TOPIC_OPTIONS or not TOPIC_OPTIONS[setting].is_changeable:
                changeable = ", ".join(option.name for option in TOPIC_OPTIONS.values() if option.is_changeable)
                raise ValueError(f"{setting} cannot be changed after a topic is created; only {changeable} can")
        place = place_of(stream, topic)
        if name is None:
            name = place[1] if isinstance(place[1], str) else (await self.get_topic(*place)).topic.name
        await self._tell(c.UpdateTopic(*place, name, topic_options(settings), is_patch=True))

    async def delete_topic(self, stream: Identifier, topic: Identifier | None = None) -> None:
        """Delete a topic with all its messages."""
        await self._tell(c.DeleteTopic(*place_of(stream, topic)))

    async def purge_topic(self, stream: Identifier, topic: Identifier | None = None) -> None:
        """Delete all messages of a topic. Offsets are not reused."""
        await self._tell(c.PurgeTopic(*place_of(stream, topic)))

    # --- partitions and segments ----------------------------------------------------------------------

    async def create_partitions(
        self, stream: Identifier, topic: Identifier | None = None, partitions_count: int = 1
    ) -> None:
        """Add partitions. From then on, keys may select other partitions."""
        await self._tell(c.CreatePartitions(*place_of(stream, topic), partitions_count))

    async def delete_partitions(
        self, stream: Identifier, topic: Identifier | None = None, partitions_count: int = 1
    ) -> None:
        """Delete the partitions with the highest ids, with their messages.

        Raises:
            InvalidRequest: the topic has fewer partitions.
        """
        await self._tell(c.DeletePartitions(*place_of(stream, topic), partitions_count))

    async def delete_segments(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int = 0,
        segments_count: int = 1,
    ) -> None:
        """Delete the oldest sealed segments of a partition that no stored offset needs."""
        await self._tell(c.DeleteSegments(*place_of(stream, topic), partition_id, segments_count))

    async def get_segments(
        self, stream: Identifier, topic: Identifier | None = None, partition_id: int = 0
    ) -> r.SegmentList:
        """The segments of a partition, oldest first, and their directory.

        Example:
            for segment in (await client.get_segments("shop/orders", partition_id=0)).segments:
                print(segment.first_offset, segment.next_offset, segment.size, segment.is_sealed)
        """
        return await self._ask(c.GetSegments(*place_of(stream, topic), partition_id), r.SegmentList)

    async def get_topic_maintenance(self, stream: Identifier, topic: Identifier | None = None) -> r.TopicMaintenance:
        """What was deleted of a topic since the server started, and why, and which of its messages are damaged."""
        return await self._ask(c.GetTopicMaintenance(*place_of(stream, topic)), r.TopicMaintenance)

    async def get_offsets_at_time(
        self, stream: Identifier, topic: Identifier | None = None, *, timestamp: int
    ) -> o.OffsetsAtTime:
        """For every partition, the offset of the first message that is not older than a time in microseconds."""
        return await self._ask(c.GetOffsetsAtTime(*place_of(stream, topic), timestamp), o.OffsetsAtTime)

    async def get_retention_plan(self, until: int) -> o.RetentionPlan:
        """What the cleaner will have deleted by a time in microseconds, in all topics that this user may view.

        New messages are not foreseen: they may push older ones out of a topic with a limited size.

        Example:
            import time

            plan = await client.get_retention_plan(until=time.time_ns() // 1000 + 24 * 3600 * 1_000_000)
            print(sum(deletion.size for deletion in plan.deletions))
        """
        return await self._ask(c.GetRetentionPlan(until), o.RetentionPlan)

    async def verify_segment(
        self, stream: Identifier, topic: Identifier | None = None, partition_id: int = 0, *, first_offset: int
    ) -> o.VerifiedSegment:
        """Read a sealed segment from end to end and check all of it. The server does one after another.

        Raises:
            NotFound: the stream, topic or partition does not exist, or has no such segment on its disk.
            ServerFailure: the disk cannot be read.

        Example:
            for segment in (await client.get_segments("shop/orders", partition_id=0)).segments:
                if segment.is_sealed and segment.location == "local":
                    await client.verify_segment("shop/orders", first_offset=segment.first_offset)
        """
        command = c.VerifySegment(*place_of(stream, topic), partition_id, first_offset)
        return await self._ask(command, o.VerifiedSegment)

    async def get_topic_durability(self, stream: Identifier, topic: Identifier | None = None) -> r.TopicDurability:
        """The durability level in effect, and what a power cut may lose at ``bounded``."""
        return await self._ask(c.GetTopicDurability(*place_of(stream, topic)), r.TopicDurability)

    async def get_partition_bounds(self, stream: Identifier, topic: Identifier | None = None) -> r.TopicBounds:
        """First and next offset of every partition, with the UUID of the topic.

        Example:
            for bounds in (await client.get_partition_bounds("shop/orders")).partitions:
                print(bounds.partition_id, bounds.first_offset, bounds.next_offset)
        """
        return await self._ask(c.GetPartitionBounds(*place_of(stream, topic)), r.TopicBounds)

    async def flush_messages(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int = 0,
        *,
        fsync: bool = True,
    ) -> None:
        """Return when all messages of a partition are synced to disk.

        Example:
            await client.send_messages("shop/orders", partitioning=0, messages=["important"])
            await client.flush_messages("shop/orders", partition_id=0)
        """
        await self._tell(c.FlushMessages(*place_of(stream, topic), partition_id, fsync))

    # --- consumer groups ------------------------------------------------------------------------------

    async def create_consumer_group(
        self, stream: Identifier, topic: Identifier | None = None, name: str = "", *, if_not_exists: bool = False
    ) -> r.GroupDetails:
        """Create a consumer group.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            name: The name of the group, 1 to 255 bytes.
            if_not_exists: Return an existing group of this name instead of raising.

        Raises:
            AlreadyExists: there is a group of this name, and ``if_not_exists`` is not set.

        Example:
            group = await client.create_consumer_group("shop/orders", name="billing")
            print(group.group.group_id)
        """
        place = place_of(stream, topic)
        command = c.CreateConsumerGroup(*place, name)
        if not if_not_exists:
            return await self._ask(command, r.GroupDetails)
        return await self._ensure(command, r.GroupDetails, lambda: self.get_consumer_group(*place, name))

    async def get_consumer_group(
        self, stream: Identifier, topic: Identifier | None = None, consumer_group: Identifier = ""
    ) -> r.GroupDetails:
        """One group with its members and their partitions.

        Example:
            await client.create_consumer_group("shop/orders", name="billing")
            group = await client.get_consumer_group("shop/orders", consumer_group="billing")
            for member in group.members:
                print(member.member_id, member.partition_ids)
        """
        return await self._ask(c.GetConsumerGroup(*place_of(stream, topic), consumer_group), r.GroupDetails)

    async def get_consumer_groups(self, stream: Identifier, topic: Identifier | None = None) -> list[r.GroupInfo]:
        """All groups of a topic, by id."""
        return (await self._ask(c.GetConsumerGroups(*place_of(stream, topic)), r.GroupList)).groups

    async def get_consumer_group_lag(
        self, stream: Identifier, topic: Identifier | None = None, consumer_group: Identifier = ""
    ) -> list[r.PartitionLag]:
        """How far a group is behind in each partition: messages that it has not committed, and the oldest one's age.

        Example:
            await client.create_consumer_group("shop/orders", name="billing")
            for lag in await client.get_consumer_group_lag("shop/orders", consumer_group="billing"):
                print(lag.partition_id, lag.message_count, lag.age)
        """
        return (await self._ask(c.GetGroupLag(*place_of(stream, topic), consumer_group), r.GroupLag)).partitions

    async def delete_consumer_group(
        self, stream: Identifier, topic: Identifier | None = None, consumer_group: Identifier = ""
    ) -> None:
        """Delete a group and its stored offsets."""
        await self._tell(c.DeleteConsumerGroup(*place_of(stream, topic), consumer_group))

    async def join_consumer_group(
        self, stream: Identifier, topic: Identifier | None = None, consumer_group: Identifier = ""
    ) -> None:
        """Become a member. Polls of this client that name no consumer then read the group's partitions.

        Example:
            await client.create_consumer_group("shop/orders", name="billing")
            await client.join_consumer_group("shop/orders", consumer_group="billing")
            print(await client.poll_messages("shop/orders"))
        """
        await self._tell(c.JoinConsumerGroup(*place_of(stream, topic), consumer_group))

    async def leave_consumer_group(
        self, stream: Identifier, topic: Identifier | None = None, consumer_group: Identifier = ""
    ) -> None:
        """Leave the group.

        Raises:
            NotAssigned: this client is not a member.
        """
        await self._tell(c.LeaveConsumerGroup(*place_of(stream, topic), consumer_group))

    async def sync_consumer_group(
        self, stream: Identifier, topic: Identifier | None = None, consumer_group: Identifier = ""
    ) -> r.Assignment:
        """The partitions assigned to this member.

        Raises:
            NotAssigned: this client is not a member.

        Example:
            await client.create_consumer_group("shop/orders", name="billing")
            await client.join_consumer_group("shop/orders", consumer_group="billing")
            assignment = await client.sync_consumer_group("shop/orders", consumer_group="billing")
            print(assignment.generation, assignment.partition_ids)
        """
        return await self._ask(c.SyncConsumerGroup(*place_of(stream, topic), consumer_group), r.Assignment)
