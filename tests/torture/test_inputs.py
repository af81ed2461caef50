"""Requests with values that nobody should send, on both wires: each has its answer, and none is the last."""

import random
import struct
from collections.abc import Iterator

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, PollingKind, ToPartition
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.records.classic import Dialect
from courser.records.user_headers import is_typed
from courser.wire import writing as w
from tests.records.reference import read_wire
from tests.torture.clients import WIRES, Answer, ClassicClient, Client, VsrClient, send_body, vsr_batch
from tests.torture.conftest import Target
from tests.wire.classic_client import Message, parse_polled, request, send_payload

every_wire = pytest.mark.parametrize("wire", WIRES)
CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)
OPTIONS = TopicOptions(compression=1)
ID_MAX = 2**32 - 1
PLACE = w.identifier("s") + w.identifier("t")


@pytest.fixture
def client(target: Target, wire: str) -> Iterator[Client]:
    """Root. At the end the connection is as good as new."""
    with target.connect(wire) as client:
        yield client
        client.do(c.Ping())


# --- identifiers and names ----------------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize(
    ("identifier", "classic", "vsr"),
    [
        (b"\x00\x04" + bytes(4), E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"\x09\x04" + bytes(4), E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"\x01\x03" + bytes(3), E.INVALID_FORMAT, E.INVALID_COMMAND),
        (b"\x01\x05" + bytes(5), E.INVALID_FORMAT, E.INVALID_COMMAND),
        (b"\x01\x00", E.INVALID_FORMAT, E.INVALID_COMMAND),
        (b"\x02\x00", E.INVALID_FORMAT, E.INVALID_COMMAND),
        (b"\x02\x04\xff\xfe\xfd\xfc", E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"\x02\x03\xed\xa0\x80", E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"\x02\xff" + b"x" * 254, E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"\x02", E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"", E.INVALID_COMMAND, E.INVALID_COMMAND),
    ],
)
def test_identifiers_that_are_none(client: Client, wire: str, identifier: bytes, classic: E, vsr: E) -> None:
    status = classic if wire == "classic" else vsr
    for kind in (c.GetStream, c.DeleteStream, c.PurgeStream, c.GetUser, c.DeleteUser):
        assert client.say(kind, identifier) == Answer(status), kind
    place = w.identifier("s") + identifier
    for below in (c.GetTopic, c.DeleteTopic, c.GetConsumerGroups, c.GetPartitionBounds):
        assert client.say(below, place) == Answer(status), below


@every_wire
def test_identifiers_of_nothing(client: Client) -> None:
    for identifier in (ID_MAX, 12_345, "x" * 255, "S", "s ", "s\0", "../s", "0"):
        assert client.ask(c.GetStream(identifier)) == Answer(0)
        assert client.ask(c.DeleteStream(identifier)) == Answer(E.STREAM_NOT_FOUND)
        assert client.ask(c.DeleteTopic("s", identifier)) == Answer(E.TOPIC_NOT_FOUND)
        assert client.ask(c.DeleteConsumerGroup("s", "t", identifier)) == Answer(E.GROUP_NOT_FOUND)
        assert client.ask(c.DeleteUser(identifier)) == Answer(E.RESOURCE_NOT_FOUND)


NAMES = (
    "n" * 255,
    "\N{SNOWMAN}" * 85,
    "\N{GRINNING FACE}",
    " ",
    "   ",
    "with\0nul",
    "a/b/c",
    "..",
    "../../etc/passwd",
    "/",
    "line\nbreak",
    "\r\n",
    "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe",
    "Case",
    "case",
    "CASE",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "cafe\N{COMBINING ACUTE ACCENT}",
    "\N{LATIN SMALL LETTER SHARP S}",
    "ss",
    "%s%d{0}",
    "'; DROP TABLE streams; --",
    "<script>alert(1)</script>",
    "\x1b[2J",
    "0",
    "4294967295",
)


