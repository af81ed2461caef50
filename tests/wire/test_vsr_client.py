"""Our own client's side of the protocol, against the server's side: every command, every reply, every failure."""

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import COMMANDS as TABLE
from courser.api.table import SDK_0_10
from courser.errors import (
    AlreadyExists,
    AuthenticationFailed,
    CommandRejected,
    CourserError,
    ErrorCode,
    InvalidRequest,
    NotAllowed,
    NotAssigned,
    NotFound,
    OffsetsUnavailable,
    RequestFailed,
    ServerFailure,
)
from courser.model.buffers import Buffer
from courser.model.messaging import Balanced, ByKey, ToPartition
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.wire import vsr_headers as headers
from courser.wire.reading import Malformed
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_client import SessionEnded, VsrClientCodec
from courser.wire.vsr_facts import OWN_SDK_NAME, Facts
from courser.wire.vsr_headers import FRAME_SIZE_MAX, EvictionReason
from courser.wire.vsr_login import sdk_name_of
from tests.wire import classic_samples
from tests.wire.vsr_captures import CLIENT, frame

BATCH = build_batch([NewMessage(b"hello", 7, 1_000), NewMessage(b"w\xc3\xb6rld", 8, 1_009, b"headers")])
ALL_OPTIONS = TopicOptions(
    message_expiry=10_000_000,
    max_topic_size=NEVER,
    compression=2,
    segment_size=2**28,
    enforce_fsync=True,
    messages_required_to_save=17,
    size_of_messages_required_to_save=4096,
    preallocate_segments=False,
    durability="persisted",
    consumer_offset_durability="replicated",
)
_SPECIAL = (c.CreateTopic, c.UpdateTopic, c.SendMessages, c.GetConsumerOffset, c.StoreConsumerOffset, c.PollMessages)
COMMANDS: tuple[c.Command, ...] = (
    *(command for command in classic_samples.COMMANDS if not isinstance(command, _SPECIAL)),
    c.CreateTopic(0, "topic", 3, ALL_OPTIONS),
    c.CreateTopic("orders", "t", 0, TopicOptions()),
    c.UpdateTopic(1, "topic", "new name", TopicOptions(message_expiry=5, durability="persisted"), is_patch=True),
    c.SendMessages("orders", 0, ToPartition(2), [BATCH]),
    c.SendMessages(0, "topic", Balanced(), [BATCH]),
    c.SendMessages(0, 1, ByKey(b"key-1"), [BATCH]),
    c.GetConsumerOffset(classic_samples.SINGLE, 0, "topic", 1),
    c.StoreConsumerOffset(classic_samples.NAMED, "orders", "topic", 0, 2**40),
    *(
        command
        for command in classic_samples.COMMANDS
        if isinstance(command, c.PollMessages) and command.partition_id is not None
    ),
)
_EFFECTIVE = TopicOptions(
    **{name: getattr(ALL_OPTIONS, name) for name in TopicOptions.__struct_fields__ if name != "segment_size"},
    segment_size=2**30,
)
_WANTED = TopicOptions(compression=2, durability="persisted")
_TOPIC = r.TopicInfo(3, 11, 2, 5_000, 4, "topic", _WANTED, _EFFECTIVE)
_PARTITIONS = [r.PartitionInfo(0, 12, 1, 2, 2_500, 3), r.PartitionInfo(1, 13, 4, 0, 2_500, 1)]
_STREAM = r.StreamInfo(0, 10, 1, 5_000, 4, "orders")
_GROUP = r.GroupInfo(2, 3, 1, "group")
_RECORDS = encode_batch(BATCH, partition_id=1, base_offset=5, base_timestamp=9)
_WITH_TOPIC = (c.GetStream, c.GetTopic, c.GetTopics, c.CreateTopic)
REPLIES: tuple[tuple[c.Command, r.Reply], ...] = (
    *((command, reply) for command, reply in classic_samples.REPLIES if not isinstance(command, _WITH_TOPIC)),
    (c.LoginWithToken("t"), r.LoggedIn(7, session=9)),
    (c.GetStream(0), r.StreamDetails(_STREAM, [_TOPIC])),
    (c.GetTopic(0, 3), r.TopicDetails(_TOPIC, _PARTITIONS)),
    (c.GetTopics(0), r.TopicList([_TOPIC])),
    (c.GetTopics(0), r.TopicList([])),
    (c.GetStreams(), r.StreamList([])),
    (
        c.CreateTopic(0, "topic", 1, TopicOptions()),
        r.TopicDetails(_TOPIC, [r.PartitionInfo(n, 9, 0, 0, 0, 0) for n in (0, 1)]),
    ),
    (
        c.CreateUser("bob", "secret", True, None),
        r.UserDetails(r.UserInfo(1, 2, True, "bob"), classic_samples.PERMISSIONS),
    ),
    (c.CreateConsumerGroup(0, 3, "group"), r.GroupDetails(_GROUP, [r.GroupMember(4, (0, 2))])),
    (c.SendMessages(0, 3, Balanced(), [BATCH]), r.Sent(0, 3, 1, 2**40)),
    (
        next(command for command in reversed(classic_samples.COMMANDS) if isinstance(command, c.PollMessages)),
        r.Polled(1, 6, 2, (memoryview(_RECORDS),), len(_RECORDS)),
    ),
    (classic_samples.POLL, r.Polled(1, 6, 0, (), 0)),
    (c.WaitForMessages(classic_samples.POLL, 5, 6), r.Polled(1, 6, 2, (memoryview(_RECORDS),), len(_RECORDS))),
)


