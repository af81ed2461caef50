"""Client-side encryption of payloads: AES-256-GCM, in the format of the other SDKs.

Encrypted data is a random nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. Payload and headers are encrypted
separately. (SDKs before 0.8 do not encrypt headers; both forms can be read.)
"""

import base64
import binascii
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from courser.errors import DecryptionFailed, TargetRefused
from courser.model.buffers import Buffer
from courser.records.user_headers import is_typed

KEY_SIZE = 32
_NONCE_SIZE = 12
_TAG_SIZE = 16
ENCRYPTION_SIZE = 2 * (_NONCE_SIZE + _TAG_SIZE)
"""Bytes that a message grows by: a nonce and a tag, once for the payload and once for the headers."""


class Encryptor:
    """Encrypts and decrypts with one key."""

    def __init__(self, key: str | bytes) -> None:
        """The key is 32 bytes, or their Base64.

        Raises:
            TargetRefused: the key has another form.
        """
        self._cipher = AESGCM(_key_bytes(key))

    def encrypt(self, data: Buffer) -> bytes:
        nonce = os.urandom(_NONCE_SIZE)
        return nonce + self._cipher.encrypt(nonce, data, None)

    def encrypt_headers(self, block: bytes) -> bytes:
        """Encrypt user headers. An empty block stays empty."""
        return self.encrypt(block) if block else block

    def decrypt(self, data: Buffer) -> bytes:
        """Decrypt a payload.

        Raises:
            DecryptionFailed: the data is not encrypted, or with another key.
        """
        try:
            return self._cipher.decrypt(bytes(data[:_NONCE_SIZE]), data[_NONCE_SIZE:], None)
        except (InvalidTag, ValueError):
            raise DecryptionFailed("a payload is not encrypted with this key") from None

    def decrypt_headers(self, block: bytes) -> bytes:
        """Decrypt user headers. Headers that are not encrypted are returned unchanged."""
        return block if not block or is_typed(block) else self.decrypt(block)


def _key_bytes(key: str | bytes) -> bytes:
    if isinstance(key, str):
        try:
            key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise TargetRefused("an encryption key must be 32 bytes, or their Base64") from None
    if len(key) != KEY_SIZE:
        raise TargetRefused(f"an encryption key must have {KEY_SIZE} bytes, not {len(key)}")
    return key
