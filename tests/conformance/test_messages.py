"""Sends and polls: whatever carried a message, others read the same."""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, Partitioning, PollingKind, ToPartition
from courser.records.batch import NewMessage, build_batch
from courser.records.message_keys import key_header
from courser.records.user_headers import HeaderKind, UserHeader, build_user_headers
from tests.conformance.callers import BINARY, Caller
from tests.conformance.conftest import USUAL_OPTIONS
from tests.conformance.serving import Served
from tests.handlers.messaging import messages_of

pytestmark = pytest.mark.asyncio(loop_scope="package")

NOW = 1_700_000_000_000_000
ME = Consumer(ConsumerKind.CONSUMER, 7)
HEADERS = build_user_headers(
    [
        UserHeader(b"text", "ü".encode(), value_kind=HeaderKind.STRING),
        UserHeader(b"raw", b"\x00\xff", value_kind=HeaderKind.RAW),
        UserHeader(b"flag", b"\x01", value_kind=HeaderKind.BOOL),
        UserHeader(b"number", (-7).to_bytes(8, "little", signed=True), value_kind=HeaderKind.INT64),
        UserHeader(b"large", (2**128 - 1).to_bytes(16, "little"), value_kind=HeaderKind.UINT128),
    ]
)


def send(topic: str, *messages: NewMessage | bytes, to: Partitioning | int = 0) -> c.SendMessages:
    new = [NewMessage(message, origin_timestamp=NOW) if isinstance(message, bytes) else message for message in messages]
    return c.SendMessages(topic, topic, ToPartition(to) if isinstance(to, int) else to, [build_batch(new)])


def poll(
    topic: str,
    kind: PollingKind = PollingKind.FIRST,
    value: int = 0,
    *,
    count: int = 100,
    partition: int = 0,
    commit: bool = False,
) -> c.PollMessages:
    return c.PollMessages(ME, topic, topic, partition, kind, value, count, commit)


async def payloads(caller: Caller, command: c.PollMessages) -> list[bytes]:
    return [message.payload for message in messages_of(await caller.get(r.Polled, command))]


async def test_messages_arrive_as_they_were_sent(root: Caller, witness: Caller, topic: str) -> None:
    given = [
        NewMessage(b"with a small id", 1),
        NewMessage(b"with the largest id", 2**128 - 1),
        NewMessage(b"with headers", 2**53 + 1, user_headers=HEADERS),
        NewMessage(bytes(range(256)) * 4000, 7),
    ]
    await root.ask(send(topic, *given))
    found = messages_of(await root.get(r.Polled, poll(topic)))
    assert [(message.message_id, message.payload, message.user_headers) for message in found] == [
        (message.message_id, message.payload, message.user_headers) for message in given
    ]
    assert [message.offset for message in found] == [0, 1, 2, 3]
    # Byte by byte as another transport sees them, with times and ids.
    assert found == messages_of(await witness.get(r.Polled, poll(topic)))


async def test_messages_of_others_are_read(root: Caller, witness: Caller, topic: str) -> None:
    await witness.ask(send(topic, NewMessage(b"x", 5, NOW + 7, HEADERS), b"y"))
    found = messages_of(await root.get(r.Polled, poll(topic)))
    assert found == messages_of(await witness.get(r.Polled, poll(topic)))
    assert found[0].user_headers == HEADERS


@pytest.mark.parametrize("transport", ["tcp-0.8", "http"], indirect=True)
async def test_an_id_that_is_missing_is_drawn(root: Caller, topic: str) -> None:
    await root.ask(send(topic, b"one", b"two"))
    one, two = (message.message_id for message in messages_of(await root.get(r.Polled, poll(topic))))
    assert len({0, one, two}) == 3


async def test_a_batch_of_a_thousand(root: Caller, topic: str) -> None:
    texts = [b"message %d" % number for number in range(1000)]
    await root.ask(send(topic, *texts))
    assert await payloads(root, poll(topic, count=2000)) == texts


