"""Personal access tokens: create them, find them by hash, delete them, and remove expired ones."""

import asyncio
import logging
from typing import Protocol

from courser.broker.access.credentials import hash_token, make_token
from courser.broker.access.sessions import Session, Sessions
from courser.catalog import changes
from courser.catalog.entities import Token, User
from courser.catalog.state import CatalogState
from courser.catalog.transitions import Created
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock
from courser.model.quantities import NEVER

_log = logging.getLogger(__name__)

_TIME_MAX = 2**63 - 1
"""Microseconds since 1970: tokens that would expire later never expire. Clients use signed 64-bit integers."""


class Catalog(Protocol):
    """The part of the catalog service that tokens and authentication use."""

    @property
    def state(self) -> CatalogState:
        """The current state."""

    async def submit(self, change: changes.AnyChange) -> Created:
        """Make one change. Durable on return."""


class Tokens:
    """The tokens of all users. Every change to tokens goes through this class."""

    def __init__(self, catalog: Catalog, sessions: Sessions, clock: Clock, *, count_max: int) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._clock = clock
        self._count_max = count_max
        self._changes = asyncio.Lock()
        """Held from reading a token until it is changed: a name may be reused at once."""
        self._by_hash: dict[bytes, tuple[int, str]] = {
            token.token_hash: (user.user_id, token.name)
            for user in catalog.state.users.values()
            for token in user.tokens.values()
        }
        """User and name by hash. A cache: an entry counts only if it matches the catalog."""

    def find(self, secret: str) -> tuple[User, Token]:
        """The user and the name of a token.

        Raises:
            CommandRejected: 53 if the token does not exist, 54 if it has expired.
        """
        token_hash = hash_token(secret)
        user_id, name = self._by_hash.get(token_hash, (None, ""))
        user = None if user_id is None else self._catalog.state.users.get(user_id)
        token = None if user is None else user.tokens.get(name)
        if user is None or token is None or token.token_hash != token_hash:
            self._by_hash.pop(token_hash, None)
            raise CommandRejected(ErrorCode.INVALID_TOKEN, "the personal access token does not exist")
        if token.is_expired(self._clock.now()):
            raise CommandRejected(ErrorCode.TOKEN_EXPIRED, f"the personal access token {name!r} has expired")
        return user, token

    def of_login(self, session: Session) -> Token | None:
        """The token that a session logged in with; None if it was a password.

        Raises:
            CommandRejected: 41 if it has expired or was deleted. Such a session goes on, but makes no credentials.
        """
        name = session.token_name
        token = None if name is None or session.user_id is None else self._own(session.user_id).get(name)
        is_there = token is not None and token.token_hash == session.login_hash
        if name is not None and (token is None or not is_there or token.is_expired(self._clock.now())):
            reason = f"the personal access token {name!r} of this session is not valid any more; log in again"
            raise CommandRejected(ErrorCode.UNAUTHORIZED, reason)
        return token

    async def create(self, user_id: int, name: str, expiry: int, *, login: Token | None = None) -> str:
        """Create a token that is valid for ``expiry`` microseconds; 0 and ``NEVER`` are forever. Return its secret.

        ``login`` is the token that the user logged in with, if any: the new one may not outlive it.

        Raises:
            CommandRejected: the name is invalid (50) or taken (51), the user has too many tokens (52), or it would be
                valid for longer than ``login`` (41).
        """
        expires_at = 0 if expiry in (0, NEVER) else self._clock.now() + expiry
        if login is not None and login.expires_at and not 0 < expires_at <= login.expires_at:
            reason = (
                f"this session logged in with the token {login.name!r}, and a token that it creates may not outlive "
                "that one: choose an earlier expiry, or log in with the password"
            )
            raise CommandRejected(ErrorCode.UNAUTHORIZED, reason)
        async with self._changes:
            if len(self._own(user_id)) >= self._count_max:
                raise CommandRejected(ErrorCode.TOO_MANY_TOKENS, f"a user can have at most {self._count_max} tokens")
            secret = make_token()
            token_hash = hash_token(secret)
            change = changes.TokenCreation(user_id, name, token_hash, expires_at if expires_at <= _TIME_MAX else 0)
            await self._catalog.submit(change)
            self._by_hash[token_hash] = (user_id, name)
        return secret

    async def delete(self, user_id: int, name: str, *, by_client: int) -> None:
        """Delete a token and end the sessions that logged in with it, except the requesting one.

        Raises:
            CommandRejected: 20 if the token does not exist.
        """
        async with self._changes:
            await self._delete(user_id, name)
        error = CommandRejected(ErrorCode.UNAUTHENTICATED, "the token of this session was deleted; log in again")
        for session in self._sessions.of_user(user_id):
            if session.token_name == name and session.client_id != by_client:
                self._sessions.end(session, error)

    async def remove_expired(self) -> int:
        """Delete expired tokens and return how many. Sessions that logged in with one continue, as in Iggy."""
        expired = [
            (user.user_id, token)
            for user in self._catalog.state.users.values()
            for token in user.tokens.values()
            if token.is_expired(self._clock.now())
        ]
        count = 0
        for user_id, token in expired:
            async with self._changes:
                # Meanwhile the user may have replaced it with a token of the same name.
                if self._own(user_id).get(token.name) is token:
                    await self._delete(user_id, token.name)
                    count += 1
        return count

    async def clean(self, interval: int) -> None:
        """Remove expired tokens periodically, until cancelled. ``interval`` is in microseconds."""
        while True:
            await asyncio.sleep(interval / 1_000_000)
            try:
                count = await self.remove_expired()
            except CourserError as error:
                # Expired tokens are refused anyway; the next round tries again.
                _log.warning("could not remove expired tokens reason=%s", error)
            else:
                if count:
                    _log.info("expired tokens removed count=%d", count)

    def user_deleted(self, user: User) -> None:
        """Forget the tokens of a deleted user."""
        for token in user.tokens.values():
            self._by_hash.pop(token.token_hash, None)

    async def _delete(self, user_id: int, name: str) -> None:
        token = self._own(user_id).get(name)
        await self._catalog.submit(changes.TokenDeletion(user_id, name))
        if token is not None:
            self._by_hash.pop(token.token_hash, None)

    def _own(self, user_id: int) -> dict[str, Token]:
        user = self._catalog.state.users.get(user_id)
        return {} if user is None else user.tokens
