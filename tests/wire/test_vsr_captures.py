"""Every exchange recorded from the real server, on the codec alone.

The handlers are replaced by what the real server said: its reply is read into a reply object, its refusal into the
error that a handler would raise. What the codec makes of them must be the recorded bytes again, in the fields that a
client looks at. ``DIFFERENCES`` lists what is meant to differ; nothing else may, and nothing may be listed in vain.
"""

import pytest

from courser.api import commands as c
from courser.errors import CommandRejected, ErrorCode
from courser.wire.codec import Codec, FrameRefused, Incoming
from courser.wire.vsr import VsrCodec
from tests.wire.vsr_captures import Exchange, channel_of, exchanges, masked
from tests.wire.vsr_reader import read_reply

EXECUTED = ("executed", 0)
CLOSED = ("closed", 0)

UNANSWERED = "the original drops it without a word; a client would wait 30 seconds"
INVALID_BATCH = "the original drops invalid batches without a word"
FRAME_CHECKSUMS = "the checksums of messages are their senders' and verified on request only"
DURABILITY = "the released SDK sets these options on every topic; the recorded build did not know them yet"
USER_STATUS = "the original stores a status that does not exist"
OWN_NUMBERING = "requests are numbered per connection, whoever else calls itself the same"
NO_SECRET = "protocol 0.12 is spoken, but its logins have a secret"
FLUSH = "the original never flushes on demand; here it does"