async def test_every_partitioning(root: Caller, topic: str) -> None:
    async def where(payload: bytes) -> int:
        (partition,) = [index for index in range(2) if payload in await payloads(root, poll(topic, partition=index))]
        return partition

    await root.ask(send(topic, b"named", to=1))
    assert await where(b"named") == 1
    for payload in (b"first", b"second"):
        await root.ask(send(topic, payload, to=Balanced()))
    assert {await where(b"first"), await where(b"second")} == {0, 1}
    for key, partition in ((b"a", 0), (b"b", 1), (b"c", 1), (bytes([0, 255]), 0)):
        await root.ask(send(topic, b"of " + key, to=ByKey(key)))
        await root.ask(send(topic, b"again " + key, to=ByKey(key)))
        assert {await where(b"of " + key), await where(b"again " + key)} == {partition}


async def test_every_strategy(root: Caller, topic: str) -> None:
    for text in (b"0", b"1", b"2", b"3", b"4"):
        await root.ask(send(topic, text))
    times = [message.timestamp for message in messages_of(await root.get(r.Polled, poll(topic)))]
    assert await payloads(root, poll(topic, PollingKind.FIRST, count=2)) == [b"0", b"1"]
    assert await payloads(root, poll(topic, PollingKind.LAST, count=2)) == [b"3", b"4"]
    assert await payloads(root, poll(topic, PollingKind.OFFSET, 3)) == [b"3", b"4"]
    assert await payloads(root, poll(topic, PollingKind.OFFSET, 5)) == []
    at_or_after = [b"%d" % index for index, time in enumerate(times) if time >= times[2]]
    assert await payloads(root, poll(topic, PollingKind.TIMESTAMP, times[2])) == at_or_after
    assert await payloads(root, poll(topic, PollingKind.TIMESTAMP, times[4] + 10_000_000)) == []
    assert await payloads(root, poll(topic, PollingKind.NEXT, count=3)) == [b"0", b"1", b"2"]
    polled = await root.get(r.Polled, poll(topic, count=1))
    assert (polled.partition_id, polled.current_offset, polled.message_count) == (0, 4, 1)


async def test_auto_commit_moves_the_next_poll(root: Caller, topic: str) -> None:
    await root.ask(send(topic, b"0", b"1", b"2"))
    following = poll(topic, PollingKind.NEXT, count=2, commit=True)
    assert await payloads(root, following) == [b"0", b"1"]
    assert await payloads(root, following) == [b"2"]
    assert await payloads(root, following) == []


async def test_offsets_are_stored_and_forgotten(root: Caller, witness: Caller, topic: str) -> None:
    await root.ask(send(topic, b"0", b"1", b"2"))
    stored = c.GetConsumerOffset(ME, topic, topic, 0)
    assert await root.is_missing(stored)
    await root.ask(c.StoreConsumerOffset(ME, topic, topic, 0, 1))
    assert await root.get(r.StoredOffset, stored) == r.StoredOffset(0, 2, 1)
    assert await witness.get(r.StoredOffset, stored) == r.StoredOffset(0, 2, 1)
    assert await payloads(root, poll(topic, PollingKind.NEXT)) == [b"2"]
    too_far = c.StoreConsumerOffset(ME, topic, topic, 0, 99)
    assert await root.refusal(too_far) is ErrorCode.INVALID_OFFSET
    await root.ask(c.DeleteConsumerOffset(ME, topic, topic, 0))
    assert await root.is_missing(stored)
    again = c.DeleteConsumerOffset(ME, topic, topic, 0)
    assert await root.refusal(again) is ErrorCode.CONSUMER_OFFSET_NOT_FOUND


async def test_a_consumer_may_have_a_name(root: Caller, topic: str) -> None:
    await root.ask(send(topic, b"0"))
    named = Consumer(ConsumerKind.CONSUMER, "by name/ü")
    await root.ask(c.StoreConsumerOffset(named, topic, topic, 0, 0))
    stored = await root.get(r.StoredOffset, c.GetConsumerOffset(named, topic, topic, 0))
    assert stored.stored_offset == 0
    await root.ask(c.DeleteConsumerOffset(named, topic, topic, 0))
    assert await root.is_missing(c.GetConsumerOffset(named, topic, topic, 0))


