"""Exchanges of the SDK 0.9.0 package, byte for byte: what it sends, and the answers that it is known to take.

Headers are written as the positions that are not zero.
"""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.records.frames import iterate_frames
from courser.wire.classic_replies import _write_topic as write_classic_topic
from courser.wire.codec import Incoming
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_replies import write_topic
from tests.wire.vsr_captures import CLIENT

C = CLIENT.hex()


def header(*fields: str) -> bytes:
    data = bytearray(256)
    for field in fields:
        position, _, value = field.partition(":")
        start = int(position)
        data[start : start + len(value) // 2] = bytes.fromhex(value)
    return bytes(data)


def understand(frame: bytes, *, is_logged_in: bool = True, codec: VsrCodec | None = None) -> Incoming:
    codec = codec or VsrCodec()
    assert codec.frame_size(memoryview(frame)) == len(frame)
    return codec.decode(memoryview(frame), is_logged_in=is_logged_in)


def request(operation: str, body: str, *, number: str = "01", code: str = "00000000") -> bytes:
    size = (256 + len(bytes.fromhex(body))).to_bytes(4, "little").hex()
    fields = (f"48:{size}", "60:05", f"128:{C}", f"168:{number}", f"176:{operation}", "184:01", f"196:{code}")
    return header(*fields) + bytes.fromhex(body)


def command_of(operation: str, body: str, *, code: str = "00000000") -> c.Command:
    incoming = understand(request(operation, body, code=code))
    assert incoming.answer is None, incoming.reason
    assert incoming.command is not None
    return incoming.command


def body_of(operation: str, body: str, reply: r.Reply | None, *, code: str = "00000000") -> str:
    codec = VsrCodec()
    incoming = understand(request(operation, body, code=code), codec=codec)
    return b"".join(codec.encode_reply(incoming, reply))[256:].hex()


def test_ping_before_a_login() -> None:
    codec = VsrCodec()
    frame = header("48:00010000", "60:05", f"128:{C}", "168:01", "176:02", "196:01000000")
    incoming = understand(frame, is_logged_in=False, codec=codec)
    assert incoming.command == c.Ping()
    answer = header("48:00010000", "60:08", f"160:{C}", "200:01", "208:02")
    assert b"".join(codec.encode_reply(incoming, None)) == answer


LOGIN = "002c0000 08727573742d73646b 06302e31312e30"
REGISTER = header("48:22010000", "60:05", f"128:{C}", "144:95803f2a3c20de8f", "176:01") + bytes.fromhex(
    f"{LOGIN} 0469676779 0469676779 00000000"
)


def test_login_by_password() -> None:
    codec = VsrCodec()
    incoming = understand(REGISTER, is_logged_in=False, codec=codec)
    assert incoming.command == c.LoginUser("iggy", "iggy", "0.11.0", "", sdk="rust-sdk")
    answer = header(
        "48:1a010000", "60:08", "128:95803f2a3c20de8f", f"160:{C}", "176:01", "184:01", "208:01"
    ) + bytes.fromhex("00000000 00000000 0100000000000000 002c0000 05302e392e30")
    assert b"".join(codec.encode_reply(incoming, r.LoggedIn(0, 1))) == answer


def test_login_by_token() -> None:
    body = bytes.fromhex(f"{LOGIN} 0b696767797061742d313233 00000000")
    frame = header("48:24010000", "60:05", f"128:{C}", "176:01") + body
    incoming = understand(frame, is_logged_in=False)
    assert incoming.command == c.LoginWithToken("iggypat-123", "0.11.0", sdk="rust-sdk")


def test_a_refused_login_is_an_eviction() -> None:
    codec = VsrCodec()
    incoming = understand(REGISTER, is_logged_in=False, codec=codec)
    error = CommandRejected(ErrorCode.INVALID_CREDENTIALS, "no")
    answer = header("48:00010000", "60:0d", f"128:{C}", "255:09")
    assert b"".join(codec.encode_failure(incoming, error)) == answer


def test_a_refused_version_learns_what_is_spoken() -> None:
    body = REGISTER[256:].replace(bytes.fromhex("002c0000"), bytes.fromhex("00340000"))
    frame = REGISTER[:144] + bytes(16) + REGISTER[160:256] + body
    incoming = understand(frame, is_logged_in=False)
    answer = header("48:00010000", "60:0d", f"128:{C}", "144:02300000", "148:002c0000", "255:0e")
    assert incoming.answer is not None
    assert b"".join(incoming.answer) == answer


def test_logout() -> None:
    frame = header("48:00010000", "60:05", f"128:{C}", "144:c294d3380580062d", "168:05", "176:03", "184:01")
    codec = VsrCodec()
    incoming = understand(frame, codec=codec)
    assert incoming.command == c.LogoutUser()
    answer = header("48:00010000", "60:08", "128:c294d3380580062d", f"160:{C}", "200:05", "208:03")
    assert b"".join(codec.encode_reply(incoming, None)) == answer


def test_cluster_metadata() -> None:
    nodes = [r.Node("iggy-node", "127.0.0.1", 18100, 0, 0, 0)]
    assert body_of("02", "", r.ClusterMetadata("single-node", nodes), code="0c000000") == (
        "0b000000" + b"single-node".hex() + "01000000"
        "09000000" + b"iggy-node".hex() + "09000000" + b"127.0.0.1".hex() + "b446000000000000" + "0000"
    )


CREATED_AT = int.from_bytes(bytes.fromhex("b24371ee4a600600"), "little")
STREAM = r.StreamInfo(0, CREATED_AT, 0, 0, 0, "s1")
STREAM_RECORD = "00000000 b24371ee4a600600 00000000 0000000000000000 0000000000000000 027331 00000000".replace(" ", "")


def test_create_stream() -> None:
    codec = VsrCodec()
    frame = header(
        "48:03010000", "60:05", f"128:{C}", "144:c2be205aa2b4812f", "168:01", "176:80", "184:01"
    ) + bytes.fromhex("027331")
    incoming = understand(frame, codec=codec)
    assert incoming.command == c.CreateStream("s1")
    answer = header("48:2b010000", "60:08", "128:c2be205aa2b4812f", f"160:{C}", "200:01", "208:80")
    assert b"".join(codec.encode_reply(incoming, STREAM)) == answer + bytes.fromhex("00000000" + STREAM_RECORD)


def test_a_name_that_is_taken_is_a_result() -> None:
    codec = VsrCodec()
    incoming = understand(request("80", "027331"), codec=codec)
    error = CommandRejected(ErrorCode.STREAM_NAME_ALREADY_EXISTS, "taken")
    answer = b"".join(codec.encode_failure(incoming, error))
    assert answer[256:].hex() == "0100000000000000f4030000"


def test_get_stream() -> None:
    assert command_of("02", "02027331", code="c8000000") == c.GetStream("s1")
    reply = r.StreamDetails(STREAM, [])
    assert body_of("02", "02027331", reply, code="c8000000") == STREAM_RECORD


OPTION_BYTES = (
    "021a000000" + b"consumer_offset_durability".hex() + "020a000000" + b"replicated".hex()
    + "020a000000" + b"durability".hex() + "020a000000" + b"replicated".hex()
)  # fmt: skip
CREATE_TOPIC = "02027331 03000000 027431".replace(" ", "") + OPTION_BYTES


def test_create_topic() -> None:
    options = TopicOptions(durability="replicated", consumer_offset_durability="replicated")
    assert command_of("84", CREATE_TOPIC) == c.CreateTopic("s1", "t1", 3, options)
    effective = TopicOptions(message_expiry=NEVER, compression=1, max_topic_size=NEVER)
    created_at = int.from_bytes(bytes.fromhex("e74b71ee4a600600"), "little")
    topic = r.TopicInfo(0, created_at, 3, 0, 0, "t1", options, effective)
    partitions = [r.PartitionInfo(number, created_at, 1, 0, 0, 0) for number in range(3)]
    record = (
        "00000000 e74b71ee4a600600 03000000 ffffffffffffffff 01 ffffffffffffffff"
        "0000000000000000 0000000000000000 027431 4c000000"
    ).replace(" ", "") + OPTION_BYTES
    body = body_of("84", CREATE_TOPIC, r.TopicDetails(topic, partitions))
    assert body.startswith("00000000" + record)
    # New partitions are said to have no segments.
    assert body.endswith(f"02000000e74b71ee4a60060000000000{'00' * 24}")


@pytest.mark.parametrize(("compression", "shown"), [(1, "01"), (2, "02"), (3, "02"), (5, "02")])
def test_sdks_are_told_gzip_for_every_algorithm_that_they_have_no_word_for(compression: int, shown: str) -> None:
    effective = TopicOptions(message_expiry=NEVER, compression=compression, max_topic_size=NEVER, replication_factor=1)
    topic = r.TopicInfo(0, 0, 3, 0, 0, "t1", TopicOptions(), effective)
    assert write_topic(topic)[24:25].hex() == shown
    assert write_classic_topic(topic, 0)[24:25].hex() == shown


def test_get_topic_and_topics() -> None:
    assert command_of("02", "0202733102027431", code="2c010000") == c.GetTopic("s1", "t1")
    assert command_of("02", "02027332", code="2d010000") == c.GetTopics("s2")
    assert body_of("02", "02027332", r.TopicList([]), code="2d010000") == "00000000"


SEND = (
    "12000000 02027331 02027431 020401000000 02000000"
    "0000000000000000 0000000000000000 0000000000000000 a25871ee4a600600"
    "6a01000000000000 3bb5b655bbf68539 02000000" + "00" * 204 + "96bcae54faff483d f63ff6bc223345ecbb243c3b434b5206"
    "00000000 00000000 00000000 05000000 0000000000000000 68656c6c6f"
    "aa7d3d3d8613aedd 274ff2ca8c4944d7997838fedcb3affd"
    "01000000 32000000 00000000 05000000 0000000000000000 776f726c64"
).replace(" ", "")


@pytest.mark.parametrize("verify_frames", [False, True])
def test_send(*, verify_frames: bool) -> None:
    codec = VsrCodec(verify_frames=verify_frames)
    frame = memoryview(bytearray(request("a0", SEND, number="03")))
    assert len(frame) == 0x280
    incoming = codec.decode(frame, is_logged_in=True)
    command = incoming.command
    assert isinstance(command, c.SendMessages), incoming.reason
    assert (command.stream, command.topic, command.partitioning) == ("s1", "t1", ToPartition(1))
    (batch,) = command.batches
    assert [bytes(message.payload) for message in iterate_frames(batch.body, batch.count)] == [b"hello", b"world"]
    # In place: what changes in the frame changes in the batch.
    frame[-1] = ord("!")
    assert batch.body[-1] == ord("!")
    answer = header("48:18010000", "60:08", f"160:{C}", "200:03", "208:a0")
    assert b"".join(codec.encode_reply(incoming, r.Sent(0, 0, 1, 0))) == answer + bytes.fromhex(
        "01000000 00000000 00000000 01000000 0000000000000000"
    )


def test_poll() -> None:
    body = "01 02026331 02027331 02027431 0101000000 030000000000000000 0a000000 01".replace(" ", "")
    consumer = Consumer(ConsumerKind.CONSUMER, "c1")
    assert command_of("02", body, code="64000000") == c.PollMessages(
        consumer, "s1", "t1", 1, PollingKind.FIRST, 0, 10, auto_commit=True
    )
    pieces = (memoryview(b"abc"), memoryview(b"de"))
    codec = VsrCodec()
    incoming = understand(request("02", body, code="64000000", number="04"), codec=codec)
    answer = codec.encode_reply(incoming, r.Polled(1, 1, 2, pieces, 5))
    head = header("48:15010000", "60:08", f"160:{C}", "200:04", "208:02")
    assert bytes(answer[0]) == head + bytes.fromhex("01000000 0100000000000000 02000000")
    assert tuple(answer[1:]) == pieces
    assert answer[1] is pieces[0], "the pieces are handed on as they are"


def test_polls_that_begin_elsewhere() -> None:
    for strategy, kind, value in (
        ("010700000000000000", PollingKind.OFFSET, 7),
        ("020700000000000000", PollingKind.TIMESTAMP, 7),
        ("040000000000000000", PollingKind.LAST, 0),
        ("050000000000000000", PollingKind.NEXT, 0),
    ):
        poll = command_of("02", f"01020263310202733102027431{'0101000000'}{strategy}0a00000000", code="64000000")
        assert isinstance(poll, c.PollMessages)
        assert (poll.kind, poll.value, poll.auto_commit) == (kind, value, False)


GROUP = "02027332 020174 02026731".replace(" ", "")


def test_groups() -> None:
    create = "02027332 020174 026731".replace(" ", "")
    assert command_of("8b", create) == c.CreateConsumerGroup("s2", "t", "g1")
    group = r.GroupDetails(r.GroupInfo(0, 4, 0, "g1"), [])
    assert body_of("8b", create, group) == "00000000" + "000000000400000000000000026731"
    assert command_of("94", GROUP) == c.JoinConsumerGroup("s2", "t", "g1")
    assert body_of("94", GROUP, None) == "00000000"
    assert command_of("02", GROUP, code="5e020000") == c.SyncConsumerGroup("s2", "t", "g1")
    assignment = r.Assignment(2, (0, 1, 2, 3))
    assert body_of("02", GROUP, assignment, code="5e020000") == (
        "0200000000000000 04000000 00000000 01000000 02000000 03000000".replace(" ", "")
    )
    assert command_of("95", GROUP) == c.LeaveConsumerGroup("s2", "t", "g1")
    assert command_of("8c", GROUP) == c.DeleteConsumerGroup("s2", "t", "g1")


def test_a_poll_of_a_partition_that_is_another_members() -> None:
    codec = VsrCodec()
    body = "02 02026731 02027332 020174 0100000000 050000000000000000 0a000000 01".replace(" ", "")
    incoming = understand(request("02", body, code="64000000"), codec=codec)
    error = CommandRejected(ErrorCode.PARTITION_NOT_OWNED, "not yours")
    assert b"".join(codec.encode_failure(incoming, error))[256:].hex() == "ffffffff" + "00" * 12


def test_offsets_of_groups() -> None:
    consumer = Consumer(ConsumerKind.GROUP, "g2")
    store = "02 02026732 02027332 020174 0100000000 0000000000000000 01".replace(" ", "")
    assert command_of("a1", store) == c.StoreConsumerOffset(consumer, "s2", "t", 0, 0)
    assert body_of("a1", store, None) == "00000000"
    delete = "02 02026732 02027332 020174 0100000000 01".replace(" ", "")
    assert command_of("a2", delete) == c.DeleteConsumerOffset(consumer, "s2", "t", 0)


def test_other_commands() -> None:
    assert command_of("81", "0202733203733262") == c.UpdateStream("s2", "s2b")
    assert command_of("88", "02027332 02027432 02000000".replace(" ", "")) == c.CreatePartitions("s2", "t2", 2)
    assert command_of("8e", "0203626f62 01 05626f626279 01 02".replace(" ", "")) == c.UpdateUser("bob", "bobby", False)
    assert command_of("92", "03746f6b 0000000000000000".replace(" ", "")) == c.CreateToken("tok", 0)
    assert body_of("92", "03746f6b0000000000000000", r.NewToken("tok-tok")) == "00000000" + "07746f6b2d746f6b"


def test_create_user_with_permissions() -> None:
    permissions = "01000000000000000001 01 05000000 000000000001 00 00".replace(" ", "")
    body = f"03626f62 0773656372657431 01 01 {len(permissions) // 2:02x}000000".replace(" ", "") + permissions
    granted = Permissions(
        GlobalPermissions(manage_servers=True, send_messages=True), {5: StreamPermissions(send_messages=True)}
    )
    assert command_of("8d", body) == c.CreateUser("bob", "secret1", True, granted)
    details = r.UserDetails(r.UserInfo(1, 2, True, "bob"), granted)
    assert body_of("8d", body, details) == (
        "00000000" + "01000000 0200000000000000 01 03626f62 00000000 01 17000000".replace(" ", "") + permissions
    )


def test_commands_of_our_own() -> None:
    poll = "01 02026331 02027331 02027431 0101000000 030000000000000000 0a000000 01".replace(" ", "")
    wait = poll + "40420f0000000000" + "00001000"
    command = command_of("02", wait, code="61ea0000")
    assert isinstance(command, c.WaitForMessages)
    assert (command.poll, command.wait, command.size_max) == (
        command_of("02", poll, code="64000000"),
        1_000_000,
        2**20,
    )
    polled = r.Polled(1, 7, 2, (memoryview(b"abc"),), 3)
    assert body_of("02", wait, polled, code="61ea0000") == body_of("02", poll, polled, code="64000000")
    bounds = r.TopicBounds(1, 2, bytes(16), [r.PartitionBounds(0, 3, 4, 5, 1)])
    assert body_of("02", "0202733102027431", bounds, code="62ea0000") == (
        "01000000 02000000 00000000000000000000000000000000 01000000"
        "00000000 0300000000000000 0400000000000000 0500000000000000 0100000000000000"
    ).replace(" ", "")
    segments = r.SegmentList(0, "d", [r.SegmentInfo(0, 1, 2, 1, 5, 6, True, "rolled", "local")])
    assert body_of("02", "020273310202743100000000", segments, code="63ea0000") == (
        "00000000 01000000 64 01000000"
        "0000000000000000 0100000000000000 0200000000000000 0100000000000000 0500000000000000 0600000000000000 01"
        "06726f6c6c6564 056c6f63616c"
    ).replace(" ", "")