class Pair:
    """A client and a server that share nothing but bytes."""

    def __init__(self, *, logs_in: bool = True) -> None:
        self.client = VsrClientCodec(CLIENT)
        self.server = VsrCodec()
        if logs_in:
            reply = self.answered(c.LoginUser("iggy", "iggy"), r.LoggedIn(0, 5), is_logged_in=False)
            assert reply == r.LoggedIn(0, 5, FRAME_SIZE_MAX)

    def understood(self, command: c.Command) -> c.Command | None:
        return self.server.decode(memoryview(joined(self.client.encode(command))), is_logged_in=True).command

    def answered(self, command: c.Command, reply: r.Reply | None, *, is_logged_in: bool = True) -> r.Reply | None:
        request = memoryview(joined(self.client.encode(command)))
        incoming = self.server.decode(request, is_logged_in=is_logged_in)
        answer = memoryview(joined(self.server.encode_reply(incoming, reply)))
        assert self.client.frame_size(answer) == len(answer)
        return self.client.decode(command, answer)

    def refused(self, command: c.Command, error: CourserError, *, is_logged_in: bool = True) -> CourserError:
        request = memoryview(joined(self.client.encode(command)))
        incoming = self.server.decode(request, is_logged_in=is_logged_in)
        answer = memoryview(joined(self.server.encode_failure(incoming, error)))
        with pytest.raises(CourserError) as refusal:
            self.client.decode(command, answer)
        return refusal.value


def joined(buffers: Sequence[Buffer]) -> bytes:
    return b"".join(buffers)


def test_the_samples_have_every_command_and_every_reply() -> None:
    # Courser's own client speaks as SDK 0.9 does.
    table = [entry for entry in TABLE if entry.since < SDK_0_10]
    assert {type(command) for command in COMMANDS} == {entry.kind for entry in table}
    assert {type(reply) for _, reply in REPLIES} | {None} == {entry.reply for entry in table} | {None}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_the_server_understands_every_command(command: c.Command) -> None:
    understood = Pair().understood(command)
    if isinstance(command, c.LoginUser):
        assert isinstance(understood, c.LoginUser)
        assert (understood.name, understood.password) == (command.name, command.password)
    elif isinstance(command, c.LoginWithToken):
        assert isinstance(understood, c.LoginWithToken)
        assert understood.token == command.token
    elif isinstance(command, c.SendMessages):
        assert isinstance(understood, c.SendMessages)
        assert understood.partitioning == command.partitioning
        assert encode_batch(understood.batches[0]) == encode_batch(BATCH)
    else:
        assert understood == command


@pytest.mark.parametrize(("command", "reply"), REPLIES, ids=lambda value: type(value).__name__)
def test_the_client_understands_every_reply(command: c.Command, reply: r.Reply) -> None:
    understood = Pair().answered(command, reply)
    if isinstance(reply, r.LoggedIn):
        # The server adds it.
        reply = replace(reply, frame_size_max=FRAME_SIZE_MAX)
    assert understood == reply


@pytest.mark.parametrize(
    "entry", [entry for entry in TABLE if entry.reply is None], ids=lambda entry: entry.kind.__name__
)
def test_a_command_without_an_answer_is_answered_with_nothing(entry: object) -> None:
    command = next(command for command in COMMANDS if type(command) is entry.kind)  # type: ignore[attr-defined]
    assert Pair().answered(command, None) is None


