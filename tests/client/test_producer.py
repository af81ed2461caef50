"""Producers of both kinds: batches, order, keys, bounds, failures, and connections that break."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import xxhash

from courser.api import commands as c
from courser.client.connection import Connection
from courser.client.messages import Message, PollingStrategy, SendMessage
from courser.client.producer import ProducerSettings, Receipt
from courser.errors import ClientClosed, ConnectionFailed, ErrorCode, InvalidBatch, NotDelivered, NotFound, Uncertain
from courser.model.permissions import GlobalPermissions, Permissions
from tests.client.twins import Twins

PLACE = "demo/orders"


async def everything(client: Any, partitions: int = 3) -> list[list[Message]]:
    """All messages, by partition."""
    first = PollingStrategy.First()
    return [
        await client.poll_messages(PLACE, None, partition_id, first, 2**32 - 1, size_max=2**26, auto_commit=False)
        for partition_id in range(partitions)
    ]


def texts(messages: list[Message]) -> list[str]:
    return [message.text() for message in messages]


class Sends:
    """Counts the sends that travel, and can break connections at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.before: Callable[[int, Connection], None] | None = None
        """Called with the number of the send, before it is written."""
        self.after: Callable[[int, Connection], None] | None = None
        begin = Connection.begin

        def watched(connection: Connection, command: c.Command) -> Any:
            if not isinstance(command, c.SendMessages):
                return begin(connection, command)
            number = len(self.sizes)
            self.sizes.append(command.batches[0].count)
            if self.before is not None:
                self.before(number, connection)
            answer = begin(connection, command)
            if self.after is not None:
                self.after(number, connection)
            return answer

        monkeypatch.setattr(Connection, "begin", watched)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Sends:
    return Sends(monkeypatch)


# --- batches ------------------------------------------------------------------------------------------


async def test_messages_are_sent_at_the_end_at_the_latest(client: Any) -> None:
    async with client.producer(PLACE, partitioning=0, linger=60) as producer:
        for number in range(10):
            await producer.send({"n": number})
    assert producer.message_count == 10
    assert [message.json()["n"] for message in (await everything(client))[0]] == list(range(10))


async def test_messages_travel_together(client: Any, sends: Sends) -> None:
    async with client.producer(PLACE, partitioning=0, batch_count=100, linger=60) as producer:
        for number in range(250):
            await producer.send(str(number))
    assert sends.sizes == [100, 100, 50]
    assert texts((await everything(client))[0]) == [str(number) for number in range(250)]


async def test_a_batch_has_a_byte_limit(client: Any, sends: Sends) -> None:
    async with client.producer(PLACE, partitioning=0, batch_size=10_000, linger=60) as producer:
        for _ in range(20):
            await producer.send(b"x" * 2_000)
        await producer.send(b"y" * 50_000)
        await producer.send(b"z")
    assert sends.sizes == [4, 4, 4, 4, 4, 1, 1]


async def test_a_message_waits_for_company_no_longer_than_it_should(client: Any) -> None:
    producer = client.producer(PLACE, partitioning=0, linger=0.001)
    ticket = await producer.send("alone")
    assert await ticket.acknowledged() == Receipt(0, 0)
    assert await producer.send_and_wait("again") == Receipt(0, 1)
    await producer.close()


async def test_receipts_say_where_each_message_is(client: Any) -> None:
    async with client.producer(PLACE, partitioning=1, batch_count=3) as producer:
        tickets = [await producer.send(str(number)) for number in range(7)]
        receipts = [await ticket.acknowledged() for ticket in tickets]
    assert receipts == [Receipt(1, number) for number in range(7)]


async def test_batches_go_to_the_partitions_in_turn(client: Any) -> None:
    async with client.producer(PLACE, batch_count=10, linger=60) as producer:
        for number in range(60):
            await producer.send(str(number))
    assert [len(messages) for messages in await everything(client)] == [20, 20, 20]


async def test_messages_of_a_key_stay_together_and_in_order(client: Any, sends: Sends) -> None:
    keys = [f"customer-{number}" for number in range(10)]
    async with client.producer(PLACE, linger=60) as producer:
        for number in range(100):
            await producer.send(str(number), key=keys[number % 10], headers={"h": number})
    assert len(sends.sizes) == 3
    for partition_id, messages in enumerate(await everything(client)):
        assert [int(message.text()) for message in messages] == sorted(int(message.text()) for message in messages)
        for message in messages:
            key = keys[int(message.text()) % 10].encode()
            assert (message.key, message.headers) == (key, {"h": int(message.text())})
            assert xxhash.xxh32_intdigest(key) % 3 == partition_id


