"""How failures are answered in SDK 0.9: by status, as a result, as an eviction, or as "nothing there"."""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import COMMANDS
from courser.api.table import SDK_0_10
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_failures import SDK_0_9, FailurePlace, judge
from courser.wire.vsr_replies import WRITERS
from courser.wire.writing import identifier, text8
from tests.wire.vsr_captures import channel_of, frame, read

E = ErrorCode
SERVER_CODES = [code for code in ErrorCode if code >= 20_000]
PART = text8("sink") + bytes(20)
PLACE = identifier("s") + identifier("t")
GROUP = PLACE + identifier("g")
OFFSET = b"\x01" + identifier(1) + PLACE + b"\x01" + bytes(4)
POLL_TAIL = b"\x01" + bytes(4) + b"\x05" + bytes(8) + b"\x0a\x00\x00\x00\x00"

REQUESTS: dict[type[c.Command], bytes] = {
    c.CreateStream: frame(128, text8("s")),
    c.UpdateStream: frame(129, identifier("s") + text8("s")),
    c.DeleteStream: frame(130, identifier("s")),
    c.PurgeStream: frame(131, identifier("s")),
    c.CreateTopic: frame(132, identifier("s") + bytes(4) + text8("t")),
    c.UpdateTopic: frame(133, PLACE + text8("t")),
    c.DeleteTopic: frame(134, PLACE),
    c.PurgeTopic: frame(135, PLACE),
    c.CreatePartitions: frame(136, PLACE + bytes(4)),
    c.DeletePartitions: frame(137, PLACE + bytes(4)),
    c.DeleteSegments: frame(138, PLACE + bytes(8)),
    c.CreateConsumerGroup: frame(139, PLACE + text8("g")),
    c.DeleteConsumerGroup: frame(140, GROUP),
    c.CreateUser: frame(141, text8("bob") + text8("secret") + b"\x01\x00"),
    c.UpdateUser: frame(142, identifier("bob") + bytes(2)),
    c.DeleteUser: frame(143, identifier("bob")),
    c.ChangePassword: frame(144, identifier("bob") + text8("a") + text8("b")),
    c.UpdatePermissions: frame(145, identifier("bob") + bytes(1)),
    c.CreateToken: frame(146, text8("t") + bytes(8)),
    c.DeleteToken: frame(147, text8("t")),
    c.JoinConsumerGroup: frame(148, GROUP),
    c.LeaveConsumerGroup: frame(149, GROUP),
    c.StoreConsumerOffset: frame(161, OFFSET + bytes(8) + b"\x01"),
    c.DeleteConsumerOffset: frame(162, OFFSET + b"\x01"),
    c.Ping: read(1),
    c.GetStats: read(10),
    c.GetSnapshot: read(11, b"\x01\x01\x04"),
    c.GetClusterMetadata: read(12),
    c.DescribeOptions: read(13, b"\x01"),
    c.GetMe: read(20),
    c.GetClient: read(21, bytes(4)),
    c.GetClients: read(22),
    c.GetUser: read(31, identifier("bob")),
    c.GetUsers: read(32),
    c.GetTokens: read(41),
    c.FlushMessages: read(102, PLACE + bytes(5)),
    c.GetConsumerOffset: read(120, OFFSET),
    c.PollMessages: read(100, b"\x01" + identifier(1) + PLACE + POLL_TAIL),
    c.GetStream: read(200, identifier("s")),
    c.GetStreams: read(201),
    c.GetTopic: read(300, PLACE),
    c.GetTopics: read(301, identifier("s")),
    c.GetConsumerGroup: read(600, GROUP),
    c.GetConsumerGroups: read(601, PLACE),
    c.SyncConsumerGroup: read(606, GROUP),
    c.WaitForMessages: read(60001, b"\x01" + identifier(1) + PLACE + POLL_TAIL + bytes(12)),
    c.GetPartitionBounds: read(60002, PLACE),
    c.GetSegments: read(60003, PLACE + bytes(4)),
    c.GetTopicDurability: read(60015, PLACE),
    c.GetTopicMaintenance: read(60020, PLACE),
    c.CreateOneTimeToken: read(60030),
    c.GetOffsetsAtTime: read(60040, PLACE + bytes(8)),
    c.GetRetentionPlan: read(60041, bytes(8)),
    c.VerifySegment: read(60042, PLACE + bytes(12)),
    c.GetStartReport: read(60043),
    c.GetSessions: read(60031),
    c.GetAccess: read(60039, bytes(18)),
    c.EndSession: read(60032, bytes(4)),
    c.GetHistory: read(60033, bytes(8)),
    c.GetLogLines: read(60034, bytes(8)),
    c.GetConfiguration: read(60035),
    c.GetTopicFigures: read(60036),
    c.ReportPipeline: read(60037, text8("p") + bytes(3 + 56 + 4 + 16)),
    c.GetPipelines: read(60038),
    c.WaitForArrivals: read(60004, b"\x01" + identifier(1) + PLACE + bytes(20)),
    c.WaitForTopics: read(60019, bytes(12)),
    c.ConfirmAssignment: read(60013, GROUP + bytes(8)),
    c.StageMessages: read(60005, PART + bytes(4) + PLACE + b"\x01\x00" + encode_batch(build_batch([NewMessage(b"x")]))),
    c.FinishStage: read(60006, PART + bytes(4)),
    c.PublishStaged: read(60007, text8("sink") + bytes(20)),
    c.DiscardStaged: read(60008, text8("sink") + bytes(10)),
    c.GetSink: read(60009, text8("sink")),
    c.GetSinks: read(60010),
    c.GetStagedParts: read(60011, text8("sink")),
    c.GetMetrics: read(60017),
    c.GetGroupLag: read(60018, GROUP),
    c.ResetGroupOffsets: read(60012, GROUP + bytes(5)),
    c.FindMessages: read(60016, PLACE + bytes(16)),
}
CHANGES = [command for command, request in REQUESTS.items() if 128 <= request[176] < 150]
WRITES = [c.StoreConsumerOffset, c.DeleteConsumerOffset]
READS = [command for command, request in REQUESTS.items() if request[176] == 2]


