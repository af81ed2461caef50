"""Login, logout and passwords.

An unknown user and a wrong password get the same reply after the same work. Hashing never blocks the event loop.
Passwords are hashed in a fair order (``login_queue``); a right one is not hashed again for some minutes
(``verified_passwords``). Failed logins delay later ones with the same name or from the same address
(``login_delays``). A valid token is never delayed.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from courser.api.replies import LoggedIn
from courser.broker.access.access_tokens import Access
from courser.broker.access.login_delays import LoginDelays
from courser.broker.access.login_queue import Asker, network_of
from courser.broker.access.one_time_tokens import OneTimeTokens
from courser.broker.access.password_pool import PasswordPool
from courser.broker.access.sessions import Memberships, Session, Sessions
from courser.broker.access.tokens import Catalog, Tokens
from courser.broker.access.verified_passwords import VerifiedPasswords
from courser.catalog import changes
from courser.catalog.entities import Token, User
from courser.catalog.rules import USER_NAME_SIZE_MAX, USER_NAME_SIZE_MIN
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.clock import Clock

_log = logging.getLogger(__name__)

PASSWORD_SIZE_MIN, PASSWORD_SIZE_MAX = 3, 100
"""Size of a password in bytes; every SDK checks the same limits."""

_REFUSAL_DELAY = 1_000_000
"""Microseconds before a client gets the error that too many clients log in at once. It must not retry sooner, and the
time must not reveal whether its login was checked anyway, as that of a known user is."""

Sleep = Callable[[float], Awaitable[None]]
"""Wait for a number of seconds."""


class Authentication:
    """Logs users in and out. One for all connections."""

    def __init__(
        self,
        catalog: Catalog,
        sessions: Sessions,
        groups: Memberships,
        tokens: Tokens,
        passwords: PasswordPool,
        clock: Clock,
        *,
        number_login: Callable[[], int],
        sleep: Sleep = asyncio.sleep,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.tokens = tokens
        self.one_time_tokens = OneTimeTokens(catalog.state, clock, draw)
        self._catalog = catalog
        self._sessions = sessions
        self._groups = groups
        self._passwords = passwords
        self._verified = VerifiedPasswords(clock)
        self._clock = clock
        self._delays = LoginDelays(clock)
        self._sleep = sleep
        self._number_login = number_login
        self._changes = asyncio.Lock()
        """Held from reading a password hash until it is replaced."""
        self.kept_access: dict[int, tuple[bytes, bytes]] = {}
        """By user: the access token over HTTP that has set the password, and the hash of that. It stays valid."""

    # --- logging in and out ---

    async def login(self, session: Session, name: str, password: str, token: str | None = None) -> LoggedIn:
        """Log in by password, or by a token that is sent in the same request. Replaces an earlier login.

        Raises:
            CommandRejected: 43 or 44 for a name or password of an invalid size, 42 if they do not match, 47 for the
                right password of an inactive user, 20010 if too many log in at once. The session is unchanged.
        """
        if token is not None:
            # Checked first, because it is cheap. A miss is not a failed login: it may be a password.
            try:
                owner, found = self.tokens.find(token)
            except CommandRejected:
                pass
            else:
                return self._admit(session, owner, found)
        check_user_name(name)
        check_password(password)
        user = await self._verify(session, name, password)
        reply = self._admit(session, user, None)
        self._delays.known.note(name, network_of(session.address))
        await self._renew_hash(session, user, password)
        return reply

    async def login_with_token(self, session: Session, token: str) -> LoggedIn:
        """Log in by personal access token, or by a token that is valid once.

        Raises:
            CommandRejected: 53 for an unknown token, 54 for an expired one, 47 for an inactive user.
        """
        once = self.one_time_tokens.take(token)
        if once is not None:
            return self._admit(session, *once)
        try:
            user, found = self.tokens.find(token)
        except CommandRejected:
            # Tokens cannot be guessed, so a valid one is not delayed. Clients that try are slowed down anyway.
            await self._wait(None, session)
            self._delays.failed(None, session.address)
            raise
        return self._admit(session, user, found)

    def logout(self, session: Session) -> None:
        """Log out. The connection stays open, but leaves its consumer groups."""
        self._groups.drop_session(session)
        session.user_id = session.token_name = session.access = None
        session.login_hash = b""

    def user_deleted(self, user: User) -> None:
        """A user was deleted: forget their tokens and end their sessions."""
        self.tokens.user_deleted(user)
        self.kept_access.pop(user.user_id, None)
        error = CommandRejected(ErrorCode.CLIENT_NOT_FOUND, "the user of this session was deleted")
        for session in self._sessions.of_user(user.user_id):
            self._sessions.end(session, error)

    def _admit(self, session: Session, user: User, token: Token | None) -> LoggedIn:
        if session.ended is not None:
            # The connection was closed while the password was checked: do not list it as logged in.
            raise session.ended.with_traceback(None)
        if not user.is_active:
            raise CommandRejected(ErrorCode.USER_INACTIVE, f"user {user.name!r} is inactive")
        if session.user_id != user.user_id:
            # The new user does not inherit memberships: they may not have the permission to read there.
            self._groups.drop_session(session)
        session.user_id, session.token_name = user.user_id, None if token is None else token.name
        session.login_hash = user.password_hash.encode() if token is None else token.token_hash
        session.session_number = self._number_login()
        return LoggedIn(user.user_id, session.session_number)

    # --- passwords ---

    async def hash_password(self, session: Session, password: str) -> str:
        """Hash a new password for the catalog, for a user who is logged in.

        Raises:
            CommandRejected: 44 for an invalid size, 20010 if too many are already waiting.
        """
        check_password(password)
        user = None if session.user_id is None else self._catalog.state.users.get(session.user_id)
        return await self._passwords.hash(self._asker(session, "" if user is None else user.name), password)

    async def change_password(self, session: Session, user_id: int, current: str, new: str) -> None:
        """Replace a password. Other sessions that logged in with the old one end, and so do other access tokens.

        Raises:
            CommandRejected: 42 if the current password is wrong, 44 for a password of an invalid size.
        """
        check_password(current)
        check_password(new)
        user = await self._verify(session, self._user(user_id).name, current)
        verified = user.password_hash
        password_hash = await self.hash_password(session, new)
        async with self._changes:
            if self._user(user_id).password_hash != verified:
                raise _invalid_credentials()
            if session.access is not None and session.user_id == user_id and session.token_name is None:
                # Before the change, so that no request in between is refused. It counts with the new password only.
                self.kept_access[user_id] = session.access.token_id, password_hash.encode()
            await self._catalog.submit(changes.PasswordChange(user_id, password_hash))
        error = CommandRejected(ErrorCode.UNAUTHENTICATED, "the password of this user was changed; log in again")
        for other in self._sessions.of_user(user_id):
            if other is not session and other.token_name is None and not _goes_on(other.access, session.access):
                self._sessions.end(other, error)

    async def _verify(self, session: Session, name: str, password: str) -> User:
        """Check a name and password and return the user. Raises ``CommandRejected`` (42, 20010)."""
        await self._wait(name, session)
        user = self._find(name)
        password_hash = None if user is None else user.password_hash
        asked_at = self._clock.monotonic()
        try:
            is_right = self._verified.has(password, password_hash) or await self._passwords.is_right(
                self._asker(session, name), password, password_hash
            )
        except CommandRejected:
            await self._sleep_for(asked_at + _REFUSAL_DELAY - self._clock.monotonic())
            self._note_failure(session, name)
            raise
        # Meanwhile the user may have been deleted or have a new password.
        user = self._find(name)
        if not is_right or user is None or user.password_hash != password_hash:
            self._note_failure(session, name)
            raise _invalid_credentials()
        if not self._verified.has(password, user.password_hash):
            self._verified.note(password, user.password_hash)
        self._delays.succeeded(name, session.address)
        session.has_failed_login = False
        return user

    def _asker(self, session: Session, name: str) -> Asker:
        network = network_of(session.address)
        return Asker(
            address=network,
            name=name,
            has_failed=session.has_failed_login,
            is_known=self._delays.known.has(name, network),
            is_there=lambda: session.ended is None,
        )

    def _note_failure(self, session: Session, name: str) -> None:
        session.has_failed_login = True
        self._delays.failed(name, session.address)

    async def _renew_hash(self, session: Session, user: User, password: str) -> None:
        """Rehash the password if the current parameters are stronger. A disk failure does not prevent the login."""
        verified = user.password_hash
        if not self._passwords.is_outdated(verified):
            return
        try:
            password_hash = await self.hash_password(session, password)
            async with self._changes:
                if user.password_hash == verified and user.user_id in self._catalog.state.users:
                    await self._catalog.submit(changes.PasswordChange(user.user_id, password_hash))
                    session.login_hash = password_hash.encode()
        except CourserError as error:
            _log.warning("could not renew the password hash user=%d reason=%s", user.user_id, error)

    async def _wait(self, name: str | None, session: Session) -> None:
        await self._sleep_for(self._delays.owed(name, session.address))

    async def _sleep_for(self, microseconds: int) -> None:
        if microseconds > 0:
            await self._sleep(microseconds / 1_000_000)

    def _find(self, name: str) -> User | None:
        state = self._catalog.state
        user_id = state.user_by_name.get(name)
        return None if user_id is None else state.users[user_id]

    def _user(self, user_id: int) -> User:
        user = self._catalog.state.users.get(user_id)
        if user is None:
            raise CommandRejected(ErrorCode.RESOURCE_NOT_FOUND, f"user {user_id} does not exist")
        return user


def _goes_on(access: Access | None, changing: Access | None) -> bool:
    """Whether an access token outlasts a new password: a trusted issuer's, and the one that has set the password."""
    if access is None:
        return False
    return access.is_foreign or (changing is not None and access.token_id == changing.token_id)


def check_user_name(name: str) -> None:
    """Raise ``CommandRejected`` (43) for a name that no user can have."""
    size = len(name.encode(errors="surrogatepass"))
    if not USER_NAME_SIZE_MIN <= size <= USER_NAME_SIZE_MAX:
        bounds = f"{USER_NAME_SIZE_MIN} to {USER_NAME_SIZE_MAX}"
        raise CommandRejected(ErrorCode.INVALID_USERNAME, f"a user name must have {bounds} bytes, not {size}")


def check_password(password: str) -> None:
    """Raise ``CommandRejected`` (44) for a password of an invalid size."""
    size = len(password.encode(errors="surrogatepass"))
    if not PASSWORD_SIZE_MIN <= size <= PASSWORD_SIZE_MAX:
        bounds = f"{PASSWORD_SIZE_MIN} to {PASSWORD_SIZE_MAX}"
        # The message does not contain the size, which is a hint at the password.
        raise CommandRejected(ErrorCode.INVALID_PASSWORD, f"a password must have {bounds} bytes")


def _invalid_credentials() -> CommandRejected:
    return CommandRejected(ErrorCode.INVALID_CREDENTIALS, "unknown user or wrong password")