async def test_a_message_can_name_its_partition(client: Any) -> None:
    async with client.producer(PLACE, partitioning=0) as producer:
        await producer.send("there", partition=2, key="k")
        await producer.send("here")
    assert [texts(messages) for messages in await everything(client)] == [["here"], [], ["there"]]


async def test_many_at_once(client: Any) -> None:
    async with client.producer(PLACE, partitioning=0) as producer:
        await producer.send_many(["a", SendMessage("b", id=5, key="k"), {"c": 1}])
        await producer.flush()
        assert producer.message_count == 3
    messages = (await everything(client))[0] + (await everything(client))[1] + (await everything(client))[2]
    assert {message.text() for message in messages} == {"a", "b", '{"c":1}'}
    assert {message.id for message in messages if message.key == b"k"} == {5}


async def test_many_at_once_are_as_many_batches_as_one_by_one(client: Any, sends: Sends) -> None:
    payloads = [b"%d" % number * 100 for number in range(250)]
    async with client.producer(PLACE, partitioning=0, batch_count=100, batch_size=20_000, linger=60) as producer:
        for payload in payloads:
            await producer.send(payload)
    one_by_one = list(sends.sizes)
    async with client.producer(PLACE, partitioning=1, batch_count=100, batch_size=20_000, linger=60) as producer:
        await producer.send_many(payloads)
    assert sends.sizes == [*one_by_one, *one_by_one]
    assert len(one_by_one) > 3
    assert [message.payload for message in (await everything(client))[1]] == payloads


async def test_times_that_are_far_apart_do_not_meet_in_one_batch(client: Any, sends: Sends) -> None:
    async with client.producer(PLACE, partitioning=0, linger=60) as producer:
        for timestamp in (None, 7, 8, None, 9):
            await producer.send("x", timestamp=timestamp)
    assert sends.sizes == [1, 2, 1, 1]
    assert [message.origin_timestamp for message in (await everything(client))[0]][1:3] == [7, 8]


