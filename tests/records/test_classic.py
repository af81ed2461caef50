"""Classic messages to batches and back, in every dialect: what is kept, what the server decides, what it translates."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.records import frame_walk_pure
from courser.records.batch import encode_batch, parse_batch
from courser.records.classic import (
    USUAL_LIMITS,
    Dialect,
    classic_size_max,
    decode_classic,
    decode_compiled,
    decode_each,
)
from tests.records.classic_messages import (
    FAR,
    LONG,
    NEAR,
    ORIGIN,
    TYPED,
    UNTYPED,
    Message,
    classic_message,
    decode,
    decode_one,
    encode,
    every_dialect,
    index_entry,
    messages_with,
    random_ids,
    section_of,
    stored_frame,
)


class TestRoundTrip:
    @every_dialect
    @given(messages=messages_with(NEAR))
    def test_every_frame_is_as_specified(self, dialect: Dialect, messages: list[Message]) -> None:
        batch = decode_one(section_of(messages, dialect), len(messages), dialect)
        earliest = min(message.origin for message in messages)
        frames = [stored_frame(message, number, earliest, dialect) for number, message in enumerate(messages)]
        assert bytes(batch.body) == b"".join(frames)
        assert (batch.origin_timestamp, batch.count) == (earliest, len(messages))

    @every_dialect
    @given(messages=messages_with(FAR))
    def test_every_batch_is_one_that_a_client_may_send(self, dialect: Dialect, messages: list[Message]) -> None:
        for batch in decode(section_of(messages, dialect), len(messages), dialect):
            parsed = parse_batch(encode_batch(batch), verify_frames=True)
            assert (parsed.body, parsed.checksums) == (batch.body, batch.checksums)
            assert parsed.frames.starts.tolist() == batch.frames.starts.tolist()
            assert (parsed.frames.frame_size, parsed.frames.size) == (batch.frames.frame_size, batch.frames.size)

    @every_dialect
    @given(messages=messages_with(FAR), offset=st.integers(0, 2**63), timestamp=st.integers(0, 2**64 - 1))
    def test_every_message_comes_back(
        self, dialect: Dialect, messages: list[Message], offset: int, timestamp: int
    ) -> None:
        batches = decode(section_of(messages, dialect), len(messages), dialect)
        polled = [
            classic_message(message, offset + number, timestamp, dialect) for number, message in enumerate(messages)
        ]
        assert encode(batches, dialect, base_offset=offset, base_timestamp=timestamp) == b"".join(polled)

    @every_dialect
    @given(messages=messages_with(FAR), data=st.data())
    def test_the_compiled_way_changes_nothing(
        self, dialect: Dialect, messages: list[Message], data: st.DataObject
    ) -> None:
        section = bytearray(section_of(messages, dialect))
        for _ in range(data.draw(st.integers(0, 2))):
            section[data.draw(st.integers(0, len(section) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        view, count = memoryview(section), len(messages)
        quick = decode_compiled(view, count, dialect=dialect, ids=random_ids, limits=USUAL_LIMITS)
        if quick is not None:
            (slow,) = decode_each(view, count, dialect=dialect, ids=random_ids, limits=USUAL_LIMITS)
            assert (quick.origin_timestamp, quick.body, quick.checksums) == (
                slow.origin_timestamp,
                slow.body,
                slow.checksums,
            )
            assert quick.frames == slow.frames

    @every_dialect
    @pytest.mark.parametrize("count", [1, 5])
    def test_usual_messages_go_the_compiled_way(self, walk: ModuleType, dialect: Dialect, count: int) -> None:
        messages = [Message(b"x" * number, origin=ORIGIN + number) for number in range(count)]
        section = memoryview(section_of(messages, dialect))
        batch = decode_compiled(section, count, dialect=dialect, ids=random_ids, limits=USUAL_LIMITS)
        assert (batch is None) == (walk is frame_walk_pure)

    @every_dialect
    @given(messages=messages_with(NEAR), data=st.data())
    def test_frames_that_lie_are_not_followed(
        self, walk: ModuleType, dialect: Dialect, messages: list[Message], data: st.DataObject
    ) -> None:
        (batch,) = decode(section_of(messages, dialect), len(messages), dialect)
        into = bytearray(classic_size_max(len(batch.body), batch.count, dialect))
        body = bytearray(batch.body)
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        end = walk.classic_from_frames(
            body[: data.draw(st.integers(0, len(body)))],
            memoryview(into),
            data.draw(st.integers(0, len(into) + 1)),
            data.draw(st.integers(0, len(messages) + 1)),
            dialect.header_size,
            0,
            0,
            0,
        )
        assert end is None or end <= len(into)

    def test_many_messages_are_hashed_and_copied_like_few(self) -> None:
        messages = [Message(b"%03d" % number, origin=ORIGIN + number) for number in range(600)]
        batch = decode_one(section_of(messages, LONG), 600)
        expected = [classic_message(message, number, 0, LONG) for number, message in enumerate(messages)]
        assert encode([batch], LONG) == b"".join(expected)

    def test_large_messages_are_hashed_and_copied_like_small_ones(self) -> None:
        same = [Message(bytes([number]) * 5_000) for number in range(3)]
        for messages in (same, [*same, Message(b"y" * 9_000)]):
            batch = decode_one(section_of(messages, LONG), len(messages))
            assert parse_batch(encode_batch(batch), verify_frames=True).count == len(messages)
            expected = [classic_message(message, number, 0, LONG) for number, message in enumerate(messages)]
            assert encode([batch], LONG) == b"".join(expected)

    def test_one_size_with_another_split_is_not_one_layout(self) -> None:
        messages = [Message(b"abcd", user_headers=b"ef"), Message(b"ab", user_headers=b"cdef")]
        batch = decode_one(section_of(messages, LONG), 2)
        assert batch.frames.frame_size == 0
        assert encode([batch], LONG) == b"".join(
            classic_message(message, i, 0, LONG) for i, message in enumerate(messages)
        )

    def test_batches_share_no_memory_with_what_was_received(self) -> None:
        for messages in ([Message()], [Message(), Message(b"yz")]):
            received = bytearray(section_of(messages, LONG))
            (batch,) = decode_classic(memoryview(received), len(messages), dialect=LONG, ids=random_ids)
            before = bytes(batch.body)
            received[:] = bytes(len(received))
            assert batch.body == before


class TestWhatTheServerDecides:
    def test_an_id_of_zero_becomes_a_random_one_and_no_other(self) -> None:
        asked: list[int] = []

        def ids(count: int) -> bytes:
            asked.append(count)
            return b"".join(bytes([200 + number]) * 16 for number in range(count))

        given_id = b"\x07".ljust(16, b"\0")
        high_half = bytes(8) + b"\x01".ljust(8, b"\0")
        messages = [Message(id=id_) for id_ in (bytes(16), given_id, bytes(16), high_half)]
        (batch,) = decode_classic(memoryview(section_of(messages, LONG)), 4, dialect=LONG, ids=ids)
        assert asked == [2]
        stored = [bytes(batch.body[start + 8 : start + 24]) for start in batch.frames.starts.tolist()]
        assert stored == [bytes([200]) * 16, given_id, bytes([201]) * 16, high_half]

    def test_no_ids_are_made_when_all_are_given(self) -> None:
        def ids(count: int) -> bytes:
            raise AssertionError("nobody needs an id")

        for count in (1, 2):
            decode_classic(memoryview(section_of([Message()] * count, LONG)), count, dialect=LONG, ids=ids)

    def test_checksum_offset_and_timestamp_of_the_client_are_dropped(self) -> None:
        junk = [Message(checksum=12345, offset=99, timestamp=5), Message(checksum=1, offset=99, timestamp=0)]
        clean = [Message(), Message()]
        assert decode_one(section_of(junk, LONG), 2).body == decode_one(section_of(clean, LONG), 2).body

    @every_dialect
    def test_empty_payloads_are_accepted_as_by_the_original_server(self, dialect: Dialect) -> None:
        for messages in ([Message(b"")], [Message(b"")] * 3, [Message(b""), Message(b"x"), Message(b"")]):
            batch = decode_one(section_of(messages, dialect), len(messages), dialect)
            expected = [classic_message(message, number, 0, dialect) for number, message in enumerate(messages)]
            assert encode([batch], dialect) == b"".join(expected)

    @pytest.mark.parametrize("end", [0, 10, 64, 66, 2**32 - 1])
    def test_the_end_of_the_last_message_is_the_end_of_the_section(self, end: int) -> None:
        message = Message().sent(LONG)
        assert decode_one(index_entry(end) + message, 1).count == 1
        assert decode_one(index_entry(65) + index_entry(end) + message * 2, 2).count == 2


class TestSeveralBatches:
    def test_a_spread_of_32_bits_fits_into_one(self) -> None:
        messages = [Message(origin=ORIGIN + 2**32 - 1), Message(origin=ORIGIN)]
        assert [batch.count for batch in decode(section_of(messages, LONG), 2)] == [2]

    @every_dialect
    def test_a_wider_one_makes_several_in_order(self, dialect: Dialect) -> None:
        origins = [ORIGIN, ORIGIN + 5, ORIGIN + 2**32, ORIGIN + 2**32 + 1, 0, 2**64 - 1]
        messages = [
            Message(b"m" * number, origin=origin, user_headers=UNTYPED * (number % 2))
            for number, origin in enumerate(origins)
        ]
        batches = decode(section_of(messages, dialect), len(messages), dialect)
        assert [batch.count for batch in batches] == [2, 2, 1, 1]
        assert [batch.origin_timestamp for batch in batches] == [ORIGIN, ORIGIN + 2**32, 0, 2**64 - 1]
        expected = [classic_message(message, 10 + number, 0, dialect) for number, message in enumerate(messages)]
        assert encode(batches, dialect, base_offset=10) == b"".join(expected)

    def test_each_batch_takes_as_many_as_it_can(self) -> None:
        latest = ORIGIN + 2**32
        origins = [latest, latest - 1, ORIGIN + 1, ORIGIN, latest - 1, latest]
        batches = decode(section_of([Message(origin=origin) for origin in origins], LONG), 6)
        assert [batch.count for batch in batches] == [3, 2, 1]

    def test_so_do_messages_that_are_too_large_together(self) -> None:
        large = Message(bytes(33_600_000))
        assert [batch.count for batch in decode(section_of([large, large], LONG), 2)] == [1, 1]


class TestUserHeaders:
    @pytest.mark.parametrize("dialect", [Dialect.SDK_0_5, Dialect.SDK_0_6])
    def test_old_clients_are_read_by_new_ones(self, dialect: Dialect) -> None:
        batch = decode_one(section_of([Message(user_headers=UNTYPED)] * 2, dialect), 2, dialect)
        assert encode([batch], LONG) == b"".join(
            classic_message(Message(user_headers=TYPED), number, 0, LONG) for number in range(2)
        )

    @pytest.mark.parametrize("dialect", [Dialect.SDK_0_5, Dialect.SDK_0_6])
    def test_new_clients_are_read_by_old_ones(self, dialect: Dialect) -> None:
        messages = [Message(user_headers=TYPED), Message(b"yz")]
        batch = decode_one(section_of(messages, LONG), 2)
        polled = encode([batch], dialect)
        expected = [Message(user_headers=UNTYPED), Message(b"yz")]
        assert polled == b"".join(classic_message(message, i, 0, dialect) for i, message in enumerate(expected))
        assert len(polled) < classic_size_max(len(batch.body), batch.count, dialect)

    @every_dialect
    @pytest.mark.parametrize("other", list(Dialect), ids=lambda dialect: dialect.value)
    def test_encrypted_blocks_go_through_unchanged(self, dialect: Dialect, other: Dialect) -> None:
        messages = [Message(user_headers=b"\xff\xfe\xfd"), Message(user_headers=b"junk")]
        batch = decode_one(section_of(messages, dialect), 2, dialect)
        assert encode([batch], other) == b"".join(
            classic_message(message, number, 0, other) for number, message in enumerate(messages)
        )
