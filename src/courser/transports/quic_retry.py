"""Tokens that prove a QUIC client's address (RFC 9000, 8.1.2).

Anyone can send a datagram with the address of somebody else. A client therefore gets a token first, and a place among
the connections only when it returns the token from the same address. The library's own tokens are made with RSA, which
takes milliseconds for each forged one; these take microseconds, and expire.
"""

import hmac
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from courser.model.clock import Clock

_SECOND = 1_000_000
_KEY_SIZE = 32
_VALIDITY = 30 * _SECOND
"""Microseconds that a client may take to return its token."""
_HEAD = struct.Struct("<QBB")
"""When the token was made, and the sizes of the two connection ids that follow."""
_TAG_SIZE = sha256().digest_size


class RetryTokens:
    """Makes tokens and checks them. Nothing is remembered for a client."""

    def __init__(self, clock: Clock, draw: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._key = draw(_KEY_SIZE)

    def create_token(self, address: Any, original_id: bytes, retry_id: bytes) -> bytes:
        """A token for a client at an address (host, port, ...), which uses these connection ids."""
        head = _HEAD.pack(self._clock.monotonic(), len(original_id), len(retry_id)) + original_id + retry_id
        return head + self._tag(address, head)

    def validate_token(self, address: Any, token: bytes) -> tuple[bytes, bytes]:
        """The connection ids in a token. Raises ``ValueError`` if it was not made for this address, or expired."""
        head, tag = token[:-_TAG_SIZE], token[-_TAG_SIZE:]
        if not hmac.compare_digest(self._tag(address, head), tag):
            raise ValueError("the token was not made here for this address")
        made_at, original_size, _ = _HEAD.unpack_from(head)
        if self._clock.monotonic() - made_at > _VALIDITY:
            raise ValueError("the token is expired")
        ids = head[_HEAD.size :]
        return ids[:original_size], ids[original_size:]

    def _tag(self, address: Any, head: bytes) -> bytes:
        host, port = address[:2]
        return hmac.digest(self._key, f"{host} {port} ".encode() + head, "sha256")