@every_wire
def test_any_text_is_a_name_and_no_two_are_the_same(client: Client, target: Target, wire: str) -> None:
    client.do(c.CreateStream(f"names-{wire}"))
    for name in NAMES:
        client.do(c.CreateTopic(f"names-{wire}", name, 1, OPTIONS))
    for number, name in enumerate(NAMES):
        body = client.do(c.GetTopic(f"names-{wire}", name))
        assert struct.unpack_from("<I", body) == (number,)
        assert client.ask(c.CreateTopic(f"names-{wire}", name, 1, OPTIONS)) == Answer(E.TOPIC_NAME_ALREADY_EXISTS)
    # Names are in no path and make no line of the log.
    assert not any("passwd" in path.name or "case" in path.name for path in target.server.data.rglob("*"))
    assert not any(line.startswith(("break", "'")) for line in target.server.output.splitlines())
    for name in NAMES:
        client.do(c.DeleteTopic(f"names-{wire}", name))
    client.do(c.DeleteStream(f"names-{wire}"))


@every_wire
@pytest.mark.parametrize(
    ("name", "classic", "vsr"),
    [
        (b"\x00", E.INVALID_FORMAT, E.INVALID_COMMAND),
        (b"\x02\xff\xff", E.INVALID_COMMAND, E.INVALID_COMMAND),
        (b"\x05four", E.INVALID_COMMAND, E.INVALID_COMMAND),
    ],
)
def test_names_that_are_none(client: Client, wire: str, name: bytes, classic: E, vsr: E) -> None:
    status = classic if wire == "classic" else vsr
    assert client.say(c.CreateStream, name) == Answer(status)
    assert client.say(c.UpdateStream, w.identifier("s") + name) == Answer(status)
    assert client.say(c.CreateConsumerGroup, PLACE + name) == Answer(status)
    assert client.say(c.CreateUser, name + w.text8("password") + b"\1\0") == Answer(status)


# --- users, permissions, tokens -----------------------------------------------------------------------


@every_wire
def test_users_as_nobody_should_make_them(client: Client, wire: str) -> None:
    for name, password, status in (
        ("ab", "password", E.INVALID_USERNAME),
        ("x" * 51, "password", E.INVALID_USERNAME),
        ("valid", "ab", E.INVALID_PASSWORD),
        ("valid", "x" * 101, E.INVALID_PASSWORD),
        ("iggy", "password", E.USER_ALREADY_EXISTS),
    ):
        assert client.ask(c.CreateUser(name, password, True, None)) == Answer(status), (name, password)
    for status_byte in (0, 3, 255):
        body = w.text8("valid") + w.text8("password") + bytes((status_byte, 0))
        assert client.say(c.CreateUser, body) == Answer(E.INVALID_COMMAND)
    for similar in ("IGGY", "iggy ", "\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}ggy"):
        client.do(c.CreateUser(similar, "password", True, None))
        with WIRES[wire](client.socket.getpeername()[1]).login(similar, "password") as impostor:
            assert impostor.ask(c.GetUsers()) == Answer(E.UNAUTHORIZED)
        client.do(c.DeleteUser(similar))


@every_wire
def test_nobody_can_touch_root(client: Client) -> None:
    for root in (0, "iggy"):
        assert client.ask(c.DeleteUser(root)) == Answer(E.CANNOT_DELETE_USER)
        assert client.ask(c.UpdatePermissions(root, None)) == Answer(E.CANNOT_CHANGE_PERMISSIONS)
    for user in (ID_MAX, "nobody"):
        assert client.ask(c.GetUser(user)) == Answer(0)
        for command in (c.DeleteUser(user), c.UpdateUser(user, "another", None), c.UpdatePermissions(user, None)):
            assert client.ask(command).status == E.RESOURCE_NOT_FOUND


@every_wire
def test_permissions_cut_at_every_byte(client: Client) -> None:
    permissions = Permissions(
        GlobalPermissions(read_users=True),
        {1: StreamPermissions(), ID_MAX: StreamPermissions(topics={7: TopicPermissions(), ID_MAX: TopicPermissions()})},
    )
    user = w.identifier("target")
    block = w.optional_permissions_of_request(permissions)
    before = client.do(c.GetUser("target"))
    for size in range(1, len(block)):
        status = client.say(c.UpdatePermissions, user + block[:size]).status
        assert status in (E.INVALID_COMMAND, E.INVALID_FORMAT), size
    # A size that is not that of the permissions is wrong too.
    for size in (0, len(block) - 6, len(block) - 4, 2**31, ID_MAX):
        lying = block[:1] + struct.pack("<I", size) + block[5:]
        assert client.say(c.UpdatePermissions, user + lying).status in (E.INVALID_COMMAND, E.INVALID_FORMAT), size
    assert client.do(c.GetUser("target")) == before
    # Streams and topics need not exist, or not yet.
    client.do(c.UpdatePermissions("target", permissions))
    client.do(c.UpdatePermissions("target", None))


