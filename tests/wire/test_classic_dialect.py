"""How the codec finds out which release a classic client is of."""

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.classic import Dialect
from courser.wire.classic import ClassicCodec
from courser.wire.classic_dialect import DialectEvidence, Proof
from tests.wire.classic_client import VERSIONS, Message, frame, request

G5, G6, G7, G8 = Dialect.SDK_0_5, Dialect.SDK_0_6, Dialect.SDK_0_7, Dialect.SDK_0_8

SINGLE = Consumer(ConsumerKind.CONSUMER, 1)
POLL = c.PollMessages(SINGLE, 0, 1, 2, PollingKind.OFFSET, 7, 10, auto_commit=True)
SEND = c.SendMessages(0, 1, ToPartition(2), [])
TELLING: tuple[c.Command, ...] = (
    c.CreateStream("orders"),
    c.CreateTopic(0, "topic", 3, TopicOptions(compression=1)),
    c.CreateConsumerGroup(0, 1, "group"),
    POLL,
    c.GetConsumerOffset(SINGLE, 0, 1, 2),
    c.StoreConsumerOffset(SINGLE, 0, 1, 2, 9),
    c.DeleteConsumerOffset(SINGLE, 0, 1, 2),
)
"""Commands whose layout tells 0.5 from the others."""

telling = pytest.mark.parametrize("command", TELLING, ids=lambda command: type(command).__name__)


def new_codec(setting: Dialect | None = None) -> ClassicCodec:
    return ClassicCodec(setting, lambda count: b"\5" * 16 * count)


def feed(codec: ClassicCodec, command: c.Command, dialect: Dialect) -> c.Command | int:
    """What the codec makes of a command that a client of this dialect sends; or the status."""
    incoming = codec.decode(memoryview(request(command, dialect, [Message()])), is_logged_in=True)
    if incoming.command is not None:
        return incoming.command
    assert incoming.answer is not None
    return int.from_bytes(bytes(incoming.answer[0])[:4], "little")


def login(codec: ClassicCodec, version: str, context: str = "") -> None:
    assert not isinstance(feed(codec, c.LoginUser("iggy", "iggy", version, context), G8), int)


# --- what is believed ---------------------------------------------------------------------------------


def test_of_a_silent_client_the_newest_release_is_believed() -> None:
    assert new_codec().dialect is G8


@pytest.mark.parametrize(
    ("version", "context", "dialect"),
    [
        ("0.7.0", "", G5),
        ("0.8.0", "", G6),
        ("0.9.0", "", G7),
        ("0.10.0", "", G8),
        ("0.5.0", "csharp-sdk", G7),
        ("0.6.30", "java-sdk", G6),
        ("0.5.0", "", G8),
        ("0.6.30", "", G8),
        ("", "", G8),
        ("nonsense", "nothing", G8),
    ],
)
def test_what_a_client_says_about_itself(version: str, context: str, dialect: Dialect) -> None:
    codec = new_codec()
    login(codec, version, context)
    assert codec.dialect is dialect


@pytest.mark.parametrize("setting", list(Dialect))
def test_a_setting_of_the_listener_holds_for_clients_that_give_no_sign(setting: Dialect) -> None:
    codec = new_codec(setting)
    assert codec.dialect is setting
    feed(codec, c.LoginWithToken("a token"), G8)
    assert codec.dialect is setting


@pytest.mark.parametrize("setting", list(Dialect))
@pytest.mark.parametrize("dialect", list(Dialect))
def test_any_version_beats_a_setting_of_the_listener(setting: Dialect, dialect: Dialect) -> None:
    codec = new_codec(setting)
    login(codec, VERSIONS[dialect])
    assert codec.dialect is dialect


@pytest.mark.parametrize("setting", list(Dialect))
def test_a_setting_of_the_user_takes_the_place_of_the_listeners(setting: Dialect) -> None:
    codec = new_codec(G6)
    codec.assume(setting)
    assert codec.dialect is setting


def test_a_setting_of_the_user_decides_between_sdks_that_call_themselves_alike() -> None:
    # Go 0.8 and Python 0.6 both say 0.8.0, Go 0.7 and Python 0.5 both say 0.7.0.
    for version, setting in (("0.8.0", G8), ("0.7.0", G7)):
        codec = new_codec()
        login(codec, version)
        codec.assume(setting)
        assert codec.dialect is setting
        login(codec, version)
        assert codec.dialect is setting


