"""A request that comes twice is answered twice and carried out once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api.replies import LoggedIn, Reply, Sent, StreamInfo
from courser.errors import CommandRejected, ErrorCode
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.wire.codec import Incoming
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_duplicates import REPLY_COUNT_MAX, REPLY_SIZE_MAX, DuplicateTable, DuplicateVerdict
from courser.wire.vsr_headers import NO_CHECKSUM
from courser.wire.writing import identifier, text8
from tests.wire.vsr_captures import channel_of, frame, read

CREATE, DELETE = c.CreateStream.row.operation, c.DeleteStream.row.operation
SEND, STORE = c.SendMessages.row.operation, c.StoreConsumerOffset.row.operation


class Client:
    """A connection that counts what is carried out."""

    def __init__(self) -> None:
        self.codec = VsrCodec()
        self.executed: list[c.Command] = []

    def ask(self, request: bytes, reply: Reply | CommandRejected | None = None) -> bytes:
        incoming: Incoming = self.codec.decode(memoryview(request), is_logged_in=True)
        if incoming.answer is not None:
            return b"".join(incoming.answer)
        assert incoming.command is not None
        self.executed.append(incoming.command)
        if isinstance(reply, CommandRejected):
            return b"".join(self.codec.encode_failure(incoming, reply))
        return b"".join(self.codec.encode_reply(incoming, reply))

    def create(self, name: str, number: int, *, checksum: int | None = None) -> bytes:
        request = frame(CREATE, text8(name), request=number, checksum=checksum)
        return self.ask(request, StreamInfo(len(self.executed), 0, 0, 0, 0, name))

    def log_in(self, number: int = 1) -> None:
        body = bytes.fromhex("002c0000") + b"".join(map(text8, ("sdk", "1", "iggy", "iggy"))) + bytes(4)
        self.ask(frame(1, body, request=0, session=0), LoggedIn(0, number))


@pytest.fixture
def client() -> Client:
    client = Client()
    client.log_in()
    client.executed.clear()
    return client


# --- changes of metadata ------------------------------------------------------------------------------


def test_a_repeat_gets_the_same_bytes(client: Client) -> None:
    answer = client.create("a", 1)
    assert client.create("a", 1) == answer
    assert client.executed == [c.CreateStream("a")]


def test_a_repeat_without_checksum_is_a_repeat_too(client: Client) -> None:
    answer = client.create("a", 1)
    assert client.create("other", 1, checksum=0) == answer
    assert len(client.executed) == 1


def test_a_number_that_was_used_for_another_body_is_refused(client: Client) -> None:
    client.create("a", 1)
    assert channel_of(client.create("b", 1)) == ("status", ErrorCode.INVALID_COMMAND)
    assert len(client.executed) == 1


def test_a_number_that_was_used_for_another_operation_is_refused(client: Client) -> None:
    client.create("a", 1)
    for checksum in (None, 0):
        answer = client.ask(frame(DELETE, identifier("a"), request=1, checksum=checksum))
        assert channel_of(answer) == ("status", ErrorCode.INVALID_COMMAND)
    assert len(client.executed) == 1


def test_numbers_may_have_gaps_but_do_not_go_back(client: Client) -> None:
    client.create("a", 1)
    client.create("b", 5)
    assert channel_of(client.create("c", 3)) == ("result", ErrorCode.REQUEST_ALREADY_APPLIED)
    assert channel_of(client.create("c", 2**63)) == ("ok", 0)
    assert channel_of(client.create("d", 2**64 - 1)) == ("ok", 0)
    assert [command for command in client.executed if isinstance(command, c.CreateStream)] == [
        c.CreateStream(name) for name in "abcd"
    ]


def test_what_the_state_refused_is_remembered_as_refused(client: Client) -> None:
    request = frame(CREATE, text8("a"), request=1, checksum=None)
    answer = client.ask(request, CommandRejected(ErrorCode.STREAM_NAME_ALREADY_EXISTS, "taken"))
    assert client.ask(request) == answer
    assert channel_of(answer) == ("result", ErrorCode.STREAM_NAME_ALREADY_EXISTS)
    assert len(client.executed) == 1


def test_what_was_not_carried_out_may_be_tried_again(client: Client) -> None:
    request = frame(CREATE, text8("a"), request=1, checksum=None)
    for code in (ErrorCode.DISK_FULL, ErrorCode.JOURNAL_FULL):
        assert channel_of(client.ask(request, CommandRejected(code, "no"))) == ("status", code)
    assert channel_of(client.ask(frame(CREATE, b"\x00", request=1, checksum=None))) == ("status", 3)
    assert channel_of(client.create("a", 1)) == ("ok", 0)
    assert len(client.executed) == 3


def test_a_login_begins_a_new_count(client: Client) -> None:
    client.create("a", 7)
    client.log_in(2)
    assert channel_of(client.create("b", 1)) == ("ok", 0)
    assert client.executed[-1] == c.CreateStream("b")


def test_a_failed_login_changes_nothing(client: Client) -> None:
    answer = client.create("a", 7)
    body = bytes.fromhex("002c0000") + b"".join(map(text8, ("sdk", "1", "iggy", "wrong"))) + bytes(4)
    refusal = CommandRejected(ErrorCode.INVALID_CREDENTIALS, "no")
    assert channel_of(client.ask(frame(1, body, request=0, session=0), refusal)) == ("evict", 9)
    assert client.create("a", 7) == answer


def test_reads_use_no_numbers(client: Client) -> None:
    for number in (1, 1, 9, 3):
        assert channel_of(client.ask(read(1, request=number))) == ("ok", 0)
    client.create("a", 1)
    assert channel_of(client.ask(read(1, request=2))) == ("ok", 0)
    assert channel_of(client.create("b", 2)) == ("ok", 0)
    assert len(client.executed) == 7


# --- sends and stored offsets -------------------------------------------------------------------------


def send(payload: bytes, number: int, *, partition_id: int = 0) -> bytes:
    batch = encode_batch(build_batch([NewMessage(payload, message_id=7, origin_timestamp=9)]))
    metadata = identifier("s") + identifier("t") + b"\x02\x04" + partition_id.to_bytes(4, "little")
    metadata += (1).to_bytes(4, "little")
    return frame(SEND, len(metadata).to_bytes(4, "little") + metadata + batch, request=number)


def store(offset: int, number: int) -> bytes:
    body = b"\x01" + identifier(1) + identifier("s") + identifier("t") + b"\x01" + bytes(4)
    return frame(STORE, body + offset.to_bytes(8, "little") + b"\x01", request=number)


def test_the_last_send_repeated_is_answered_and_not_appended(client: Client) -> None:
    answer = client.ask(send(b"a", 1), Sent(1, 2, 3, 4))
    assert client.ask(send(b"a", 1), Sent(1, 2, 3, 5)) == answer
    assert len(client.executed) == 1


def test_sends_with_one_number_and_other_messages_are_all_appended(client: Client) -> None:
    # Some builds of the SDK do not count sends.
    for offset, payload in enumerate((b"a", b"b", b"a")):
        client.ask(send(payload, 1), Sent(0, 0, 0, offset))
    assert len(client.executed) == 3


def test_the_same_messages_to_another_partition_are_another_send(client: Client) -> None:
    client.ask(send(b"a", 1, partition_id=0), Sent(0, 0, 0, 0))
    client.ask(send(b"a", 1, partition_id=1), Sent(0, 0, 1, 0))
    assert len(client.executed) == 2


def test_the_same_messages_with_the_next_number_are_another_send(client: Client) -> None:
    client.ask(send(b"a", 1), Sent(0, 0, 0, 0))
    client.ask(send(b"a", 2), Sent(0, 0, 0, 1))
    client.ask(send(b"a", 1), Sent(0, 0, 0, 2))
    assert len(client.executed) == 3


def test_a_send_that_failed_may_be_tried_again(client: Client) -> None:
    failed = client.ask(send(b"a", 1), CommandRejected(ErrorCode.DISK_FULL, "full"))
    assert channel_of(failed) == ("status", ErrorCode.DISK_FULL)
    assert channel_of(client.ask(send(b"a", 1), Sent(0, 0, 0, 0))) == ("ok", 0)
    assert len(client.executed) == 2


def test_stored_offsets_likewise(client: Client) -> None:
    answer = client.ask(store(5, 1))
    assert client.ask(store(5, 1)) == answer
    assert len(client.executed) == 1
    client.ask(store(3, 1))
    client.ask(store(5, 1))
    assert len(client.executed) == 3


def test_sends_and_changes_count_apart(client: Client) -> None:
    client.ask(send(b"a", 9), Sent(0, 0, 0, 0))
    assert channel_of(client.create("a", 1)) == ("ok", 0)
    client.ask(send(b"b", 1), Sent(0, 0, 0, 1))
    assert len(client.executed) == 3


def test_a_send_after_a_login_is_never_a_repeat(client: Client) -> None:
    client.ask(send(b"a", 1), Sent(0, 0, 0, 0))
    client.log_in(2)
    client.ask(send(b"a", 1), Sent(0, 0, 0, 1))
    assert len([command for command in client.executed if isinstance(command, c.SendMessages)]) == 2


# --- what is remembered -------------------------------------------------------------------------------


def test_only_so_many_answers_are_remembered(client: Client) -> None:
    for number in range(1, REPLY_COUNT_MAX + 2):
        client.create(str(number), number)
    assert channel_of(client.create("1", 1)) == ("result", ErrorCode.REQUEST_ALREADY_APPLIED)
    assert channel_of(client.create("2", 2)) == ("ok", 0)
    assert len(client.executed) == REPLY_COUNT_MAX + 1


def test_large_answers_push_out_earlier_ones() -> None:
    table = DuplicateTable()
    table.remember_change(1, CREATE, NO_CHECKSUM, b"small")
    table.remember_change(2, CREATE, NO_CHECKSUM, bytes(REPLY_SIZE_MAX + 1))
    assert table.recall_change(1, CREATE, NO_CHECKSUM) is DuplicateVerdict.FORGOTTEN
    assert table.recall_change(2, CREATE, NO_CHECKSUM) == bytes(REPLY_SIZE_MAX + 1)
    table.remember_change(3, CREATE, NO_CHECKSUM, b"small")
    assert table.recall_change(2, CREATE, NO_CHECKSUM) is DuplicateVerdict.FORGOTTEN
    assert table.recall_change(3, CREATE, NO_CHECKSUM) == b"small"


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20_000))))
def test_the_highest_number_is_known_and_memory_is_bounded(changes: list[tuple[int, int]]) -> None:
    table = DuplicateTable()
    highest, answer = 0, b""
    for number, size in changes:
        verdict = table.recall_change(number, CREATE, NO_CHECKSUM)
        assert (verdict is DuplicateVerdict.NEW) == (number > highest)
        if verdict is DuplicateVerdict.NEW:
            highest, answer = number, bytes([number]) * size
            table.remember_change(number, CREATE, NO_CHECKSUM, answer)
        if highest:
            assert table.recall_change(highest, CREATE, NO_CHECKSUM) == answer
    known = [table.recall_change(number, CREATE, NO_CHECKSUM) for number in range(1, highest + 1)]
    answers = [entry for entry in known if isinstance(entry, bytes)]
    assert len(answers) <= REPLY_COUNT_MAX
    assert sum(map(len, answers)) <= REPLY_SIZE_MAX