@every_wire
def test_permissions_without_end(client: Client) -> None:
    endless = b"\1" + struct.pack("<I", 4_000_011) + b"\1" * 10 + b"\1" + (bytes(10) + b"\0\1") * 333_333
    status = client.say(c.UpdatePermissions, w.identifier("target") + endless).status
    assert status in (E.INVALID_COMMAND, E.INVALID_FORMAT)


@every_wire
def test_tokens_as_nobody_should_make_them(client: Client, wire: str) -> None:
    for name in ("ab", "x" * 31):
        answer = client.ask(c.CreateToken(name, 0))
        assert answer.status == (E.INVALID_TOKEN_NAME if wire == "classic" else 0)
    for name in ("ab", "x" * 31) if wire == "vsr" else ():
        client.do(c.DeleteToken(name))
    assert client.ask(c.DeleteToken("nothing")) == Answer(E.RESOURCE_NOT_FOUND)
    client.do(c.CreateToken("soon", 1))
    client.do(c.CreateToken("never", NEVER))
    assert client.ask(c.CreateToken("never", 0)) == Answer(E.TOKEN_ALREADY_EXISTS)
    for name in ("soon", "never"):
        client.do(c.DeleteToken(name))


# --- topics and partitions ----------------------------------------------------------------------------


@every_wire
def test_numbers_of_partitions(client: Client) -> None:
    client.do(c.CreateTopic("s", "no-partitions", 0, OPTIONS))
    for count in (1_001, 2**31, ID_MAX):
        assert client.ask(c.CreateTopic("s", "many", count, OPTIONS)) == Answer(E.TOO_MANY_PARTITIONS)
        assert client.ask(c.CreatePartitions("s", "no-partitions", count)) == Answer(E.TOO_MANY_PARTITIONS)
        assert client.ask(c.DeletePartitions("s", "no-partitions", count)).status in (
            E.TOO_MANY_PARTITIONS,
            E.INVALID_PARTITIONS_COUNT,
        )
    assert client.ask(c.CreatePartitions("s", "no-partitions", 0)) == Answer(E.TOO_MANY_PARTITIONS)
    assert client.ask(c.DeletePartitions("s", "no-partitions", 0)) == Answer(E.TOO_MANY_PARTITIONS)
    assert client.ask(c.DeletePartitions("s", "no-partitions", 1)) == Answer(E.INVALID_PARTITIONS_COUNT)
    nowhere = c.SendMessages("s", "no-partitions", Balanced(), [])
    assert client.ask(nowhere, [b"x"]).status in (E.TOPIC_NOT_FOUND, E.RESOURCE_NOT_FOUND)
    by_key = c.SendMessages("s", "no-partitions", ByKey(b"k"), [])
    assert client.ask(by_key, [b"x"]).status in (E.TOPIC_NOT_FOUND, E.RESOURCE_NOT_FOUND)
    poll = c.PollMessages(CONSUMER, "s", "no-partitions", 0, PollingKind.FIRST, 0, 1, False)
    assert client.ask(poll) == Answer(E.PARTITION_NOT_FOUND)
    client.do(c.DeleteTopic("s", "no-partitions"))