@pytest.mark.parametrize(("version", "dialect"), [("0.9.0", G7), ("0.10.0", G8)])
def test_a_version_that_only_one_release_has_beats_every_setting(version: str, dialect: Dialect) -> None:
    codec = new_codec(G5)
    login(codec, version)
    codec.assume(G5)
    assert codec.dialect is dialect


# --- what is guessed ----------------------------------------------------------------------------------

SECOND = 1_000_000


def aging_codec() -> tuple[ClassicCodec, list[int]]:
    """A codec, and the age of its connection in a list."""
    age = [0]
    return ClassicCodec(None, lambda count: b"\5" * 16 * count, age=lambda: age[0]), age


def test_a_client_that_polls_without_an_early_ping_is_go() -> None:
    codec, _ = aging_codec()
    login(codec, "0.8.0")
    assert codec.dialect is G6
    feed(codec, POLL, G8)
    assert codec.dialect is G8


def test_the_first_poll_without_a_ping_gets_no_messages_because_they_might_be_garbled() -> None:
    codec, _ = aging_codec()
    login(codec, "0.8.0")
    first = feed(codec, POLL, G8)
    assert isinstance(first, c.PollMessages)
    assert (first.kind, first.value, first.auto_commit) == (PollingKind.OFFSET, 2**64 - 1, False)
    assert feed(codec, POLL, G8) == POLL


@pytest.mark.parametrize("is_late", [False, True])
def test_a_first_poll_gets_messages_after_a_ping_or_when_none_can_come(is_late: bool) -> None:
    codec, age = aging_codec()
    login(codec, "0.8.0")
    if is_late:
        age[0] = 5 * SECOND
    else:
        feed(codec, c.Ping(), G6)
    assert feed(codec, POLL, G6) == POLL


def test_a_ping_after_the_interval_of_go_says_nothing() -> None:
    codec, age = aging_codec()
    login(codec, "0.8.0")
    age[0] = 5 * SECOND
    feed(codec, c.Ping(), G8)
    feed(codec, POLL, G8)
    assert codec.dialect is G8


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_early_ping_before_or_after_the_login_or_the_poll_is_of_the_rust_family(place: int) -> None:
    codec, age = aging_codec()
    requests: list[c.Command] = [c.LoginUser("iggy", "iggy", "0.8.0", ""), POLL]
    requests.insert(place, c.Ping())
    for command in requests:
        age[0] += SECOND
        feed(codec, command, G6)
    assert codec.dialect is G6


def test_a_login_in_between_changes_no_guess() -> None:
    codec, _ = aging_codec()
    login(codec, "0.8.0")
    feed(codec, POLL, G8)
    login(codec, "0.8.0")
    assert codec.dialect is G8


def test_the_first_poll_counts_even_if_the_numbering_was_proven_before() -> None:
    codec, _ = aging_codec()
    login(codec, "0.8.0")
    feed(codec, c.GetConsumerOffset(SINGLE, 0, 1, 2), G8)
    feed(codec, POLL, G8)
    assert codec.dialect is G8


@pytest.mark.parametrize(("version", "dialect"), [("0.9.0", G7), ("0.10.0", G8), ("", G8)])
def test_pings_say_nothing_about_others(version: str, dialect: Dialect) -> None:
    for is_pinging in (True, False):
        codec, _ = aging_codec()
        login(codec, version)
        if is_pinging:
            feed(codec, c.Ping(), dialect)
        feed(codec, POLL, dialect)
        assert codec.dialect is dialect


def test_go_0_7_has_long_headers_whatever_the_listener_assumes() -> None:
    codec = new_codec(G6)
    login(codec, "0.7.0")
    assert codec.dialect is G5
    feed(codec, POLL, G7)
    assert codec.dialect.has_long_header


