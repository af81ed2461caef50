"""Classic messages that are refused: contradictions, limits, headers of the wrong size, bytes that nobody sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import ErrorCode, InvalidBatch
from courser.records.batch import encode_batch, parse_batch
from courser.records.classic import (
    ClassicLimits,
    Dialect,
    classic_size_max,
    decode_classic,
    encode_classic,
    header_size_of,
)
from tests.records.classic_messages import (
    FAR,
    LONG,
    NEAR,
    TYPED,
    UNTYPED,
    Message,
    classic_message,
    code_of,
    decode,
    decode_one,
    encode,
    every_dialect,
    index_entry,
    messages_with,
    random_ids,
    section_of,
)


class TestRefusals:
    def test_no_messages(self) -> None:
        assert code_of(b"", 0) == ErrorCode.INVALID_MESSAGES_COUNT

    @pytest.mark.parametrize("count", [1, 2, 2**32 - 1])
    def test_more_messages_than_index_entries(self, count: int) -> None:
        assert code_of(b"", count) == ErrorCode.INVALID_COMMAND
        assert code_of(section_of([Message()], LONG)[:15], count) == ErrorCode.INVALID_COMMAND

    @pytest.mark.parametrize(("wrong", "count"), [(0, 1), (0, 3), (1, 3), (2, 3)])
    @pytest.mark.parametrize(
        ("fields", "code"),
        [({"offset": 1}, ErrorCode.NON_ZERO_OFFSET), ({"timestamp": 5}, ErrorCode.NON_ZERO_TIMESTAMP)],
    )
    def test_an_index_entry_that_says_more_than_the_end(
        self, wrong: int, count: int, fields: dict[str, int], code: ErrorCode
    ) -> None:
        entries = [index_entry(65 * (number + 1), **(fields if number == wrong else {})) for number in range(count)]
        with pytest.raises(InvalidBatch, match=f"message {wrong}:") as refusal:
            decode(b"".join(entries) + Message().sent(LONG) * count, count)
        assert refusal.value.code == code

    @pytest.mark.parametrize("ends", [(130, 65), (0, 130), (63, 130), (131, 130), (2**32 - 1, 130)])
    def test_index_positions_that_fall_or_leave_no_room(self, ends: tuple[int, int]) -> None:
        assert code_of(b"".join(map(index_entry, ends)) + Message().sent(LONG) * 2, 2) == ErrorCode.MISSING_INDEX

    @pytest.mark.parametrize("neighbours", [0, 1])
    @pytest.mark.parametrize(
        ("message", "code"),
        [
            (Message(payload_length=2), ErrorCode.MISSING_INDEX),
            (Message(payload_length=2**32 - 1), ErrorCode.MISSING_INDEX),
            (Message(user_headers_length=5), ErrorCode.MISSING_INDEX),
            (Message(user_headers_length=2**32 - 1, payload_length=2**32 - 1), ErrorCode.MISSING_INDEX),
            (Message(payload_length=0), ErrorCode.INVALID_MESSAGES_SIZE),
            (Message(user_headers=b"junk", user_headers_length=3), ErrorCode.INVALID_MESSAGES_SIZE),
            (Message(user_headers=bytes(100_001)), ErrorCode.TOO_BIG_USER_HEADERS),
            (Message(reserved=1), ErrorCode.INVALID_RESERVED_FIELD),
            (Message(reserved=2**63), ErrorCode.INVALID_RESERVED_FIELD),
        ],
    )
    def test_a_message_that_contradicts_itself(self, message: Message, code: ErrorCode, neighbours: int) -> None:
        good = [Message()] * neighbours
        with pytest.raises(InvalidBatch, match=f"message {neighbours}:") as refusal:
            decode(section_of([*good, message, *good], LONG), 2 * neighbours + 1)
        assert refusal.value.code == code

    def test_lengths_that_are_wrong_together_but_right_in_sum_are_the_clients_business(self) -> None:
        batch = decode_one(section_of([Message(b"xyz", payload_length=1, user_headers_length=2)], LONG), 1)
        assert encode([batch], LONG) == classic_message(Message(b"x", user_headers=b"yz"), 0, 0, LONG)

    def test_the_limits_are_inclusive(self) -> None:
        limits = ClassicLimits(payload_size_max=5, user_headers_size_max=4)
        for neighbours in ([], [Message()]):
            count = 1 + len(neighbours)

            def section(message: Message, others: list[Message] = neighbours) -> bytes:
                return section_of([*others, message], LONG)

            fitting = section(Message(b"12345", user_headers=b"1234"))
            assert decode_classic(memoryview(fitting), count, dialect=LONG, ids=random_ids, limits=limits)
            assert code_of(section(Message(b"123456")), count, LONG, limits) == ErrorCode.TOO_BIG_MESSAGE_PAYLOAD
            too_big = section(Message(user_headers=b"12345"))
            assert code_of(too_big, count, LONG, limits) == ErrorCode.TOO_BIG_USER_HEADERS

    def test_the_usual_limits_are_those_of_the_original_servers(self) -> None:
        assert ClassicLimits() == ClassicLimits(payload_size_max=64_000_000, user_headers_size_max=100_000)

    def test_a_message_larger_than_any_batch(self) -> None:
        limits = ClassicLimits(payload_size_max=2**32 - 1)
        section = section_of([Message(bytes(67_108_561))], LONG)
        assert code_of(section, 1, LONG, limits) == ErrorCode.TOO_BIG_MESSAGE_PAYLOAD

    def test_offsets_that_fall(self) -> None:
        messages = [Message(offset=98), Message(offset=99), Message(offset=98)]
        with pytest.raises(InvalidBatch, match="message 2:") as refusal:
            decode(section_of(messages, LONG), 3)
        assert refusal.value.code == ErrorCode.INVALID_OFFSET

    def test_a_buffer_that_is_too_small_is_left_alone(self) -> None:
        for messages in ([Message()], [Message()] * 2):
            batch = decode_one(section_of(messages, LONG), len(messages))
            into = bytearray(classic_size_max(len(batch.body), batch.count, LONG))
            with pytest.raises(ValueError, match="do not fit"):
                encode_classic(
                    batch.body,
                    batch.count,
                    base_offset=0,
                    base_timestamp=0,
                    origin_timestamp=0,
                    dialect=LONG,
                    into=memoryview(into),
                    position=1,
                )
            assert not any(into)


class TestHeaderSize:
    @every_dialect
    @given(messages=messages_with(NEAR))
    def test_is_told_by_the_structure(self, dialect: Dialect, messages: list[Message]) -> None:
        section = section_of(messages, dialect)
        assert header_size_of(memoryview(section), len(messages)) == dialect.header_size

    @pytest.mark.parametrize(
        ("message", "code"),
        [
            (Message(payload_length=2), ErrorCode.MISSING_INDEX),
            (Message(payload_length=2**32 - 1), ErrorCode.MISSING_INDEX),
            (Message(payload_length=0), ErrorCode.INVALID_MESSAGES_SIZE),
        ],
    )
    def test_of_neither_kind_is_refused_with_the_same_number_as_in_decoding(
        self, message: Message, code: ErrorCode
    ) -> None:
        for messages in ([message], [message, Message()]):
            section = section_of(messages, LONG)
            with pytest.raises(InvalidBatch) as refusal:
                header_size_of(memoryview(section), len(messages))
            assert refusal.value.code == code == code_of(section, len(messages))

    @every_dialect
    def test_a_mixture_is_refused(self, dialect: Dialect) -> None:
        other = Dialect.SDK_0_5 if dialect.has_long_header else LONG
        first, second = Message().sent(dialect), Message().sent(other)
        section = index_entry(len(first)) + index_entry(len(first) + len(second)) + first + second
        assert header_size_of(memoryview(section), 2) == dialect.header_size
        expected = ErrorCode.MISSING_INDEX if dialect.has_long_header else ErrorCode.INVALID_MESSAGES_SIZE
        assert code_of(section, 2, dialect) == expected

    def test_a_short_header_from_a_client_that_must_send_long_ones(self) -> None:
        assert code_of(section_of([Message()], Dialect.SDK_0_6), 1) == ErrorCode.MISSING_INDEX


WHOLE = [
    [Message()],
    [Message(b"")],
    [Message(b"abc", user_headers=TYPED)],
    [Message(b"abc"), Message(b"def")],
    [Message(b"abc", user_headers=UNTYPED), Message(b"d"), Message(b"")],
]


class TestDamage:
    @every_dialect
    @pytest.mark.parametrize("messages", WHOLE)
    def test_a_section_cut_at_any_byte_is_refused(self, dialect: Dialect, messages: list[Message]) -> None:
        section = section_of(messages, dialect)
        assert decode(section, len(messages), dialect)
        for size in range(len(section)):
            with pytest.raises(InvalidBatch):
                decode(section[:size], len(messages), dialect)
            _header_size_or_refusal(section[:size], len(messages))

    @every_dialect
    @pytest.mark.parametrize("messages", WHOLE)
    def test_trailing_bytes_are_refused(self, dialect: Dialect, messages: list[Message]) -> None:
        section = section_of(messages, dialect)
        for size in range(1, 140):
            assert code_of(section + bytes(size), len(messages), dialect) == ErrorCode.INVALID_MESSAGES_SIZE

    @every_dialect
    @given(data=st.binary(max_size=400), count=st.integers(0, 6))
    def test_random_bytes_are_refused_or_make_good_batches(self, dialect: Dialect, data: bytes, count: int) -> None:
        _decode_or_refuse(data, count, dialect)

    @every_dialect
    @given(messages=messages_with(FAR), data=st.data())
    def test_so_are_flipped_bytes(self, dialect: Dialect, messages: list[Message], data: st.DataObject) -> None:
        section = bytearray(section_of(messages, dialect))
        positions = st.integers(0, len(section) - 1)
        for position in data.draw(st.lists(positions, min_size=1, max_size=4)):
            section[position] ^= data.draw(st.integers(1, 255))
        _decode_or_refuse(bytes(section), len(messages), dialect)


def _decode_or_refuse(section: bytes, count: int, dialect: Dialect) -> None:
    _header_size_or_refusal(section, count)
    try:
        batches = decode(section, count, dialect)
    except InvalidBatch:
        return
    assert sum(batch.count for batch in batches) == count
    for batch in batches:
        parse_batch(encode_batch(batch), verify_frames=True)
    for other in Dialect:
        encode(batches, other)


def _header_size_or_refusal(section: bytes, count: int) -> None:
    try:
        assert header_size_of(memoryview(section), count) in (56, 64)
    except InvalidBatch:
        return