def test_classic_topic_options(target: Target) -> None:
    with target.connect("classic") as client:
        for options, status in (
            (TopicOptions(compression=0), E.INVALID_COMMAND),
            (TopicOptions(compression=3), E.INVALID_COMMAND),
            (TopicOptions(compression=1, max_topic_size=1), E.INVALID_TOPIC_SIZE),
            (TopicOptions(compression=1, max_topic_size=16 * 1024 * 1024 - 1), E.INVALID_TOPIC_SIZE),
        ):
            assert client.ask(c.CreateTopic("s", "odd", 1, options)) == Answer(status), options
        for options in (
            TopicOptions(compression=2, message_expiry=NEVER, max_topic_size=NEVER, replication_factor=255),
            TopicOptions(compression=1, message_expiry=1, max_topic_size=16 * 1024 * 1024, replication_factor=0),
            TopicOptions(compression=1, message_expiry=NEVER - 1, max_topic_size=NEVER - 1),
        ):
            client.do(c.CreateTopic("s", "odd", 1, options))
            client.do(c.UpdateTopic("s", "odd", "odd", options, is_patch=False))
            client.do(c.GetTopic("s", "odd"))
            client.do(c.DeleteTopic("s", "odd"))


@every_wire
@pytest.mark.parametrize("partition_id", [3, 2**31, ID_MAX])
def test_partitions_that_are_not_there(client: Client, wire: str, partition_id: int) -> None:
    missing = E.PARTITION_NOT_FOUND if wire == "classic" else E.RESOURCE_NOT_FOUND
    assert client.ask(c.SendMessages("s", "t", ToPartition(partition_id), []), [b"x"]) == Answer(missing)
    assert client.ask(c.StoreConsumerOffset(CONSUMER, "s", "t", partition_id, 0)) == Answer(missing)
    assert client.ask(c.DeleteConsumerOffset(CONSUMER, "s", "t", partition_id)) == Answer(missing)
    for command in (
        c.PollMessages(CONSUMER, "s", "t", partition_id, PollingKind.FIRST, 0, 1, True),
        c.FlushMessages("s", "t", partition_id, True),
        c.DeleteSegments("s", "t", partition_id, 1),
        c.GetSegments("s", "t", partition_id),
    ):
        assert client.ask(command) == Answer(E.PARTITION_NOT_FOUND), command
    found = client.ask(c.GetConsumerOffset(CONSUMER, "s", "t", partition_id))
    assert found == Answer(0 if wire == "classic" else E.PARTITION_NOT_FOUND)


@every_wire
@pytest.mark.parametrize(
    "partitioning", [b"\x00\x00", b"\x04\x00", b"\xff\x04" + bytes(4), b"\x02\x03" + bytes(3), b"\x01\x01\x00", b"\x02"]
)
def test_partitionings_that_are_none(client: Client, wire: str, partitioning: bytes) -> None:
    target = PLACE + partitioning + struct.pack("<I", 1)
    messages = (
        vsr_batch([b"x"]) if wire == "vsr" else struct.pack("<IIQ", 0, 65, 0) + Message(b"x").encoded(Dialect.SDK_0_8)
    )
    answer = client.say(c.SendMessages, struct.pack("<I", len(target)) + target + messages)
    assert answer == Answer(E.INVALID_COMMAND if wire == "classic" else E.RESOURCE_NOT_FOUND)


@every_wire
def test_keys_of_any_length(client: Client, wire: str) -> None:
    for size in (1, 255):
        client.do(c.SendMessages("s", "t", ByKey(b"k" * size), []), [b"x"])
    empty = client.ask(c.SendMessages("s", "t", ByKey(b""), []), [b"x"])
    assert empty == Answer(0 if wire == "classic" else E.RESOURCE_NOT_FOUND)


# --- polls and offsets --------------------------------------------------------------------------------


@every_wire
def test_polls_with_extreme_values(client: Client) -> None:
    client.do(c.SendMessages("s", "t", ToPartition(1), []), [b"one", b"two"])

    def count(kind: PollingKind, value: int, wanted: int) -> int:
        body = client.do(c.PollMessages(CONSUMER, "s", "t", 1, kind, value, wanted, False))
        found: int = struct.unpack_from("<I", body, 12)[0]
        return found

    everything = count(PollingKind.FIRST, 0, ID_MAX)
    assert everything >= 2
    for kind in PollingKind:
        assert count(kind, 0, 0) == 0
        assert count(kind, 2**64 - 1, 0) == 0
    assert count(PollingKind.OFFSET, 0, ID_MAX) == everything
    assert count(PollingKind.OFFSET, 2**64 - 1, ID_MAX) == 0
    assert count(PollingKind.OFFSET, 2**63, 1) == 0
    assert count(PollingKind.LAST, 2**64 - 1, ID_MAX) == everything
    assert count(PollingKind.TIMESTAMP, 0, ID_MAX) == everything
    assert count(PollingKind.TIMESTAMP, 2**64 - 1, ID_MAX) == 0
    assert count(PollingKind.NEXT, 2**64 - 1, ID_MAX) == everything