def test_what_others_have_proven_beats_a_guess_but_no_setting_and_no_proof() -> None:
    evidence = DialectEvidence()
    evidence.note_version("0.8.0", "")
    evidence.note_memory(Proof(has_long_header=True))
    evidence.note_ping(0)
    assert evidence.dialect is G8
    evidence.note_setting(G6)
    assert evidence.dialect is G6
    evidence.note_memory(Proof(has_long_header=True))
    assert evidence.dialect is G6
    evidence.note_header(G8.header_size)
    evidence.note_memory(Proof(first_id=1, has_long_header=False))
    assert evidence.dialect is G8


# --- what is proven -----------------------------------------------------------------------------------


@telling
@pytest.mark.parametrize("believed", [None, *Dialect])
@pytest.mark.parametrize("spoken", [G5, G6, G8])
def test_a_layout_proves_the_numbering_whatever_was_believed(
    command: c.Command, believed: Dialect | None, spoken: Dialect
) -> None:
    codec = new_codec(believed)
    assert feed(codec, command, spoken) == command
    assert (codec.dialect is G5) == (spoken is G5)
    # Requests that say nothing by themselves are now read in the same way.
    assert feed(codec, c.GetStream(3), spoken) == c.GetStream(3)


@pytest.mark.parametrize("believed", [None, *Dialect])
@pytest.mark.parametrize("spoken", [G6, G7, G8])
def test_a_message_proves_the_header(believed: Dialect | None, spoken: Dialect) -> None:
    codec = new_codec(believed)
    feed(codec, c.CreateStream("orders"), spoken)
    command = feed(codec, SEND, spoken)
    assert isinstance(command, c.SendMessages)
    assert (command.stream, command.topic, command.partitioning) == (0, 1, ToPartition(2))
    assert codec.dialect.header_size == spoken.header_size
    assert codec.dialect is not G5


def test_a_long_header_proves_the_numbering_too_and_the_send_itself_is_read_that_way() -> None:
    codec = new_codec(G5)
    command = feed(codec, SEND, G8)
    assert isinstance(command, c.SendMessages)
    assert (command.stream, command.partitioning) == (0, ToPartition(2))
    assert codec.dialect is G8


def test_a_short_header_does_not_tell_0_5_from_0_6() -> None:
    for believed in (G5, G6):
        codec = new_codec(believed)
        command = feed(codec, SEND, believed)
        assert isinstance(command, c.SendMessages)
        assert (command.stream, command.partitioning) == (0, ToPartition(2))
        assert codec.dialect is believed


def test_go_0_7_says_what_python_0_5_says_until_a_layout_shows_it() -> None:
    codec = new_codec()
    login(codec, "0.7.0")
    assert codec.dialect is G5
    assert feed(codec, POLL, G7) == POLL
    assert codec.dialect.header_size == 64


def test_go_0_8_says_what_python_0_6_says_until_a_message_shows_it() -> None:
    codec = new_codec()
    login(codec, "0.8.0")
    feed(codec, c.Ping(), G8)
    feed(codec, POLL, G8)
    assert codec.dialect is G6
    assert isinstance(feed(codec, SEND, G8), c.SendMessages)
    assert codec.dialect is G8


def test_who_asks_for_cluster_metadata_is_not_0_5() -> None:
    codec = new_codec()
    login(codec, "0.7.0")
    feed(codec, c.GetClusterMetadata(), G8)
    assert codec.dialect is G8


@telling
@pytest.mark.parametrize("proven", [G5, G6, G8])
def test_what_is_proven_stays(command: c.Command, proven: Dialect) -> None:
    codec = new_codec()
    feed(codec, c.CreateStream("orders"), proven)
    feed(codec, SEND, proven)
    assert codec.dialect is proven
    for other in Dialect:
        login(codec, VERSIONS[other])
        codec.assume(other)
        feed(codec, c.GetClusterMetadata(), G8)
        if (other is G5) != (proven is G5):
            feed(codec, command, other)
        assert codec.dialect is proven


def test_a_message_with_the_other_header_is_refused_once_one_is_proven() -> None:
    for proven, other in ((G6, G8), (G8, G6)):
        codec = new_codec()
        feed(codec, c.CreateStream("orders"), proven)
        feed(codec, SEND, proven)
        assert feed(codec, SEND, other) in (ErrorCode.MISSING_INDEX, ErrorCode.INVALID_MESSAGES_SIZE)
        assert codec.dialect is proven


