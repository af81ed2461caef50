"""Bodies that are compressed and encrypted on disk: exactly what was sent comes back, or an error that says why not."""

import base64
import random
import sys
import zlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from courser.records import layout
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.compression import BadCompression, CodecMissing, check_available, compress, decompress
from courser.records.encryption import (
    NO_KEYS,
    BadTag,
    EncryptionKey,
    KeyMissing,
    KeyRing,
    key_name,
    keys_from,
    parse_key,
)
from courser.records.layout import Compression
from courser.records.stored_body import (
    PLAIN,
    EncodedBatch,
    Encoding,
    Encryption,
    decode,
    decoded_header,
    encode,
    stamp_encoded,
)
from courser.records.stored_header import (
    BadBatch,
    PartitionIdentity,
    StoredHeader,
    blank_header,
    check_body,
    read_header,
)
from tests.records.reference import check_wire_batch
from tests.records.test_batch import new_messages

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 77)
KEY, OTHER_KEY = EncryptionKey(bytes(range(32))), EncryptionKey(bytes(range(1, 33)))
TEXT = build_batch([NewMessage(b'{"order": %d, "state": "paid"}' % number, number) for number in range(50)])
CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())


def encryption(key: EncryptionKey = KEY, seed: int = 1) -> Encryption:
    return Encryption(key, random.Random(seed).randbytes)


def stored(batch: Batch, *, base_offset: int = 1000) -> memoryview:
    """All bytes of an encoded batch."""
    assert isinstance(batch, EncodedBatch)
    return memoryview(bytes(stamp_encoded(batch, blank_header(IDENTITY), base_offset, 2000)) + bytes(batch.body))


def read(data: memoryview) -> StoredHeader:
    header = read_header(data, 0, IDENTITY)
    check_body(header, data[layout.BATCH_HEADER_SIZE :])
    return header


def restamped(data: memoryview, position: int, changed: bytes) -> memoryview:
    """The batch with other bytes in its header, and hashes that fit."""
    copy = bytearray(data)
    copy[position : position + len(changed)] = changed
    copy[240:248] = hash_of(copy[256:])
    copy[248:256] = hash_of(copy[:248])
    return memoryview(copy)


def hash_of(data: bytearray) -> bytes:
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


# --- codecs ---


@every_codec
@given(body=st.binary(min_size=1, max_size=3000))
def test_what_is_compressed_comes_back(codec: Compression, body: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, body), len(body))) == body


@every_codec
@pytest.mark.parametrize("size", [1, 999_999, 1_000_001])
def test_data_of_another_size_than_expected_is_refused(codec: Compression, size: int) -> None:
    """A million zeros fit into a kilobyte: what decompresses to more than it should is stopped at that point."""
    data = compress(codec, bytes(1_000_000))
    with pytest.raises(BadCompression):
        decompress(codec, data, size)


@every_codec
@pytest.mark.parametrize("data", [b"", b"\0", b"no compressed data at all", bytes(100)])
def test_what_no_codec_wrote_is_refused(codec: Compression, data: bytes) -> None:
    with pytest.raises(BadCompression):
        decompress(codec, data, 50)


