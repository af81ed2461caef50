"""Every command of the server, through the methods of both clients."""

import inspect
import pydoc
import zipfile
from functools import partial
from io import BytesIO
from typing import Any

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import COMMANDS
from courser.api.table import SDK_0_10
from courser.client.client import Client
from courser.client.connection import Connection
from courser.client.messages import Partitioning, PollingStrategy
from courser.client.sync import SyncClient
from courser.errors import (
    AlreadyExists,
    AuthenticationFailed,
    ConnectionFailed,
    ErrorCode,
    InvalidRequest,
    NotAllowed,
    NotFound,
    TargetRefused,
)
from courser.model.permissions import GlobalPermissions, Permissions
from courser.model.topic_options import TOPIC_OPTIONS, TopicOptions
from tests.client.twins import Twins


async def test_the_calls_of_the_core_concepts_work_as_they_are_written(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_stream(name="orders")
    await client.create_topic(stream="orders", name="order-events", partitions_count=4)
    await client.send_messages(stream="orders", topic="order-events", partitioning=1, messages=["first", "second"])
    await client.create_consumer_group(stream="orders", topic="order-events", name="payment-service")
    await client.join_consumer_group(stream="orders", topic="order-events", consumer_group="payment-service")
    read = []
    for _ in range(4):
        read += await client.poll_messages(
            stream="orders",
            topic="order-events",
            polling_strategy=PollingStrategy.Next(),
            count=10,
            auto_commit=True,
        )
    assert [message.text() for message in read] == ["first", "second"]
    assert {message.partition_id for message in read} == {1}


async def test_streams(scene: Twins) -> None:
    client = await scene.connect()
    made = await client.create_stream("demo")
    assert (made.stream_id, made.name, made.topic_count) == (0, "demo", 0)
    await client.update_stream("demo", "renamed")
    await client.create_topic("renamed/topic")
    details = await client.get_stream(0)
    assert (details.stream.name, [topic.name for topic in details.topics]) == ("renamed", ["topic"])
    await client.send_messages("renamed/topic", messages=["x"])
    await client.purge_stream("renamed")
    assert [stream.message_count for stream in await client.get_streams()] == [0]
    await client.delete_stream("renamed")
    assert await client.get_streams() == []


async def test_topics(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_stream("demo")
    details = await client.create_topic(
        "demo",
        "orders",
        2,
        message_expiry="7 days",
        max_topic_size="10 GiB",
        segment_size="256 MiB",
        durability="persisted",
        messages_required_to_save=5,
        size_of_messages_required_to_save="1 MiB",
        compression_algorithm="gzip",
    )
    options = details.topic.options
    assert (options.message_expiry, options.max_topic_size) == (7 * 86_400 * 1_000_000, 10 * 2**30)
    assert (options.segment_size, options.durability, options.compression) == (2**28, "persisted", 2)
    assert (options.messages_required_to_save, options.size_of_messages_required_to_save) == (5, 2**20)
    await client.update_topic("demo/orders", message_expiry="none")
    await client.update_topic("demo", 0, "bestellungen")
    await client.create_partitions("demo/bestellungen", partitions_count=2)
    await client.delete_partitions("demo", "bestellungen", 1)
    details = await client.get_topic("demo", "bestellungen")
    assert details.topic.effective.message_expiry == 2**64 - 1
    assert [partition.partition_id for partition in details.partitions] == [0, 1, 2]
    await client.purge_topic("demo/bestellungen")
    assert [topic.name for topic in await client.get_topics("demo")] == ["bestellungen"]
    await client.delete_topic("demo/bestellungen")
    assert await client.get_topics("demo") == []


async def test_all_that_can_be_changed_is_taken_and_the_rest_refused_with_the_reason(client: Any) -> None:
    await client.create_topic("demo/changed")
    changeable = [option for option in TOPIC_OPTIONS.values() if option.is_changeable]
    changes = {option.name: [*option.kind.examples, *option.kind.own_words, True][0] for option in changeable}
    await client.update_topic("demo/changed", **changes)
    options = (await client.get_topic("demo/changed")).topic.options
    for option in changeable:
        if option.name != "compression_algorithm":
            given = changes[option.name]
            expected = option.kind.parse(given) if isinstance(given, str) else given
            assert getattr(options, option.field) == expected
    assert (options.message_expiry, options.durability) == (7 * 86_400_000_000, "persisted")
    for option in TOPIC_OPTIONS.values():
        if not option.is_changeable:
            with pytest.raises(ValueError, match=f"{option.name} cannot be changed"):
                await client.update_topic("demo/changed", **{option.name: 1})


async def test_a_setting_that_makes_no_sense_is_refused_before_it_travels(client: Any) -> None:
    with pytest.raises(ValueError, match="gzip"):
        await client.create_topic("demo/t", compression_algorithm="zip")
    with pytest.raises(ValueError, match='message_expiry must be a duration such as "7 days"'):
        await client.create_topic("demo/t", message_expiry="soon")
    for setting in ("durability", "consumer_offset_durability"):
        with pytest.raises(ValueError, match=f'{setting} must be "synced" or "default", not "written"'):
            await client.create_topic("demo/t", **{setting: "written"})


async def test_what_the_protocol_has_no_room_for_is_named_and_harms_nothing(client: Any) -> None:
    await client.send_messages("demo/orders", partitioning=0, messages=["a"])
    first = PollingStrategy.First()
    with pytest.raises(InvalidRequest, match="cannot send WaitForMessages: a number is negative or too large"):
        await client.poll_messages("demo/orders", partition_id=0, polling_strategy=first, count=-1)
    with pytest.raises(InvalidRequest, match="cannot send CreateTopic"):
        await client.create_topic("demo/t", partitions_count=2**32)
    with pytest.raises(InvalidRequest, match=r"cannot send CreateStream: .* a name is longer than 255 bytes"):
        await client.create_stream("x" * 256)
    (message,) = await client.poll_messages("demo/orders", partition_id=0, polling_strategy=first)
    assert message.text() == "a"


async def test_partitions_and_segments(client: Any) -> None:
    await client.send_messages("demo/orders", partitioning=1, messages=["a", "b"])
    bounds = await client.get_partition_bounds("demo/orders")
    assert [(row.first_offset, row.next_offset) for row in bounds.partitions] == [(0, 0), (0, 2), (0, 0)]
    assert len(bounds.topic_uuid) == 16
    segments = await client.get_segments("demo", "orders", 1)
    assert [(row.first_offset, row.next_offset, row.is_sealed) for row in segments.segments] == [(0, 2, False)]
    await client.flush_messages("demo/orders", partition_id=1)
    await client.delete_segments("demo/orders", partition_id=1)
    assert len((await client.get_segments("demo/orders", partition_id=1)).segments) == 1


async def test_groups(client: Any) -> None:
    made = await client.create_consumer_group("demo/orders", name="app")
    assert (made.group.group_id, made.group.name, made.members) == (0, "app", [])
    await client.join_consumer_group("demo/orders", consumer_group="app")
    assignment = await client.sync_consumer_group("demo/orders", consumer_group="app")
    assert assignment.partition_ids == (0, 1, 2)
    details = await client.get_consumer_group("demo/orders", consumer_group=0)
    assert [member.partition_ids for member in details.members] == [(0, 1, 2)]
    assert (await client.get_me()).groups == [r.ClientGroup(0, 0, 0)]
    await client.leave_consumer_group("demo/orders", consumer_group="app")
    assert [group.member_count for group in await client.get_consumer_groups("demo/orders")] == [0]
    await client.delete_consumer_group("demo/orders", consumer_group="app")
    assert await client.get_consumer_groups("demo", "orders") == []


async def test_stored_offsets(client: Any) -> None:
    await client.send_messages("demo/orders", partitioning=0, messages=["a", "b", "c"])
    await client.store_consumer_offset("demo/orders", offset=1, consumer="reader")
    stored = await client.get_consumer_offset("demo/orders", consumer="reader")
    assert (stored.partition_id, stored.stored_offset, stored.current_offset) == (0, 1, 2)
    assert [m.text() for m in await client.poll_messages("demo/orders", partition_id=0, consumer="reader")] == ["c"]
    await client.delete_consumer_offset("demo/orders", consumer="reader")
    with pytest.raises(NotFound):
        await client.get_consumer_offset("demo/orders", consumer="reader")


async def test_what_exists_is_not_created_again_if_that_is_asked_for(client: Any) -> None:
    await client.create_consumer_group("demo/orders", name="app")
    await client.create_user("alice", "secret")
    for create in (
        partial(client.create_stream, "demo"),
        partial(client.create_topic, "demo/orders", partitions_count=7),
        partial(client.create_consumer_group, "demo/orders", name="app"),
        partial(client.create_user, "alice", "another"),
    ):
        with pytest.raises(AlreadyExists):
            await create()
    assert (await client.create_stream("demo", if_not_exists=True)).topic_count == 1
    assert (await client.create_topic("demo/orders", partitions_count=7, if_not_exists=True)).topic.partition_count == 3
    assert (await client.create_consumer_group("demo/orders", name="app", if_not_exists=True)).group.group_id == 0
    assert (await client.create_user("alice", "another", if_not_exists=True)).user.user_id == 1
    assert (await client.create_stream("new", if_not_exists=True)).topic_count == 0
    assert (await client.create_topic("new/topic", if_not_exists=True)).topic.partition_count == 1


async def test_a_creation_whose_reply_is_lost_is_repeated_if_that_is_harmless(
    scene: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Connection.begin
    lost: list[c.Command] = []

    def losing(connection: Connection, command: c.Command) -> Any:
        answer = begin(connection, command)
        if isinstance(command, c.CreateStream) and not lost:
            lost.append(command)
            connection.fail(ConnectionFailed("somewhere", "for the test"))
        return answer

    client = await scene.connect()
    monkeypatch.setattr(Connection, "begin", losing)
    assert (await client.create_stream("demo", if_not_exists=True)).name == "demo"
    assert len(lost) == 1


async def test_arrivals(client: Any) -> None:
    await client.send_messages("demo/orders", partitioning=2, messages=["a"])
    assert await client.wait_for_arrivals("demo/orders", positions={0: 0, 2: 0}) == r.Arrivals(0, (2,))
    assert await client.wait_for_arrivals("demo/orders", positions={2: 1}, wait=0) == r.Arrivals(0, ())


async def test_arrivals_in_several_topics(client: Any) -> None:
    await client.create_topic("demo/payments")
    await client.send_messages("demo/orders", partitioning=2, messages=["a"])
    wanted = {"demo/orders": {0: 0, 2: 0}, ("demo", "payments"): {0: 0}}
    assert await client.wait_for_topics(wanted) == {"demo/orders": [2]}
    await client.send_messages("demo/payments", messages=["a"])
    assert await client.wait_for_topics(wanted) == {"demo/orders": [2], ("demo", "payments"): [0]}
    assert await client.wait_for_topics({"demo/orders": {2: 1}}, wait=0) == {}
    for wrong in ({"demo/orders": 3}, ["demo/orders"]):
        with pytest.raises(TypeError, match="positions must be a mapping"):
            await client.wait_for_topics(wrong)


async def test_users_and_tokens(scene: Twins) -> None:
    client = await scene.connect()
    reader = Permissions(GlobalPermissions(read_streams=True, poll_messages=True))
    made = await client.create_user("alice", "secret", permissions=reader)
    assert (made.user.user_id, made.user.is_active, made.permissions) == (1, True, reader)
    await client.change_password("alice", "secret", "better")
    other = await scene.connect(username="alice", password="better")
    assert other.user_id == 1
    with pytest.raises(NotAllowed):
        await other.create_stream("mine")
    token = await other.create_personal_access_token("laptop", "30 days")
    assert [row.name for row in await other.get_personal_access_tokens()] == ["laptop"]
    third = await scene.connect(token=token)
    assert (await third.get_me()).client.user_id == 1
    await other.delete_personal_access_token("laptop")
    await client.update_user("alice", username="bob", is_active=False)
    await client.update_permissions("bob", None)
    details = await client.get_user("bob")
    assert (details.user.is_active, details.permissions) == (False, None)
    with pytest.raises(AuthenticationFailed, match="inactive"):
        await scene.connect(username="bob", password="better")
    await client.delete_user("bob")
    assert [user.name for user in await client.get_users()] == ["iggy"]


async def test_logins_on_one_connection(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_user("alice", "secret")
    token = await client.create_personal_access_token("again")
    await client.login_user("alice", "secret")
    assert client.user_id == 1
    await client.logout_user()
    assert client.user_id is None
    with pytest.raises(AuthenticationFailed):
        await client.get_streams()
    await client.login_with_personal_access_token(token)
    assert await client.get_streams() == []


async def test_the_server_itself(scene: Twins) -> None:
    client = await scene.connect()
    await client.ping()
    assert "# TYPE courser_partitions gauge" in await client.get_metrics()
    stats = await client.get_stats()
    assert stats.client_count == 1
    assert (await client.get_cluster_metadata()).name == "single-node"
    me = (await client.get_me()).client
    assert [row.client_id for row in await client.get_clients()] == [me.client_id]
    assert (await client.get_client(me.client_id)).client.client_id == me.client_id
    keys = [option.key for option in await client.describe_options()]
    assert "durability" in keys
    assert await client.describe_options("user") == []
    archive = zipfile.ZipFile(BytesIO(await client.get_snapshot("test", "resources", compression="stored")))
    assert len(archive.namelist()) == 2
    with pytest.raises(ValueError, match="logs"):
        await client.get_snapshot("everything")


async def test_a_command_can_be_sent_as_it_is(client: Any) -> None:
    reply = await client.request(c.GetTopic("demo", "orders"))
    assert isinstance(reply, r.TopicDetails)


# --- failures -----------------------------------------------------------------------------------------


async def test_failures_have_a_kind_a_number_and_a_sentence(client: Any) -> None:
    with pytest.raises(NotFound, match="stream 'nope' does not exist") as missing:
        await client.get_stream("nope")
    assert missing.value.code is ErrorCode.STREAM_NOT_FOUND
    with pytest.raises(NotFound) as missing:
        await client.send_messages("demo/nope", messages=["x"])
    assert missing.value.code is ErrorCode.TOPIC_NOT_FOUND
    with pytest.raises(NotFound) as missing:
        await client.send_messages("demo/orders", partitioning=7, messages=["x"])
    assert missing.value.code is ErrorCode.PARTITION_NOT_FOUND
    with pytest.raises(NotFound) as missing:
        await client.get_consumer_group("demo/orders", consumer_group="nope")
    assert missing.value.code is ErrorCode.GROUP_NOT_FOUND
    with pytest.raises(AlreadyExists) as taken:
        await client.create_topic("demo/orders")
    assert taken.value.code is ErrorCode.TOPIC_NAME_ALREADY_EXISTS
    with pytest.raises(InvalidRequest) as invalid:
        await client.request(c.CreateTopic("demo", "t", 1, TopicOptions(durability="forever")))
    assert invalid.value.code is ErrorCode.INVALID_OPTION_VALUE
    with pytest.raises(InvalidRequest) as invalid:
        await client.store_consumer_offset("demo/orders", offset=9)
    assert "does not exist yet" in str(invalid.value)


async def test_a_topic_needs_a_stream(client: Any) -> None:
    for wrong in ("orders", "/orders", "demo/", 0):
        with pytest.raises(TargetRefused, match="stream/topic"):
            await client.get_topic(wrong)


async def test_names_may_have_slashes_if_they_stand_apart(client: Any) -> None:
    await client.create_stream("a/b")
    await client.create_topic("a/b", "c/d")
    assert (await client.get_topic("a/b", "c/d")).topic.name == "c/d"
    await client.create_topic("demo/with/slashes")
    assert (await client.get_topic("demo", "with/slashes")).topic.name == "with/slashes"


# --- nothing is forgotten -----------------------------------------------------------------------------


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_") and callable(member)}


def test_the_sync_client_has_every_method_of_the_async_one() -> None:
    assert public(SyncClient).keys() == public(Client).keys()
    for name, method in public(Client).items():
        assert inspect.getdoc(public(SyncClient)[name]), name
        parameters = inspect.signature(method).parameters
        assert list(inspect.signature(public(SyncClient)[name]).parameters) == list(parameters), name
        assert not inspect.iscoroutinefunction(public(SyncClient)[name]), name


def test_help_tells_of_the_sync_client_what_it_takes_and_returns() -> None:
    shown = pydoc.plain(pydoc.render_doc(SyncClient))
    assert "create_stream(self, name: str, *, if_not_exists: bool = False) -> courser.api.replies.StreamInfo" in shown
    assert "AlreadyExists: there is a stream of this name" in shown
    assert "-> courser.client.sync_producer.SyncProducer" in shown
    assert "The id of the user who is logged in." in shown


async def test_every_command_of_the_server_has_a_method(scene: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method is called with whatever fits; what travels is noted."""
    seen: set[type[c.Command]] = set()
    begin = Connection.begin

    def noting(connection: Connection, command: c.Command) -> Any:
        seen.add(type(command))
        return begin(connection, command)

    client = await scene.connect()
    await client.create_stream("s")
    await client.create_topic("s/t")
    monkeypatch.setattr(Connection, "begin", noting)
    values: dict[str, Any] = {
        "stream": "s",
        "topic": "t",
        "name": "n",
        "messages": ["x"],
        "partitioning": Partitioning.balanced(),
        "username": "someone",
        "password": "secret",
        "user": "iggy",
        "permissions": None,
        "current_password": "a" * 10,
        "new_password": "b" * 10,
        "token": "t",
        "client_id": 1,
        "consumer_group": "n",
        "command": c.Ping(),
        "sink": "a query",
        "batch": 0,
        "part": 0,
        "attempt": 1,
        "chunk": 0,
        "chunk_count": 1,
        "parts": {0: 1},
        "to": "earliest",
        "timestamp": 0,
        "until": 0,
        "first_offset": 0,
        "state": "running",
    }
    # In the order below, the topic is deleted before this one.
    await client.create_consumer_group("s/t", name="g")
    await client.reset_consumer_group("s/t", consumer_group="g", to="latest")
    last = {"logout_user", "login_user", "login_with_personal_access_token"}
    methods = [name for name in public(Client) if name not in {"producer", "consumer", "process", "close"}]
    for name in sorted(methods, key=lambda name: (name in last, name)):
        required = [
            parameter.name
            for parameter in inspect.signature(getattr(Client, name)).parameters.values()
            if parameter.name in values
        ]
        arguments = {parameter: values[parameter] for parameter in required}
        if name == "wait_for_arrivals":
            arguments["wait"] = 0
        if name == "wait_for_topics":
            arguments |= {"positions": {"s/t": {0: 0}}, "wait": 0}
        try:
            await getattr(client, name)(**arguments)
        except (AuthenticationFailed, InvalidRequest, NotFound, NotAllowed, AlreadyExists):
            continue
    client = await scene.connect()
    with pytest.raises(NotFound):
        await client.poll_messages("s/t", partition_id=0, skip_missing=True)
    # Only a consumer can keep the promise that this command makes.
    spoken = {entry.kind for entry in COMMANDS if entry.since < SDK_0_10}
    assert seen == spoken - {c.ConfirmAssignment}
