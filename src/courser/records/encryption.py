"""Encryption of stored batches: AES-256-GCM with a key of its own for every batch (XAES-256-GCM).

A nonce has 24 random bytes. The first half selects a key, derived from the master key; the second half is the nonce of
AES-GCM with that key. So many nonces can be drawn at random without a repetition: no counter has to survive a restart
or the restore of an older copy. ADR 0017 has the numbers. The construction is XAES-256-GCM of C2SP, unchanged.

A key is named by an id that is derived from it, so a wrong key is never taken for the right one.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping

from courser.errors import CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.records.layout import NONCE_SIZE

KEY_SIZE = 32
_HALF = NONCE_SIZE // 2
_FIRST_BLOCK, _SECOND_BLOCK = b"\x00\x01X\x00", b"\x00\x02X\x00"
_ID_CONTEXT = b"courser encryption key id"
_BLOCK_MASK = 2**128 - 1
_POLYNOMIAL = 0x87
"""Of AES-CMAC, for the last block."""


class KeyMissing(CourserError):
    """Stored messages that cannot be decrypted, because their key is not configured."""

    code = ErrorCode.KEY_MISSING

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key
        """The id of the key."""

    def __str__(self) -> str:
        return (
            f"the messages are encrypted with key {self.key}, which is not configured: "
            "set it as system.encryption.key, or add it to system.encryption.old_keys"
        )


class BadTag(Exception):
    """Bytes that were changed since they were encrypted, or were encrypted with another key."""


class EncryptionKey:
    """A master key. Its ``repr`` shows only the id."""

    __slots__ = ("_secret", "_tweaks", "key_id")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_SIZE:
            raise ValueError(f"an encryption key has {KEY_SIZE} bytes, not {len(secret)}")
        self._secret = secret
        last = int.from_bytes(_encrypt_blocks(secret, bytes(16)), "big")
        doubled = (last << 1 & _BLOCK_MASK) ^ (_POLYNOMIAL if last >> 127 else 0)
        self._tweaks = doubled << 128 | doubled
        # 0 means "not encrypted".
        self.key_id = int.from_bytes(hashlib.sha256(_ID_CONTEXT + secret).digest()[:4], "little") or 1

    def __repr__(self) -> str:
        return f"EncryptionKey({key_name(self.key_id)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncryptionKey) and other._secret == self._secret

    def __hash__(self) -> int:
        return self.key_id

    def cipher(self, nonce: bytes) -> "BatchCipher":
        """The cipher of the batch that has this nonce."""
        # AES-CMAC of two blocks with a counter. Each is a single block, so ECB hides all there is to hide.
        half = nonce[:_HALF]
        blocks = int.from_bytes(_FIRST_BLOCK + half + _SECOND_BLOCK + half, "big") ^ self._tweaks
        return BatchCipher(_encrypt_blocks(self._secret, blocks.to_bytes(KEY_SIZE, "big")), nonce[_HALF:])


class BatchCipher:
    """Encrypts one batch: its body, and apart from it a tag of its header.

    The header is complete only when the batch is appended. By then the body is encrypted, on another thread. So they
    are two messages, whose nonces differ in the last bit.
    """

    __slots__ = ("_aead", "_body_nonce", "_header_nonce")

    def __init__(self, key: bytes, nonce: bytes) -> None:
        # Here and below, not at the top: a server without keys does not need the memory of the library.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._aead = AESGCM(key)
        self._body_nonce = nonce
        self._header_nonce = nonce[:-1] + bytes([nonce[-1] ^ 1])

    def encrypt(self, body: Buffer, associated_data: Buffer = b"") -> bytes:
        """The encrypted body, followed by its tag."""
        return self._aead.encrypt(self._body_nonce, body, associated_data)

    def decrypt(self, body: Buffer, associated_data: Buffer = b"") -> bytes:
        """The opposite. Raises ``BadTag``."""
        return self._open(self._body_nonce, body, associated_data)

    def tag(self, header: Buffer) -> bytes:
        """The tag of a header."""
        return self._aead.encrypt(self._header_nonce, b"", header)

    def check(self, header: Buffer, tag: Buffer) -> None:
        """Raise ``BadTag`` unless this is the tag of the header."""
        self._open(self._header_nonce, tag, header)

    def _open(self, nonce: bytes, data: Buffer, associated_data: Buffer) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return self._aead.decrypt(nonce, data, associated_data)
        except InvalidTag:
            raise BadTag from None


class KeyRing:
    """The keys that can decrypt stored batches, by id."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[EncryptionKey] = ()) -> None:
        self._keys: dict[int, EncryptionKey] = {}
        for key in keys:
            if self._keys.setdefault(key.key_id, key) != key:
                raise ValueError(f"two keys have the id {key_name(key.key_id)}; replace one of them")

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(map(key_name, self._keys))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and other._keys == self._keys

    def __hash__(self) -> int:
        return hash(frozenset(self._keys))

    def get(self, key_id: int) -> EncryptionKey:
        """The key with this id. Raises ``KeyMissing``."""
        key = self._keys.get(key_id)
        if key is None:
            raise KeyMissing(key_name(key_id))
        return key


NO_KEYS = KeyRing()


KEY_EXPECTED = "32 random bytes in base64, such as `openssl rand -base64 32` prints"


KEY_VARIABLE, OLD_KEYS_VARIABLE = "COURSER_SYSTEM_ENCRYPTION_KEY", "COURSER_SYSTEM_ENCRYPTION_OLD_KEYS"
"""The environment variables of the server's settings."""


def keys_from(environment: Mapping[str, str]) -> KeyRing:
    """The keys for programs that read files without a server. Raises ``ValueError`` for a text that is not a key."""
    old = environment.get(OLD_KEYS_VARIABLE, "").strip().removeprefix("[").removesuffix("]").split(",")
    texts = (text.strip().strip('"') for text in (environment.get(KEY_VARIABLE, ""), *old))
    return KeyRing(parse_key(text) for text in texts if text)


def parse_key(text: str) -> EncryptionKey:
    """A key from its text. Raises ``ValueError``, which does not show the text."""
    try:
        return EncryptionKey(base64.b64decode(text, validate=True))
    except ValueError:
        raise ValueError(f"a key must be {KEY_EXPECTED}") from None


def key_name(key_id: int) -> str:
    """An id as logs, messages and tools spell it."""
    return f"{key_id:08x}"


def _encrypt_blocks(secret: bytes, blocks: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415

    return Cipher(algorithms.AES(secret), modes.ECB()).encryptor().update(blocks)