@every_codec
def test_half_of_the_data_and_data_with_something_behind_it_are_refused(codec: Compression) -> None:
    data = bytes(compress(codec, bytes(TEXT.body)))
    for wrong in (data[: len(data) // 2], data + data):
        with pytest.raises(BadCompression):
            decompress(codec, wrong, len(TEXT.body))


def test_gzip_is_what_other_programs_read() -> None:
    assert zlib.decompress(compress(Compression.GZIP, TEXT.body), wbits=31) == bytes(TEXT.body)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(CodecMissing, match=r"zstd needs the Python package cramjam.*courser\[compression\]"):
        check_available(Compression.ZSTD)
    check_available(Compression.GZIP)
    check_available(Compression.NONE)


# --- encryption ---


@pytest.mark.parametrize(
    ("key", "associated_data", "encrypted"),
    [
        (b"\1" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\3" * 32, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
    ids=["carry in the tweak", "no carry"],
)
def test_the_cipher_gives_the_known_answers_of_its_specification(
    key: bytes, associated_data: bytes, encrypted: str
) -> None:
    cipher = EncryptionKey(key).cipher(b"ABCDEFGHIJKLMNOPQRSTUVWX")
    assert cipher.encrypt(b"XAES-256-GCM", associated_data).hex() == encrypted
    assert cipher.decrypt(bytes.fromhex(encrypted), associated_data) == b"XAES-256-GCM"


def test_the_tag_of_a_header_is_that_of_the_neighbouring_nonce() -> None:
    nonce = bytes(range(24))
    tag = KEY.cipher(nonce).tag(b"header")
    assert tag == KEY.cipher(nonce[:-1] + bytes([nonce[-1] ^ 1])).encrypt(b"", b"header")
    KEY.cipher(nonce).check(b"header", tag)
    with pytest.raises(BadTag):
        KEY.cipher(nonce).check(b"Header", tag)


def test_a_key_has_32_bytes_and_a_name_that_says_nothing_else() -> None:
    assert parse_key("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=") == KEY
    assert repr(KEY) == f"EncryptionKey({key_name(KEY.key_id)})"
    assert repr(KeyRing([KEY])) == f"KeyRing({key_name(KEY.key_id)})"
    assert KEY.key_id != OTHER_KEY.key_id
    for text in ("", "AAEC", "not base64!", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gAA=="):
        with pytest.raises(ValueError, match=r"^a key must be 32 random bytes in base64") as refused:
            parse_key(text)
        assert not text or text not in str(refused.value)


def test_programs_without_a_server_take_the_keys_from_the_environment() -> None:
    text, other = (base64.b64encode(bytes(range(first, first + 32))).decode() for first in (0, 1))
    assert keys_from({}) == NO_KEYS
    assert keys_from({"COURSER_SYSTEM_ENCRYPTION_KEY": text}) == KeyRing([KEY])
    for several in (f"{text},{other}", f'["{text}", "{other}"]'):
        assert keys_from({"COURSER_SYSTEM_ENCRYPTION_OLD_KEYS": several}) == KeyRing([KEY, OTHER_KEY])


def test_two_keys_with_one_id_are_refused() -> None:
    impostor = EncryptionKey(bytes(32))
    impostor.key_id = KEY.key_id
    with pytest.raises(ValueError, match=f"two keys have the id {key_name(KEY.key_id)}"):
        KeyRing([KEY, impostor])
    KeyRing([KEY, KEY])


# --- batches ---

ENCODINGS = [
    *(Encoding(codec) for codec in CODECS),
    Encoding(encryption=encryption()),
    *(Encoding(codec, encryption()) for codec in CODECS),
]


def name_of(encoding: Encoding) -> str:
    """The same in each process, as the names of tests must be: no key is part of it."""
    return f"{encoding.compression.name.lower()}{' encrypted' if encoding.encryption else ''}"


@pytest.mark.parametrize("encoding", ENCODINGS, ids=name_of)
def test_an_encoded_batch_is_read_as_it_was_sent(encoding: Encoding) -> None:
    data = stored(encode(TEXT, encoding))
    header = read(data)
    assert (header.base_offset, header.message_count, header.batch_length) == (1000, TEXT.count, TEXT.size)
    assert (header.flags, header.codec, header.stored_length) == (layout.ENCODED, encoding.compression, len(data))
    frames = decode(header, data, KeyRing([OTHER_KEY, KEY]))
    assert frames == TEXT.body
    wire = bytes(decoded_header(header, frames, header.message_count)) + bytes(frames)
    assert len(check_wire_batch(wire)) == TEXT.count


@given(messages=st.lists(new_messages, min_size=1, max_size=8))
def test_any_batch_comes_back(messages: list[NewMessage]) -> None:
    batch = build_batch(messages)
    encoded = encode(batch, Encoding(Compression.LZ4, encryption()))
    data = stored(encoded)
    assert decode(read(data), data, KeyRing([KEY])) == batch.body


def test_a_body_that_does_not_become_smaller_is_stored_as_it_is() -> None:
    batch = build_batch([NewMessage(random.Random(1).randbytes(500))])
    assert encode(batch, Encoding(Compression.ZSTD)) is batch
    assert encode(batch, PLAIN) is batch
    assert read(stored(encode(batch, Encoding(Compression.ZSTD, encryption())))).codec == Compression.NONE


def test_so_many_messages_in_so_few_bytes_are_stored_as_they_are() -> None:
    """Recovery concludes from the size of what it cannot read how many offsets may have been in it."""
    frame = bytes(layout.FRAME_HEADER_SIZE)
    batch = Batch(0, 10_000, memoryview(frame * 10_000), TEXT.frames, b"")
    assert encode(batch, Encoding(Compression.ZSTD)) is batch


def test_a_header_that_promises_too_much_is_no_header() -> None:
    data = stored(encode(TEXT, Encoding(Compression.ZSTD)))
    for position, value in ((32, (layout.BATCH_SIZE_MAX + 1).to_bytes(8, "little")), (48, b"\xff\xff\xff\x7f")):
        with pytest.raises(BadBatch, match="messages cannot have"):
            read(restamped(data, position, value))
    for position, value in ((58, b"\x05"), (59, b"\x02"), (58, b"\x00")):
        with pytest.raises(BadBatch, match="does not support"):
            read(restamped(data, position, value))
    with pytest.raises(BadBatch, match="should not be encoded"):
        read(restamped(data, 59, b"\x00"))


def test_a_body_that_decompresses_to_another_size_is_damage() -> None:
    data = restamped(stored(encode(TEXT, Encoding(Compression.LZ4))), 32, (TEXT.size + 1).to_bytes(8, "little"))
    with pytest.raises(BadBatch, match="decompress"):
        decode(read(data), data, NO_KEYS)


# --- what somebody with the disk can do ---


def test_nothing_in_the_clear_depends_on_the_messages() -> None:
    """Two batches of the same shape differ only in what is random or derived from that."""
    one, other = (
        build_batch([NewMessage(letter * 100, number, 5) for number, letter in enumerate(letters)])
        for letters in ((b"a", b"b"), (b"c", b"d"))
    )
    headers = [read(stored(encode(batch, Encoding(encryption=encryption())))) for batch in (one, other)]
    assert {(header.batch_checksum, header.frame_size) for header in headers} == {(0, 0)}
    first, second = (header._replace(body_hash=0, header_checksum=0) for header in headers)
    assert first == second
    data = bytes(stored(encode(one, Encoding(encryption=encryption()))))
    assert b"a" * 8 not in data
    assert one.checksums[:8] not in data


def test_no_byte_of_the_header_or_body_can_be_changed_although_the_hashes_fit() -> None:
    data = stored(encode(build_batch([NewMessage(b"paid")]), Encoding(encryption=encryption())))
    identity = {*range(8), *range(52, 58), 59, *range(64, 68), *range(72, 104)}
    lengths = {*range(32, 40), *range(48, 52), 58}
    for position in set(range(len(data))) - identity - lengths - set(range(240, 256)):
        changed = restamped(data, position, bytes([data[position] ^ 1]))
        with pytest.raises(BadBatch, match="the authentication tag does not match"):
            decode(read(changed), changed, KeyRing([KEY]))


def test_bodies_cannot_be_swapped_nor_batches_moved() -> None:
    encoding = Encoding(encryption=encryption())
    one, other = (stored(encode(TEXT, encoding)) for _ in range(2))
    swapped = restamped(memoryview(bytes(one[:256]) + bytes(other[256:])), 0, b"")
    moved = restamped(one, 8, (5).to_bytes(8, "little"))
    for changed in (swapped, moved):
        with pytest.raises(BadBatch, match="the authentication tag does not match"):
            decode(read(changed), changed, KeyRing([KEY]))


def test_a_missing_key_is_named() -> None:
    data = stored(encode(TEXT, Encoding(encryption=encryption())))
    for keys in (NO_KEYS, KeyRing([OTHER_KEY])):
        with pytest.raises(KeyMissing, match=f"key {key_name(KEY.key_id)}, which is not configured"):
            decode(read(data), data, keys)


def test_every_batch_gets_the_next_random_nonce() -> None:
    """Nothing is remembered that a restart or an older copy of the disk could bring back."""
    source = random.Random(3)
    encoding = Encoding(encryption=Encryption(KEY, source.randbytes))
    expected = random.Random(3)
    nonces = [bytes(stored(encode(TEXT, encoding))[128:152]) for _ in range(100)]
    assert nonces == [expected.randbytes(24) for _ in range(100)]
    assert len(set(nonces)) == 100
