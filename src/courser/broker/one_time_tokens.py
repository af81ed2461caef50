"""Tokens that log in once, for links: whoever is logged in on a command line opens the console with one.

They are kept in memory only: a restart makes them invalid. Only their hashes are kept, as of other tokens.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from courser.broker.credentials import hash_token
from courser.catalog.entities import User
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.clock import Clock

LIFE = 5 * 60 * 1_000_000
"""Microseconds in which such a token must be used: long enough to open a link from a terminal."""
_COUNT_MAX = 1_000
"""Unused tokens at a time. Each is small; the oldest make room for new ones."""
_SIZE = 24
"""Random bytes of a token: nobody guesses one."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """Whom a token logs in."""

    user_id: int
    token_name: str | None
    """The personal access token of the login that asked for it."""
    password_hash: str
    """A changed password makes the token invalid."""
    expires_at: int
    """Microseconds of the monotonic clock."""


class OneTimeTokens:
    """All that are not used yet."""

    def __init__(self, state: CatalogState, clock: Clock, draw: Callable[[int], bytes]) -> None:
        self._state = state
        self._clock = clock
        self._draw = draw
        self._grants: dict[bytes, _Grant] = {}

    def create(self, user: User, token_name: str | None) -> tuple[str, int]:
        """A token for a user, and when it expires, in microseconds since 1970."""
        now = self._clock.monotonic()
        self._grants = {key: grant for key, grant in self._grants.items() if grant.expires_at > now}
        if len(self._grants) >= _COUNT_MAX:
            del self._grants[next(iter(self._grants))]
        token = self._draw(_SIZE).hex()
        self._grants[hash_token(token)] = _Grant(user.user_id, token_name, user.password_hash, now + LIFE)
        return token, self._clock.now() + LIFE

    def take(self, token: str) -> tuple[User, str | None] | None:
        """The user of a token, and the personal access token behind it. None if it is no such token.

        Raises:
            CommandRejected: 54 if it has expired, or if what it was made with is not valid any more.
        """
        grant = self._grants.pop(hash_token(token), None)
        if grant is None:
            return None
        user = self._state.users.get(grant.user_id)
        if (
            user is None
            or grant.expires_at <= self._clock.monotonic()
            or not hmac.compare_digest(user.password_hash.encode(), grant.password_hash.encode())
            or (grant.token_name is not None and grant.token_name not in user.tokens)
        ):
            raise CommandRejected(ErrorCode.TOKEN_EXPIRED, "the link has expired; ask for a new one")
        return user, grant.token_name
