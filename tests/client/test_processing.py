"""Processors: order, concurrency, retries, dead letters, payload types, and what is committed when."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from courser.client.client import Client
from courser.client.handling import ProcessSettings, pause_after
from courser.client.messages import Message, SendMessage
from courser.client.workload import PartitionProgress, Workload
from courser.errors import HandlerFailed, NotFound
from courser.testing.broker import SyncTestBroker, TestBroker
from tests.client.test_consumer import PATIENCE, PLACE, stored, until

DEAD = "demo/dead"


@pytest.fixture
async def broker() -> AsyncIterator[TestBroker]:
    async with TestBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: TestBroker) -> Client:
    client = await broker.connect()
    await client.create_stream("demo")
    await client.create_topic(PLACE, partitions_count=3)
    return client


async def send(client: Client, *payloads: Any, partition: int = 0) -> None:
    await client.send_messages(PLACE, partitioning=partition, messages=list(payloads))


async def dead_letters(client: Client) -> list[Any]:
    return [message async for message in client.consumer(DEAD, stop_at_end=True)]


def true_when(condition: Callable[[], bool]) -> Any:
    async def check() -> bool:
        return condition()

    return until(check)


# --- handlers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain", "object"])
async def test_every_message_is_handled_and_committed(client: Client, kind: str) -> None:
    for partition in range(3):
        await send(client, *(f"{partition}{number}" for number in range(50)), partition=partition)
    found: list[str] = []
    threads: set[str] = set()

    def plain(message: Any) -> None:
        found.append(message.text())
        threads.add(threading.current_thread().name)

    async def later(message: Any) -> None:
        plain(message)

    class Handler:
        async def __call__(self, message: Any) -> None:
            plain(message)

    handlers: dict[str, Any] = {"async": later, "plain": plain, "object": Handler()}
    async with asyncio.timeout(PATIENCE):
        await client.process(PLACE, handlers[kind], group="app", stop_at_end=True)
    assert sorted(found) == sorted(f"{partition}{number}" for partition in range(3) for number in range(50))
    assert [await stored(client, partition, group="app") for partition in range(3)] == [49] * 3
    assert all(name.startswith("courser-handler") == (kind == "plain") for name in threads)


async def test_messages_of_a_key_are_handled_in_order_and_others_at_the_same_time(client: Client) -> None:
    messages = [SendMessage(str(number), key=f"k{number % 5}") for number in range(200)]
    await client.send_messages(PLACE, partitioning=0, messages=messages)
    order: dict[bytes | None, list[int]] = {}
    running, most = set[Any](), 0

    async def handle(message: Any) -> None:
        nonlocal most
        assert message.key not in running, "one after another"
        running.add(message.key)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(message.key)
        order.setdefault(message.key, []).append(int(message.text()))

    await client.process(PLACE, handle, group="app", concurrency=3, stop_at_end=True)
    assert most == 3
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert sum(map(len, order.values())) == 200


async def test_a_partition_can_be_handled_in_order(client: Client) -> None:
    await send(client, *map(str, range(50)))
    found: list[int] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.001 if int(message.text()) % 2 else 0)
        found.append(int(message.text()))

    await client.process(PLACE, handle, group="app", ordering="partition", stop_at_end=True)
    assert found == list(range(50))


async def test_batches_are_lists_of_one_partition(client: Client) -> None:
    for partition in range(2):
        await send(client, *map(str, range(25)), partition=partition)
    found: list[tuple[int, list[int]]] = []

    async def handle(messages: list[Any]) -> None:
        (partition_id,) = {message.partition_id for message in messages}
        found.append((partition_id, [message.offset for message in messages]))

    await client.process(PLACE, handle, group="app", batch=10, stop_at_end=True)
    assert max(len(offsets) for _, offsets in found) == 10
    for partition in range(2):
        assert [offset for number, offsets in found if number == partition for offset in offsets] == list(range(25))


async def test_no_more_is_read_than_the_buffer_holds(client: Client) -> None:
    await send(client, *map(str, range(100)))
    begun: list[str] = []
    is_free = asyncio.Event()

    async def handle(message: Any) -> None:
        begun.append(message.text())
        await is_free.wait()

    async with client.process(PLACE, handle, group="app", buffer_count=5, concurrency=50) as processor:
        await true_when(lambda: len(begun) == 5)
        is_free.set()
        await true_when(lambda: processor.handled_count == 100)


# --- failures -----------------------------------------------------------------------------------------


async def test_a_failing_handler_is_called_again(client: Client) -> None:
    await send(client, "a", "b")
    attempts: list[tuple[str, int]] = []

    async def handle(message: Any) -> None:
        attempts.append((message.text(), message.attempt))
        if message.attempt < 3:
            raise OSError("not now")

    processor = client.process(PLACE, handle, group="app", backoff=0.001, ordering="partition", stop_at_end=True)
    await processor
    assert attempts == [(text, attempt) for text in "ab" for attempt in (1, 2, 3)]
    assert (processor.handled_count, processor.retry_count, processor.dead_letter_count) == (2, 4, 0)


async def test_what_keeps_failing_becomes_a_dead_letter(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    message = SendMessage("bad", key="k", headers={"source": "web", "courser.dead.offset": 77})
    await client.send_messages(PLACE, partitioning=1, messages=["good", message, "fine"])
    found: list[str] = []

    def handle(message: Any) -> None:
        if message.text() == "bad":
            raise ValueError("x" * 300)
        found.append(message.text())

    options: dict[str, Any] = {"retries": 2, "backoff": 0.001, "stop_at_end": True}
    await client.process(PLACE, handle, group="app", dead_letter=DEAD, **options)
    assert sorted(found) == ["fine", "good"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"dead letter topic={PLACE} partition=1 offset=1 attempts=3: ValueError('xxx")
    (dead,) = await dead_letters(client)
    assert (dead.payload, dead.key, dead.headers["source"]) == (b"bad", b"k", "web")
    details = {name.removeprefix("courser.dead."): value for name, value in dead.headers.items() if name != "source"}
    error = str(details.pop("error"))
    assert error.startswith("ValueError: xxx")
    assert len(error) == 255
    assert details == {"topic": PLACE, "partition": 1, "offset": 1, "group": "app", "attempts": 3}
    assert await stored(client, 1, group="app") == 2


async def test_without_a_dead_letter_topic_it_ends(client: Client) -> None:
    await send(client, *map(str, range(10)))

    async def handle(message: Any) -> None:
        if message.text() == "4":
            raise KeyError("missing")

    with pytest.raises(HandlerFailed, match=r"failed 2 times for demo/orders, partition 0, offset 4") as failure:
        await client.process(PLACE, handle, group="app", retries=1, backoff=0.001)
    assert isinstance(failure.value.__cause__, KeyError)
    assert await stored(client, group="app") == 3, "nothing behind the hole is committed"


async def test_some_errors_are_not_worth_a_retry(client: Client) -> None:
    await send(client, "a")
    attempts: list[int] = []

    async def handle(message: Any) -> None:
        attempts.append(message.attempt)
        raise ValueError("never")

    await client.process(PLACE, handle, group="app", dead_letter=DEAD, retry_on=(OSError,), stop_at_end=True)
    assert attempts == [1]
    assert len(await dead_letters(client)) == 1


async def test_only_the_bad_message_of_a_batch_becomes_a_dead_letter(client: Client) -> None:
    await send(client, *map(str, range(10)))
    found: set[str] = set()

    async def handle(messages: list[Any]) -> None:
        if any(message.text() == "4" for message in messages):
            raise ValueError("four")
        found.update(message.text() for message in messages)

    options: dict[str, Any] = {"batch": 10, "retries": 1, "backoff": 0.001, "stop_at_end": True}
    await client.process(PLACE, handle, group="app", dead_letter=DEAD, **options)
    assert found == set(map(str, range(10))) - {"4"}
    (dead,) = await dead_letters(client)
    assert (dead.text(), dead.headers["courser.dead.attempts"]) == ("4", 3)


async def test_headers_that_do_not_fit_are_left_out_of_a_dead_letter(client: Client) -> None:
    headers = {f"{number:04}": "x" * 250 for number in range(378)}
    await client.send_messages(PLACE, messages=[SendMessage("a", headers=headers)])

    async def handle(message: Any) -> None:
        raise ValueError("no")

    await client.process(PLACE, handle, group="app", retries=0, dead_letter=DEAD, stop_at_end=True)
    (dead,) = await dead_letters(client)
    assert set(dead.headers) == {
        f"courser.dead.{name}" for name in ("topic", "partition", "offset", "group", "attempts", "error")
    }


async def test_a_stream_that_is_missing_is_told_at_once(client: Client) -> None:
    with pytest.raises(NotFound, match="stream"):
        await client.process(PLACE, print, group="app", dead_letter="nowhere/dead")


@pytest.mark.parametrize(
    "wrong",
    [{"retries": -1}, {"concurrency": 0}, {"batch": 0}, {"grace": -1}, {"ordering": "none"}, {"buffer_count": 0}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        ProcessSettings(**wrong)


async def test_an_unknown_option_is_named(client: Client) -> None:
    options: dict[str, Any] = {"retrys": 3}
    with pytest.raises(TypeError, match='a processor has no option "retrys"'):
        _ = client.process(PLACE, print, group="app", **options)
    wrong: Any = "print"
    with pytest.raises(TypeError, match="a handler must be a function, not 'print'"):
        _ = client.process(PLACE, wrong, group="app")


def test_pauses_double_up_to_a_limit() -> None:
    settings = ProcessSettings(backoff=0.1, backoff_max=5)
    assert [pause_after(settings, attempt) for attempt in (1, 2, 3, 7, 10_000)] == [0.1, 0.2, 0.4, 5.0, 5.0]


# --- payload types ------------------------------------------------------------------------------------


class Struct(msgspec.Struct):
    n: int


@dataclass
class Data:
    n: int


class Model(pydantic.BaseModel):
    n: int


@pytest.mark.parametrize("kind", [Struct, Data, Model])
async def test_payloads_have_types_and_others_become_dead_letters(client: Client, kind: type[Any]) -> None:
    await send(client, {"n": 1}, {"n": "many"}, "no JSON", {"n": 2})
    found: list[Any] = []

    async def handle(message: Any) -> None:
        found.append(message.value)

    options: dict[str, Any] = {"dead_letter": DEAD, "ordering": "partition", "stop_at_end": True}
    await client.process(PLACE, handle, group="app", payload_type=kind, **options)
    assert found == [kind(n=1), kind(n=2)]
    dead = await dead_letters(client)
    assert [message.headers["courser.dead.attempts"] for message in dead] == [0, 0]
    assert all("Error" in str(message.headers["courser.dead.error"]) for message in dead)


async def test_a_payload_of_another_type_ends_it_without_a_dead_letter_topic(client: Client) -> None:
    await send(client, "no JSON")
    with pytest.raises(HandlerFailed, match="cannot be decoded"):
        await client.process(PLACE, print, group="app", payload_type=Struct)


@pytest.mark.parametrize(("kind", "value"), [(None, b"a"), (bytes, b"a"), (str, "a")])
async def test_bytes_and_text(client: Client, kind: Any, value: object) -> None:
    await send(client, "a")
    found: list[object] = []
    handler: Any = lambda message: found.append(message.value)  # noqa: E731
    await client.process(PLACE, handler, group="app", payload_type=kind, stop_at_end=True)
    assert found == [value]


# --- stopping, and losing partitions ------------------------------------------------------------------


async def test_a_stop_lets_running_handlers_finish_and_begins_no_others(client: Client) -> None:
    await send(client, *map(str, range(20)))
    begun: list[str] = []
    is_free = asyncio.Event()

    async def handle(message: Any) -> None:
        begun.append(message.text())
        await is_free.wait()

    processor = client.process(PLACE, handle, group="app", ordering="partition")
    running = asyncio.create_task(processor.run())
    await true_when(lambda: len(begun) == 1)
    processor.stop()
    is_free.set()
    await running
    assert begun == ["0"]
    assert await stored(client, group="app") == 0
    with pytest.raises(RuntimeError, match="once"):
        await processor


async def test_a_stop_fills_the_holes_before_what_is_done(client: Client) -> None:
    """A slow key holds back the commit of the others: its messages before theirs are handled too."""
    keys = [*("slow" for _ in range(3)), *(f"k{number}" for number in range(5)), *("slow" for _ in range(3))]
    messages = [SendMessage(str(number), key=key) for number, key in enumerate(keys)]
    await client.send_messages(PLACE, partitioning=0, messages=messages)
    found: list[int] = []
    is_free = asyncio.Event()

    async def handle(message: Any) -> None:
        if message.key == b"slow":
            await is_free.wait()
        found.append(int(message.text()))

    processor = client.process(PLACE, handle, group="app")
    running = asyncio.create_task(processor.run())
    await true_when(lambda: len(found) == 5)
    processor.stop()
    is_free.set()
    await running
    assert sorted(found) == list(range(8)), "8, 9 and 10 are nobody's before"
    assert await stored(client, group="app") == 7


async def test_handlers_that_do_not_finish_are_given_up(client: Client) -> None:
    await send(client, "a", "b")
    begun: list[str] = []

    async def handle(message: Any) -> None:
        begun.append(message.text())
        if message.text() == "b":
            await asyncio.Event().wait()

    async with client.process(PLACE, handle, group="app", grace=0.01):
        await true_when(lambda: len(begun) == 2)
    assert await stored(client, group="app") == 0


async def test_closing_the_client_stops_in_order(broker: TestBroker, client: Client) -> None:
    await send(client, "a")
    other = await broker.connect()
    begun: list[str] = []

    async def handle(message: Any) -> None:
        begun.append(message.text())
        await asyncio.sleep(0.01)

    running = asyncio.create_task(other.process(PLACE, handle, group="app").run())
    await true_when(lambda: len(begun) == 1)
    await other.close()
    await running
    assert await stored(client, group="app") == 0


async def test_a_lost_partition_is_handed_over_in_order(broker: TestBroker, client: Client) -> None:
    """Running handlers finish, waiting messages go to the new owner, and nothing is handled twice."""
    count = 100
    for partition in range(3):
        await send(client, *(f"{partition}-{number}" for number in range(count)), partition=partition)
    found: list[str] = []
    is_shared = asyncio.Event()

    async def handle(message: Any) -> None:
        # Slowly at first: something has to be left for the second one.
        await asyncio.sleep(0.001 if is_shared.is_set() else 0.02)
        found.append(message.text())

    options: dict[str, Any] = {"sync_interval": 0.01, "commit_interval": 60, "concurrency": 2}
    other = await broker.connect()
    async with client.process(PLACE, handle, group="app", **options):
        await true_when(lambda: len(found) > 10)
        async with other.process(PLACE, handle, group="app", **options) as second:
            await true_when(lambda: second.handled_count > 10)
            is_shared.set()
        await true_when(lambda: len(found) >= 3 * count)
    assert sorted(found) == sorted(f"{partition}-{number}" for partition in range(3) for number in range(count))


async def test_after_a_reconnect_only_uncommitted_messages_are_repeated(broker: TestBroker, client: Client) -> None:
    await send(client, *map(str, range(30)))
    found: list[int] = []
    is_free = asyncio.Event()

    async def handle(message: Any) -> None:
        found.append(int(message.text()))
        if len(found) > 10:
            await is_free.wait()

    options: dict[str, Any] = {"ordering": "partition", "commit_interval": 0.001}
    async with client.process(PLACE, handle, group="app", **options) as processor:
        await true_when(lambda: len(found) == 11)

        async def is_committed() -> bool:
            return await stored(client, group="app") == 9

        await until(is_committed)
        broker.disconnect()
        is_free.set()
        await true_when(lambda: processor.handled_count >= 30)
    assert sorted(set(found)) == list(range(30))
    assert min(found[11:]) >= 10, "0 to 9 were committed"


async def test_waiting_retries_are_given_up_with_their_partition(client: Client) -> None:
    await send(client, "a")
    attempts: list[int] = []

    async def handle(message: Any) -> None:
        attempts.append(message.attempt)
        raise OSError("not now")

    async with client.process(PLACE, handle, group="app", backoff=3600, backoff_max=3600):
        await true_when(lambda: len(attempts) == 1)
    assert await stored(client, group="app") is None


def test_a_sync_client_processes_too() -> None:
    with SyncTestBroker() as broker:
        client = broker.connect()
        client.create_stream("demo")
        client.create_topic(PLACE)
        client.send_messages(PLACE, messages=[{"n": number} for number in range(10)])
        found: list[int] = []
        is_done = threading.Event()

        def handle(message: Any) -> None:
            if message.value.n == 5:
                raise ValueError("five")
            client.ping()
            found.append(message.value.n)
            if len(found) == 9:
                is_done.set()

        options: dict[str, Any] = {"group": "app", "payload_type": Struct, "dead_letter": DEAD, "retries": 0}
        processor = client.process(PLACE, handle, stop_at_end=True, **options)
        processor.run()
        assert sorted(found) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert (processor.handled_count, processor.dead_letter_count, processor.retry_count) == (9, 1, 0)
        assert processor.partitions == (0,)
        found.clear()
        is_done.clear()
        with client.process(PLACE, handle, **(options | {"group": "other"})):
            assert is_done.wait(PATIENCE)
        assert client.get_consumer_offset(PLACE, None, 0, group="other").stored_offset == 9


# --- what is done -------------------------------------------------------------------------------------


def test_only_what_is_done_without_a_hole_is_committed() -> None:
    progress = PartitionProgress()
    for offset in (3, 4, 7, 8):
        progress.take(offset)
    assert progress.finish(4) is None
    assert progress.finish(3) == 4
    assert progress.finish(8) is None
    assert progress.unfinished_count == 1
    assert progress.finish(7) == 8


def test_a_workload_forgets_dropped_partitions() -> None:
    def message(offset: int, partition_id: int) -> Any:
        return Message(b"", offset, partition_id, 0, 0, offset)

    workload = Workload("key")
    strands = workload.add([message(0, 0), message(1, 0), message(0, 1)])
    assert (len(strands), workload.count) == (3, 3)
    assert workload.finish(strands[1].take(1)) is None
    workload.drop([0])
    assert workload.count == 1
    assert [strand.partition_id for strand in workload.strands()] == [1]