def failure(request: bytes, code: ErrorCode) -> bytes:
    codec = VsrCodec()
    incoming = codec.decode(memoryview(request), is_logged_in=True)
    assert incoming.command is not None, incoming.reason
    answer = b"".join(codec.encode_failure(incoming, CommandRejected(code, "for the test")))
    assert not incoming.closes
    return answer


def outcome(command: type[c.Command], code: ErrorCode) -> tuple[str, int]:
    return channel_of(failure(REQUESTS[command], code))


def test_every_command_has_its_request_here() -> None:
    elsewhere = {c.LoginUser, c.LoginWithToken, c.LogoutUser, c.SendMessages}
    assert {entry.kind for entry in COMMANDS if entry.since < SDK_0_10} == set(REQUESTS) | elsewhere
    for command, request in REQUESTS.items():
        incoming = VsrCodec().decode(memoryview(request), is_logged_in=True)
        assert type(incoming.command) is command, incoming.reason


def test_every_reply_can_be_written() -> None:
    replies = {entry.reply for entry in COMMANDS if entry.since < SDK_0_10}
    assert set(WRITERS) == replies - {r.Sent, r.Polled, r.LoggedIn, None}


def test_every_failure_of_every_command_can_be_told() -> None:
    for request in REQUESTS.values():
        for code in ErrorCode:
            channel, number = channel_of(failure(request, code))
            assert channel == "ok" or number


@pytest.mark.parametrize("command", CHANGES)
def test_what_the_state_refuses_is_a_result(command: type[c.Command]) -> None:
    for code in (
        E.UNAUTHORIZED,
        E.RESOURCE_NOT_FOUND,
        E.INVALID_CREDENTIALS,
        E.INVALID_USERNAME,
        E.USER_ALREADY_EXISTS,
        E.CANNOT_DELETE_USER,
        E.CANNOT_CHANGE_PERMISSIONS,
        E.TOKEN_ALREADY_EXISTS,
        E.STREAM_NOT_FOUND,
        E.STREAM_NAME_ALREADY_EXISTS,
        E.TOPIC_NOT_FOUND,
        E.TOPIC_NAME_ALREADY_EXISTS,
        E.INVALID_PARTITIONS_COUNT,
        E.PARTITION_NOT_FOUND,
        E.GROUP_NOT_FOUND,
        E.GROUP_NAME_ALREADY_EXISTS,
        E.GROUP_MEMBER_NOT_FOUND,
        E.USER_INACTIVE,
    ):
        assert outcome(command, code) == ("result", code)