# --- failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_every_failure_keeps_its_number_and_its_sentence(command: c.Command) -> None:
    error = Pair().refused(command, CommandRejected(ErrorCode.TOPIC_NOT_FOUND, 'there is no topic "x"'))
    assert isinstance(error, NotFound)
    assert (error.code, error.reason, str(error)) == (ErrorCode.TOPIC_NOT_FOUND, 'there is no topic "x"', error.reason)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.STREAM_NOT_FOUND, NotFound),
        (ErrorCode.RESOURCE_NOT_FOUND, NotFound),
        (ErrorCode.GROUP_NOT_FOUND, NotFound),
        (ErrorCode.TOPIC_NAME_ALREADY_EXISTS, AlreadyExists),
        (ErrorCode.INVALID_CREDENTIALS, AuthenticationFailed),
        (ErrorCode.UNAUTHENTICATED, AuthenticationFailed),
        (ErrorCode.UNAUTHORIZED, NotAllowed),
        (ErrorCode.PARTITION_NOT_OWNED, NotAssigned),
        (ErrorCode.GROUP_MEMBER_NOT_FOUND, NotAssigned),
        (ErrorCode.DISK_FULL, ServerFailure),
        (ErrorCode.TOPIC_FULL, ServerFailure),
        (ErrorCode.INVALID_OFFSET, InvalidRequest),
        (ErrorCode.INVALID_OPTION_VALUE, InvalidRequest),
    ],
)
def test_failures_are_of_a_kind(code: ErrorCode, kind: type[RequestFailed]) -> None:
    error = Pair().refused(c.GetStreams(), CommandRejected(code, "why"))
    assert type(error) is kind
    assert error.code is code


@pytest.mark.parametrize("code", ErrorCode)
def test_every_number_becomes_an_exception_of_ours(code: ErrorCode) -> None:
    assert Pair().refused(c.GetStreams(), CommandRejected(code, "why")).code is code


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_GONE, ErrorCode.DAMAGED_DATA])
def test_offsets_that_cannot_be_read_are_named(code: ErrorCode) -> None:
    told = OffsetsUnavailable(code, first_offset=3, end_offset=2**40, reason="deleted")
    error = Pair().refused(c.WaitForMessages(classic_samples.POLL, 0, 1), told)
    assert isinstance(error, OffsetsUnavailable)
    assert (error.code, error.first_offset, error.end_offset, str(error)) == (code, 3, 2**40, str(told))


def test_a_refused_login_tells_why() -> None:
    pair = Pair(logs_in=False)
    rejected = CommandRejected(ErrorCode.USER_INACTIVE, "user 'bob' is inactive")
    error = pair.refused(c.LoginUser("bob", "secret"), rejected, is_logged_in=False)
    assert isinstance(error, AuthenticationFailed)
    assert (error.code, str(error)) == (ErrorCode.USER_INACTIVE, "user 'bob' is inactive")


def test_what_the_codec_itself_refuses_has_a_sentence_too() -> None:
    pair = Pair()
    request = bytearray(joined(pair.client.encode(c.GetStream("stream"))))
    request[headers.HEADER_SIZE] = 9
    incoming = pair.server.decode(memoryview(bytes(request)), is_logged_in=True)
    assert incoming.answer is not None
    with pytest.raises(InvalidRequest, match="unknown identifier kind 9"):
        pair.client.decode(c.GetStream("stream"), memoryview(joined(incoming.answer)))


def test_a_repeated_change_that_was_refused_is_refused_again_in_the_same_words() -> None:
    pair = Pair()
    request = memoryview(joined(pair.client.encode(c.CreateStream("s"))))
    incoming = pair.server.decode(request, is_logged_in=True)
    rejected = CommandRejected(ErrorCode.STREAM_NAME_ALREADY_EXISTS, "it is there already")
    answer = joined(pair.server.encode_failure(incoming, rejected))
    again = pair.server.decode(request, is_logged_in=True)
    assert again.command is None
    assert again.answer is not None
    assert joined(again.answer) == answer


def test_other_clients_are_told_no_more_than_they_expect() -> None:
    server = VsrCodec()
    body = bytes.fromhex("002c0000") + b"\x08rust-sdk\x060.11.0\x04iggy\x04iggy" + bytes(4)
    incoming = server.decode(memoryview(frame(1, body, request=0, session=0)), is_logged_in=False)
    server.encode_reply(incoming, r.LoggedIn(0, 5))
    read = server.decode(memoryview(frame(2, b"\x02\x01s", code=200)), is_logged_in=True)
    missing = CommandRejected(ErrorCode.STREAM_NOT_FOUND, "there is no stream")
    assert len(joined(server.encode_failure(read, missing))) == headers.HEADER_SIZE
    change = server.decode(memoryview(frame(130, b"\x02\x01s")), is_logged_in=True)
    assert joined(server.encode_failure(change, missing))[headers.HEADER_SIZE :] == bytes.fromhex(
        "0100000000000000f1030000"
    )


