"""Access tokens of HTTP: JSON Web Tokens that a login returns and that each later request carries.

A token names its user, and what they logged in with: a password or a personal access token. It is valid only as long as
that is, so a new password or a deleted token makes it invalid, and a user who gets the id of a deleted one cannot use
theirs. One exception: the token with which a user has set a new password has proved the old one, and stays valid.
Tokens that were given back are listed on disk until they would have expired.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import xxhash

from courser.broker.access.access_token_settings import AccessTokenSettings
from courser.catalog.entities import User
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode, StartRefused, StorageFailure
from courser.model.clock import Clock
from courser.model.quantities import NEVER
from courser.storage.durable_files import make_directories, read_if_there, replace_file, storage_failure, sync_file
from courser.storage.files import File, FileSystem, write_all
from courser.storage.paths import ACCESS_TOKENS, REVOKED_TOKENS, TOKEN_KEY

_log = logging.getLogger(__name__)

_SECOND = 1_000_000
_KEY_SIZE = 32
_HASHES = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}
_NEVER_SECONDS = 1_000_000_000
"""How long a token is valid that never expires, as in Iggy: 31 years."""
TOKEN_LENGTH_MAX = 4096
_VERIFIED_COUNT = 1024
"""Tokens whose signatures need not be checked again. Everything else about them is."""
_REVOKED = struct.Struct("<16sQQ")
"""The id of a token, its expiry in seconds, and the XXH3 of both."""
_SPARE_COUNT = 4096
"""Entries of expired tokens beyond which the list is written anew."""


class _Claims(msgspec.Struct, omit_defaults=True):
    """What a token says. Times are in seconds since 1970."""

    jti: str
    iss: str
    aud: str | list[str]
    sub: str
    iat: int
    exp: int
    nbf: int
    login: str
    """Fingerprint of the password hash, or of the hash of the personal access token."""
    pat: str | None = None
    """The personal access token that was used to log in."""
    sdk: str | None = None
    """The release of the client, if what it reads differs from what others do."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who a valid access token lets in."""

    user: User
    token_name: str | None
    """The personal access token that was used to log in."""
    token_id: bytes
    expires_at: int
    """Seconds since 1970."""
    login_hash: bytes = b""
    """Of the password, or of the personal access token, that it depends on."""
    sdk: str | None = None
    """The release of the client, if what it reads differs from what others do."""
    is_foreign: bool = False
    """Whether a trusted issuer made it. It depends on neither, and may create no credentials."""


KeptAccess: TypeAlias = Mapping[int, tuple[bytes, bytes]]
"""By user: the id of the access token that has set the password, and the hash of that password."""


@dataclass(slots=True)
class _Verified:
    """A token with a right signature."""

    claims: _Claims
    token_id: bytes
    user_id: int
    access: Access | None = None
    """What it stood for when it was last checked."""


