"""Keys: the hash that the SDKs use, and the header that keeps them."""

import pytest

from courser.records.message_keys import KEY_HEADER, hash_of_key, key_header, partition_of_key
from courser.records.user_headers import build_user_headers, iterate_user_headers
from tests.records.walks import NO_WALK

pytestmark = NO_WALK


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        # Published test vectors of xxHash32 with seed 0.
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
    ],
)
def test_the_hash_is_that_of_the_sdks(key: bytes, digest: int) -> None:
    """Another hash would send the keys of existing topics to other partitions."""
    assert hash_of_key(key) == digest
    assert partition_of_key(key, 7) == digest % 7


def test_the_header_keeps_the_key() -> None:
    """Under the one name that readers look for."""
    (entry,) = iterate_user_headers(build_user_headers([key_header(b"customer 7")]))
    assert (entry.key, entry.value) == (KEY_HEADER, b"customer 7")