DIFFERENCES: dict[tuple[str, str], tuple[tuple[str, int], str]] = {
    # requests that are never answered
    ("connect", "create stream unauthenticated, session 0"): (("evict", 1), UNANSWERED),
    ("connect", "login again without logout, same client id"): (("status", 3), UNANSWERED),
    ("connect", "login again with another client id on the live connection"): (("status", 3), UNANSWERED),
    ("connect", "register with request number 1"): (("status", 3), UNANSWERED),
    ("connect", "register with session 5"): (("status", 3), UNANSWERED),
    ("connect", "register, client id 0"): (("status", 3), UNANSWERED),
    **{
        ("frames", f"operation {number}"): (("status", 3), UNANSWERED) for number in (0, 4, 63, 127, 150, 159, 163, 255)
    },
    ("frames", "command 1"): (CLOSED, UNANSWERED),
    ("frames", "command 8 (reply) from a client"): (CLOSED, UNANSWERED),
    ("frames", "command 0"): (CLOSED, UNANSWERED),
    ("frames", "client id 0"): (("status", 3), UNANSWERED),
    ("numbers", "request 1 again with another body"): (("status", 3), UNANSWERED),
    ("numbers", "request 0"): (("status", 3), UNANSWERED),
    ("numbers", "another operation with request 5"): (("status", 3), UNANSWERED),
    ("numbers", "session 0"): (("status", 3), UNANSWERED),
    ("numbers", "request 6 after 2^63"): (("status", 3), UNANSWERED),
    ("numbers", "send, request 0"): (("status", 3), UNANSWERED),
    ("numbers", "send, session 0"): (("status", 3), UNANSWERED),
    **{
        ("crash", f"{command}, {fault}"): (("status", 3), "one such frame ends the original's process")
        for command in (
            "DeleteStream",
            "PurgeStream",
            "DeleteTopic",
            "PurgeTopic",
            "CreateConsumerGroup",
            "DeleteConsumerGroup",
            "DeleteUser",
            "UpdatePermissions",
        )
        for fault in ("empty body", "bad identifier kind")
    },
    ("crash", "operation 68 logged in"): (("evict", 4), "one such frame ends the original's process"),
    **{
        ("malformed", f"{command}, {fault}"): (("status", 3), UNANSWERED)
        for command in ("JoinConsumerGroup", "LeaveConsumerGroup")
        for fault in ("empty body", "bad identifier kind")
    },
    # batches
    ("send", "batch checksum wrong"): (("status", 4039), INVALID_BATCH),
    ("send", "frame checksum wrong"): (EXECUTED, FRAME_CHECKSUMS),
    ("send", "frame checksum 0"): (EXECUTED, FRAME_CHECKSUMS),
    ("send", "batch checksum 0"): (("status", 4039), INVALID_BATCH),
    ("send", "message_count of the header too big"): (("status", 4036), INVALID_BATCH),
    ("send", "message_count of the header too small"): (("status", 4036), INVALID_BATCH),
    ("send", "count of the metadata too big"): (("status", 4009), INVALID_BATCH),
    ("send", "count of the metadata too small"): (("status", 4009), INVALID_BATCH),
    ("send", "both counts 3 for 2 frames"): (("status", 4036), INVALID_BATCH),
    ("send", "both counts 1 for 2 frames"): (("status", 4036), INVALID_BATCH),
    ("send", "zero messages"): (("status", 4009), INVALID_BATCH),
    ("send", "no batch at all"): (("status", 3), INVALID_BATCH),
    ("send", "half a batch header"): (("status", 3), INVALID_BATCH),
    ("send", "batch_length too small"): (("status", 4036), INVALID_BATCH),
    ("send", "batch_length too big"): (("status", 4036), INVALID_BATCH),
    ("send", "batch_length 0"): (("status", 4036), INVALID_BATCH),
    ("send", "bytes after the batch"): (("status", 4036), INVALID_BATCH),
    ("send", "last frame cut"): (("status", 4036), INVALID_BATCH),
    ("send", "metadata_length +1"): (("status", 20), INVALID_BATCH),
    ("send", "batch reserved byte not zero"): (("status", 4101), INVALID_BATCH),
    ("send", "last batch reserved byte not zero"): (("status", 4101), INVALID_BATCH),
    ("send", "frame reserved not zero"): (("status", 4101), INVALID_BATCH),
    ("send", "payload length too big"): (("status", 4036), INVALID_BATCH),
    ("send", "payload length too small"): (("status", 4036), INVALID_BATCH),
    ("send", "headers length lies"): (("status", 4036), INVALID_BATCH),
    ("send", "payload length 2^32-1"): (("status", 4036), INVALID_BATCH),
    **{
        ("send", f"offset deltas {deltas}"): (("status", 4100), "the original stores them, and its polls go wrong then")
        for deltas in ("0,0", "5,6", "1,0")
    },
    # polls that cannot be understood
    **{
        ("poll", name): (("status", 3), "the original answers what it cannot understand as an empty partition")
        for name in (
            "strategy kind 0",
            "strategy kind 6",
            "consumer kind 3",
            "consumer kind 0",
            "truncated",
            "empty body",
        )
    },
    ("partitions", "delete segments, truncated"): (("status", 3), "the original answers OK and deletes nothing"),
    ("malformed", "DeleteSegments, empty body"): (("status", 3), "the original answers OK and deletes nothing"),
    ("malformed", "DeleteSegments, bad identifier kind"): (
        ("status", 3),
        "the original answers OK and deletes nothing",
    ),
    # options
    ("topics", "create topic, durability=replicated"): (EXECUTED, DURABILITY),
    ("topics", "create topic, durability=persisted"): (EXECUTED, DURABILITY),
    ("topics", "create topic, consumer_offset_durability=replicated"): (EXECUTED, DURABILITY),
    ("topics", "create topic, both durability keys as the 0.9.0 package sends them"): (EXECUTED, DURABILITY),
    ("topics", "update topic, durability"): (EXECUTED, DURABILITY),
    # users
    ("users", "create user, status 0"): (("status", 3), USER_STATUS),
    ("users", "create user, status 3"): (("status", 3), USER_STATUS),
    ("users", "update user, status 3"): (("status", 3), USER_STATUS),
    # versions
    ("connect", "login protocol 0.12.0"): (("evict", 15), NO_SECRET),
    # numbers
    ("numbers", "send repeated, request 2"): (("ok", 0), "a repeated send is answered, not appended again"),
    ("connections", "first connection: create stream"): (EXECUTED, OWN_NUMBERING),
    ("connections", "second connection: create stream"): (EXECUTED, OWN_NUMBERING),
    ("connections", "another user logs in with the same client id"): (EXECUTED, OWN_NUMBERING),
    # flushes
    ("system", "flush"): (EXECUTED, FLUSH),
    ("system", "flush, missing partition"): (EXECUTED, FLUSH),
    ("system", "flush, truncated"): (("status", 3), FLUSH),
    ("users", "FlushUnsavedBuffer without permission"): (EXECUTED, FLUSH),
}