@every_wire
@pytest.mark.parametrize("kind", [0, 3, 255])
def test_consumers_that_are_none(client: Client, wire: str, kind: int) -> None:
    consumer = bytes((kind,)) + w.identifier(1)
    tail = struct.pack("<BIBQIB", 1, 0, 1, 0, 1, 0)
    assert client.say(c.PollMessages, consumer + PLACE + tail) == Answer(E.INVALID_COMMAND)
    store = client.say(c.StoreConsumerOffset, consumer + PLACE + struct.pack("<BIQB", 1, 0, 0, 0))
    assert store.status in (E.INVALID_COMMAND, E.RESOURCE_NOT_FOUND)


@every_wire
@pytest.mark.parametrize("strategy", [0, 6, 255])
def test_strategies_that_are_none(client: Client, strategy: int) -> None:
    body = b"\x01" + w.identifier(1) + PLACE + struct.pack("<BIBQIB", 1, 0, strategy, 0, 1, 0)
    assert client.say(c.PollMessages, body) == Answer(E.INVALID_COMMAND)


@every_wire
def test_offsets_beyond_the_end(client: Client) -> None:
    client.do(c.SendMessages("s", "t", ToPartition(2), []), [b"x"])
    for offset in (1_000_000, 2**63, 2**64 - 1):
        assert client.ask(c.StoreConsumerOffset(CONSUMER, "s", "t", 2, offset)) == Answer(E.INVALID_OFFSET)
    assert client.ask(c.DeleteConsumerOffset(Consumer(ConsumerKind.CONSUMER, 99), "s", "t", 2)) == Answer(
        E.CONSUMER_OFFSET_NOT_FOUND
    )


@every_wire
def test_groups_without_a_membership(client: Client, wire: str) -> None:
    group = Consumer(ConsumerKind.GROUP, "g")
    assert client.ask(c.LeaveConsumerGroup("s", "t", "g")) == Answer(E.GROUP_MEMBER_NOT_FOUND)
    poll = client.ask(c.PollMessages(group, "s", "t", 0, PollingKind.FIRST, 0, 1, True))
    if wire == "classic":
        assert poll == Answer(E.GROUP_MEMBER_NOT_FOUND)
    else:
        assert poll.body == struct.pack("<IQI", ID_MAX, 0, 0)
    store = client.ask(c.StoreConsumerOffset(group, "s", "t", 0, 0))
    assert store == Answer(E.GROUP_MEMBER_NOT_FOUND if wire == "classic" else E.CONSUMER_NOT_RESOLVED)


# --- messages, classic --------------------------------------------------------------------------------

SEND = c.SendMessages("s", "t", ToPartition(0), [])
LONG = Dialect.SDK_0_8


def classic_send(
    messages: list[Message], *, count: int | None = None, index: list[tuple[int, int, int]] | None = None
) -> bytes:
    """A send whose count and index may lie."""
    metadata = PLACE + w.partitioning(ToPartition(0)) + struct.pack("<I", len(messages) if count is None else count)
    encoded = [message.encoded(LONG) for message in messages]
    ends = [sum(map(len, encoded[: number + 1])) for number in range(len(encoded))]
    entries = [(0, end, 0) for end in ends] if index is None else index
    block = b"".join(struct.pack("<IIQ", *entry) for entry in entries)
    return struct.pack("<I", len(metadata)) + metadata + block + b"".join(encoded)