@pytest.mark.parametrize("command", CHANGES)
def test_what_the_request_or_the_disk_forbids_is_a_status(command: type[c.Command]) -> None:
    for code in (
        E.INVALID_COMMAND,
        E.INVALID_FORMAT,
        E.TOO_MANY_TOKENS,
        E.INVALID_TOPIC_SIZE,
        E.TOO_MANY_PARTITIONS,
        E.UNSUPPORTED_OPTION_KEY,
        E.INVALID_OPTION_VALUE,
        E.ERROR,
        *SERVER_CODES,
    ):
        assert outcome(command, code) == ("status", code)


def test_results_carry_the_operation_that_the_original_makes_of_it() -> None:
    for command, operation in ((c.CreateTopic, 64), (c.CreatePartitions, 65), (c.DeleteSegments, 68)):
        assert failure(REQUESTS[command], E.TOPIC_NOT_FOUND)[208] == operation
        assert failure(REQUESTS[command], E.DISK_FULL)[208] == REQUESTS[command][176]


@pytest.mark.parametrize("command", WRITES)
def test_writes_do_not_name_what_is_missing(command: type[c.Command]) -> None:
    for code in (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND, E.GROUP_NOT_FOUND):
        assert outcome(command, code) == ("status", E.RESOURCE_NOT_FOUND)
    for code in (E.PARTITION_NOT_OWNED, E.GROUP_MEMBER_NOT_FOUND):
        assert outcome(command, code) == ("status", E.CONSUMER_NOT_RESOLVED)
    for code in (E.UNAUTHORIZED, E.CONSUMER_OFFSET_NOT_FOUND, E.INVALID_OFFSET, *SERVER_CODES):
        assert outcome(command, code) == ("status", code)


def test_sends_do_not_name_what_is_missing() -> None:
    send = c.SendMessages("s", "t", None, [])  # type: ignore[arg-type]
    operation = c.SendMessages.row.operation
    for code in (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND, E.NO_PARTITIONS):
        assert judge(SDK_0_9, operation, send, code) == (FailurePlace.STATUS, E.RESOURCE_NOT_FOUND)
    for code in (E.UNAUTHORIZED, E.TOPIC_FULL, E.DISK_FULL, E.PARTITION_READ_ONLY, E.INVALID_BATCH_CHECKSUM):
        assert judge(SDK_0_9, operation, send, code) == (FailurePlace.STATUS, code)


MISSES: dict[type[c.Command], tuple[ErrorCode, ...]] = {
    c.GetStream: (E.STREAM_NOT_FOUND,),
    c.GetTopic: (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND),
    c.GetUser: (E.RESOURCE_NOT_FOUND,),
    c.GetClient: (E.CLIENT_NOT_FOUND, E.RESOURCE_NOT_FOUND),
    c.GetConsumerGroup: (E.GROUP_NOT_FOUND,),
    c.GetConsumerOffset: (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.CONSUMER_OFFSET_NOT_FOUND, E.GROUP_NOT_FOUND),
    c.SyncConsumerGroup: (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND),
}


@pytest.mark.parametrize("command", MISSES)
def test_reads_that_find_nothing_are_no_failures(command: type[c.Command]) -> None:
    for code in MISSES[command]:
        answer = failure(REQUESTS[command], code)
        assert channel_of(answer) == ("ok", 0)
        assert len(answer) == 256


def test_the_topics_of_a_missing_stream_are_none() -> None:
    answer = failure(REQUESTS[c.GetTopics], E.STREAM_NOT_FOUND)
    assert channel_of(answer) == ("ok", 0)
    assert answer[256:] == bytes(4)


def test_groups_of_what_is_missing_are_a_failure() -> None:
    for command in (c.GetConsumerGroup, c.GetConsumerGroups):
        for code in (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND):
            assert outcome(command, code) == ("status", code)
    assert outcome(c.GetConsumerOffset, E.PARTITION_NOT_FOUND) == ("status", E.PARTITION_NOT_FOUND)