WITHOUT_LISTED_LOGIN = {"crash", "malformed"}
EVICTION_CODES = {9: ErrorCode.INVALID_CREDENTIALS, 10: ErrorCode.INVALID_TOKEN}
MISSES: dict[type[c.Command], list[ErrorCode]] = {
    c.GetStream: [ErrorCode.STREAM_NOT_FOUND],
    c.GetTopic: [ErrorCode.STREAM_NOT_FOUND, ErrorCode.TOPIC_NOT_FOUND],
    c.GetTopics: [ErrorCode.STREAM_NOT_FOUND],
    c.GetUser: [ErrorCode.RESOURCE_NOT_FOUND],
    c.GetClient: [ErrorCode.CLIENT_NOT_FOUND],
    c.GetConsumerGroup: [ErrorCode.GROUP_NOT_FOUND],
    c.GetConsumerOffset: [
        ErrorCode.STREAM_NOT_FOUND,
        ErrorCode.TOPIC_NOT_FOUND,
        ErrorCode.GROUP_NOT_FOUND,
        ErrorCode.CONSUMER_OFFSET_NOT_FOUND,
    ],
    c.SyncConsumerGroup: [
        ErrorCode.STREAM_NOT_FOUND,
        ErrorCode.TOPIC_NOT_FOUND,
        ErrorCode.GROUP_NOT_FOUND,
        ErrorCode.GROUP_MEMBER_NOT_FOUND,
        ErrorCode.UNAUTHORIZED,
    ],
}
NOT_FOUND_BY_WRITES = [
    ErrorCode.STREAM_NOT_FOUND,
    ErrorCode.TOPIC_NOT_FOUND,
    ErrorCode.PARTITION_NOT_FOUND,
    ErrorCode.NO_PARTITIONS,
]
NOT_OWNED = [ErrorCode.PARTITION_NOT_OWNED, ErrorCode.GROUP_NOT_FOUND, ErrorCode.PARTITION_NOT_FOUND]
SENTINEL = b"\xff\xff\xff\xff" + bytes(12)


class Player:
    """The connections of one section, each with its codec."""

    def __init__(self, section: str) -> None:
        self.section = section
        self.codecs: dict[str, VsrCodec] = {}
        self.logged_in: set[str] = set()

    def ask(self, exchange: Exchange) -> tuple[Codec, Incoming | None]:
        """Hand a request to its connection; None if that closes it."""
        connection = exchange.connection
        codec = self.codecs.setdefault(connection, VsrCodec())
        frame = memoryview(exchange.request)
        try:
            size = codec.frame_size(frame)
        except FrameRefused:
            return codec, None
        assert size is not None
        is_logged_in = self.section in WITHOUT_LISTED_LOGIN or connection in self.logged_in
        if size > len(frame):
            # The size of this one lies; the transport waits.
            assert exchange.name == "size larger than the bytes sent"
            return codec, None
        incoming = codec.decode(frame, is_logged_in=is_logged_in)
        if exchange.channel == "ok" and exchange.operation == 1:
            self.logged_in.add(connection)
        elif exchange.operation == 3:
            self.logged_in.discard(connection)
        return codec, incoming


def play(player: Player, exchange: Exchange) -> None:
    codec, incoming = player.ask(exchange)
    expected, _ = DIFFERENCES.get((exchange.section, exchange.name), (None, ""))
    if expected is None and exchange.channel == "none":
        # Frames of impossible sizes end the connection there and here.
        assert incoming is None, "an answer that is not listed"
        return
    if expected == CLOSED:
        assert incoming is None
        return
    assert incoming is not None, "closed"
    if expected == EXECUTED:
        assert incoming.answer is None
        assert incoming.command is not None
    elif expected is not None:
        assert incoming.answer is not None, f"understood as {incoming.command}"
        assert channel_of(b"".join(incoming.answer)) == expected
    elif incoming.answer is not None:
        assert masked(b"".join(incoming.answer)) == masked(exchange.reply), incoming.reason
    else:
        assert incoming.command is not None
        encode_as_recorded(codec, incoming, incoming.command, exchange)


