"""The parts of a server of several processes: ownership, channels, calls, metadata that follows, merged metrics."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api.replies import Polled, Sent
from courser.archive.settings import ArchiveSettings
from courser.broker.messages.producing import Sends
from courser.broker.settings import BrokerSettings
from courser.catalog.changes import encode_change
from courser.catalog.rules import check
from courser.catalog.state import CatalogState
from courser.catalog.transitions import apply
from courser.errors import CommandRejected, CourserError, ErrorCode, InvalidOffset, OffsetsUnavailable, StorageFailure
from courser.model import metric_table as m
from courser.model.identifiers import Consumer, ConsumerKind, TopicAddress
from courser.model.messaging import Balanced, ByKey, Partitioning, PollingKind, ToPartition
from courser.model.metrics import Registry, Sample
from courser.model.topic_options import TopicOptions
from courser.processes.channel import UNREAD_SIZE_MAX, Channel, socket_pair
from courser.processes.encoding import ANSWER, CALL, COMMAND, NOTE, decode, encode
from courser.processes.following import ReplicatedStore
from courser.processes.leading import share_of
from courser.processes.links import Links
from courser.processes.merged_metrics import grown, merged, snapshot_of
from courser.processes.ownership import client_ids_of, owner_of, share_name
from courser.processes.peer import Peer, ProcessFailed, ProcessGone
from courser.processes.router import ANYWHERE, COLLECTED, OWNED
from courser.records.batch import NewMessage, build_batch
from tests.simulator.catalog_simulation import random_command

# --- ownership --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process_count", [1, 2, 3, 4, 8])
def test_topics_are_spread_evenly_over_streams_and_within_them(process_count: int) -> None:
    for places in ([(number, 0) for number in range(64)], [(5, number) for number in range(64)]):
        owners = [owner_of(*place, process_count) for place in places]
        counts = [owners.count(number) for number in range(process_count)]
        assert max(counts) - min(counts) <= 1


def test_what_is_limited_for_the_whole_server_is_divided() -> None:
    archive = ArchiveSettings(bandwidth=1000, cache_size=900)
    share = share_of(BrokerSettings(archive=archive, scrub_rate=100, condensing_rate=200), 3)
    assert share.archive is not None
    assert (share.archive.bandwidth, share.archive.cache_size) == (334, 300)
    assert (share.scrub_rate, share.condensing_rate) == (34, 67)
    without_limit = share_of(BrokerSettings(archive=ArchiveSettings()), 3)
    assert without_limit.archive is not None
    assert without_limit.archive.bandwidth == 0


@given(st.integers(1, 64), st.data())
def test_no_two_processes_draw_the_same_client_id(process_count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, process_count - 1))
    drawn = [client_ids_of(number, process_count)() for _ in range(20)]
    assert all(client_id % process_count == number and 0 <= client_id < 2**32 for client_id in drawn)


def test_every_command_about_a_topic_is_carried_out_by_one_process() -> None:
    kinds = {row.kind for row in (*c.COMMANDS, *c.INTERNAL_COMMANDS)}
    assert kinds >= OWNED | ANYWHERE | COLLECTED
    assert not OWNED & ANYWHERE
    assert not OWNED & COLLECTED
    # The rest changes metadata, or concerns users, tokens, staged messages and the server: the first process has them.
    elsewhere = {kind for kind in kinds - OWNED - ANYWHERE if {"stream", "topic"} <= set(kind.__struct_fields__)}
    assert elsewhere == {
        c.UpdateTopic,
        c.DeleteTopic,
        c.PurgeTopic,
        c.CreatePartitions,
        c.DeletePartitions,
        c.CreateConsumerGroup,
        c.DeleteConsumerGroup,
        c.StageMessages,
    }


# --- messages ---------------------------------------------------------------------------------------------

ERRORS = [
    CommandRejected(ErrorCode.TOPIC_NOT_FOUND, "no such topic"),
    InvalidOffset(offset=7, next_offset=3),
    OffsetsUnavailable(ErrorCode.OFFSET_GONE, first_offset=1, end_offset=5, reason="deleted"),
    StorageFailure("write", Path("/data/file"), OSError(28, "no space")),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_arrive_as_they_were_raised(error: CourserError) -> None:
    data, buffers = encode(("failure", error))
    _, arrived = decode(memoryview(data), buffers)
    assert type(arrived) is type(error)
    assert (arrived.code, str(arrived), arrived.args[:1]) == (error.code, str(error), error.args[:1])


@given(st.lists(st.binary(max_size=2000), max_size=4))
def test_memory_is_not_copied_into_the_pickle(pieces: list[bytes]) -> None:
    message = ("name", 1, tuple(memoryview(piece) for piece in pieces))
    data, buffers = encode(message)
    assert [bytes(buffer) for buffer in buffers] == pieces
    name, number, arrived = decode(memoryview(data), buffers)
    assert (name, number, [bytes(view) for view in arrived]) == ("name", 1, pieces)


IDENTIFIERS = st.one_of(st.integers(0, 2**32 - 1), st.text(max_size=20))
U64 = st.integers(0, 2**64 - 1)
PARTITIONINGS = st.one_of(
    st.just(Balanced()), st.builds(ToPartition, st.integers(0, 2**32 - 1)), st.builds(ByKey, st.binary(max_size=255))
)
POLLS = st.builds(
    c.PollMessages,
    st.builds(Consumer, st.sampled_from(ConsumerKind), IDENTIFIERS),
    IDENTIFIERS,
    IDENTIFIERS,
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    st.sampled_from(PollingKind),
    U64,
    st.integers(0, 2**32 - 1),
    st.booleans(),
)


def arrived(message: tuple[Any, ...]) -> tuple[Any, ...]:
    """A message after its way through the bytes, which are copied on the way."""
    data, buffers = encode(message)
    return decode(memoryview(data), [memoryview(bytes(buffer)) for buffer in buffers])


@given(
    IDENTIFIERS, IDENTIFIERS, PARTITIONINGS, st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.booleans()
)
def test_a_send_arrives_as_it_was_sent(
    stream: int | str, topic: int | str, partitioning: Partitioning, payloads: list[bytes], is_split: bool
) -> None:
    groups = [payloads[:1], payloads[1:]] if is_split and len(payloads) > 1 else [payloads]
    batches = [build_batch([NewMessage(payload) for payload in group]) for group in groups]
    for incarnation in (0, 2**64 - 1):
        message = (CALL, 5, COMMAND, (17, None, c.SendMessages(stream, topic, partitioning, batches, incarnation)))
        assert arrived(message) == message


@given(POLLS, st.one_of(st.integers(1, 2**32 - 1), st.just(("127.0.0.1:1", None))))
def test_a_poll_arrives_as_it_was_sent(poll: c.PollMessages, client: object) -> None:
    message = (CALL, 5, COMMAND, (client, 3, poll))
    assert arrived(message) == message


@given(U64, st.lists(st.binary(max_size=300), max_size=3))
def test_answers_arrive_as_they_were_given(offset: int, pieces: list[bytes]) -> None:
    views = tuple(memoryview(piece) for piece in pieces)
    for answer in (Sent(1, 2, 3, offset), Polled(1, offset, 4, views, sum(map(len, pieces)), 77), None):
        assert arrived((ANSWER, 9, answer)) == (ANSWER, 9, answer)


async def test_a_channel_delivers_messages_of_all_sizes_in_order() -> None:
    ours, theirs = socket_pair()
    source = random.Random(3)
    sizes = [source.choice((0, 1, 100, 5_000, 70_000, 200_000, 300_000, 3_000_000)) for _ in range(60)]
    received: list[Any] = []
    done = asyncio.Event()

    def take(message: Any) -> None:
        _, number, body = message
        received.append((number, None if body is None else bytes(body)))
        if len(received) == len(sizes):
            done.set()

    sender = Channel(ours, lambda _: None, lambda: None)
    receiver = Channel(theirs, take, lambda: None)
    expected = []
    for number, size in enumerate(sizes):
        body = bytearray(source.randbytes(size)) if size else None
        expected.append((number, None if body is None else bytes(body)))
        sender.send((NOTE, number, None if body is None else memoryview(body)))
        if body is not None:
            # What was sent may be changed at once.
            body[:] = bytes(len(body))
    async with asyncio.timeout(60):
        await done.wait()
    assert received == expected
    sender.close()
    receiver.close()


@pytest.mark.parametrize("piece_size", [20, 100, 2_000])
async def test_a_channel_delivers_more_pieces_than_the_kernel_takes_at_once(piece_size: int) -> None:
    """The largest ones do not fit into the buffers of the socket either."""
    ours, theirs = socket_pair()
    received: list[Any] = []
    done = asyncio.Event()

    def take(message: Any) -> None:
        received.append([bytes(piece) for piece in message[2].pieces])
        if len(received) == 4:
            done.set()

    sender = Channel(ours, lambda _: None, done.set)
    receiver = Channel(theirs, take, done.set)
    source = random.Random(3)
    expected = []
    for piece_count in (1_022, 1_023, 1_024, 5_000):
        pieces = [source.randbytes(piece_size) for _ in range(piece_count)]
        expected.append(pieces)
        views = tuple(memoryview(piece) for piece in pieces)
        sender.send((ANSWER, 1, Polled(0, 0, piece_count, views, piece_count * piece_size)))
    async with asyncio.timeout(60):
        await done.wait()
    assert received == expected
    sender.close()
    receiver.close()


async def test_a_channel_says_that_too_much_waits_for_the_other_end() -> None:
    ours, theirs = socket_pair()
    channel = Channel(ours, lambda _: None, lambda: None)
    piece = memoryview(bytes(UNREAD_SIZE_MAX // 4))
    for _ in range(4):
        assert not channel.is_congested
        channel.send((NOTE, "large", (piece,)))
    channel.send((NOTE, "large", (piece,)))
    assert channel.is_congested
    # It is asked for each request, and there may be a million pieces: no walk over them.
    pieces, channel._left = channel._left, NotWalked(channel._left)
    assert channel.is_congested
    channel._left = pieces
    received, is_read = list[object](), asyncio.Event()

    def take(message: object) -> None:
        received.append(message)
        if len(received) == 5:
            is_read.set()

    other = Channel(theirs, take, lambda: None)
    async with asyncio.timeout(60):
        await is_read.wait()
    assert (channel.is_congested, channel._left_size) == (False, 0)
    channel.close()
    other.close()


class NotWalked(deque[memoryview]):
    """Fails if somebody looks at all that is in it."""

    def __iter__(self) -> Iterator[memoryview]:
        raise AssertionError("a walk over all pieces")


async def test_a_channel_tells_once_that_the_other_end_is_gone() -> None:
    ours, theirs = socket_pair()
    lost: list[int] = []
    gone = asyncio.Event()

    def on_lost() -> None:
        lost.append(1)
        gone.set()

    channel = Channel(ours, lambda _: None, on_lost)
    theirs.close()
    async with asyncio.timeout(60):
        await gone.wait()
    channel.send((NOTE, "into the void", ()))
    channel.close()
    assert lost == [1]


LARGE = memoryview(bytes(100_000))


@pytest.mark.parametrize(
    ("end", "is_lost"),
    [
        (lambda channel: channel.close(), False),
        (lambda channel: channel.send((NOTE, "large", (LARGE,))), True),
        (lambda channel: channel._receive(), True),
    ],
    ids=["closed", "sends", "receives"],
)
async def test_a_channel_ends_once_while_messages_of_this_turn_are_unsent(
    end: Callable[[Channel], None], is_lost: bool
) -> None:
    """The other end is gone, but this one has not noticed it yet."""
    ours, theirs = socket_pair()
    lost: list[bool] = []
    channel = Channel(ours, lambda _: None, lambda: lost.append(channel.is_open))
    theirs.close()
    channel.send((NOTE, "small", ()))
    end(channel)
    assert not channel.is_open
    end(channel)
    channel.send((NOTE, "small", ()))
    await asyncio.sleep(0)
    assert lost == ([False] if is_lost else []), "told once, and only by a channel that is closed"


async def test_messages_of_this_turn_are_sent_before_a_channel_is_closed() -> None:
    ours, theirs = socket_pair()
    received: list[Any] = []
    gone = asyncio.Event()
    receiver = Channel(theirs, received.append, gone.set)
    sender = Channel(ours, lambda _: None, lambda: None)
    sender.send((NOTE, "first", ()))
    sender.send((NOTE, "last", ()))
    sender.close()
    async with asyncio.timeout(60):
        await gone.wait()
    assert received == [(NOTE, "first", ()), (NOTE, "last", ())]
    assert not receiver.is_open


# --- calls ------------------------------------------------------------------------------------------------


def peers(services: dict[str, Any], calls: dict[str, Any] | None = None) -> tuple[Peer, Peer]:
    ours, theirs = socket_pair()
    caller = Peer(1, ours, services={}, calls={}, on_lost=lambda _: None)
    other = Peer(0, theirs, services=services, calls=calls or {}, on_lost=lambda _: None)
    return caller, other


async def test_a_call_gets_the_answer_of_a_function_or_a_coroutine() -> None:
    async def slowly(_: Peer, number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    caller, other = peers({"double": lambda _, number: 2 * number, "add": slowly})
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(caller.call("double", number) for number in range(50))) == list(range(0, 100, 2))
        assert await caller.call("add", 4) == 5
    caller.close()
    other.close()


async def test_a_call_gets_the_error_and_a_defect_stays_where_it_is() -> None:
    def refuse(_: Peer) -> None:
        raise CommandRejected(ErrorCode.TOPIC_FULL, "it is full")

    def fail(_: Peer) -> None:
        raise ZeroDivisionError

    caller, other = peers({"refuse": refuse, "fail": fail})
    async with asyncio.timeout(60):
        with pytest.raises(CommandRejected, match="it is full"):
            await caller.call("refuse")
        with pytest.raises(ProcessFailed):
            await caller.call("fail")
    caller.close()
    other.close()


async def test_a_message_that_fails_does_not_hold_up_those_after_it(caplog: pytest.LogCaptureFixture) -> None:
    """They are received together."""

    def fail(_: Peer) -> None:
        raise ZeroDivisionError

    caller, other = peers({"fail": fail, "double": lambda _, number: 2 * number})
    caller.note("fail")
    answer = caller.call("double", 4)
    async with asyncio.timeout(60):
        assert await answer == 8
    assert "ZeroDivisionError" in caplog.text
    caller.close()
    other.close()


async def test_calls_fail_when_the_other_process_ends() -> None:
    begun = asyncio.Event()

    async def never(_: Peer) -> None:
        begun.set()
        await asyncio.Event().wait()

    caller, other = peers({"never": never})
    waiting = caller.call("never")
    async with asyncio.timeout(60):
        await begun.wait()
        other.close()
        with pytest.raises(ProcessGone):
            await waiting
        with pytest.raises(ProcessGone):
            await caller.call("never")


async def test_requests_wait_for_a_process_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(0, 2)
    with pytest.raises(CommandRejected, match="restarted"):
        links.at(1)
    waiting = asyncio.create_task(links.wait_for(1))
    await asyncio.sleep(0)
    caller, other = peers({})
    links.add(caller)
    async with asyncio.timeout(60):
        assert await waiting is caller
    links.remove(caller)
    monkeypatch.setattr("courser.processes.links.RESTART_PATIENCE", 0.0)
    with pytest.raises(CommandRejected, match="restarted"):
        await links.wait_for(1)
    caller.close()
    other.close()


# --- metadata ---------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_a_process_that_follows_has_the_same_state_whenever_it_started(source: random.Random, started: int) -> None:
    first = CatalogState()
    follower: ReplicatedStore | None = None
    for op in range(1, 60):
        if op == started:
            follower = ReplicatedStore(CatalogState.decode(first.encode()))
        change = random_command(source, first)
        try:
            check(first, change)
        except CommandRejected:
            # It is not journaled, and nobody is told of it.
            continue
        apply(first, change, op, 1000 + op)
        if follower is not None:
            assert follower.replay(op, 1000 + op, encode_change(change)) == change
            assert follower.state.encode() == first.encode()


# --- metrics ----------------------------------------------------------------------------------------------


def registry(appended: int, size: float, duration: float) -> Registry:
    found = Registry()
    found.counter(m.APPENDED_MESSAGES).value = appended
    found.value_of(m.DISK_SIZE, lambda: size)
    found.value_of(m.DISK_FULL, lambda: appended % 2)
    found.histogram(m.LOOP_DELAY).observe(duration)
    found.collected(m.FAILED_REQUESTS, lambda: (Sample(m.FAILED_REQUESTS.labeled("a", "b"), appended),))
    return found


def values(families: Any) -> dict[str, Any]:
    return {family.metric.name: [sample.value for sample in family.samples] for family in families}


def test_what_processes_count_is_added_up() -> None:
    first, other = registry(2, 100, 0.1), registry(3, 100, 0.2)
    found = values(merged(first, [snapshot_of(other)]))
    assert found[m.APPENDED_MESSAGES.name] == [5]
    assert found[m.FAILED_REQUESTS.name] == [5]
    assert found[m.DISK_SIZE.name] == [100]
    assert found[m.DISK_FULL.name] == [1]
    (delays,) = found[m.LOOP_DELAY.name]
    assert (delays.count, delays.sum) == (2, pytest.approx(0.3))
    # The figures of the first process itself are unchanged.
    assert first.value(m.LOOP_DELAY) == 1


def test_sums_do_not_decrease_when_a_process_ends() -> None:
    first, other = registry(2, 100, 0.1), registry(3, 100, 0.2)
    retired = grown(first, {}, snapshot_of(other))
    retired = grown(first, retired, snapshot_of(registry(4, 100, 0.2)))
    found = values(merged(first, [retired]))
    assert found[m.APPENDED_MESSAGES.name] == [9]
    assert found[m.DISK_FULL.name] == [0]
    assert found[m.LOOP_DELAY.name][0].count == 3


# --- files ------------------------------------------------------------------------------------------------


def test_processes_keep_how_far_they_scrubbed_in_files_of_their_own() -> None:
    names = {share_name(number, count) for count in range(1, 5) for number in range(count)}
    assert len(names) == 1 + 2 + 3 + 4
    assert share_name(0, 1) == "", "a server of one process goes on where it stopped"


# --- staging for topics of other processes ------------------------------------------------------------------


def test_topics_that_messages_were_staged_for_are_forgotten_when_they_are_gone() -> None:
    partition = SimpleNamespace(partition_id=0, incarnation=1)
    topic = SimpleNamespace(uuid=bytes(16), options=TopicOptions(), partitions=[partition])
    there = set[tuple[int, int]]()
    state = SimpleNamespace(topic=lambda *place: topic if place in there else None)
    elsewhere = SimpleNamespace(owns=lambda *_: False)
    parts: Any = elsewhere, None
    others: Any = {"disk_watch": None, "state": state, "delete_oldest_segments": True, "retention": None}
    sends = Sends(*parts, **others)
    for number in range(1000):
        there = {(0, number), (0, 5)}
        assert sends.target_of(TopicAddress(0, number), Balanced()).topic_id == number
    assert len(sends._remote) <= 200
    with pytest.raises(CommandRejected):
        sends.target_of(TopicAddress(0, 4), Balanced())
