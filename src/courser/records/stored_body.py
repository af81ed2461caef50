"""Stored bodies that are compressed, encrypted, or both: encode them before an append, decode them after a read.

Compression comes first: encrypted bytes do not compress. A body that compression hardly makes smaller stays as it is.
An *encoded* batch is recognised by a flag in its header. Its hashes cover the stored bytes, so damage is found without
the key and without the library of the codec.

The header of an encrypted batch contains no hash of its messages, because a hash lets anybody confirm a guess. The
batch checksum for clients and the common frame size are therefore zero, and computed when the batch is read.
"""

from collections.abc import Callable
from dataclasses import dataclass

from courser.errors import InvalidBatch
from courser.model.buffers import Buffer
from courser.records import layout
from courser.records.batch import Batch, checksum_of_wire_fields
from courser.records.checksum import xxh3
from courser.records.compression import BadCompression, compress, decompress
from courser.records.encryption import BadTag, BatchCipher, EncryptionKey, KeyRing
from courser.records.frames import uniform_layout
from courser.records.layout import Compression
from courser.records.stored_header import BadBatch, StoredHeader, trimmed_header

_SAVING_SHARE = 16
"""What compression must save of a body. The zeros in the header of each message compress even if its payload does not,
and that alone is not worth the work of every reader."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """How new batches are encrypted."""

    key: EncryptionKey
    draw: Callable[[int], bytes]
    """Random bytes, for nonces."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the bodies of new batches are stored."""

    compression: Compression = Compression.NONE
    encryption: Encryption | None = None


PLAIN = Encoding()


class EncodedBatch(Batch, gc=False, kw_only=True):
    """A batch in the form in which it is stored.

    ``body`` is the stored body. ``frames`` is what the index sees of it: one block, because messages cannot be found
    inside it.
    """

    plain: Batch
    """The batch as it was sent."""
    codec: int
    key_id: int
    nonce: bytes
    cipher: BatchCipher | None


def encode(batch: Batch, encoding: Encoding) -> Batch:
    """The batch as it is stored: the same one if its body stays as it is. For any thread.

    Raises:
        CodecMissing: the library of the codec is not installed.
    """
    body, codec, encryption = batch.body, Compression.NONE, encoding.encryption
    if encoding.compression is not Compression.NONE:
        smaller = compress(encoding.compression, body)
        size_max = len(body) - len(body) // _SAVING_SHARE
        if batch.count * layout.STORED_MESSAGE_SIZE_MIN <= len(smaller) < size_max:
            body, codec = memoryview(smaller), encoding.compression
    nonce, cipher = b"", None
    if encryption is not None:
        nonce = encryption.draw(layout.NONCE_SIZE)
        cipher = encryption.key.cipher(nonce)
        body = memoryview(cipher.encrypt(body))
    elif codec is Compression.NONE:
        return batch
    return EncodedBatch(
        batch.origin_timestamp,
        batch.count,
        body,
        uniform_layout(1, len(body)),
        batch.checksums,
        batch.producer,
        plain=batch,
        codec=codec,
        key_id=0 if encryption is None else encryption.key.key_id,
        nonce=nonce,
        cipher=cipher,
    )


def stamp_encoded(batch: EncodedBatch, blank: bytes, base_offset: int, base_timestamp: int) -> bytearray:
    """``stored_header.stamp`` for an encoded batch."""
    blank_fields = StoredHeader(*layout.STORED_HEADER.unpack(blank))
    plain, is_encrypted = batch.plain, batch.cipher is not None
    wire = (blank_fields.partition_id, base_offset, base_timestamp, batch.origin_timestamp, plain.size)
    header = blank_fields._replace(
        base_offset=base_offset,
        base_timestamp=base_timestamp,
        origin_timestamp=batch.origin_timestamp,
        batch_length=plain.size,
        batch_checksum=0 if is_encrypted else checksum_of_wire_fields(*wire, batch.count, batch.checksums),
        message_count=batch.count,
        codec=batch.codec,
        flags=layout.ENCODED,
        frame_size=0 if is_encrypted else plain.frames.frame_size,
        encryption_key_id=batch.key_id,
        stored_length=batch.size,
    )
    data = bytearray(layout.STORED_HEADER.pack(*header))
    if batch.cipher is not None:
        data[layout.NONCE_POSITION : layout.NONCE_POSITION + layout.NONCE_SIZE] = batch.nonce
        end = layout.HEADER_TAG_POSITION + layout.TAG_SIZE
        data[layout.HEADER_TAG_POSITION : end] = batch.cipher.tag(_authenticated(data, batch.body))
    data[layout.BODY_HASH_POSITION : layout.HEADER_CHECKSUM_POSITION] = xxh3(batch.body).to_bytes(8, "little")
    data[layout.HEADER_CHECKSUM_POSITION :] = xxh3(data[: layout.HEADER_CHECKSUM_POSITION]).to_bytes(8, "little")
    return data


def _authenticated(stored_header: Buffer, stored_body: Buffer) -> bytes:
    """What the tag of a header covers: the header before it, and the tag of the body. So neither can be swapped."""
    return bytes(stored_header[: layout.HEADER_TAG_POSITION]) + bytes(stored_body[-layout.TAG_SIZE :])


def decode(header: StoredHeader, stored: memoryview, keys: KeyRing) -> memoryview:
    """The frames of a stored batch whose hashes were checked; ``stored`` is all of it, from its header on.

    Raises:
        BadBatch: the body does not decompress to its frames, or the tags do not match, although the hashes are right.
            It was written this way, or somebody changed it.
        KeyMissing: the key is not in the ring.
        CodecMissing: the library of the codec is not installed.
    """
    body: Buffer = stored[layout.BATCH_HEADER_SIZE :]
    if header.encryption_key_id:
        body = _decrypted(header, stored, body, keys)
    size = header.batch_length - layout.BATCH_HEADER_SIZE
    if header.codec:
        try:
            return decompress(Compression(header.codec), body, size)
        except BadCompression as error:
            raise BadBatch(str(error)) from error
    if len(body) != size:
        raise BadBatch(f"the body has {len(body)} bytes instead of {size}")
    return memoryview(body)


def _decrypted(header: StoredHeader, stored: memoryview, body: Buffer, keys: KeyRing) -> bytes:
    key = keys.get(header.encryption_key_id)
    nonce = bytes(stored[layout.NONCE_POSITION : layout.NONCE_POSITION + layout.NONCE_SIZE])
    tag = stored[layout.HEADER_TAG_POSITION : layout.HEADER_TAG_POSITION + layout.TAG_SIZE]
    try:
        cipher = key.cipher(nonce)
        cipher.check(_authenticated(stored, body), tag)
        return cipher.decrypt(body)
    except BadTag:
        # Not the wrong key, because the id of a key follows from the key.
        raise BadBatch("the authentication tag does not match: the batch was changed") from None


def decoded_header(header: StoredHeader, frames: memoryview, count: int) -> bytearray:
    """``trimmed_header`` for frames that ``decode`` returned. Raises ``BadBatch`` if they are not ``count`` frames."""
    try:
        return trimmed_header(header, frames, count)
    except InvalidBatch as error:
        raise BadBatch(error.reason) from error