async def test_memory_is_bounded(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    highest = 0
    begin = Connection.begin

    def watched(connection: Connection, command: c.Command) -> Any:
        nonlocal highest
        highest = max(highest, sum(isinstance(entry.command, c.SendMessages) for entry in connection._pending))
        return begin(connection, command)

    monkeypatch.setattr(Connection, "begin", watched)
    async with client.producer(PLACE, partitioning=0, batch_count=10, buffer_size=50_000, max_in_flight=3) as producer:
        for number in range(2_000):
            await producer.send(b"%06d" % number + b"x" * 500)
    assert 1 <= highest <= 3
    assert [message.payload[:6] for message in (await everything(client))[0]] == [b"%06d" % n for n in range(2_000)]


@pytest.mark.parametrize("wrong", [{"batch_count": 0}, {"batch_size": 0}, {"max_in_flight": 0}, {"linger": -1.0}])
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ProducerSettings(**wrong)


# --- failures -----------------------------------------------------------------------------------------


async def test_a_topic_that_is_not_there_is_noticed_at_once(client: Any) -> None:
    with pytest.raises(NotFound, match="nope"):
        async with client.producer("demo/nope"):
            pass


async def test_a_failure_reaches_the_ticket(client: Any) -> None:
    async with client.producer(PLACE, partitioning=7) as producer:
        ticket = await producer.send("x")
        with pytest.raises(NotFound) as failure:
            await ticket.acknowledged()
        assert failure.value.code is ErrorCode.PARTITION_NOT_FOUND
        await producer.flush()


async def test_a_failure_that_nobody_awaits_is_raised_by_the_flush(client: Any) -> None:
    async with client.producer(PLACE, linger=60) as producer:
        await producer.send("x", partition=7)
        await producer.send("y", partition=1)
        with pytest.raises(NotFound):
            await producer.flush()
        await producer.send("z", partition=1)
    assert [texts(messages) for messages in await everything(client)] == [[], ["y", "z"], []]


async def test_a_failure_that_nobody_awaits_is_raised_at_the_end(client: Any) -> None:
    producer = client.producer(PLACE, partitioning=7, linger=60)
    await producer.send("x")
    with pytest.raises(NotFound):
        await producer.close()
    with pytest.raises(ClientClosed):
        await producer.send("y")


async def test_a_body_that_fails_takes_what_was_not_sent_along(client: Any) -> None:
    async def fail() -> Any:
        async with client.producer(PLACE, partitioning=0, linger=60) as producer:
            tickets.append(await producer.send("never"))
            raise RuntimeError("mine")

    tickets: list[Any] = []
    with pytest.raises(RuntimeError, match="mine"):
        await fail()
    (ticket,) = tickets
    with pytest.raises(ClientClosed):
        await ticket.acknowledged()
    assert (await everything(client))[0] == []


async def test_a_message_that_cannot_be_is_refused_alone(client: Any) -> None:
    async with client.producer(PLACE, partitioning=0, linger=60) as producer:
        await producer.send("good")
        with pytest.raises(TypeError):
            await producer.send(object())
        await producer.flush()
        with pytest.raises(InvalidBatch):
            await producer.send_and_wait("bad", headers={"": ""})
    assert texts((await everything(client))[0])[0] == "good"


async def test_who_may_send_but_not_look_lets_the_server_choose(scene: Twins, client: Any) -> None:
    permissions = Permissions(GlobalPermissions(send_messages=True))
    await client.create_user("sender", "secret", permissions=permissions)
    sender = await scene.connect(username="sender", password="secret")
    async with sender.producer(PLACE, batch_count=1) as producer:
        for number in range(3):
            await producer.send(str(number))
        await producer.send("keyed", key="k")
    found = [message for messages in await everything(client) for message in messages]
    assert len(found) == 4
    assert [message.key for message in found if message.text() == "keyed"] == [b"k"]


# --- connections that break ---------------------------------------------------------------------------


async def test_nothing_is_lost_or_doubled_by_connections_that_break(scene: Twins, client: Any) -> None:
    async with client.producer(PLACE, partitioning=0, batch_count=7) as producer:
        for number in range(700):
            await producer.send(str(number))
            if number % 100 == 50:
                await scene.disconnect()
    assert texts((await everything(client))[0]) == [str(number) for number in range(700)]


async def test_nothing_is_lost_or_doubled_by_a_restart(scene: Twins, client: Any) -> None:
    async with client.producer(PLACE, batch_count=5) as producer:
        for number in range(200):
            await producer.send(str(number))
            if number in (60, 130):
                await scene.restart()
    found = [int(text) for messages in await everything(client) for text in texts(messages)]
    assert sorted(found) == list(range(200))


async def test_a_batch_that_was_stored_is_not_sent_again(client: Any, sends: Sends) -> None:
    """The connection breaks after the server has taken the batch, and before the answer."""

    def cut(number: int, connection: Connection) -> None:
        if number == 0:
            # The bytes are with the server: they are delivered before the end is.
            asyncio.get_running_loop().call_soon(connection.connection_lost, None)

    sends.after = cut
    async with client.producer(PLACE, partitioning=0, batch_count=3) as producer:
        tickets = [await producer.send(str(number)) for number in range(9)]
        receipts = [await ticket.acknowledged() for ticket in tickets]
    assert texts((await everything(client))[0]) == [str(number) for number in range(9)]
    assert [receipt.offset for receipt in receipts] == list(range(9))


async def test_a_batch_that_was_not_stored_is_sent_again(client: Any, sends: Sends) -> None:
    def cut(number: int, connection: Connection) -> None:
        if number == 1:
            transport = connection._transport
            assert transport is not None
            transport.abort()

    sends.before = cut
    async with client.producer(PLACE, partitioning=0, batch_count=3) as producer:
        for number in range(9):
            await producer.send(str(number))
    assert texts((await everything(client))[0]) == [str(number) for number in range(9)]


async def test_a_session_that_the_server_ends_costs_nothing(scene: Twins, client: Any) -> None:
    broker = scene.broker.original if scene.is_sync else scene.broker
    async with client.producer(PLACE, partitioning=0, batch_count=5) as producer:
        for number in range(100):
            await producer.send(str(number))
            if number % 30 == 10:
                for session in broker.broker.sessions.all():
                    session.user_id = None
    assert texts((await everything(client))[0]) == [str(number) for number in range(100)]


async def test_who_does_not_want_that_is_told(scene: Twins, client: Any, sends: Sends) -> None:
    def cut(number: int, connection: Connection) -> None:
        if number == 0:
            transport = connection._transport
            assert transport is not None
            transport.abort()

    sends.before = cut
    async with client.producer(PLACE, partitioning=0, resend=False) as producer:
        ticket = await producer.send("x")
        with pytest.raises(Uncertain, match="before 1 messages were acknowledged"):
            await ticket.acknowledged()
        assert await producer.send_and_wait("y") == Receipt(0, 0)


async def test_a_client_that_never_reconnects_says_so(scene: Twins) -> None:
    client = await scene.connect(reconnect=False)
    await client.create_stream("demo")
    await client.create_topic(PLACE)
    producer = client.producer(PLACE)
    await producer.send_and_wait("x")
    await scene.disconnect()
    with pytest.raises(Exception, match="closed"):
        await producer.send_and_wait("y")


# --- servers that are gone ----------------------------------------------------------------------------


async def test_leaving_the_block_ends_when_the_time_for_delivery_is_over(scene: Twins, client: Any) -> None:
    async def send_to_nobody() -> None:
        async with client.producer(PLACE, partitioning=0, delivery_timeout=1, batch_count=2) as producer:
            await scene.stop()
            for number in range(3):
                await producer.send(str(number), key="k", headers={"n": number})

    expected = r"^the delivery timed out after 1 seconds: 3 messages were not acknowledged$"
    with pytest.raises(NotDelivered, match=expected) as given_up:
        await send_to_nobody()
    assert [message.payload for message in given_up.value.messages] == [b"0", b"1", b"2"]
    assert given_up.value.uncertain_count == 0
    assert str(given_up.value.__cause__) == "test-broker:8090: the test broker is not running"
    await scene.open()
    async with client.producer(PLACE) as producer:
        await producer.send_many(given_up.value.messages)
    (stored,) = [messages for messages in await everything(client) if messages]
    assert [(message.text(), message.key, message.headers) for message in stored] == [
        (str(number), b"k", {"n": number}) for number in range(3)
    ]


async def test_a_producer_is_closed_in_the_time_that_it_gets(scene: Twins, client: Any) -> None:
    producer = client.producer(PLACE, partitioning=0, linger=60)
    await producer.send("a")
    await producer.flush()
    await producer.send("b")
    await scene.stop()
    await producer.send("c")
    with pytest.raises(NotDelivered, match=r"^closing timed out after 0\.1 seconds: 2 messages were not") as given_up:
        await producer.close(timeout=0.1)
    assert [message.payload for message in given_up.value.messages] == [b"b", b"c"]
    await producer.close()
    with pytest.raises(ClientClosed):
        await producer.send("d")


async def test_a_ticket_is_told_that_its_message_was_given_up(scene: Twins, client: Any) -> None:
    async with client.producer(PLACE, partitioning=0, delivery_timeout=0.1) as producer:
        await scene.stop()
        ticket = await producer.send("a")
        with pytest.raises(NotDelivered, match="1 message was not acknowledged"):
            await ticket.acknowledged()
    await scene.open()
    assert (await everything(client))[0] == []


async def test_messages_that_may_have_been_stored_are_counted(
    scene: Twins, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says nothing to a send."""
    begin = Connection.begin

    def silent(connection: Connection, command: c.Command) -> Any:
        if isinstance(command, c.SendMessages):
            return connection._loop.create_future()
        return begin(connection, command)

    monkeypatch.setattr(Connection, "begin", silent)
    producer = client.producer(PLACE, partitioning=0, delivery_timeout=0.5)
    await producer.send("a")
    with pytest.raises(NotDelivered, match="not acknowledged; 1 of them may have been stored"):
        await producer.flush()


async def test_a_batch_that_breaks_every_connection_is_not_resent_without_a_pause(client: Any, sends: Sends) -> None:
    sends.after = lambda _, connection: connection.fail(ConnectionFailed("somewhere", "for the test"))
    with pytest.raises(NotDelivered):
        async with client.producer(PLACE, partitioning=0, delivery_timeout=0.5) as producer:
            await producer.send("x")
    # Pauses of 0, 0.2 and 0.4 seconds.
    assert len(sends.sizes) <= 4
