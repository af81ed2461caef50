"""Create, hash and check passwords and tokens. The catalog stores only hashes.

Hashing a password takes tens of milliseconds by design: call these functions in a pool, never on the event loop.
"""

import base64
import hashlib
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

_MEMORY_KIB = 19 * 1024
_PASS_COUNT = 2
_LANE_COUNT = 1
"""The minimum that OWASP recommends for argon2id: 19 MiB, two passes, one lane."""
_TOKEN_SIZE = 32
"""Random bytes of a token: it cannot be guessed, so a fast hash is enough."""


class Passwords:
    """Hashes and checks passwords. Safe to use from several threads."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher(time_cost=_PASS_COUNT, memory_cost=_MEMORY_KIB, parallelism=_LANE_COUNT)
        self._decoy = _decoy()

    def hash(self, password: str) -> str:
        """An argon2id string with its own salt and parameters."""
        return self._hasher.hash(_bytes(password))

    def is_right(self, password: str, password_hash: str | None) -> bool:
        """Check a password against a hash. For an unknown user pass None: it takes as long and is always wrong."""
        try:
            self._hasher.verify(password_hash if password_hash is not None else self._decoy, _bytes(password))
        except (VerificationError, InvalidHashError):
            return False
        return password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Whether the hash has weaker parameters than the current ones, so that the next login should renew it."""
        return self._hasher.check_needs_rehash(password_hash)


def make_token() -> str:
    """Create a personal access token. It is shown only once."""
    return secrets.token_urlsafe(_TOKEN_SIZE)


def hash_token(token: str) -> bytes:
    """The hash of a token, for the catalog."""
    return hashlib.sha256(_bytes(token)).digest()


def _decoy() -> str:
    """A hash that no password has. Checking it takes as long as any other; making it takes no time at every start."""
    parameters = f"m={_MEMORY_KIB},t={_PASS_COUNT},p={_LANE_COUNT}"
    salt, digest = (base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19${parameters}${salt}${digest}"


def _bytes(secret: str) -> bytes:
    # JSON allows half a surrogate pair. Such a password is unusual but valid.
    return secret.encode(errors="surrogatepass")
