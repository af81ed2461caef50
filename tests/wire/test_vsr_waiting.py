"""Reads of SDK 0.10 that may wait: to the byte as the fixtures of the SDK have them, and as clients send them."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind
from courser.wire.codec import Cancellation, Deferral, Incoming
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_headers import HEADER_SIZE
from courser.wire.writing import text8
from tests.wire.vsr_captures import channel_of, frame, read

SECOND = 1_000_000
E = ErrorCode
READS_OF = {0: (106, 107, 108), 1: (106, 108, 109), 2: (106, 108, 109)}
"""By patch of protocol 0.12."""


def codec_of(patch: int = 2, line: int = 12) -> VsrCodec:
    """The codec of a client that is logged in."""
    codec = VsrCodec()
    secret = b"" if line == 11 else bytes(32)
    version = ((line << 10) + patch).to_bytes(4, "little")
    body = version + text8("rust-sdk") + text8("0.11.1") + secret + text8("iggy") + text8("iggy") + bytes(4)
    incoming = codec.decode(memoryview(frame(1, body, request=0, session=0)), is_logged_in=False)
    codec.encode_reply(incoming, r.LoggedIn(0, 1))
    return codec


def decoded(code: int, body: bytes, *, patch: int = 2, incarnation: int = 0, is_logged_in: bool = True) -> Incoming:
    request = bytearray(read(code, body, request=7))
    request[200:208] = incarnation.to_bytes(8, "little")
    return codec_of(patch).decode(memoryview(request), is_logged_in)


def deferred(code: int, body: bytes, *, patch: int = 2, incarnation: int = 0) -> tuple[c.Command, c.Command | None]:
    """The wait, and what is carried out afterwards."""
    incoming = decoded(code, body, patch=patch, incarnation=incarnation)
    assert isinstance(incoming, Deferral)
    assert (incoming.number, incoming.command, incoming.answer) == (7, None, None)
    return incoming.wait, incoming.request.command


def refusal(code: int, body: bytes, *, patch: int = 2) -> tuple[str, int]:
    incoming = decoded(code, body, patch=patch)
    assert incoming.command is None
    assert incoming.answer is not None
    return channel_of(b"".join(incoming.answer))


# --- one partition (106) ---

POLL_OF_SDK = bytes.fromhex(
    "0101040100000001040100000002066f726465727301020000000129000000000000006400000000"
    "404b4c00000000000100000000001000808d5b0000000000"
)
POLL_OF_MEMBER = bytes.fromhex(
    "02020c6f72646572732d67726f757001040100000002066f726465727301020000000500000000000000006400000001"
    "404b4c00000000000100000000001000808d5b0000000000"
)
ALONE = Consumer(ConsumerKind.CONSUMER, 1)
NOTHING_COMMITTED = "a number after which the client knows that nothing was committed"


def poll(**other: int) -> bytes:
    """The body of a poll, of which some fields are different."""
    fields = {
        "has_partition": 1,
        "partition": 1,
        "kind": 1,
        "value": 1,
        "count": 1000,
        "commits": 0,
        "wait": 2 * SECOND,
        "min_count": 1,
        "size_max": 1 << 20,
        "timeout": 12 * SECOND,
    }
    assert other.keys() <= fields.keys()
    place = b"\x01" + b"\x02\x02c1" + b"\x02\x02s1" + b"\x02\x02t1"
    return place + pack("<BIBQIBQIIQ", *(fields | other).values())


def test_a_poll_of_the_fixtures_is_a_wait_and_a_read() -> None:
    wait, then = deferred(106, POLL_OF_SDK, incarnation=13)
    target = c.ReadTarget(2, PollingKind.OFFSET, 41, incarnation=13)
    assert wait == c.AwaitMessages(ALONE, 1, "orders", (target,), 1, 5 * SECOND)
    polled = c.PollMessages(ALONE, 1, "orders", 2, PollingKind.OFFSET, 41, 100, False, 13)
    assert then == c.ReadMessages(polled, (1 << 20) - 40)


def test_a_member_of_a_group_polls_and_commits() -> None:
    _, then = deferred(106, POLL_OF_MEMBER)
    group = Consumer(ConsumerKind.GROUP, "orders-group")
    polled = c.PollMessages(group, 1, "orders", 2, PollingKind.NEXT, 0, 100, True)
    assert then == c.ReadMessages(polled, (1 << 20) - 40)


@pytest.mark.parametrize("patch", [0, 1, 2])
def test_a_poll_that_does_not_wait_stays_in_the_line(patch: int) -> None:
    incoming = decoded(106, poll(wait=0, timeout=1), patch=patch, incarnation=5)
    assert isinstance(incoming.command, c.ReadMessages)
    assert incoming.command.poll.incarnation == 5


BAD_POLLS = {
    "a partition that is not named": {"has_partition": 0},
    "an unknown strategy": {"kind": 6},
    "no messages": {"min_count": 0},
    "more than all": {"min_count": 1001},
    "no message at all": {"min_count": 0, "count": 0},
    "a reply that is too small": {"size_max": 343},
    "a wait of more than ten minutes": {"wait": 600 * SECOND + 1, "timeout": 630 * SECOND},
    "a client that does not wait": {"timeout": 0},
    "the same for no messages": {"timeout": 0, "wait": 0},
    "a client that waits for too long": {"timeout": 630 * SECOND + 1},
    "a client that waits hardly longer": {"timeout": 3 * SECOND - 1},
}


@pytest.mark.parametrize("fields", BAD_POLLS.values(), ids=BAD_POLLS)
def test_a_poll_that_makes_no_sense_is_refused(fields: dict[str, int]) -> None:
    assert refusal(106, poll(**fields)) == ("status", E.INVALID_COMMAND)


@pytest.mark.parametrize("fields", BAD_POLLS.values(), ids=BAD_POLLS)
def test_so_is_one_that_commits_with_a_number_that_leaves_no_doubt(fields: dict[str, int]) -> None:
    assert refusal(106, poll(commits=1, **fields)) == ("status", E.FEATURE_UNAVAILABLE), NOTHING_COMMITTED


def test_limits_are_included() -> None:
    for fields in (
        {"wait": 600 * SECOND, "timeout": 630 * SECOND},
        {"timeout": 3 * SECOND},
        {"min_count": 1000},
        {"size_max": 344},
    ):
        deferred(106, poll(**fields))


@pytest.mark.parametrize("body", [poll() + b"\0", poll()[:-1], poll()[1:], b"", bytes(2000)])
def test_a_poll_has_exactly_its_length(body: bytes) -> None:
    assert refusal(106, body)[0] == "status"


def test_the_reply_is_that_of_a_poll() -> None:
    codec = codec_of()
    incoming = codec.decode(memoryview(read(106, poll(), request=7)), True)
    assert isinstance(incoming, Deferral)
    records = memoryview(b"records!")
    reply = b"".join(codec.encode_reply(incoming.request, r.Polled(1, 44, 3, (records,), 8, 13)))
    context = (13).to_bytes(8, "little") + bytes(8) + (13).to_bytes(8, "little")
    prefix = b"\1\0\0\0" + (44).to_bytes(8, "little") + b"\3\0\0\0" + context
    assert reply[HEADER_SIZE:] == prefix + records
    assert int.from_bytes(reply[48:52], "little") == len(reply)
    assert reply[200:209] == b"\7" + bytes(7) + b"\2"


# --- waiting only (107) ---


def wait_body(*targets: tuple[int, int, int], wait: int = 5 * SECOND, timeout: int = 11 * SECOND) -> bytes:
    head = b"\x02\x02\x02g2" + b"\x02\x02s1" + b"\x02\x02t1" + pack("<QQI", wait, timeout, len(targets))
    return head + b"".join(pack("<IBQ", *target) for target in targets)


def test_a_wait_for_several_partitions() -> None:
    body = wait_body((0, 5, 0), (3, 2, 9))
    assert body.startswith(bytes.fromhex("0202026732 02027331 02027431")), "as a client sends it"
    wait, then = deferred(107, body, patch=0, incarnation=13)
    targets = (c.ReadTarget(0, PollingKind.NEXT, 0, incarnation=13), c.ReadTarget(3, PollingKind.TIMESTAMP, 9))
    assert wait == c.AwaitMessages(Consumer(ConsumerKind.GROUP, "g2"), "s1", "t1", targets, 1, 5 * SECOND)
    assert then is wait, "the reply to the wait is the reply"


@pytest.mark.parametrize("ready", [(), (1,), (0, 3)])
def test_its_reply_has_those_that_are_ready(ready: tuple[int, ...]) -> None:
    codec = codec_of(0)
    incoming = codec.decode(memoryview(read(107, wait_body((0, 5, 0)), request=7)), True)
    assert isinstance(incoming, Deferral)
    reply = b"".join(codec.encode_reply(incoming.request, r.ReadyPartitions(ready)))
    assert reply[HEADER_SIZE:] == pack(f"<{1 + len(ready)}I", len(ready), *ready)


@pytest.mark.parametrize(
    "body",
    [
        wait_body(),
        wait_body(*((number, 5, 0) for number in range(1001))),
        wait_body((0, 6, 0)),
        wait_body((0, 5, 0), timeout=0),
        wait_body((0, 5, 0), timeout=6 * SECOND - 1),
        wait_body((0, 5, 0)) + b"\0",
        wait_body((0, 5, 0))[:-1],
    ],
)
def test_a_wait_that_makes_no_sense_is_refused(body: bytes) -> None:
    assert refusal(107, body, patch=0) == ("status", E.INVALID_COMMAND)


# --- several partitions (109) ---

FETCH_OF_SDK = bytes.fromhex(
    "01010401000000010401000000010402000000404b4c0000000000808d5b000000000001000000e8030000000010000002000000"
    "01000000012900000000000000000008000b00000000000000000000000000000003000000050000000000000000000008000b"
    "000000000000000000000000000000"
)
FETCH_OF_MEMBER = bytes.fromhex(
    "02010409000000010401000000010402000000404b4c0000000000808d5b000000000001000000e8030000000010000103000000"
    "01000000050000000000000000000008000b00000000000000040000000000000002000000050000000000000000000008000b00"
    "000000000000040000000000000004000000010700000000000000000008000b000000000000000400000000000000"
)
REFUSED_FETCHES = {
    "no targets": "01010401000000010401000000010402000000404b4c0000000000808d5b000000000001000000e80300000000100000"
    "00000000",
    "a partition twice": "01010401000000010401000000010402000000404b4c0000000000808d5b000000000001000000e80300000000"
    "1000000200000001000000010000000000000000000008000b000000000000000000000000000000010000000500000000000000000000"
    "08000b000000000000000000000000000000",
    "the first message": "01010401000000010401000000010402000000404b4c0000000000808d5b000000000001000000e80300000000"
    "1000000100000001000000030000000000000000000008000b000000000000000000000000000000",
    "more than all": "01010401000000010401000000010402000000404b4c0000000000808d5b0000000000e9030000e803000000001000"
    "000100000001000000010000000000000000000008000b000000000000000000000000000000",
    "more bytes of one than of all": "01010401000000010401000000010402000000404b4c0000000000808d5b000000000001000000"
    "e803000000001000000100000001000000010000000000000000010010000b000000000000000000000000000000",
    "a client that waits hardly longer": "01010401000000010401000000010402000000404b4c0000000000404b4c00000000000100"
    "0000e803000000001000000100000001000000010000000000000000000008000b000000000000000000000000000000",
}


def test_a_fetch_of_the_fixtures_is_a_wait_and_a_read() -> None:
    wait, then = deferred(109, FETCH_OF_SDK)
    half = 1 << 19
    targets = (c.ReadTarget(1, PollingKind.OFFSET, 41, half, 11), c.ReadTarget(3, PollingKind.NEXT, 0, half, 11))
    assert wait == c.AwaitMessages(ALONE, 1, 2, targets, 1, 5 * SECOND)
    assert then == c.FetchMessages(ALONE, 1, 2, targets, 1000, 1 << 20, auto_commit=False)


def test_a_member_of_a_group_fetches_and_commits() -> None:
    _, then = deferred(109, FETCH_OF_MEMBER)
    assert isinstance(then, c.FetchMessages)
    assert (then.consumer, then.auto_commit) == (Consumer(ConsumerKind.GROUP, 9), True)
    assert [(target.partition_id, target.kind, target.value) for target in then.targets] == [
        (1, PollingKind.NEXT, 0),
        (2, PollingKind.NEXT, 0),
        (4, PollingKind.OFFSET, 7),
    ]


@pytest.mark.parametrize("body", REFUSED_FETCHES.values(), ids=REFUSED_FETCHES)
def test_what_the_sdk_says_a_server_refuses_is_refused(body: str) -> None:
    assert refusal(109, bytes.fromhex(body)) == ("status", E.INVALID_COMMAND)


@pytest.mark.parametrize("size", [0, 1, 30, len(FETCH_OF_SDK) - 1])
def test_a_fetch_has_exactly_its_length(size: int) -> None:
    assert refusal(109, FETCH_OF_SDK[:size]) == ("status", E.INVALID_COMMAND)
    assert refusal(109, FETCH_OF_SDK + b"\0") == ("status", E.INVALID_COMMAND)


def fetch(wait: int = 0, timeout: int = SECOND, commits: int = 0, share: int = 1 << 19, count: int = 1) -> bytes:
    head = bytes.fromhex("01010401000000010401000000010402000000")
    targets = b"".join(pack("<IBQIQQ", number, 5, 0, share, 11, 0) for number in range(count))
    return head + pack("<QQIIIBI", wait, timeout, 1, 1000, 1 << 20, commits, count) + targets


def test_a_fetch_that_does_not_wait_needs_time_too() -> None:
    assert isinstance(decoded(109, fetch()).command, c.FetchMessages)
    assert refusal(109, fetch(timeout=SECOND - 1)) == ("status", E.INVALID_COMMAND)
    assert refusal(109, fetch(timeout=SECOND - 1, commits=1)) == ("status", E.FEATURE_UNAVAILABLE), NOTHING_COMMITTED
    assert refusal(109, fetch(share=343)) == ("status", E.INVALID_COMMAND)
    assert isinstance(decoded(109, fetch(count=1000)).command, c.FetchMessages)
    assert refusal(109, fetch(count=1001)) == ("status", E.INVALID_COMMAND)


def fetched(reply: r.Fetched, *, commits: bool = False) -> tuple[bytes, bool]:
    """The body of the reply to a fetch, and whether its memory is needed no more."""
    codec = codec_of()
    incoming = codec.decode(memoryview(read(109, fetch(commits=commits), request=7)), True)
    frame_of_reply = b"".join(codec.encode_reply(incoming, reply))
    assert int.from_bytes(frame_of_reply[48:52], "little") == len(frame_of_reply)
    assert frame_of_reply[200:209] == b"\7" + bytes(7) + b"\2"
    return frame_of_reply[HEADER_SIZE:], incoming.is_copied


def entry(partition: int, status: int, current: int, count: int, incarnation: int, following: int, size: int) -> bytes:
    return pack("<IIQIQQQQI", partition, status, current, count, incarnation, 0, incarnation, following, size)


def test_the_reply_to_a_fetch_is_a_table_and_the_records() -> None:
    rows = (
        r.FetchedPartition(0, 0, 0, 0, 13, 0, 0),
        r.FetchedPartition(1, 0, 2, 3, 13, 3, 6),
        r.FetchedPartition(2, E.HISTORY_UNAVAILABLE, 0, 0, 0, 0, 0),
        r.FetchedPartition(3, 0, 1, 2, 13, 2, 5),
    )
    body, is_copied = fetched(r.Fetched(rows, (memoryview(b"record"), memoryview(b"batch")), 11, True))
    table = entry(0, 0, 0, 0, 13, 0, 0) + entry(1, 0, 2, 3, 13, 3, 6)
    table += entry(2, 87, 0, 0, 0, 0, 0) + entry(3, 0, 1, 2, 13, 2, 5)
    assert body == b"\4\0\0\0" + table + b"recordbatch"
    assert is_copied
    assert fetched(r.Fetched((), (), 0, False)) == (bytes(4), False)


SECTION_CODES = {
    E.NOT_ACCEPTED: 58,
    E.READ_TOO_LARGE: 80,
    E.HISTORY_UNAVAILABLE: 87,
    E.PARTITION_NOT_FOUND: 3007,
    E.TOO_MANY_CONSUMER_OFFSETS: 3024,
    E.PARTITION_NOT_OWNED: 5009,
    E.GROUP_MEMBER_NOT_FOUND: 5009,
    E.GROUP_NOT_FOUND: 5009,
    # All others would leave the client in doubt.
    E.STORAGE_FAILURE: 58,
    E.DISK_FULL: 58,
    E.UNAUTHORIZED: 58,
    E.STREAM_NOT_FOUND: 58,
}


@pytest.mark.parametrize(("code", "number"), SECTION_CODES.items())
def test_a_partition_that_was_not_committed_says_so_without_doubt(code: ErrorCode, number: int) -> None:
    body, _ = fetched(r.Fetched((r.FetchedPartition(0, code, 0, 0, 0, 0, 0),), (), 0, False), commits=True)
    assert body[4 + 4 : 4 + 8] == number.to_bytes(4, "little")


REQUEST_CODES = {5, 6, 58, 80, 87, 89, 90, 1009, 1010, 2010, 2011, 3007, 3024, 4100, 5009}
"""After these, the client knows that nothing was committed."""


@pytest.mark.parametrize("body", [poll(commits=1, wait=0), poll(commits=1)])
@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not E.STALE_CLIENT])
def test_a_read_that_commits_fails_only_with_numbers_that_leave_no_doubt(body: bytes, code: ErrorCode) -> None:
    codec = codec_of()
    for number, request in ((106, body), (109, fetch(commits=1))):
        incoming = codec.decode(memoryview(read(number, request, request=7)), True)
        incoming = incoming.request if isinstance(incoming, Deferral) else incoming
        channel, status = channel_of(b"".join(codec.encode_failure(incoming, CommandRejected(code, "no"))))
        assert channel == "status"
        assert status in REQUEST_CODES


def test_too_many_waits_are_a_number_that_makes_the_client_pause() -> None:
    codec = codec_of()
    for code, body in ((106, poll()), (109, FETCH_OF_SDK)):
        incoming = codec.decode(memoryview(read(code, body, request=7)), True)
        assert isinstance(incoming, Deferral)
        answer = codec.encode_failure(incoming.request, CommandRejected(E.SERVER_BUSY, "too many"))
        assert channel_of(b"".join(answer)) == ("status", 90)


# --- cancellations (108), and who may send what ---


def test_a_cancellation_has_the_number_of_the_read() -> None:
    for code in (106, 109):
        request = bytes.fromhex(
            f"{'00' * 48}00010000{'00' * 8}05{'00' * 67}07{'00' * 15}{'00' * 24}15{'00' * 7}02{'00' * 7}03{'00' * 7}"
            f"000000006c{'00' * 59}"
        )
        assert (len(request), code) == (HEADER_SIZE, code)
        incoming = codec_of().decode(memoryview(request), True)
        assert isinstance(incoming, Cancellation)
        assert (incoming.number, incoming.command, incoming.answer) == (0x15, None, None)


@pytest.mark.parametrize("code", [106, 107, 108, 109])
def test_nobody_reads_before_a_login(code: int) -> None:
    incoming = decoded(code, b"", patch=0 if code == 107 else 2, is_logged_in=False)
    assert incoming.answer is not None
    assert channel_of(b"".join(incoming.answer)) == ("status", E.UNAUTHENTICATED)


@pytest.mark.parametrize("code", [106, 107, 108, 109])
@pytest.mark.parametrize(("line", "patch"), [(11, 0), (12, 0), (12, 1), (12, 2)])
def test_each_version_has_its_own_reads(line: int, patch: int, code: int) -> None:
    bodies = {106: poll(), 107: wait_body((0, 5, 0)), 108: b"", 109: FETCH_OF_SDK}
    incoming = codec_of(patch, line).decode(memoryview(read(code, bodies[code], request=7)), True)
    if line == 12 and code in READS_OF[patch]:
        assert isinstance(incoming, Deferral | Cancellation)
    else:
        assert incoming.answer is not None
        assert channel_of(b"".join(incoming.answer)) == ("status", E.INVALID_COMMAND)


@given(st.sampled_from([106, 107, 109]), st.binary(max_size=400))
def test_any_bytes_get_an_answer(code: int, body: bytes) -> None:
    incoming = decoded(code, body, patch=0 if code == 107 else 2)
    assert isinstance(incoming, Deferral) or incoming.command is not None or incoming.answer


@given(st.sampled_from([(106, POLL_OF_SDK), (107, wait_body((0, 5, 0), (1, 1, 1))), (109, FETCH_OF_SDK)]), st.data())
def test_damaged_bytes_get_an_answer_too(sample: tuple[int, bytes], data: st.DataObject) -> None:
    code, body = sample
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    incoming = decoded(code, bytes(damaged), patch=0 if code == 107 else 2)
    assert isinstance(incoming, Deferral) or incoming.command is not None or incoming.answer
