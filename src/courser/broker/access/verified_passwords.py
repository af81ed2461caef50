"""Remember for a few minutes which passwords were right, so that a client that reconnects costs no hash.

Argon2 is slow by design: a script that connects for every message, or a Spark job with hundreds of tasks, would keep
the password threads busy. After a full check, a fast keyed digest of the password is kept in memory. The key is drawn
at every start and never leaves the process. Only right passwords are remembered: a wrong one, and any password of an
unknown user, takes the full check every time. An entry belongs to the stored hash, so it is void once the password
changes.
"""

import hashlib
import hmac
import secrets

from courser.model.clock import Clock

ENTRY_COUNT_MAX = 4_096
"""Users whose password is remembered: about 1 MiB. Beyond that, the oldest entry is dropped and hashed again."""
LIFETIME = 10 * 60 * 1_000_000
"""Microseconds until a password is checked in full again. It bounds how long a digest is worth stealing."""


class VerifiedPasswords:
    """Passwords that passed a full check a short time ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._entries: dict[str, tuple[bytes, int]] = {}
        """Digest and end of life by password hash, in the order of their ends."""

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, password: str, password_hash: str) -> None:
        """A full check found that the password is right."""
        self._entries.pop(password_hash, None)
        self._entries[password_hash] = (self._digest(password, password_hash), self._clock.monotonic() + LIFETIME)
        while len(self._entries) > ENTRY_COUNT_MAX:
            del self._entries[next(iter(self._entries))]

    def has(self, password: str, password_hash: str | None) -> bool:
        """Whether the password is known to be right. False means that a full check has to tell."""
        entry = None if password_hash is None else self._entries.get(password_hash)
        if entry is None or password_hash is None:
            return False
        digest, end = entry
        if self._clock.monotonic() >= end:
            del self._entries[password_hash]
            return False
        return hmac.compare_digest(digest, self._digest(password, password_hash))

    def _digest(self, password: str, password_hash: str) -> bytes:
        data = password_hash.encode() + b"\0" + password.encode(errors="surrogatepass")
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()
