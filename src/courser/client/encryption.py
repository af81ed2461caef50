"""Payloads that the server cannot read: AES-256-GCM, in the form of the other SDKs.

Encrypted bytes are a random nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. Payload and headers are encrypted
each by itself. (SDKs before 0.8 leave headers as they are; both are read.)
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


class Encryptor:
    """Encrypts and decrypts with one key."""

    def __init__(self, key: str | bytes) -> None:
        """The key is 32 bytes, or their Base64.

        Raises:
            TargetRefused: it is not.
        """
        self._cipher = AESGCM(_key_bytes(key))

    def encrypt(self, data: Buffer) -> bytes:
        """Make it unreadable for all who do not have the key."""
        nonce = os.urandom(_NONCE_SIZE)
        return nonce + self._cipher.encrypt(nonce, data, None)

    def encrypt_headers(self, block: bytes) -> bytes:
        """The same for user headers; none stay none."""
        return self.encrypt(block) if block else block

    def decrypt(self, data: Buffer) -> bytes:
        """The way back.

        Raises:
            DecryptionFailed: another key, or no encrypted data.
        """
        try:
            return self._cipher.decrypt(bytes(data[:_NONCE_SIZE]), data[_NONCE_SIZE:], None)
        except (InvalidTag, ValueError):
            raise DecryptionFailed("a payload is not encrypted with this key") from None

    def decrypt_headers(self, block: bytes) -> bytes:
        """The way back for user headers; those that were never encrypted stay as they are."""
        return block if not block or is_typed(block) else self.decrypt(block)


def _key_bytes(key: str | bytes) -> bytes:
    if isinstance(key, str):
        try:
            key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise TargetRefused("an encryption key is 32 bytes, or their Base64") from None
    if len(key) != KEY_SIZE:
        raise TargetRefused(f"an encryption key has {KEY_SIZE} bytes, not {len(key)}")
    return key
