"""Streams, topics, partitions and groups."""

import msgspec
import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.messaging import Transport
from courser.model.topic_options import TopicOptions
from tests.conformance.callers import BINARY, Caller
from tests.conformance.conftest import USUAL_OPTIONS, Connect
from tests.conformance.serving import Served

pytestmark = pytest.mark.asyncio(loop_scope="package")

DAY = 24 * 3600 * 1_000_000
GIB = 1 << 30
NOWHERE = "nowhere"


async def test_a_stream_from_beginning_to_end(root: Caller, name: str) -> None:
    made = await root.get(r.StreamInfo, c.CreateStream(name))
    assert (made.name, made.topic_count, made.size, made.message_count) == (name, 0, 0, 0)
    for identifier in (name, made.stream_id):
        assert await root.get(r.StreamDetails, c.GetStream(identifier)) == r.StreamDetails(made, [])
    assert made in (await root.get(r.StreamList, c.GetStreams())).streams
    assert await root.refusal(c.CreateStream(name)) is ErrorCode.STREAM_NAME_ALREADY_EXISTS

    renamed = f"{name} (ü/%?)"
    await root.ask(c.UpdateStream(name, renamed))
    assert (await root.get(r.StreamDetails, c.GetStream(renamed))).stream.stream_id == made.stream_id
    assert await root.is_missing(c.GetStream(name))

    await root.ask(c.DeleteStream(renamed))
    assert await root.is_missing(c.GetStream(made.stream_id))
    assert await root.refusal(c.DeleteStream(renamed)) is ErrorCode.STREAM_NOT_FOUND
    assert await root.refusal(c.UpdateStream(NOWHERE, name)) is ErrorCode.STREAM_NOT_FOUND
    if root.has(c.PurgeStream):
        assert await root.refusal(c.PurgeStream(NOWHERE)) is ErrorCode.STREAM_NOT_FOUND


async def test_names_have_bounds(root: Caller, topic: str) -> None:
    # 0.9 and 0.10 refuse the frame, the others the name.
    refusals = (
        ErrorCode.INVALID_FORMAT,
        ErrorCode.INVALID_COMMAND,
        ErrorCode.INVALID_STREAM_NAME,
        ErrorCode.INVALID_TOPIC_NAME,
    )
    assert await root.refusal(c.CreateStream("")) in refusals
    assert await root.refusal(c.CreateTopic(topic, "", 1, USUAL_OPTIONS)) in refusals
    longest = f"{topic}-{'x' * 254}"[:255]
    await root.ask(c.CreateStream(longest))
    assert not await root.is_missing(c.GetStream(longest))


async def test_a_topic_from_beginning_to_end(root: Caller, topic: str) -> None:
    options = TopicOptions(compression=1, message_expiry=DAY, max_topic_size=2 * GIB, replication_factor=1)
    made = await root.get(r.TopicDetails, c.CreateTopic(topic, "second", 3, options))
    assert (made.topic.name, made.topic.partition_count, made.topic.message_count) == ("second", 3, 0)
    assert (made.topic.effective.message_expiry, made.topic.effective.max_topic_size) == (DAY, 2 * GIB)
    assert [partition.partition_id for partition in made.partitions] == [0, 1, 2]
    for identifier in ("second", made.topic.topic_id):
        assert (await root.get(r.TopicDetails, c.GetTopic(topic, identifier))).topic == made.topic
    listed = (await root.get(r.TopicList, c.GetTopics(topic))).topics
    assert [found.name for found in listed] == [topic, "second"]
    assert (await root.get(r.StreamDetails, c.GetStream(topic))).topics == listed
    again = c.CreateTopic(topic, "second", 1, USUAL_OPTIONS)
    assert await root.refusal(again) is ErrorCode.TOPIC_NAME_ALREADY_EXISTS

    changed = msgspec.structs.replace(options, message_expiry=2 * DAY, max_topic_size=3 * GIB)
    await root.ask(c.UpdateTopic(topic, "second", "renamed", changed, is_patch=False))
    found = (await root.get(r.TopicDetails, c.GetTopic(topic, "renamed"))).topic
    assert (found.effective.message_expiry, found.effective.max_topic_size) == (2 * DAY, 3 * GIB)

    await root.ask(c.DeleteTopic(topic, "renamed"))
    assert await root.is_missing(c.GetTopic(topic, "renamed"))
    assert await root.refusal(c.DeleteTopic(topic, "renamed")) is ErrorCode.TOPIC_NOT_FOUND
    assert await root.refusal(c.DeleteTopic(NOWHERE, topic)) is ErrorCode.STREAM_NOT_FOUND