def encode_as_recorded(codec: Codec, incoming: Incoming, command: c.Command, exchange: Exchange) -> None:
    expected = masked(exchange.reply)
    body = exchange.reply[256:]
    if exchange.operation == 1 and exchange.channel == "ok":
        # The version of the server is another: the text at the end, and its length.
        expected = expected[:48] + (256 + 26).to_bytes(4, "little") + expected[52:276] + b"\x050.9.0"
    if exchange.channel == "ok" and not is_miss(command, body):
        framed = body[4:] if exchange.operation not in (2, 3, 160) else body
        answer = b"".join(codec.encode_reply(incoming, read_reply(command, framed)))
        assert masked(answer) == expected
        return
    for code in codes_of(command, exchange):
        answer = b"".join(codec.encode_failure(incoming, CommandRejected(code, "as recorded")))
        assert masked(answer) == expected, code


def is_miss(command: c.Command, body: bytes) -> bool:
    if isinstance(command, c.PollMessages):
        return body == SENTINEL
    if isinstance(command, c.GetTopics):
        return body == bytes(4)
    return type(command) in MISSES and body == b""


def codes_of(command: c.Command, exchange: Exchange) -> list[ErrorCode]:
    """What a handler may have raised for the recorded answer."""
    if exchange.channel == "ok":
        return NOT_OWNED if isinstance(command, c.PollMessages) else MISSES[type(command)]
    assert exchange.status is not None
    if exchange.channel == "evict":
        return [EVICTION_CODES[exchange.status]]
    if exchange.operation in (160, 161, 162) and exchange.status == ErrorCode.RESOURCE_NOT_FOUND:
        return NOT_FOUND_BY_WRITES
    return [ErrorCode(exchange.status)]


SECTIONS = list(dict.fromkeys(exchange.section for exchange in exchanges()))


@pytest.mark.parametrize("section", SECTIONS)
def test_what_was_recorded(section: str) -> None:
    player = Player(section)
    failures = []
    for exchange in exchanges():
        if exchange.section != section:
            continue
        try:
            play(player, exchange)
        except AssertionError as error:
            failures.append(f"{exchange.connection} {exchange.name} ({exchange.command}): {error}")
    assert not failures, "\n\n".join(failures)


REFUSED_UNSEEN = {
    "send": {
        "send by empty key",
        "partitioning kind 0",
        "partitioning kind 4",
        "partition id of 3 bytes",
        "balanced with a value",
        "metadata_length too small",
        "metadata_length too big",
        "metadata_length 0",
    },
    "offsets": {
        "store with ack 2",
        "store without ack byte",
        "no partition named, store",
        "no partition named, delete",
        "delete without ack byte",
        "consumer kind 3, store",
        "truncated, store",
        "group offset, no partition named, store",
    },
}
"""Answered with "not found", which handlers say too: here the codec itself must have found the fault."""


@pytest.mark.parametrize("section", REFUSED_UNSEEN)
def test_what_cannot_be_understood_reaches_no_handler(section: str) -> None:
    reached = {
        exchange.name
        for exchange in exchanges()
        if exchange.section == section
        and VsrCodec().decode(memoryview(exchange.request), is_logged_in=True).command is not None
    }
    assert not reached & REFUSED_UNSEEN[section]
    assert {exchange.name for exchange in exchanges() if exchange.section == section} >= REFUSED_UNSEEN[section]


def test_the_recording_is_nearly_whole() -> None:
    assert len(exchanges()) > 1050


def test_every_difference_is_one() -> None:
    rows = {(exchange.section, exchange.name): exchange for exchange in exchanges()}
    assert set(DIFFERENCES) <= set(rows)
    for key, (outcome, _) in DIFFERENCES.items():
        recorded = (rows[key].channel, rows[key].status)
        # The answer to a repeated send is that of the send, where the original has a new offset.
        assert outcome != recorded or key == ("numbers", "send repeated, request 2")