def test_the_server_can_be_one_that_tells_nothing() -> None:
    client = VsrClientCodec(CLIENT)
    client.encode(c.GetStream("s"))
    status = headers.reply_header(CLIENT, bytes(16), 1, 2, status=2010)
    with pytest.raises(NotFound, match="error 2010: topic not found"):
        client.decode(c.GetStream("s"), memoryview(status))
    rejection = headers.reply_header(CLIENT, bytes(16), 1, 130, body_size=12) + bytes.fromhex(
        "0100000000000000f1030000"
    )
    with pytest.raises(NotFound, match="error 1009: stream not found"):
        client.decode(c.DeleteStream("s"), memoryview(rejection))
    nothing = headers.reply_header(CLIENT, bytes(16), 1, 2)
    with pytest.raises(NotFound, match="not found"):
        client.decode(c.GetStream("s"), memoryview(nothing))
    unknown = headers.reply_header(CLIENT, bytes(16), 1, 2, status=777, body_size=5) + b"words"
    with pytest.raises(RequestFailed, match="words") as refused:
        client.decode(c.GetStream("s"), memoryview(unknown))
    assert (refused.value.code, refused.value.number) == (ErrorCode.ERROR, 777)


@pytest.mark.parametrize("reason", EvictionReason)
def test_an_eviction_ends_the_session(reason: EvictionReason) -> None:
    client = VsrClientCodec(CLIENT)
    eviction = memoryview(headers.eviction(CLIENT, reason, version_max=12 << 10, version_min=12 << 10))
    expected = InvalidRequest if reason is EvictionReason.INCOMPATIBLE_PROTOCOL else SessionEnded
    with pytest.raises(expected):
        client.decode(c.Ping(), eviction)
    with pytest.raises(CourserError):
        client.decode(c.LoginUser("a", "b"), eviction)
    assert client.farewell(eviction)


def test_a_server_of_another_version_is_named() -> None:
    eviction = headers.eviction(
        CLIENT, EvictionReason.INCOMPATIBLE_PROTOCOL, version_max=12 << 10, version_min=12 << 10
    )
    with pytest.raises(InvalidRequest, match=r"supports protocol 0\.12\.0 to 0\.12\.0, this client uses 0\.11\.0"):
        VsrClientCodec(CLIENT).decode(c.LoginUser("a", "b"), memoryview(eviction))


# --- numbers ------------------------------------------------------------------------------------------


def test_requests_are_numbered_from_one_login_to_the_next() -> None:
    client = VsrClientCodec(CLIENT)
    for expected in ((1, 0), (2, 0)):
        assert numbers(client.encode(c.Ping())) == expected
    assert numbers(client.encode(c.LoginUser("a", "b"))) == (0, 0)
    client.session = 8
    assert numbers(client.encode(c.GetStreams())) == (1, 8)
    assert numbers(client.encode(c.CreateStream("s"))) == (2, 8)


def numbers(request: Sequence[Buffer]) -> tuple[int, int]:
    _, _, _, _, request_number, _, session, _ = headers.unpack_request(memoryview(joined(request)))
    return request_number, session


def test_our_client_says_who_it_is() -> None:
    request = joined(VsrClientCodec(CLIENT).encode(c.LoginUser("a", "b", "1.2.3")))
    assert sdk_name_of(memoryview(request)[headers.HEADER_SIZE :]) == OWN_SDK_NAME
    assert sdk_name_of(memoryview(b"")) == ""


# --- hostile servers ----------------------------------------------------------------------------------


def test_a_frame_is_not_measured_before_its_header_is_there() -> None:
    client = VsrClientCodec(CLIENT)
    reply = headers.reply_header(CLIENT, bytes(16), 1, 2, body_size=44)
    assert client.frame_size(memoryview(reply)[:255]) is None
    assert client.frame_size(memoryview(reply)) == 300


def test_what_is_no_server_of_this_protocol_is_noticed() -> None:
    with pytest.raises(Malformed, match="is this a Courser"):
        VsrClientCodec(CLIENT).frame_size(memoryview(b"HTTP/1.1 400 Bad Request\r\n" + bytes(256)))


@given(st.sampled_from(COMMANDS), st.binary(max_size=300), st.sampled_from([1, 2, 3, 64, 128, 146, 160, 161]))
def test_no_reply_raises_what_nobody_expects(command: c.Command, body: bytes, operation: int) -> None:
    reply = headers.reply_header(CLIENT, bytes(16), 1, operation, body_size=len(body)) + body
    with contextlib.suppress(CourserError):
        VsrClientCodec(CLIENT).decode(command, memoryview(reply))


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_no_failure_raises_what_nobody_expects(body: bytes, status: int) -> None:
    reply = headers.reply_header(CLIENT, bytes(16), 1, 2, status=status or 1, body_size=len(body)) + body
    with pytest.raises(CourserError):
        VsrClientCodec(CLIENT).decode(c.GetStreams(), memoryview(reply))


def test_facts_leave_out_what_is_not_there() -> None:
    assert Facts.__struct_fields__ == ("reason", "first_offset", "end_offset", "detail")