# --- what looks like evidence and is none -------------------------------------------------------------


def test_a_poll_of_0_8_without_its_last_byte_does_not_pass_for_one_of_0_5() -> None:
    cut = request(POLL, G8)[8:-1]
    for version in ("0.10.0", "0.8.0", ""):
        codec = new_codec()
        login(codec, version)
        incoming = codec.decode(memoryview(frame(100, cut)), is_logged_in=True)
        assert incoming.command is None
        assert codec.dialect is not G5


def test_an_offset_command_without_its_last_byte_does_not_pass_for_0_5_if_the_client_named_another_release() -> None:
    for command, code in (
        (c.GetConsumerOffset(SINGLE, 0, 1, 2), 120),
        (c.StoreConsumerOffset(SINGLE, 0, 1, 2, 9), 121),
    ):
        codec = new_codec()
        login(codec, "0.10.0")
        incoming = codec.decode(memoryview(frame(code, request(command, G8)[8:-1])), is_logged_in=True)
        assert incoming.command is None
        assert codec.dialect is G8


def test_lengths_that_are_eight_too_large_do_not_pass_for_a_short_header_if_the_client_named_0_8() -> None:
    message = bytearray(request(SEND, G8, [Message(b"hello")]))
    message[-13 - 4] += 8  # payload_length, in front of 8 reserved bytes and the payload
    codec = new_codec()
    login(codec, "0.10.0")
    incoming = codec.decode(memoryview(bytes(message)), is_logged_in=True)
    assert incoming.answer == (ErrorCode.MISSING_INDEX.to_bytes(4, "little") + bytes(4),)
    assert codec.dialect is G8


def test_a_name_that_fits_both_layouts_is_read_as_believed() -> None:
    # 52 characters, the fourth of them the character 48: with an id in front the name would be 48 bytes long.
    name = "abc0" + 48 * "x"
    for believed in (G5, G8):
        codec = new_codec(believed)
        for command in (c.CreateStream(name), c.CreateConsumerGroup(0, 1, name)):
            assert feed(codec, command, believed) == command
        assert codec.dialect is believed


def test_a_topic_whose_name_fits_both_layouts_is_told_by_its_compression() -> None:
    command = c.CreateTopic(0, "abc0" + 48 * "x", 3, TopicOptions(compression=1))
    codec = new_codec(G5)
    assert feed(codec, command, G8) == command
    assert codec.dialect is G8


def test_evidence_against_a_proof_changes_nothing() -> None:
    evidence = DialectEvidence()
    evidence.note_create(fits_from_one=True, fits_from_zero=False)
    evidence.note_create(fits_from_one=False, fits_from_zero=True)
    evidence.note_tail(19, from_one=18)
    evidence.note_header(64)
    evidence.note_cluster_metadata()
    assert evidence.dialect is G5


def test_a_partition_is_named_only_by_the_flag_1() -> None:
    codec = new_codec()
    payload = bytearray(request(POLL, G8)[8:])
    payload[-19] = 2
    incoming = codec.decode(memoryview(frame(100, bytes(payload))), is_logged_in=True)
    assert isinstance(incoming.command, c.PollMessages)
    assert incoming.command.partition_id is None


def test_a_request_that_cannot_be_understood_proves_nothing() -> None:
    codec = new_codec(G8)
    bad_name = frame(202, bytes(4) + b"\2\xff\xff")
    assert codec.decode(memoryview(bad_name), is_logged_in=True).command is None
    assert codec.dialect is G8
    assert feed(codec, c.CreateStream("orders"), G8) == c.CreateStream("orders")


def test_0_5_cannot_name_anything_by_0() -> None:
    codec = new_codec(G5)
    nothing = 2**32 - 1
    assert codec.decode(memoryview(frame(200, b"\1\4" + bytes(4))), is_logged_in=True).command == c.GetStream(nothing)


def test_consumers_are_not_numbered_by_the_server_and_keep_their_numbers() -> None:
    codec = new_codec(G5)
    for number in (0, 1, 2**32 - 1):
        command = c.GetConsumerOffset(Consumer(ConsumerKind.CONSUMER, number), 0, 0, None)
        assert feed(codec, command, G5) == command