async def test_partitions_come_and_go(root: Caller, topic: str) -> None:
    async def count() -> int:
        return (await root.get(r.TopicDetails, c.GetTopic(topic, topic))).topic.partition_count

    await root.ask(c.CreatePartitions(topic, topic, 3))
    assert await count() == 5
    await root.ask(c.DeletePartitions(topic, topic, 4))
    assert await count() == 1
    assert await root.refusal(c.CreatePartitions(topic, NOWHERE, 1)) is ErrorCode.TOPIC_NOT_FOUND
    assert await root.refusal(c.CreatePartitions(topic, topic, 0)) is ErrorCode.TOO_MANY_PARTITIONS
    await root.ask(c.DeleteSegments(topic, topic, 0, 1))
    assert await root.refusal(c.DeleteSegments(topic, topic, 9, 1)) is ErrorCode.PARTITION_NOT_FOUND


async def test_a_group_from_beginning_to_end(root: Caller, topic: str) -> None:
    made = await root.get(r.GroupDetails, c.CreateConsumerGroup(topic, topic, "readers"))
    assert (made.group.name, made.group.partition_count, made.members) == ("readers", 2, [])
    for identifier in ("readers", made.group.group_id):
        assert await root.get(r.GroupDetails, c.GetConsumerGroup(topic, topic, identifier)) == made
    assert (await root.get(r.GroupList, c.GetConsumerGroups(topic, topic))).groups == [made.group]
    again = c.CreateConsumerGroup(topic, topic, "readers")
    assert await root.refusal(again) is ErrorCode.GROUP_NAME_ALREADY_EXISTS
    await root.ask(c.DeleteConsumerGroup(topic, topic, "readers"))
    assert (await root.get(r.GroupList, c.GetConsumerGroups(topic, topic))).groups == []
    assert await root.refusal(c.DeleteConsumerGroup(topic, topic, "readers")) is ErrorCode.GROUP_NOT_FOUND


@pytest.mark.parametrize("transport", BINARY, indirect=True)
async def test_members_share_the_partitions_and_leave_with_their_connection(
    root: Caller, witness: Caller, connect: Connect, topic: str
) -> None:
    async def shares() -> list[tuple[int, ...]]:
        details = await witness.get(r.GroupDetails, c.GetConsumerGroup(topic, topic, "readers"))
        return sorted(member.partition_ids for member in details.members)

    await root.ask(c.CreateConsumerGroup(topic, topic, "readers"))
    await root.ask(c.JoinConsumerGroup(topic, topic, "readers"))
    assert await shares() == [(0, 1)]
    async with connect() as other:
        await other.login()
        await other.ask(c.JoinConsumerGroup(topic, topic, "readers"))
        assert await shares() == [(0,), (1,)]
        await other.ask(c.LeaveConsumerGroup(topic, topic, "readers"))
        assert await shares() == [(0, 1)]
        assert await other.refusal(c.JoinConsumerGroup(topic, topic, NOWHERE)) is ErrorCode.GROUP_NOT_FOUND
        await other.ask(c.JoinConsumerGroup(topic, topic, "readers"))
    while await shares() != [(0, 1)]:
        pass


async def test_the_ports_of_all_transports_are_told(root: Caller, server: Served) -> None:
    (node,) = (await root.get(r.ClusterMetadata, c.GetClusterMetadata())).nodes
    assert node == server.broker.node
    assert node.quic_port == server.addresses[Transport.QUIC].port


@pytest.mark.parametrize("transport", BINARY, indirect=True)
async def test_a_connection_knows_its_transport(root: Caller, transport: str) -> None:
    me = (await root.get(r.ClientDetails, c.GetMe())).client
    kind = {"websocket": Transport.WEBSOCKET, "quic": Transport.QUIC}.get(transport.partition("-")[0], Transport.TCP)
    assert (me.transport, me.user_id) == (kind, 0)
    assert me in (await root.get(r.ClientList, c.GetClients())).clients
    assert (await root.get(r.ClientDetails, c.GetClient(me.client_id))).client == me


async def test_what_the_server_says_of_itself(root: Caller) -> None:
    await root.ask(c.Ping())
    assert await root.ask(c.GetStats()) is not None
    assert (await root.get(r.SnapshotArchive, c.GetSnapshot(1, (4,)))).data.startswith(b"PK")