HELLO = Message(b"hello")
"""64 + 5 bytes."""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (classic_send([HELLO], count=0), E.INVALID_MESSAGES_COUNT),
        # The index is taken for longer than it is: a part of the message is read as an entry of it.
        (classic_send([HELLO], count=2), E.MISSING_INDEX),
        (classic_send([HELLO], count=1_000_000), E.INVALID_COMMAND),
        (classic_send([HELLO], count=ID_MAX), E.INVALID_COMMAND),
        (classic_send([HELLO] * 3, index=[(0, 138, 0), (0, 69, 0), (0, 207, 0)]), E.MISSING_INDEX),
        (classic_send([HELLO] * 3, index=[(0, 69, 0), (0, 69, 0), (0, 207, 0)]), E.MISSING_INDEX),
        (classic_send([HELLO] * 2, index=[(0, 10_000, 0), (0, 138, 0)]), E.MISSING_INDEX),
        (classic_send([HELLO] * 2, index=[(0, ID_MAX, 0), (0, 138, 0)]), E.MISSING_INDEX),
        (classic_send([HELLO] * 2, index=[(0, 2**31, 0), (0, 138, 0)]), E.MISSING_INDEX),
        (classic_send([HELLO] * 2, index=[(0, 0, 0), (0, 138, 0)]), E.MISSING_INDEX),
        (classic_send([HELLO], index=[(1, 69, 0)]), E.NON_ZERO_OFFSET),
        (classic_send([HELLO], index=[(0, 69, 1)]), E.NON_ZERO_TIMESTAMP),
        (classic_send([Message(b"x", offset=5), Message(b"x", offset=4)]), E.INVALID_OFFSET),
        (classic_send([Message(b"x", user_headers=b"\1" * 100_001)]), E.TOO_BIG_USER_HEADERS),
    ],
)
def test_classic_sends_that_contradict_themselves(target: Target, body: bytes, status: E) -> None:
    with target.connect("classic") as client:
        before = client.do(c.GetTopic("s", "t"))
        assert client.say(c.SendMessages, body) == Answer(status)
        assert client.do(c.GetTopic("s", "t")) == before


def test_classic_payloads_of_every_size(target: Target) -> None:
    """An empty payload is allowed, 64,000,000 bytes too, one more is not."""
    with target.connect("classic") as client:
        client.do(SEND, [b""])
        assert client.ask(SEND, [bytes(64_000_001)]) == Answer(E.TOO_BIG_MESSAGE_PAYLOAD)
        large = random.Random(1).randbytes(64_000_000)
        client.do(SEND, [large])
        poll = c.PollMessages(CONSUMER, "s", "t", 0, PollingKind.LAST, 0, 1, False)
        (message,) = parse_polled(client.do(poll)).messages
        assert message.payload == large
        client.do(c.PurgeTopic("s", "t"))


def entry(key: bytes, value: bytes, key_kind: int = 2, kind: int = 2) -> bytes:
    return struct.pack("<BI", key_kind, len(key)) + key + struct.pack("<BI", kind, len(value)) + value


@pytest.mark.parametrize(
    "headers",
    [
        entry(b"k", b"v") + entry(b"k", b"w"),
        entry(b"k", b"v", kind=200),
        entry(b"", b"v"),
        entry(b"k", b""),
        entry(b"k" * 256, b"v" * 256),
        entry(b"k", b"v")[:-1],
        entry(b"k", b"v") + b"rest",
        b"\xff" * 50,
    ],
)
def test_user_headers_of_any_form_come_back_as_they_were(target: Target, headers: bytes) -> None:
    """The server does not look into them, since clients encrypt them too. 0.5 and 0.6 get good ones in their form."""
    poll = c.PollMessages(CONSUMER, "s", "t", 0, PollingKind.LAST, 0, 1, False)
    for dialect in Dialect:
        with ClassicClient(target.port, dialect=dialect).login() as client:
            client.send(request(SEND, dialect, [Message(b"x", user_headers=headers)]))
            assert client.receive() == Answer(0)
            client.send(request(poll, dialect))
            (message,) = parse_polled(client.receive().body, dialect).messages
            if dialect.has_long_header or not is_typed(headers):
                assert message.user_headers == headers


