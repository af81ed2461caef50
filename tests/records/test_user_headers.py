"""User headers: the two forms, what is neither, and the way from one to the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.errors import ErrorCode, InvalidBatch
from courser.records.user_headers import (
    USER_HEADERS_SIZE_MAX,
    HeaderKind,
    UserHeader,
    build_user_headers,
    is_typed,
    is_untyped,
    iterate_user_headers,
    typed_from_untyped,
    untyped_from_typed,
)
from tests.records.walks import NO_WALK

pytestmark = NO_WALK

# k = "v" as text, n = 7 as u32: recorded from SDK 0.9, and the same as the description of the 0.5 wire has it.
TYPED = bytes.fromhex("02010000006b020100000076" + "02010000006e0b0400000007000000")
UNTYPED = bytes.fromhex("010000006b020100000076" + "010000006e0b0400000007000000")

fields = st.binary(min_size=1, max_size=255)
any_length = st.sampled_from([HeaderKind.RAW, HeaderKind.STRING])
user_headers = st.lists(st.builds(UserHeader, fields, fields, any_length, any_length), max_size=5)
text_keyed = st.lists(st.builds(UserHeader, fields, fields, st.just(HeaderKind.STRING), any_length), max_size=5)


class TestBuilding:
    def test_gives_the_bytes_that_sdk_0_9_sends(self) -> None:
        number = UserHeader(b"n", (7).to_bytes(4, "little"), value_kind=HeaderKind.UINT32)
        assert build_user_headers([UserHeader.of_text("k", "v"), number]) == TYPED

    def test_nothing_gives_nothing(self) -> None:
        assert build_user_headers([]) == b""

    @given(user_headers)
    def test_what_is_built_is_read_back(self, headers: list[UserHeader]) -> None:
        assert list(iterate_user_headers(build_user_headers(headers))) == headers

    @pytest.mark.parametrize(
        "header",
        [
            UserHeader(b"", b"v"),
            UserHeader(b"k", b""),
            UserHeader(b"k" * 256, b"v"),
            UserHeader(b"k", b"v" * 256),
            UserHeader(b"k", b"\x01\x02", value_kind=HeaderKind.BOOL),
            UserHeader(b"k", b"v", key_kind=HeaderKind.UINT64),
        ],
    )
    def test_refuses_a_field_of_a_wrong_length(self, header: UserHeader) -> None:
        with pytest.raises(InvalidBatch, match="user header 0"):
            build_user_headers([header])

    def test_refuses_a_block_that_is_too_big(self) -> None:
        entry = UserHeader(b"k" * 245, b"v" * 245)  # 500 bytes
        assert len(build_user_headers([entry] * 200)) == USER_HEADERS_SIZE_MAX
        with pytest.raises(InvalidBatch) as refusal:
            build_user_headers([entry] * 201)
        assert refusal.value.code is ErrorCode.TOO_BIG_USER_HEADERS


class TestForms:
    def test_typed_has_a_kind_before_each_key(self) -> None:
        assert is_typed(TYPED)
        assert not is_typed(UNTYPED)

    def test_untyped_has_none(self) -> None:
        assert is_untyped(UNTYPED)
        assert not is_untyped(TYPED)

    def test_the_empty_block_is_both(self) -> None:
        assert is_typed(b"")
        assert is_untyped(b"")

    @given(st.one_of(st.binary(max_size=60), text_keyed.map(build_user_headers)))
    def test_no_other_block_is_both(self, block: bytes) -> None:
        assert not block or not (is_typed(block) and is_untyped(block))

    @pytest.mark.parametrize("block", [TYPED, UNTYPED])
    def test_a_cut_or_longer_block_is_neither(self, block: bytes) -> None:
        whole_entries = {0, len(block), 12 if block is TYPED else 11}
        for size in set(range(len(block))) - whole_entries:
            assert not is_typed(block[:size])
            assert not is_untyped(block[:size])
        assert not is_typed(block + b"\0")
        assert not is_untyped(block + b"\0")

    @pytest.mark.parametrize("kind", [0, 16, 255])
    def test_kinds_are_1_to_15(self, kind: int) -> None:
        assert not is_typed(bytes([kind]) + TYPED[1:])
        assert not is_untyped(UNTYPED[:5] + bytes([kind]) + UNTYPED[6:])

    @pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (255, True), (256, False), (300, False)])
    def test_lengths_are_1_to_255(self, length: int, fits: bool) -> None:
        field = length.to_bytes(4, "little") + b"f" * length
        one = b"\x01\0\0\0f"
        for key, value in ((field, one), (one, field)):
            assert is_untyped(key + b"\x02" + value) is fits
            assert is_typed(b"\x02" + key + b"\x02" + value) is fits

    def test_a_length_that_reaches_far_beyond_the_block_is_not_followed(self) -> None:
        far = b"\xff\xff\xff\xff"
        assert not is_untyped(far + b"f" * 300)
        assert not is_typed(b"\x02" + far + b"f" * 300)

    def test_reading_what_has_no_form_is_an_error_at_once(self) -> None:
        with pytest.raises(InvalidBatch, match="encrypted"):
            iterate_user_headers(b"\xff\xff\xff")


class TestConversion:
    def test_untyped_becomes_typed_by_text_keys(self) -> None:
        assert typed_from_untyped(UNTYPED) == TYPED

    def test_typed_becomes_untyped_by_dropping_the_kinds_of_keys(self) -> None:
        assert untyped_from_typed(TYPED) == UNTYPED

    @given(text_keyed)
    def test_text_keys_survive_the_way_there_and_back(self, headers: list[UserHeader]) -> None:
        block = build_user_headers(headers)
        assert typed_from_untyped(untyped_from_typed(block)) == block

    def test_a_key_that_is_not_text_becomes_one(self) -> None:
        block = build_user_headers([UserHeader((7).to_bytes(4, "little"), b"v", HeaderKind.UINT32)])
        (seen,) = iterate_user_headers(typed_from_untyped(untyped_from_typed(block)))
        assert seen == UserHeader(b"\x07\0\0\0", b"v", HeaderKind.STRING)

    @given(st.binary(max_size=60))
    def test_opaque_blocks_are_left_alone(self, block: bytes) -> None:
        assert is_untyped(block) or typed_from_untyped(block) == block
        assert is_typed(block) or untyped_from_typed(block) == block

    def test_one_bad_entry_makes_the_whole_block_opaque(self) -> None:
        assert typed_from_untyped(UNTYPED + b"junk") == UNTYPED + b"junk"
        assert untyped_from_typed(TYPED + b"junk") == TYPED + b"junk"