@pytest.mark.parametrize("command", READS)
def test_all_other_failures_of_reads_are_a_status(command: type[c.Command]) -> None:
    for code in (E.UNAUTHENTICATED, E.INVALID_COMMAND, E.USER_INACTIVE, E.SNAPSHOT_FAILED, *SERVER_CODES):
        assert outcome(command, code) == ("status", code)
    if command is not c.SyncConsumerGroup:
        assert outcome(command, E.UNAUTHORIZED) == ("status", E.UNAUTHORIZED)


def test_polls_of_groups_are_told_to_ask_for_their_partitions() -> None:
    request = read(100, b"\x02" + identifier("g") + PLACE + POLL_TAIL)
    for code in (E.PARTITION_NOT_OWNED, E.GROUP_NOT_FOUND, E.GROUP_MEMBER_NOT_FOUND, E.PARTITION_NOT_FOUND):
        answer = failure(request, code)
        assert answer[256:] == b"\xff\xff\xff\xff" + bytes(12)
        assert channel_of(answer) == ("ok", 0)
    for code in (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.UNAUTHORIZED):
        assert channel_of(failure(request, code)) == ("status", code)


def test_polls_of_single_consumers_are_told_what_is_missing() -> None:
    for code in (E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.PARTITION_NOT_FOUND):
        assert outcome(c.PollMessages, code) == ("status", code)


def test_a_poll_of_a_group_that_names_no_partition_is_empty() -> None:
    request = read(100, b"\x02" + identifier("g") + PLACE + b"\x00" + POLL_TAIL[1:])
    incoming = VsrCodec().decode(memoryview(request), is_logged_in=True)
    assert incoming.answer is not None
    assert b"".join(incoming.answer)[256:] == bytes(16)


def test_a_poll_of_a_single_consumer_that_names_no_partition_reads_the_first() -> None:
    request = read(100, b"\x01" + identifier("x") + PLACE + b"\x00\x07" + POLL_TAIL[2:])
    command = VsrCodec().decode(memoryview(request), is_logged_in=True).command
    assert isinstance(command, c.PollMessages)
    assert command.partition_id == 0
    assert command.consumer == Consumer(ConsumerKind.CONSUMER, "x")


def test_our_own_polls_of_groups_name_a_partition_or_not_and_fail_openly() -> None:
    request = read(60001, b"\x02" + identifier("g") + PLACE + b"\x00" + POLL_TAIL[1:] + bytes(12))
    command = VsrCodec().decode(memoryview(request), is_logged_in=True).command
    assert isinstance(command, c.WaitForMessages)
    assert command.poll.partition_id is None
    assert channel_of(failure(request, E.PARTITION_NOT_OWNED)) == ("status", E.PARTITION_NOT_OWNED)


def test_our_own_commands_always_say_what_is_wrong() -> None:
    for command in REQUESTS:
        if command.row.is_private:
            for code in set(ErrorCode) - {E.STALE_CLIENT}:
                assert outcome(command, code) == ("status", code)


# --- the end of a session -----------------------------------------------------------------------------


def test_a_session_that_was_ended_is_an_eviction() -> None:
    for command, request in REQUESTS.items():
        assert outcome(command, E.STALE_CLIENT) == ("evict", 13)
        expected = ("status", 40) if request[176] == 2 else ("evict", 1)
        assert outcome(command, E.UNAUTHENTICATED) == expected


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (E.STALE_CLIENT, 13),
        (E.UNAUTHENTICATED, 12),
        (E.USER_INACTIVE, 12),
        (E.CLIENT_NOT_FOUND, 12),
        (E.DISCONNECTED, None),
        (E.ERROR, None),
    ],
)
def test_farewells(code: ErrorCode, reason: int | None) -> None:
    codec = VsrCodec()
    for step in range(2):
        farewell = codec.farewell(CommandRejected(code, "the end"))
        if reason is None:
            assert farewell == b""
        else:
            assert channel_of(farewell) == ("evict", reason)
        if step == 0:
            # Before the first request the name of the client is not known; afterwards it is.
            request = read(1)
            codec.decode(memoryview(request), is_logged_in=False)
        elif reason is not None:
            assert farewell[128:144] == read(1)[128:144]