@pytest.mark.parametrize("transport", BINARY, indirect=True)
async def test_members_of_a_group_read_their_partitions(root: Caller, topic: str) -> None:
    await root.ask(c.CreateConsumerGroup(topic, topic, "readers"))
    await root.ask(send(topic, b"in 0"))
    await root.ask(send(topic, b"in 1", to=1))
    group = Consumer(ConsumerKind.GROUP, "readers")
    await root.ask(c.JoinConsumerGroup(topic, topic, "readers"))
    # SDK 0.9 names one of its partitions; for others the server takes them in turn.
    polls = [c.PollMessages(group, topic, topic, partition, PollingKind.NEXT, 0, 10, True) for partition in (0, 1)]
    assert sorted([payload for command in polls for payload in await payloads(root, command)]) == [b"in 0", b"in 1"]
    assert [await payloads(root, command) for command in polls] == [[], []]


async def test_purges_and_flushes(root: Caller, topic: str) -> None:
    if not root.has(c.PurgeTopic, c.PurgeStream, c.FlushMessages):
        return  # tests/wire/test_vsr_0_12.py shows how SDK 0.10 is refused.
    await root.ask(send(topic, b"0"))
    await root.ask(c.FlushMessages(topic, topic, 0, True))
    await root.ask(c.PurgeTopic(topic, topic))
    assert await payloads(root, poll(topic)) == []
    await root.ask(send(topic, b"1"))
    await root.ask(c.PurgeStream(topic))
    assert await payloads(root, poll(topic)) == []


async def test_what_is_not_there(root: Caller, topic: str) -> None:
    assert await root.refusal(send("nowhere", b"x")) is ErrorCode.STREAM_NOT_FOUND
    nowhere = c.SendMessages(topic, "nowhere", Balanced(), [build_batch([NewMessage(b"x")])])
    assert await root.refusal(nowhere) is ErrorCode.TOPIC_NOT_FOUND
    assert await root.refusal(send(topic, b"x", to=9)) is ErrorCode.PARTITION_NOT_FOUND
    assert await root.refusal(poll("nowhere")) is ErrorCode.STREAM_NOT_FOUND
    assert await root.refusal(poll(topic, partition=9)) is ErrorCode.PARTITION_NOT_FOUND
    if root.has(c.FlushMessages):
        assert await root.refusal(c.FlushMessages(topic, topic, 9, False)) is ErrorCode.PARTITION_NOT_FOUND


async def test_polls_pass_over_messages_that_were_removed_by_key(server: Served, root: Caller, name: str) -> None:
    await root.ask(c.CreateStream(name))
    details = await root.get(r.TopicDetails, c.CreateTopic(name, name, 1, USUAL_OPTIONS))
    state = server.broker.catalog.state
    stream_id = state.stream_by_name[name]
    partition = server.broker.partitions.topics[stream_id, details.topic.topic_id].partition(0)
    for number in range(3):
        keys = [build_user_headers([key_header(key)]) for key in (b"a", b"b")]
        await root.ask(send(name, *(NewMessage(b"%d" % number, 0, NOW, block) for block in keys), b"end"))
        await partition.roll()
    await server.broker.condenser.condense(partition)
    expected = [2, 3, 4, 5, 6, 7, 8]
    for kind, value in (
        (PollingKind.FIRST, 0),
        (PollingKind.OFFSET, 0),
        (PollingKind.OFFSET, 1),
        (PollingKind.LAST, 0),
    ):
        reply = await root.get(r.Polled, poll(name, kind, value))
        assert ([message.offset for message in messages_of(reply)], reply.current_offset) == (expected, 8)
    assert [m.offset for m in messages_of(await root.get(r.Polled, poll(name, PollingKind.LAST, count=7)))] == expected
    seen = []
    while found := messages_of(await root.get(r.Polled, poll(name, PollingKind.NEXT, count=2, commit=True))):
        seen += [message.offset for message in found]
    assert seen == expected
