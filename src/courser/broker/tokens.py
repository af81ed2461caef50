"""Personal access tokens: made, found by their hash, deleted, and cleared away when they have expired."""

import asyncio
import logging
from typing import Protocol

from courser.broker.credentials import hash_token, make_token
from courser.broker.sessions import Sessions
from courser.catalog import changes
from courser.catalog.entities import Token, User
from courser.catalog.state import CatalogState
from courser.catalog.transitions import Created
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.topic_options import NEVER

_log = logging.getLogger(__name__)

_TIME_MAX = 2**63 - 1
"""Microseconds since 1970: what would expire later, never does. Clients count in signed 64 bits."""


class Catalog(Protocol):
    """What accounts need of the metadata."""

    @property
    def state(self) -> CatalogState:
        """Everything as it is now."""

    async def submit(self, change: changes.AnyChange) -> Created:
        """Make one change, durably."""


class Tokens:
    """The tokens of all users. Every change of tokens goes through here."""

    def __init__(self, catalog: Catalog, sessions: Sessions, clock: Clock, *, count_max: int) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._clock = clock
        self._count_max = count_max
        self._changes = asyncio.Lock()
        """Held from a look at a token to the change of it: a name may be used again at once."""
        self._by_hash: dict[bytes, tuple[int, str]] = {
            token.token_hash: (user.user_id, token.name)
            for user in catalog.state.users.values()
            for token in user.tokens.values()
        }
        """User and name. A hint: an entry counts only if the catalog says the same."""

    def find(self, secret: str) -> tuple[User, Token]:
        """Whose token this is.

        Raises:
            CommandRejected: 53 if there is no such token, 54 if it has expired.
        """
        token_hash = hash_token(secret)
        user_id, name = self._by_hash.get(token_hash, (None, ""))
        user = None if user_id is None else self._catalog.state.users.get(user_id)
        token = None if user is None else user.tokens.get(name)
        if user is None or token is None or token.token_hash != token_hash:
            self._by_hash.pop(token_hash, None)
            raise CommandRejected(ErrorCode.INVALID_TOKEN, "there is no such personal access token")
        if self._is_expired(token):
            raise CommandRejected(ErrorCode.TOKEN_EXPIRED, f"the personal access token {name!r} has expired")
        return user, token

    async def create(self, user_id: int, name: str, expiry: int) -> str:
        """Make a token that lives for so many microseconds; 0 and ``NEVER`` are for ever. Return its secret.

        Raises:
            CommandRejected: the name is bad (50) or taken (51), or there are too many already (52).
        """
        expires_at = 0 if expiry in (0, NEVER) else self._clock.now() + expiry
        async with self._changes:
            if len(self._own(user_id)) >= self._count_max:
                raise CommandRejected(ErrorCode.TOO_MANY_TOKENS, f"a user has at most {self._count_max} tokens")
            secret = make_token()
            token_hash = hash_token(secret)
            change = changes.CreateToken(user_id, name, token_hash, expires_at if expires_at <= _TIME_MAX else 0)
            await self._catalog.submit(change)
            self._by_hash[token_hash] = (user_id, name)
        return secret

    async def delete(self, user_id: int, name: str, *, by_client: int) -> None:
        """Delete a token, and end the sessions that logged in with it, but for the one that asks.

        Raises:
            CommandRejected: 20 if there is no such token.
        """
        async with self._changes:
            await self._delete(user_id, name)
        error = CommandRejected(ErrorCode.UNAUTHENTICATED, "the token of this login was deleted: log in again")
        for session in self._sessions.of_user(user_id):
            if session.token_name == name and session.client_id != by_client:
                self._sessions.end(session, error)

    async def remove_expired(self) -> int:
        """Delete the tokens that have expired. Return how many. Sessions that used one go on, as in Iggy."""
        expired = [
            (user.user_id, token)
            for user in self._catalog.state.users.values()
            for token in user.tokens.values()
            if self._is_expired(token)
        ]
        count = 0
        for user_id, token in expired:
            async with self._changes:
                # Meanwhile the user may have deleted it, and made another one of the same name.
                if self._own(user_id).get(token.name) is token:
                    await self._delete(user_id, token.name)
                    count += 1
        return count

    async def clean(self, interval: int) -> None:
        """Remove expired tokens every so many microseconds, until cancelled."""
        while True:
            await asyncio.sleep(interval / 1_000_000)
            try:
                count = await self.remove_expired()
            except CourserError as error:
                # They have expired all the same; the next turn tries again.
                _log.warning("expired tokens not removed reason=%s", error)
            else:
                if count:
                    _log.info("expired tokens removed count=%d", count)

    def user_deleted(self, user: User) -> None:
        """Forget the tokens of a user that is gone."""
        for token in user.tokens.values():
            self._by_hash.pop(token.token_hash, None)

    async def _delete(self, user_id: int, name: str) -> None:
        token = self._own(user_id).get(name)
        await self._catalog.submit(changes.DeleteToken(user_id, name))
        if token is not None:
            self._by_hash.pop(token.token_hash, None)

    def _own(self, user_id: int) -> dict[str, Token]:
        user = self._catalog.state.users.get(user_id)
        return {} if user is None else user.tokens

    def _is_expired(self, token: Token) -> bool:
        return 0 < token.expires_at <= self._clock.now()
