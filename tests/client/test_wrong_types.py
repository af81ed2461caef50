"""What callers pass in by mistake: errors name it, and nothing from inside the client shows."""

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

from courser.client.client import Client, connect
from courser.client.messages import Partitioning, PollingStrategy, SendMessage
from courser.errors import CourserError, TargetRefused

PLACE = "demo/orders"
INTERNALS = re.compile(
    r"has no attribute|has no len|__init__|iterable|operand|required argument|not supported between|argument of type"
    r"|subscriptable|unhashable|cannot be interpreted|unexpected keyword|positional"
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batchsize": 1}, 'a producer has no option "batchsize"; it has batch_count, batch_size, linger,'),
        ({"batch_count": "many"}, "a producer's batch_count must be an int, not 'many'"),
        ({"linger": None}, "a producer's linger must be a number, not None"),
        ({"max_in_flight": True}, "a producer's max_in_flight must be an int, not True"),
        ({"partitioning": "first"}, "partitioning must be a partition id, a Partitioning or None, not 'first'"),
    ],
)
async def test_options_of_a_producer(client: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        client.producer(PLACE, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop": True}, 'a consumer has no option "stop"; it has batch_count,'),
        ({"wait": "long"}, "a consumer's wait must be a number, not 'long'"),
        ({"commit": 5}, 'a consumer\'s commit must be "auto" or "manual", not 5'),
        ({"start": 3.5}, r"start must be a word, an offset, a datetime, a timedelta or offsets by partition, not 3\.5"),
        ({"start": True}, "start must be a word, .*, not True"),
        ({"start": {0: "1"}}, "the offset of partition 0 in start must be an int, not '1'"),
    ],
)
async def test_options_of_a_consumer(client: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        client.consumer(PLACE, **options)


@pytest.mark.parametrize("start", [-1, {0: -1}, timedelta(seconds=-1), "beginning"])
async def test_starts_that_do_not_exist(client: Any, start: Any) -> None:
    with pytest.raises(ValueError, match="start"):
        client.consumer(PLACE, start=start)


async def test_a_duration_means_that_long_ago(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=0, messages=["a", "b"])
    for start, expected in ((timedelta(hours=1), ["a", "b"]), (timedelta(0), [])):
        consumer = client.consumer(PLACE, start=start, stop_at_end=True)
        assert [message.text() async for message in consumer] == expected


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"key": 5}, "a key must be a str or bytes, not 5"),
        ({"headers": "x"}, "headers must be a mapping of names to values, not 'x'"),
        ({"headers": {1: "x"}}, "the name of a header must be a str, not 1"),
        ({"headers": {"n": None}}, 'header "n" must be a str, bytes, a bool or a number, not None'),
        ({"id": "x"}, "the id of a message must be an int, not 'x'"),
        ({"timestamp": "now"}, "the timestamp of a message must be an int, not 'now'"),
        ({"partition": "0"}, "partitioning must be a partition id"),
    ],
)
async def test_a_message_that_is_wrong_is_refused_alone(client: Any, message: dict[str, Any], words: str) -> None:
    producer = client.producer(PLACE, partitioning=0)
    with pytest.raises(TypeError, match=words):
        await (await producer.send("wrong", **message)).acknowledged()
    await producer.send_and_wait("right")
    await producer.close()
    assert producer.message_count == 1


@pytest.mark.parametrize("messages", ["text", b"bytes", {"n": 1}, 5, None, SendMessage("x")])
async def test_one_message_is_not_several(client: Any, messages: Any) -> None:
    async with client.producer(PLACE) as producer:
        with pytest.raises(TypeError, match="several messages must be given, in a list for example, not"):
            await producer.send_many(messages)
    assert producer.message_count == 0


async def test_commands_name_the_value_that_is_wrong(client: Any) -> None:
    with pytest.raises(TypeError, match="cannot send CreateStream: name must be a str, not 5"):
        await client.create_stream(5)
    with pytest.raises(TypeError, match="cannot send CreateTopic: partition_count must be an int, not '3'"):
        await client.create_topic("demo/t", partitions_count="3")
    with pytest.raises(TypeError, match='a topic has no option "expiry"; it has message_expiry,'):
        await client.create_topic("demo/t", expiry="7 days")
    with pytest.raises(TypeError, match=r"poll: count must be an int, not 1\.5"):
        await client.poll_messages(PLACE, partition_id=0, count=1.5)
    with pytest.raises(TypeError, match="poll: value must be an int, not 'x'"):
        await client.poll_messages(PLACE, partition_id=0, polling_strategy=PollingStrategy.Offset("x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="polling_strategy must be a PollingStrategy, not 'first'"):
        await client.poll_messages(PLACE, partition_id=0, polling_strategy="first")
    with pytest.raises(TypeError, match="wait must be a number of seconds, not '5'"):
        await client.poll_messages(PLACE, partition_id=0, wait="5")
    with pytest.raises(TypeError, match="a time must be a datetime, or microseconds since 1970"):
        PollingStrategy.Timestamp("noon")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="conditions must be a list of texts, not 'key=7'"):
        await client.find_messages(PLACE, conditions="key=7")
    with pytest.raises(TypeError, match="a key must be a str or bytes, not 5"):
        Partitioning.key(5)  # type: ignore[arg-type]


async def test_one_message_may_be_any_value(client: Any) -> None:
    await client.send_messages(PLACE, partitioning=0, messages=5)
    (message,) = await client.poll_messages(PLACE, partition_id=0)
    assert message.json() == 5


def test_targets_and_their_options() -> None:
    with pytest.raises(TypeError, match="the target must be a connection string or a Target, not 5"):
        _ = connect(5)  # type: ignore[arg-type]
    wrong: dict[str, Any] = {"port": 3.5, "tls": "perhaps", "request_timeout": None, "username": 5}
    for option, value in wrong.items():
        with pytest.raises(TargetRefused, match=f'invalid value .* for option "{option}"'):
            _ = connect("host", **{option: value})


async def test_no_method_shows_what_is_inside(client: Any) -> None:
    """Every parameter of every method in turn gets a value that no method takes."""
    usual: dict[str, Any] = {"stream": "demo", "topic": "orders", "consumer_group": "g", "to": 0, "parts": {0: 1}}
    leaks: list[str] = []
    skipped = {"close", "logout_user"}
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if name.startswith("_") or name in skipped:
            continue
        parameters = list(inspect.signature(method).parameters.values())[1:]
        for wrong in parameters:
            if wrong.kind in (wrong.VAR_KEYWORD, wrong.VAR_POSITIONAL) or wrong.annotation is bool:
                continue
            arguments = {
                other.name: usual.get(other.name, 0 if other.annotation is int else "x")
                for other in parameters
                if other.default is other.empty and other.kind not in (other.VAR_KEYWORD, other.VAR_POSITIONAL)
            }
            arguments |= {key: usual[key] for key in usual if any(other.name == key for other in parameters)}
            arguments[wrong.name] = object()
            try:
                result = getattr(client, name)(**arguments)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001 - looked at here
                if not isinstance(error, CourserError | TypeError | ValueError) or INTERNALS.search(str(error)):
                    leaks.append(f"{name}({wrong.name}=...): {error}")
    assert leaks == []
