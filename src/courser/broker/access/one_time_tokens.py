"""Tokens that log in once, for links: whoever is logged in on a command line opens the console with one.

They are kept in memory only: a restart makes them invalid. Only their hashes are kept, as of other tokens.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from courser.broker.access.credentials import hash_token
from courser.catalog.entities import Token, User
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
    login: Token | None
    """The personal access token of the login that asked for it; None if it was the password."""
    password_hash: str
    expires_at: int
    """Microseconds of the monotonic clock."""


class OneTimeTokens:
    """All that are not used yet."""

    def __init__(self, state: CatalogState, clock: Clock, draw: Callable[[int], bytes]) -> None:
        self._state = state
        self._clock = clock
        self._draw = draw
        self._grants: dict[bytes, _Grant] = {}

    def create(self, user: User, login: Token | None) -> tuple[str, int]:
        """A token for a user who logged in by this token or by password, and when it expires (us since 1970)."""
        now = self._clock.monotonic()
        self._grants = {key: grant for key, grant in self._grants.items() if grant.expires_at > now}
        if len(self._grants) >= _COUNT_MAX:
            del self._grants[next(iter(self._grants))]
        token = self._draw(_SIZE).hex()
        self._grants[hash_token(token)] = _Grant(user.user_id, login, user.password_hash, now + LIFE)
        return token, self._clock.now() + LIFE

    def take(self, token: str) -> tuple[User, Token | None] | None:
        """The user of a token, and the personal access token behind it. None if it is no such token.

        Raises:
            CommandRejected: 54 if it has expired, or if what it was made with is not valid any more.
        """
        grant = self._grants.pop(hash_token(token), None)
        if grant is None:
            return None
        user = self._state.users.get(grant.user_id)
        if user is None or grant.expires_at <= self._clock.monotonic() or not self._has_login(user, grant):
            raise CommandRejected(ErrorCode.TOKEN_EXPIRED, "the link has expired; ask for a new one")
        return user, grant.login

    def _has_login(self, user: User, grant: _Grant) -> bool:
        """Whether what the grant was made with is still valid."""
        if grant.login is None:
            return hmac.compare_digest(user.password_hash.encode(), grant.password_hash.encode())
        # A token of the same name may be another one.
        return user.tokens.get(grant.login.name) == grant.login and not grant.login.is_expired(self._clock.now())
