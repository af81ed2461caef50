"""Keys as headers: in every message, once, and the batch stays a good one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.broker.partition.message_keys import _FEW, extend_many, with_key
from courser.records.batch import Batch, NewMessage, batch_of, build_batch, encode_batch, parse_batch
from courser.records.frames import iterate_frames
from courser.records.layout import BATCH_SIZE_MAX
from courser.records.message_keys import KEY_HEADER
from courser.records.user_headers import USER_HEADERS_SIZE_MAX, UserHeader, build_user_headers, iterate_user_headers

OTHER = UserHeader.of_text("colour", "blue")
ENCRYPTED = b"\xff not a block of headers"


def batch(*messages: NewMessage) -> Batch:
    return build_batch(messages)


def stored(sent: Batch) -> Batch:
    """The batch as it would be read back: every checksum is verified."""
    return parse_batch(encode_batch(sent), verify_frames=True)


def headers(sent: Batch) -> list[list[UserHeader]]:
    return [list(iterate_user_headers(frame.user_headers)) for frame in iterate_frames(sent.body, sent.count)]


def key_header(key: bytes) -> UserHeader:
    return UserHeader(KEY_HEADER, key)


_blocks = st.sampled_from([b"", build_user_headers([OTHER]), build_user_headers([key_header(b"mine")]), ENCRYPTED])
_messages = st.builds(
    NewMessage,
    payload=st.binary(max_size=30),
    message_id=st.integers(0, 2**128 - 1),
    origin_timestamp=st.integers(0, 1000),
    user_headers=_blocks,
)


@given(st.lists(_messages, min_size=1, max_size=10), st.binary(min_size=1, max_size=255))
def test_nothing_but_the_key_is_added(messages: list[NewMessage], key: bytes) -> None:
    sent = build_batch(messages)
    keyed = stored(with_key(sent, key))
    assert (keyed.count, keyed.origin_timestamp) == (sent.count, sent.origin_timestamp)
    for before, after in zip(
        iterate_frames(sent.body, sent.count), iterate_frames(keyed.body, keyed.count), strict=True
    ):
        assert (after.message_id, after.offset_delta, after.timestamp_delta, after.payload) == (
            before.message_id,
            before.offset_delta,
            before.timestamp_delta,
            before.payload,
        )
        had_it = before.user_headers in (ENCRYPTED, build_user_headers([key_header(b"mine")]))
        added = b"" if had_it else build_user_headers([key_header(key)])
        assert bytes(after.user_headers) == bytes(before.user_headers) + added


@given(st.lists(_messages, min_size=1, max_size=10), st.binary(min_size=1, max_size=255))
def test_many_messages_are_done_as_few_are(messages: list[NewMessage], key: bytes) -> None:
    few = build_batch(messages)
    many = build_batch(messages * (_FEW + 1))
    expected = [frame.user_headers for frame in iterate_frames(with_key(few, key).body, few.count)]
    keyed = stored(with_key(many, key))
    assert [frame.user_headers for frame in iterate_frames(keyed.body, keyed.count)] == expected * (_FEW + 1)
    # One by one or all at once, a batch is the same.
    block = build_user_headers([key_header(key)])
    assert bytes(extend_many(few, block).body) == bytes(with_key(few, key).body)


def test_a_message_that_stays_as_it_is_keeps_its_checksum() -> None:
    sent = batch(*[NewMessage(b"x" * number, user_headers=ENCRYPTED) for number in range(100)], NewMessage(b"x"))
    body = bytearray(sent.body)
    body[0] ^= 1
    keyed = with_key(batch_of(0, sent.count, memoryview(body)), b"key")
    assert keyed.checksums[:8] == body[:8]
    assert [*iterate_frames(keyed.body, keyed.count)][-1].user_headers == build_user_headers([key_header(b"key")])


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_messages_of_one_size(count: int) -> None:
    keyed = stored(with_key(batch(*[NewMessage(b"x" * 100)] * count), b"key"))
    assert keyed.frames.frame_size
    assert headers(keyed) == [[key_header(b"key")]] * count


@pytest.mark.parametrize("key", [b"", b"x" * 256])
def test_a_key_that_no_header_can_hold_is_not_kept(key: bytes) -> None:
    sent = batch(NewMessage(b"x"))
    assert with_key(sent, key) is sent


def test_headers_do_not_grow_beyond_their_limit() -> None:
    entry = UserHeader(b"k" * 255, b"v" * 255)
    block = build_user_headers([entry] * (USER_HEADERS_SIZE_MAX // 520))
    sent = batch(NewMessage(b"x", user_headers=block))
    keyed = with_key(sent, b"y" * 255)
    assert (keyed.size > sent.size) == (len(block) + 276 <= USER_HEADERS_SIZE_MAX)


def test_a_batch_does_not_grow_beyond_its_limit() -> None:
    sent = batch(NewMessage(bytes(BATCH_SIZE_MAX - 256 - 48 - 10)))
    assert with_key(sent, b"key") is sent