class AccessTokens:
    """Issues tokens, checks them and takes them back. ``open`` makes it."""

    def __init__(
        self,
        settings: AccessTokenSettings,
        state: CatalogState,
        clock: Clock,
        key: bytes,
        revoked: "_RevokedList",
        draw: Callable[[int], bytes],
        kept: KeptAccess,
    ) -> None:
        self._settings = settings
        self._state = state
        self._clock = clock
        self._key = key
        self._revoked = revoked
        self._draw = draw
        self._kept = kept
        self._verify = lru_cache(_VERIFIED_COUNT)(self._verified)
        """Clients send the same token with each request. Only tokens with a right signature are remembered."""
        self._fingerprint = lru_cache(_VERIFIED_COUNT)(self._fingerprint_of)
        self.on_revoke: Callable[[], None] = lambda: None
        """Called when a token has become invalid: whoever uses it for longer than one request checks it again."""
        self._head = _encoded(msgspec.json.encode({"typ": "JWT", "alg": settings.algorithm}))

    @classmethod
    async def open(
        cls,
        settings: AccessTokenSettings,
        state: CatalogState,
        clock: Clock,
        *,
        file_system: FileSystem,
        data_directory: Path,
        pool: Executor,
        draw: Callable[[int], bytes],
        kept: KeptAccess = MappingProxyType({}),
    ) -> "AccessTokens":
        """Read the key and the list of revoked tokens.

        Raises:
            StorageFailure: the disk refused.
            StartRefused: the list is damaged, and the key is set by the operator.
        """

        def read() -> tuple[bytes, _RevokedList]:
            directory = data_directory / ACCESS_TOKENS
            revoked = _RevokedList(file_system, directory / REVOKED_TOKENS, pool, clock.now() // _SECOND)
            if revoked.damage and settings.secret:
                raise _damaged_list(directory / REVOKED_TOKENS, revoked.damage)
            key_path = directory / TOKEN_KEY
            # A revoked token must not become valid again, and nobody knows which it was: a new key ends all of them.
            key = settings.secret or _stored_key(
                file_system, data_directory, key_path, draw, replaces=bool(revoked.damage)
            )
            revoked.drop_damage()
            return key, revoked

        key, revoked = await asyncio.get_running_loop().run_in_executor(pool, read)
        return cls(settings, state, clock, key, revoked, draw, kept)

    def issue(self, user_id: int, token_name: str | None, login_hash: bytes, sdk: str | None = None) -> tuple[str, int]:
        """A new token for a user who has just logged in, and when it expires, in seconds since 1970.

        ``login_hash`` is that of the password or token that was checked: another one may have taken its place since.
        """
        settings = self._settings
        now = self._clock.now() // _SECOND
        life = _NEVER_SECONDS if settings.expiry == NEVER else settings.expiry // _SECOND
        login = None if token_name is None else self._state.users[user_id].tokens.get(token_name)
        if login is not None and login.expires_at:
            # It must not outlive what it is made from, however often it is exchanged for another one.
            life = min(life, login.expires_at // _SECOND - now)
        claims = _Claims(
            jti=str(UUID(bytes=self._draw(16), version=4)),
            iss=settings.issuer,
            aud=settings.audience,
            sub=str(user_id),
            iat=now,
            exp=now + life,
            nbf=now + settings.not_before // _SECOND,
            login=self._fingerprint(user_id, login_hash),
            pat=token_name,
            sdk=sdk,
        )
        signed = self._head + b"." + _encoded(msgspec.json.encode(claims))
        return (signed + b"." + _encoded(self._signature(signed))).decode(), claims.exp

    def check(self, token: str) -> Access:
        """What a token stands for. Raises ``CommandRejected`` (40) if it is not valid."""
        verified = self._verify(token)
        claims, token_id = verified.claims, verified.token_id
        now, skew = self._clock.now() // _SECOND, self._settings.clock_skew // _SECOND
        if not claims.nbf - skew <= now < claims.exp + skew:
            raise invalid_token("it is expired, or not valid yet")
        if token_id in self._revoked:
            raise invalid_token("it was revoked")
        user = self._state.users.get(verified.user_id)
        login_hash = _login_hash(user, claims.pat)
        if user is None or not login_hash:
            raise _ended_login()
        is_same = hmac.compare_digest(self._fingerprint(user.user_id, login_hash), claims.login)
        if not is_same and not self._is_kept(user, token_id, login_hash):
            raise _ended_login()
        access = verified.access
        if access is None or access.user is not user or access.login_hash != login_hash:
            access = verified.access = Access(user, claims.pat, token_id, claims.exp, login_hash, claims.sdk)
        return access

    async def revoke(self, access: Access) -> None:
        """Make a token invalid, durably. Raises ``CommandRejected`` (40) if it already is, and ``StorageFailure``."""
        if access.token_id in self._revoked:
            raise invalid_token("it was revoked")
        skew = -(-self._settings.clock_skew // _SECOND)
        await self._revoked.add(access.token_id, access.expires_at + skew, self._clock.now() // _SECOND)
        self.on_revoke()

    def check_again(self, access: Access) -> None:
        """Raise ``CommandRejected`` (40) if a token that was valid is valid no more."""
        if self.is_revoked(access.token_id):
            raise invalid_token("it was revoked")
        if self.time_left(access) <= 0:
            raise invalid_token("it is expired")
        user = self._state.users.get(access.user.user_id)
        login_hash = b"" if access.is_foreign else _login_hash(user, access.token_name)
        if user is None or not (login_hash == access.login_hash or self._is_kept(user, access.token_id, login_hash)):
            raise _ended_login()

    def time_left(self, access: Access) -> int:
        """Microseconds until a token expires."""
        return access.expires_at * _SECOND + self._settings.clock_skew - self._clock.now()

    def is_revoked(self, token_id: bytes) -> bool:
        """Whether a token was made invalid."""
        return token_id in self._revoked

    def _verified(self, token: str) -> "_Verified":
        if len(token) > TOKEN_LENGTH_MAX or not token.isascii():
            raise invalid_token("it is not a token")
        signed, _, signature = token.encode().rpartition(b".")
        head, _, body = signed.partition(b".")
        try:
            # Only our own algorithm: a token must not choose how it is checked.
            if msgspec.json.decode(decode_part(head), type=dict[str, Any]).get("alg") != self._settings.algorithm:
                raise invalid_token("it is signed with another algorithm")
            if not hmac.compare_digest(self._signature(signed), decode_part(signature)):
                raise invalid_token("its signature is wrong")
            claims = msgspec.json.decode(decode_part(body), type=_Claims)
        except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError):
            raise invalid_token("it is not a token") from None
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if claims.iss not in self._settings.valid_issuers or not set(audiences) & set(self._settings.valid_audiences):
            raise invalid_token("it is made for another server")
        try:
            return _Verified(claims, UUID(claims.jti).bytes, int(claims.sub))
        except ValueError:
            raise invalid_token("it names no user") from None

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self._key, signed, _HASHES[self._settings.algorithm])

    def _is_kept(self, user: User, token_id: bytes, login_hash: bytes) -> bool:
        """Whether it is the token with which the user has set this password."""
        return self._kept.get(user.user_id) == (token_id, login_hash)

    def _fingerprint_of(self, user_id: int, login_hash: bytes) -> str:
        digest = hmac.digest(self._key, b"login %d %b" % (user_id, login_hash), hashlib.sha256)
        return _encoded(digest[:16]).decode()


def _login_hash(user: User | None, token_name: str | None) -> bytes:
    """Of what a user logged in with; empty if it does not exist any more."""
    if user is None:
        return b""
    if token_name is None:
        return user.password_hash.encode()
    token = user.tokens.get(token_name)
    return b"" if token is None else token.token_hash


def _ended_login() -> CommandRejected:
    return invalid_token("its user was deleted, or has changed the password or deleted the token of the login")


def invalid_token(reason: str) -> CommandRejected:
    """The refusal of an access token."""
    return CommandRejected(ErrorCode.UNAUTHENTICATED, f"the access token is not valid: {reason}")


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def decode_part(text: bytes) -> bytes:
    """The bytes of one part of a token. Raises ``binascii.Error``."""
    return base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)


# --- files --------------------------------------------------------------------------------------------


def _damaged_list(path: Path, damage: Sequence[int]) -> StartRefused:
    return StartRefused(
        path,
        f"{len(damage)} of the entries are damaged, the first at byte {damage[0]}: tokens that were revoked would be "
        "valid again",
        "change http.jwt.encoding_secret and http.jwt.decoding_secret, so that everybody has to log in again, and "
        "delete the file",
    )


def _stored_key(
    file_system: FileSystem, data_directory: Path, path: Path, draw: Callable[[int], bytes], *, replaces: bool
) -> bytes:
    """The key of earlier starts, or a new one. A damaged one is replaced: users log in again, and nothing else."""
    data = read_if_there(file_system, path)
    if len(data) != _KEY_SIZE or replaces:
        data = draw(_KEY_SIZE)
        try:
            make_directories(file_system, path.parent, below=data_directory)
            replace_file(file_system, path, data)
        except (OSError, StorageFailure) as error:
            # A full disk must not prevent a start: what it takes to make room is the server itself.
            _log.warning("could not store the key of access tokens; they are valid until the next start: %s", error)
    return data


class _RevokedList:
    """The revoked tokens that have not expired. Each is appended and synced; a torn last entry is overwritten.

    A start succeeds on a full disk: it writes only if it finds damage, and does without if that fails.
    """

    def __init__(self, file_system: FileSystem, path: Path, pool: Executor, now: int) -> None:
        """Blocks: it reads the file."""
        self._file_system = file_system
        self._path = path
        self._pool = pool
        self._expiries: dict[bytes, int] = {}
        self._lock = asyncio.Lock()
        self._is_behind = False
        """Whether the disk has refused a token, which nobody can revoke again: the next one writes it, too."""
        data = read_if_there(file_system, path)
        damage, checksum = [], 0
        for position in range(0, len(data) - _REVOKED.size + 1, _REVOKED.size):
            token_id, expires_at, checksum = _REVOKED.unpack_from(data, position)
            if checksum != _checksum(token_id, expires_at):
                damage.append(position)
            elif expires_at > now:
                self._expiries[token_id] = expires_at
        self._entry_count = len(data) // _REVOKED.size
        if damage and damage[-1] + 2 * _REVOKED.size > len(data) and not checksum:
            # The last entry is torn: its checksum was never written, and its revocation was never confirmed.
            damage.pop()
            self._entry_count -= 1
        self.damage: tuple[int, ...] = tuple(damage)
        """Positions of entries that cannot be read. Each was a revoked token."""

    def __contains__(self, token_id: bytes) -> bool:
        return token_id in self._expiries

    def drop_damage(self) -> None:
        """Write the list without its damaged entries: the key that signed their tokens is replaced. Blocks."""
        if not self.damage:
            return
        _log.error(
            "%d of the revoked access tokens cannot be read, because %s is damaged from byte %d on; the key was "
            "replaced, and everybody has to log in again. Tokens of trusted issuers that were revoked by a logout may "
            "be valid until they expire",
            len(self.damage),
            self._path,
            self.damage[0],
        )
        try:
            self._rewrite(self._packed())
        except (OSError, StorageFailure) as error:
            _log.warning("could not write the list of revoked tokens; the next start finds the damage again: %s", error)

    async def add(self, token_id: bytes, expires_at: int, now: int) -> None:
        """Add a token. Durable on return; it counts at once, also if the disk refuses."""
        self._expiries[token_id] = expires_at
        async with self._lock:
            was_behind, self._is_behind = self._is_behind, True
            run = asyncio.get_running_loop().run_in_executor
            if not self._entry_count:
                await run(self._pool, partial(self._create, self._packed()))
            elif was_behind or self._entry_count > 2 * len(self._expiries) + _SPARE_COUNT or self._has_expired(now):
                self._expiries = {known: expiry for known, expiry in self._expiries.items() if expiry > now}
                await run(self._pool, partial(self._rewrite, self._packed()))
            else:
                await run(self._pool, partial(self._append, _entry(token_id, expires_at)))
            self._is_behind = False

    def _has_expired(self, now: int) -> bool:
        """Whether so many have expired that forgetting them is worth the work."""
        if len(self._expiries) < _SPARE_COUNT or self._entry_count % _SPARE_COUNT:
            return False
        return sum(expiry <= now for expiry in self._expiries.values()) * 2 > len(self._expiries)

    def _packed(self) -> bytes:
        return b"".join(_entry(token_id, expires_at) for token_id, expires_at in self._expiries.items())

    def _create(self, data: bytes) -> None:
        directory = self._path.parent
        try:
            make_directories(self._file_system, directory, below=directory.parent)
        except OSError as error:
            raise storage_failure("create", directory, error) from error
        self._rewrite(data)

    def _rewrite(self, data: bytes) -> None:
        replace_file(self._file_system, self._path, data)
        self._entry_count = len(data) // _REVOKED.size

    def _append(self, entry: bytes) -> None:
        file: File | None = None
        try:
            file = self._file_system.open(self._path, writable=True)
            write_all(file, self._entry_count * _REVOKED.size, [entry])
            sync_file(file)
        except OSError as error:
            raise storage_failure("write", self._path, error) from error
        finally:
            if file is not None:
                file.close()
        self._entry_count += 1


def _entry(token_id: bytes, expires_at: int) -> bytes:
    return _REVOKED.pack(token_id, expires_at, _checksum(token_id, expires_at))


def _checksum(token_id: bytes, expires_at: int) -> int:
    return xxhash.xxh3_64_intdigest(token_id + expires_at.to_bytes(8, "little"))
