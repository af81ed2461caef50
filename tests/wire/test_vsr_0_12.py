"""Protocol 0.12, byte for byte: what SDK 0.10 sends and reads otherwise than SDK 0.9."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.partition.topic_settings import describe_options
from courser.broker.settings import USUAL_TOPIC_OPTIONS
from courser.errors import ErrorCode as E
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import COMPRESSIONS, TopicOptions
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.wire.codec import Cancellation, Deferral
from courser.wire.vsr import VsrCodec
from courser.wire.writing import identifier, text8
from tests.wire.vsr_0_12 import UPDATE, VERSIONS, Client12, check_header, register
from tests.wire.vsr_captures import channel_of, frame

NOW = 1_710_000_000_000_000
NEVER = 2**64 - 1
PLACE = identifier("s1") + identifier("t1")
EFFECTIVE = USUAL_TOPIC_OPTIONS


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def entry(key: str, kind: int, data: bytes) -> bytes:
    return b"\2" + u32(len(key)) + key.encode() + bytes((kind,)) + u32(len(data)) + data


def block(*entries: bytes) -> bytes:
    return u32(len(b"".join(entries))) + b"".join(entries)


# --- records ------------------------------------------------------------------------------------------


def test_a_stream_has_two_blocks_and_says_that_it_is_not_encrypted() -> None:
    reply = r.StreamInfo(1, NOW, 0, 4096, 12, "plain-stream")
    expected = (
        "0100000000e090663c1306000000000000100000000000000c000000000000000c706c61696e2d73747265616d00000000"
        "230000000215000000656e6372797074696f6e5f6b65795f736f7572636502040000006e6f6e65"
    )
    client = Client12()
    assert client.body(client.request(128, text8("plain-stream")), reply).hex() == "00000000" + expected
    listed = r.StreamList([reply])
    assert client.body(client.read(201), listed).hex() == expected


def test_a_user_has_two_blocks() -> None:
    client = Client12()
    reply = r.UserDetails(r.UserInfo(5, NOW, True, "alice"), None)
    expected = "0500000000e090663c1306000105616c6963650000000000000000" + "00000000"
    assert client.body(client.read(31, identifier("alice")), reply).hex() == expected
    assert client.body(client.read(32), r.UserList([reply.user])).hex() == expected[:-8]


def topic(**options: object) -> r.TopicInfo:
    wanted = TopicOptions(**options)  # type: ignore[arg-type]
    return r.TopicInfo(4, NOW, 1, 2048, 7, "events", wanted, EFFECTIVE)


DERIVED = (
    entry("compression_algorithm", 2, b"none"),
    entry("consumer_offset_durability", 2, b"replicated"),
    entry("durability", 2, b"replicated"),
    entry("max_topic_size", 12, u64(NEVER)),
    entry("message_expiry", 12, u64(NEVER)),
    entry("messages_required_to_save", 11, u32(1024)),
    entry("partition_resize_policy", 2, b"mutable"),
    entry("preallocate_segments", 3, b"\0"),
    entry("segment_size", 12, u64(2**30)),
    entry("size_of_messages_required_to_save", 12, u64(2**20)),
)
"""The defaults of all options, by key."""


def without(*keys: str) -> bytes:
    return block(*(row for row in DERIVED if not any(key.encode() in row[5 : 5 + row[1]] for key in keys)))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_topic_is_set_to_is_only_in_its_blocks(version: int) -> None:
    client = Client12(version)
    row = topic(message_expiry=604_800_000_000, compression=COMPRESSIONS["gzip"])
    head = u32(4) + u64(NOW) + u32(1) + u64(2048) + u64(7) + text8("events")
    explicit = block(entry("compression_algorithm", 2, b"gzip"), entry("message_expiry", 12, u64(604_800_000_000)))
    expected = head + explicit + without("compression_algorithm", "message_expiry")
    assert client.body(client.read(301, identifier("s")), r.TopicList([row])) == u32(1) + expected


def test_what_older_releases_set_is_not_shown() -> None:
    client = Client12()
    body = client.body(client.read(301, identifier("s")), r.TopicList([topic(enforce_fsync=True)]))
    assert b"enforce_fsync" not in body
    # The SDK has no word for these.
    for name in ("snappy", "lz4", "zstd"):
        row = topic(compression=COMPRESSIONS[name])
        assert entry("compression_algorithm", 2, b"gzip") in client.body(
            client.read(301, identifier("s")), r.TopicList([row])
        )


@pytest.mark.parametrize("version", [*VERSIONS, 0x3003, 0x33FF])
def test_a_partition_has_what_the_version_of_the_client_reads(version: int) -> None:
    client = Client12(version)
    details = r.TopicDetails(topic(), [r.PartitionInfo(0, NOW, 1, 0, 0, 0, incarnation=13)])
    record = "00000000" + "00e090663c130600" + "01000000" + 3 * "0000000000000000"
    record += "0d00000000000000" + "0000000000000000" + "0d00000000000000"
    if version >= 0x3002:
        record += "01000100"
    head = client.body(client.read(301, identifier("s")), r.TopicList([topic()]))[4:]
    for request in (client.read(300, PLACE), client.request(132, identifier("s1") + u32(1) + text8("t1"))):
        body = client.body(request, details)
        assert body.endswith(head + bytes.fromhex(record))


def test_the_node_has_a_number() -> None:
    client = Client12()
    nodes = [r.Node("iggy-node", "127.0.0.1", 18100, 0, 0, 0)]
    assert client.body(client.read(12), r.ClusterMetadata("single-node", nodes)).hex() == (
        "0b000000" + b"single-node".hex() + "01000000" + "00"
        "09000000" + b"iggy-node".hex() + "09000000" + b"127.0.0.1".hex() + "b446000000000000" + "0000"
    )


def test_a_route() -> None:
    client = Client12()
    request = client.read(105, bytes.fromhex("020273310202743101000000"))
    assert client.command(request) == c.GetPartitionRoute("s1", "t1", 1)
    assert client.body(request, r.PartitionRoute(13, 2)).hex() == (
        "0d00000000000000" + "0d00000000000000" + "00000000" + "02000000" + "00"
    )


# --- messages -----------------------------------------------------------------------------------------

POLL_TAIL = b"\1" + u32(1) + b"\1" + u64(7) + u32(10) + b"\0"
POLL = b"\1" + identifier("c1") + PLACE + POLL_TAIL


def test_a_poll_says_which_partition_it_means_and_learns_which_it_was() -> None:
    client = Client12()
    request = client.read(100, POLL, incarnation=13)
    consumer = Consumer(ConsumerKind.CONSUMER, "c1")
    expected = c.PollMessages(consumer, "s1", "t1", 1, PollingKind.OFFSET, 7, 10, auto_commit=False, incarnation=13)
    assert client.command(request) == expected
    records = memoryview(bytes(300))
    answer = client.answer(request, r.Polled(1, 8, 2, (records,), len(records), 14))
    assert answer[256:].hex() == "01000000" + "0800000000000000" + "02000000" + "0e00000000000000" + 16 * "0" + (
        "0e00000000000000" + bytes(300).hex()
    )


def send_body(partition_id: int = 1) -> bytes:
    batch = encode_batch(build_batch([NewMessage(b"one"), NewMessage(b"two")]))
    target = PLACE + b"\2\4" + u32(partition_id) + u32(2)
    return u32(len(target)) + target + batch


@pytest.mark.parametrize("verify_frames", [True, False])
@pytest.mark.parametrize("checksum", [0, 2**99])
def test_a_send_says_which_partition_it_means(*, verify_frames: bool, checksum: int) -> None:
    client = Client12()
    client.codec._verify_frames = verify_frames
    request = bytearray(client.request(160, send_body(), incarnation=2**64 - 2))
    request[144:160] = checksum.to_bytes(16, "little")
    command = client.command(bytes(request))
    assert isinstance(command, c.SendMessages)
    assert (command.partitioning, command.incarnation) == (ToPartition(1), 2**64 - 2)
    assert [batch.count for batch in command.batches] == [2]
    answer = client.answer(client.request(160, send_body()), r.Sent(0, 0, 1, 5))
    assert answer[256:].hex() == "01000000" + "00000000" + "00000000" + "01000000" + "0500000000000000"
    assert answer[208] == 160


@pytest.mark.parametrize(("operation", "tail"), [(161, u64(2) + b"\1"), (162, b"\1")])
def test_stored_offsets_say_which_partition_they_mean(operation: int, tail: bytes) -> None:
    client = Client12()
    body = b"\2" + identifier("g2") + PLACE + b"\1" + u32(1) + tail
    request = client.request(operation, body, incarnation=13)
    command = client.command(request)
    assert isinstance(command, c.StoreConsumerOffset | c.DeleteConsumerOffset)
    assert (command.partition_id, command.incarnation) == (1, 13)
    assert client.answer(request)[256:] == bytes(4)
    read = client.command(client.read(120, b"\1" + identifier("c") + PLACE + b"\1" + u32(1), incarnation=13))
    assert isinstance(read, c.GetConsumerOffset)
    assert read.incarnation == 13


def test_older_releases_mean_no_incarnation() -> None:
    request = bytearray(frame(2, POLL, code=100))
    request[200:224] = bytes(range(24))
    command = VsrCodec().decode(memoryview(bytes(request)), is_logged_in=True).command
    assert isinstance(command, c.PollMessages)
    assert command.incarnation == 0


# --- failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND, E.PARTITION_NOT_OWNED])
def test_a_member_without_the_partition_is_told_so(code: E) -> None:
    client = Client12()
    group = b"\2" + identifier("g") + PLACE + POLL_TAIL
    assert channel_of(client.answer(client.read(100, group), code)) == ("status", E.PARTITION_NOT_OWNED)


@pytest.mark.parametrize("code", E)
def test_a_poll_that_commits_fails_only_as_one_that_stored_nothing(code: E) -> None:
    understood = {5, 6, 58, 80, 87, 89, 90, 1009, 1010, 2010, 2011, 3007, 3024, 4100, 5009}
    client = Client12()
    for consumer in (b"\1", b"\2"):
        body = consumer + identifier("x") + PLACE + POLL_TAIL[:-1] + b"\1"
        answer = client.answer(client.read(100, body), code)
        channel, number = channel_of(answer)
        assert (channel, number) == ("evict", 13) or (channel == "status" and number in understood)


@pytest.mark.parametrize("code", [E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND, E.HISTORY_UNAVAILABLE])
def test_messages_and_offsets_name_what_is_missing(code: E) -> None:
    client = Client12()
    offset = b"\1" + identifier("c") + PLACE + b"\1" + u32(1)
    for request in (
        client.request(160, send_body()),
        client.request(161, offset + u64(2) + b"\1"),
        client.request(162, offset + b"\1"),
        client.read(120, offset),
        client.read(100, POLL),
    ):
        assert channel_of(client.answer(request, code)) == ("status", code)


def test_reads_that_find_nothing() -> None:
    client = Client12()
    offset = b"\1" + identifier("c") + PLACE + b"\1" + u32(1)
    assert client.answer(client.read(120, offset), E.CONSUMER_OFFSET_NOT_FOUND)[256:] == b""
    assert client.answer(client.read(300, PLACE), E.TOPIC_NOT_FOUND)[256:] == b""
    assert client.answer(client.read(606, PLACE + identifier("g")), E.GROUP_MEMBER_NOT_FOUND)[256:] == b""


# --- requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [129, 131, 133, 135, 142, 151, 159, 163, 199])
def test_operations_that_are_gone_are_unknown(operation: int) -> None:
    client = Client12()
    answer = client.answer(client.request(operation, PLACE + text8("x")))
    assert (channel_of(answer), answer[208]) == (("status", E.INVALID_COMMAND), 2)


@pytest.mark.parametrize("code", [14, 35, 102, 103, 104, 123, 124, 204, 205, 304, 305, 999])
def test_codes_that_are_gone_are_unknown(code: int) -> None:
    client = Client12()
    assert channel_of(client.answer(client.read(code, PLACE + bytes(8)))) == ("status", E.INVALID_COMMAND)


@pytest.mark.parametrize("code", [105, 106, 107, 108, 109, 17, 16])
def test_older_releases_do_not_have_the_new_codes(code: int) -> None:
    incoming = VsrCodec().decode(memoryview(frame(2, PLACE + bytes(40), code=code)), is_logged_in=True)
    assert incoming.answer is not None
    assert channel_of(b"".join(incoming.answer)) == ("status", E.INVALID_COMMAND)


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_a_session_does_not_outlive_its_connection(*, is_logged_in: bool) -> None:
    body = register(0x3002)[256:-13] + bytes(16) + u64(101) + u64(13) + bytes(32)
    for codec in (VsrCodec(), Client12().codec):
        request = frame(2, body, code=15, request=6, session=101)
        incoming = codec.decode(memoryview(request), is_logged_in=is_logged_in)
        assert incoming.answer is not None
        answer = b"".join(incoming.answer)
        check_header(request, answer)
        # With any other number the client would never log in again.
        assert channel_of(answer) == ("status", E.UNAUTHENTICATED)


@given(st.binary(min_size=16, max_size=16), st.sampled_from([128, 130, 137, 139, 150]))
def test_the_checksum_of_a_change_is_any_number(checksum: bytes, operation: int) -> None:
    client = Client12()
    bodies = {128: text8("s"), 130: identifier("s"), 137: PLACE + u32(1), 139: PLACE + text8("g")}
    body = bodies.get(operation, RENAME)
    request = client.request(operation, body)
    assert client.command(request[:144] + checksum + request[160:]).row.operation


def test_a_change_that_is_repeated_is_answered_again() -> None:
    client = Client12()
    request = client.request(128, text8("s"))
    answer = client.answer(request, r.StreamInfo(0, NOW, 0, 0, 0, "s"))
    assert client.answer(request, E.STREAM_NAME_ALREADY_EXISTS) == answer
    other = request[:144] + bytes(15) + b"\1" + request[160:]
    assert channel_of(client.answer(other)) == ("status", E.INVALID_COMMAND)


def test_a_logout() -> None:
    client = Client12()
    request = client.request(3)
    assert isinstance(client.command(request), c.LogoutUser)
    assert client.answer(request)[208:] == b"\3" + bytes(47)


# --- options ------------------------------------------------------------------------------------------

RENAME = b"\2" + identifier("s1") + b"\0" + entry("name", 2, b"s1b")


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ("0202027331000204000000" + b"name".hex() + "0203000000733162", c.UpdateStream("s1", "s1b")),
        (
            "010202733102027431010e" + b"max_topic_size".hex() + "020e000000" + b"message_expiry".hex()
            + "0c0800000000a493d600000000" + "02040000006e616d650203000000743162",
            c.UpdateTopic(
                "s1", "t1", "t1b", TopicOptions(message_expiry=3_600_000_000), is_patch=True,
                reset=frozenset({"max_topic_size"}),
            ),
        ),
        (
            "030203626f6200" + "0206000000" + b"status".hex() + "0208000000" + b"inactive".hex(),
            c.UpdateUser("bob", None, False, protects_root=True),
        ),
        (
            ("01010401000000010402000000010e6d61785f746f7069635f73697a65"
            "020e0000006d6573736167655f6578706972790c0800000000a0e3d08c000000"),
            c.UpdateTopic(
                1, 2, "", TopicOptions(message_expiry=604_800_000_000), is_patch=True,
                reset=frozenset({"max_topic_size"}),
            ),
        ),
        (
            "01010401000000010402000000020e6d61785f746f7069635f73697a650e6d6573736167655f657870697279",
            c.UpdateTopic(
                1, 2, "", TopicOptions(), is_patch=True, reset=frozenset({"max_topic_size", "message_expiry"})
            ),
        ),
        (
            ("0101040100000001040200000000020e0000006d6573736167655f657870697279020600000037206461797302040000006e616d65"
            "02090000006576656e74732d7632"),
            c.UpdateTopic(1, 2, "events-v2", TopicOptions(message_expiry=604_800_000_000), is_patch=True),
        ),
        (
            ("030104050000000002060000007374617475730208000000696e6163746976650208000000757365726e616d65"
            "0206000000616c69636532"),
            c.UpdateUser(5, "alice2", False, protects_root=True),
        ),
    ],
)  # fmt: skip
def test_an_update_is_the_update_of_what_it_names(body: str, command: c.Command) -> None:
    client = Client12()
    request = client.request(UPDATE, bytes.fromhex(body))
    assert client.command(request) == command
    answer = client.answer(request)
    assert (answer[208], answer[256:]) == (UPDATE, bytes(4))
    assert channel_of(client.answer(client.request(UPDATE, RENAME), E.STREAM_NOT_FOUND)) == ("result", 1009)


def update(scope: int, *entries: bytes, reset: tuple[str, ...] = ()) -> bytes:
    place = {1: identifier(1) + identifier(2), 2: identifier(3), 3: identifier(5)}[scope]
    return bytes((scope,)) + place + bytes((len(reset),)) + b"".join(map(text8, reset)) + b"".join(entries)


SOON, DAY = entry("message_expiry", 2, b"soon"), entry("message_expiry", 2, b"1 day")
NO_NAME = entry("name", 3, b"\0")
REFUSED = [
    (update(1), 3),
    (update(1, DAY, reset=("message_expiry",)), 3),
    (update(1, reset=("message_expiry", "message_expiry")), 3),
    (update(1, DAY, DAY), 3),
    (update(1, entry("message_expiry", 12, u64(0))), 3),
    (update(1, entry("message_expiry", 12, u64(0)), entry("max_topic_size", 12, u64(0))), 3),
    (b"\4" + identifier(1) + b"\0" + DAY, 3),
    (update(1, entry("retention", 2, b"1 day")), 4041),
    (update(2, DAY), 4041),
    (update(1, entry("compression_algorithm", 2, b"gzip")), 4103),
    (update(1, entry("durability", 2, b"persisted")), 4103),
    (update(1, entry("segment_size", 3, b"\1")), 4103),
    (update(1, entry("enforce_fsync", 3, b"\1")), 4103),
    (update(2, entry("encryption_key", 1, bytes(32))), 4103),
    (update(1, reset=("compression_algorithm",)), 4103),
    (update(1, NO_NAME, reset=("compression_algorithm",)), 4103),
    (update(2, reset=("name",)), 4104),
    (update(3, reset=("status",)), 4104),
    (update(3, entry("username", 2, b"a"), reset=("status",)), 4104),
    (update(2, reset=("encryption_key_source",)), 4105),
    (update(2, entry("encryption_key_source", 12, u64(1))), 4105),
    (update(3, reset=("critical_keys",)), 4105),
    (update(2, entry("encryption_key_wrapped", 1, b"x")), 4105),
    (update(1, SOON), 4042),
    (update(1, NO_NAME), 2014),
    (update(1, entry("name", 12, u64(5))), 2014),
    (update(2, NO_NAME), 1013),
    (update(2, entry("name", 2, b"\xff")), 1013),
    (update(3, entry("status", 3, b"\1")), 45),
    (update(3, entry("status", 2, b"asleep")), 45),
    (update(3, entry("username", 11, u32(7))), 43),
    (update(2, *(entry(f"{number:0255d}", 2, bytes(255)) for number in range(200))), 4043),
]


@pytest.mark.parametrize(("body", "code"), REFUSED)
def test_updates_that_are_refused(body: bytes, code: int) -> None:
    client = Client12()
    answer = client.answer(client.request(UPDATE, body))
    assert (channel_of(answer), answer[208]) == (("status", code), UPDATE)


def test_every_cut_update_is_answered() -> None:
    for body in (RENAME, update(1, DAY, reset=("max_topic_size",)), update(3, entry("status", 2, b"active"))):
        for length in range(len(body)):
            client = Client12()
            assert channel_of(client.answer(client.request(UPDATE, body[:length])))[0] in ("status", "ok")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (entry("encryption_key", 1, bytes(32)), 4106),
        (entry("encryption_key", 2, b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="), 4106),
        (entry("encryption_key", 1, bytes(31)), 70),
        (entry("encryption_key", 1, bytes(33)), 70),
        (entry("encryption_key", 2, b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"), 70),
        (entry("encryption_key", 2, b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"), 70),
        (entry("encryption_key", 2, b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9="), 70),
        (entry("encryption_key", 12, u64(7)), 70),
        (entry("future_option", 2, b"enabled"), 4041),
        (entry("encryption_key_source", 2, b"none"), 4105),
        (entry("name", 2, b"s"), 4042),
    ],
)
def test_options_of_new_streams(options: bytes, code: int) -> None:
    client = Client12()
    assert channel_of(client.answer(client.request(128, text8("s") + options))) == ("status", code)
    assert client.command(client.request(128, text8("s"))) == c.CreateStream("s")


def test_options_of_new_users() -> None:
    client = Client12()
    user = text8("alice") + text8("s3cret-pass") + b"\1\0"
    assert client.command(client.request(141, user)) == c.CreateUser("alice", "s3cret-pass", True, None)
    for key, code in (("username", 4042), ("critical_keys", 4105), ("colour", 4041)):
        assert channel_of(client.answer(client.request(141, user + entry(key, 2, b"x")))) == ("status", code)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (entry("durability", 2, b"persisted"), {"durability": "persisted"}),
        (entry("partition_resize_policy", 2, b"fixed"), {"partition_resize_policy": "fixed"}),
        (entry("enforce_fsync", 3, b"\1"), {"enforce_fsync": True}),
        (entry("replication_factor", 11, u32(1)), {}),
        (entry("replication_factor", 11, u32(0)), 2018),
        (entry("replication_factor", 11, u32(256)), 2018),
        (entry("replication_factor", 12, u64(1)), 4042),
        (entry("partition_resize_policy", 2, b"soft"), 4042),
        (entry("name", 2, b"t"), 4042),
        (entry("critical_keys", 2, b"x"), 4105),
        (entry("colour", 2, b"red"), 4041),
    ],
)
def test_options_of_new_topics(options: bytes, expected: dict[str, object] | int) -> None:
    client = Client12()
    request = client.request(132, identifier("s") + u32(3) + text8("t") + options)
    if isinstance(expected, int):
        assert channel_of(client.answer(request)) == ("status", expected)
    else:
        wanted = TopicOptions(**expected)  # type: ignore[arg-type]
        assert client.command(request) == c.CreateTopic("s", "t", 3, wanted)


DESCRIBED = {
    1: [
        ("name", 2, 1, b""),
        ("compression_algorithm", 2, 0, b"none"),
        ("message_expiry", 12, 3, u64(NEVER)),
        ("max_topic_size", 12, 3, u64(NEVER)),
        ("segment_size", 12, 0, u64(2**30)),
        ("durability", 2, 0, b"replicated"),
        ("consumer_offset_durability", 2, 0, b"replicated"),
        ("partition_resize_policy", 2, 0, b"mutable"),
        ("messages_required_to_save", 11, 0, u32(1024)),
        ("size_of_messages_required_to_save", 12, 0, u64(2**20)),
        ("preallocate_segments", 3, 0, b"\0"),
        ("replication_factor", 11, 0, b""),
        # Courser's own.
        ("keep_latest_by_key", 3, 3, b"\0"),
    ],
    2: [
        ("name", 2, 1, b""),
        ("encryption_key", 1, 20, b""),
        ("encryption_key_source", 2, 8, b""),
        ("encryption_key_fingerprint", 2, 8, b""),
        ("encryption_kek_fingerprint", 2, 8, b""),
    ],
    3: [("username", 2, 1, b""), ("status", 2, 1, b"")],
}


@pytest.mark.parametrize("scope", DESCRIBED)
def test_options_are_described_with_what_may_be_done_with_them(scope: int) -> None:
    client = Client12()
    body = client.body(client.read(13, bytes((scope,))), describe_options(scope, USUAL_TOPIC_OPTIONS))
    found, position = [], 4
    for _ in range(struct.unpack_from("<I", body)[0]):
        size = body[position]
        key = body[position + 1 : position + 1 + size].decode()
        kind, flags, default_size = struct.unpack_from("<BBI", body, position + 1 + size)
        position += 7 + size
        found.append((key, kind, flags, body[position : position + default_size]))
        position += default_size
        (text_size,) = struct.unpack_from("<I", body, position)
        assert text_size, "every option says what it is for"
        position += 4 + text_size
    assert found == DESCRIBED[scope]
    assert position == len(body)


# --- malformed requests -------------------------------------------------------------------------------

WAITS = struct.pack("<QIIQ", 0, 1, 1024, 2_000_000)
FETCH = b"\1" + identifier("c1") + PLACE + struct.pack("<QQIIIBI", 0, 2_000_000, 1, 10, 1024, 0, 1)
NEW_REQUESTS = [
    (2, 100, POLL),
    (2, 105, PLACE + u32(0)),
    (2, 106, POLL + WAITS),
    (2, 109, FETCH + struct.pack("<IBQIQQ", 0, 5, 0, 1024, 13, 0)),
    (2, 120, b"\1" + identifier("c") + PLACE + b"\1" + u32(1)),
    (UPDATE, 0, RENAME),
    (UPDATE, 0, update(1, DAY, reset=("max_topic_size",))),
    (UPDATE, 0, update(3, entry("status", 2, b"active"))),
    (128, 0, text8("s") + entry("encryption_key", 1, bytes(32))),
    (132, 0, identifier("s") + u32(3) + text8("t") + entry("durability", 2, b"persisted")),
    (160, 0, send_body()),
    (161, 0, b"\1" + identifier("c") + PLACE + b"\1" + u32(1) + u64(2) + b"\1"),
]


def check_is_answered(client: Client12, request: bytes) -> None:
    """Understood, or answered with something that the client can read, or the connection is closed."""
    incoming = client.codec.decode(memoryview(request), is_logged_in=True)
    if incoming.answer is None:
        assert incoming.command is not None or isinstance(incoming, Deferral | Cancellation)
    elif not incoming.closes:
        check_header(request, b"".join(incoming.answer))


@pytest.mark.parametrize(("operation", "code", "body"), NEW_REQUESTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_malformed_is_left_unanswered(version: int, operation: int, code: int, body: bytes) -> None:
    client = Client12(version)
    for length in range(len(body)):
        check_is_answered(client, client.request(operation, body[:length], code=code))
    for position in range(len(body)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(body)
            changed[position] ^= change
            check_is_answered(client, client.request(operation, bytes(changed), code=code))
    for position in range(64, 256):
        for value in (0, 1, 13, 128, 255):
            header = bytearray(client.request(operation, body, code=code))
            header[position] = value
            check_is_answered(client, bytes(header))
