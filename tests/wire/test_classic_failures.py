"""What failed commands are answered with on the classic wire."""

import pytest

from courser.api import commands as c
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, PollingKind
from courser.records.classic import Dialect
from courser.wire.classic import ClassicCodec
from courser.wire.codec import Incoming
from tests.wire.classic_samples import COMMANDS

E = ErrorCode
G5, G6, G7, G8 = Dialect.SDK_0_5, Dialect.SDK_0_6, Dialect.SDK_0_7, Dialect.SDK_0_8
MEMBER = Consumer(ConsumerKind.GROUP, "group")
POLL = c.PollMessages(MEMBER, 0, 0, None, PollingKind.NEXT, 0, 10, auto_commit=False)
EMPTY_OK = bytes(8)

NOTHING_THERE: list[tuple[c.Command, list[ErrorCode]]] = [
    (c.GetStream(0), [E.STREAM_NOT_FOUND]),
    (c.GetTopic(0, 0), [E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND]),
    (c.GetConsumerGroup(0, 0, 0), [E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND, E.GROUP_NOT_FOUND]),
    (c.GetUser("nobody"), [E.RESOURCE_NOT_FOUND]),
    (c.GetClient(7), [E.CLIENT_NOT_FOUND]),
    (
        c.GetConsumerOffset(MEMBER, 0, 0, 9),
        [
            E.STREAM_NOT_FOUND,
            E.TOPIC_NOT_FOUND,
            E.PARTITION_NOT_FOUND,
            E.GROUP_NOT_FOUND,
            E.GROUP_MEMBER_NOT_FOUND,
            E.PARTITION_NOT_OWNED,
            E.CONSUMER_OFFSET_NOT_FOUND,
        ],
    ),
]


def answer(command: c.Command, code: ErrorCode, dialect: Dialect = G8) -> tuple[bytes, bool]:
    """The whole answer, and whether the connection is closed after it."""
    incoming = Incoming(command)
    (data,) = ClassicCodec(dialect, bytes).encode_failure(incoming, CommandRejected(code, "no"))
    return bytes(data), incoming.closes


def status(code: int) -> bytes:
    return code.to_bytes(4, "little") + bytes(4)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(
    ("command", "code"), [(command, code) for command, codes in NOTHING_THERE for code in codes], ids=str
)
def test_a_read_of_what_is_not_there_finds_nothing(command: c.Command, code: ErrorCode, dialect: Dialect) -> None:
    assert answer(command, code, dialect) == (EMPTY_OK, False)


@pytest.mark.parametrize(("dialect", "is_empty"), [(G5, False), (G6, False), (G7, True), (G8, True)])
def test_lists_below_what_is_not_there_are_empty_since_0_7(dialect: Dialect, is_empty: bool) -> None:
    for command, code in (
        (c.GetTopics(0), E.STREAM_NOT_FOUND),
        (c.GetConsumerGroups(0, 0), E.STREAM_NOT_FOUND),
        (c.GetConsumerGroups(0, 0), E.TOPIC_NOT_FOUND),
    ):
        assert answer(command, code, dialect) == (EMPTY_OK if is_empty else status(code), False)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_member_that_may_not_read_the_partition_polls_nothing(dialect: Dialect) -> None:
    assert answer(POLL, E.PARTITION_NOT_OWNED, dialect) == (bytes(4) + b"\x10\0\0\0" + bytes(16), False)


def test_our_own_poll_says_that_the_partition_is_not_the_members() -> None:
    assert answer(c.WaitForMessages(POLL, 0, 0), E.PARTITION_NOT_OWNED) == (status(5009), False)


@pytest.mark.parametrize(
    ("command", "code", "expected"),
    [
        (c.StoreConsumerOffset(MEMBER, 0, 0, 1, 5), E.PARTITION_NOT_OWNED, 3022),
        (c.DeleteConsumerOffset(MEMBER, 0, 0, 1), E.PARTITION_NOT_OWNED, 3022),
        (c.LoginWithToken("unknown"), E.INVALID_TOKEN, 20),
        (c.LoginWithToken("unknown"), E.INVALID_CREDENTIALS, 20),
        (c.LoginWithToken("unknown"), E.RESOURCE_NOT_FOUND, 20),
        (c.LoginWithToken("old"), E.TOKEN_EXPIRED, 54),
        (c.LoginUser("iggy", "wrong"), E.INVALID_CREDENTIALS, 42),
        (c.SendMessages(0, 0, Balanced(), []), E.NO_PARTITIONS, 2010),
        (c.GetUser("other"), E.UNAUTHORIZED, 41),
        (c.GetTopic(0, 0), E.UNAUTHORIZED, 41),
        (c.GetStats(), E.UNAUTHENTICATED, 40),
        (c.GetClient(0), E.INVALID_CLIENT_ID, 101),
        (POLL, E.GROUP_MEMBER_NOT_FOUND, 5006),
        (POLL, E.PARTITION_NOT_FOUND, 3007),
        (c.DeleteStream(0), E.STREAM_NOT_FOUND, 1009),
        (c.SendMessages(0, 0, Balanced(), []), E.DISK_FULL, 20001),
    ],
    ids=str,
)
def test_other_failures_have_a_status(command: c.Command, code: ErrorCode, expected: int) -> None:
    assert answer(command, code) == (status(expected), False)


def test_0_5_knows_a_topic_without_partitions() -> None:
    assert answer(c.SendMessages(0, 0, Balanced(), []), E.NO_PARTITIONS, G5) == (status(3008), False)


@pytest.mark.parametrize("code", [E.DISCONNECTED, E.STALE_CLIENT, E.CLIENT_NOT_FOUND])
def test_the_end_of_a_session_is_the_end_of_the_connection(code: ErrorCode) -> None:
    assert answer(c.GetMe(), code) == (status(code), True)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_no_failure_has_a_payload_but_a_poll_of_nothing(command: c.Command) -> None:
    for code in ErrorCode:
        data, _ = answer(command, code)
        if data[:4] != bytes(4):
            assert data[4:] == bytes(4)
        else:
            assert data == EMPTY_OK or isinstance(command, c.PollMessages)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code >= 20_000])
def test_numbers_of_our_own_are_told_as_they_are(code: ErrorCode) -> None:
    for command in COMMANDS:
        assert answer(command, code) == (status(code), False)