def test_checksums_of_classic_clients_are_replaced_and_ids_are_theirs(target: Target) -> None:
    messages = [
        Message(b"a", message_id=b"\7" * 16, checksum=12_345),
        Message(b"b", message_id=b"\7" * 16, checksum=2**64 - 1),
        Message(b"c", message_id=bytes(16)),
    ]
    with target.connect("classic") as client:
        assert client.say(c.SendMessages, send_payload(SEND, messages, LONG)) == Answer(0)
        body = client.do(c.PollMessages(CONSUMER, "s", "t", 0, PollingKind.LAST, 0, 3, False))
        found = parse_polled(body).messages
    assert [message.message_id for message in found[:2]] == [b"\7" * 16] * 2
    assert any(found[2].message_id), "an id of 0 is replaced"
    assert 12_345 not in [message.checksum for message in found]


# --- messages, 0.9 ------------------------------------------------------------------------------------


def changed(batch: bytes, position: int, layout: str, value: int) -> bytes:
    data = bytearray(batch)
    struct.pack_into(layout, data, position, value)
    return bytes(data)


TWO = vsr_batch([b"hello", b"world"])
FRAME = 256


@pytest.mark.parametrize(
    ("batch", "count", "statuses"),
    [
        (TWO, 0, (E.INVALID_MESSAGES_COUNT,)),
        (TWO, 1, (E.INVALID_MESSAGES_COUNT,)),
        (TWO, 3, (E.INVALID_MESSAGES_COUNT,)),
        (TWO, ID_MAX, (E.INVALID_MESSAGES_COUNT,)),
        (changed(TWO, 48, "<I", 0), 0, (E.INVALID_MESSAGES_COUNT,)),
        (
            changed(TWO, 48, "<I", ID_MAX),
            ID_MAX,
            (E.INVALID_COMMAND, E.INVALID_MESSAGES_COUNT, E.INVALID_MESSAGES_SIZE),
        ),
        (changed(TWO, 32, "<Q", 0), 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (changed(TWO, 32, "<Q", 2**64 - 1), 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (changed(TWO, 40, "<Q", 1), 2, (E.INVALID_BATCH_CHECKSUM,)),
        (changed(TWO, 52, "<Q", 1), 2, (E.INVALID_RESERVED_FIELD, E.INVALID_COMMAND)),
        (changed(TWO, FRAME + 36, "<I", ID_MAX), 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (changed(TWO, FRAME + 32, "<I", 1), 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (changed(TWO, FRAME + 24, "<I", 1), 2, (E.INVALID_COMMAND, E.INVALID_OFFSET)),
        (changed(TWO, FRAME, "<Q", 1), 2, (E.INVALID_BATCH_CHECKSUM,)),
        (TWO[:-1], 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (TWO + b"x", 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (TWO[:255], 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
        (b"", 2, (E.INVALID_COMMAND, E.INVALID_MESSAGES_SIZE)),
    ],
)
def test_batches_that_contradict_themselves(target: Target, batch: bytes, count: int, statuses: tuple[E, ...]) -> None:
    with target.connect("vsr") as client:
        before = client.do(c.GetTopic("s", "t"))
        answer = client.say(c.SendMessages, send_body(SEND, batch, count))
        assert answer.status in statuses, answer
        assert client.do(c.GetTopic("s", "t")) == before


def test_payloads_and_ids_of_0_9(target: Target) -> None:
    """Payloads may be empty and as large as a frame; ids are the client's, 0 included, also twice."""
    with target.connect("vsr") as client:
        assert isinstance(client, VsrClient)
        client.do(SEND, [b"", b""])
        body = client.do(c.PollMessages(CONSUMER, "s", "t", 0, PollingKind.LAST, 0, 2, False))
        assert [(message.payload, message.message_id) for message in read_wire(body[16:])] == [(b"", 0)] * 2
        room = 64 * 1024 * 1024 - len(client.request(SEND, [b""]))
        assert not client.ask(SEND, [bytes(room)]).status
    with target.connect("vsr") as client:
        client.send(client.request(SEND, [bytes(room + 1)]))
        answer = client.fate()
        assert answer is not None
        assert answer.status == E.INVALID_MESSAGES_SIZE
        assert client.fate() is None
    with target.connect("vsr") as client:
        client.do(c.PurgeTopic("s", "t"))
