"""The web console: its files, its sessions, and what a request with its cookie may do.

The console is a client of the public API like any other. Its access token is in a cookie that scripts cannot read.
Browsers send cookies by themselves, so a cookie counts only if a page of this server makes the request: a request that
changes something must have a header that pages of other origins cannot set, and no request may come from another
origin, as far as the browser says where it comes from, in ``Sec-Fetch-Site`` and ``Origin``.
"""

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

import msgspec

from courser import __version__
from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.access_tokens import Access
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.transports.http_commands import HttpCommands, HttpServices
from courser.transports.http_exchange import Answer, Exchange
from courser.transports.settings import ConsoleSettings
from courser.wire.rest_failures import encode_failure
from courser.wire.rest_fields import RestRefused, permissions_to_json
from courser.wire.rest_own_routes import ConsoleLoginBody, ConsoleSessionView
from courser.wire.rest_requests import JSON_TYPE, RestRequest, from_json

_OK, _NO_CONTENT, _REDIRECT, _NOT_MODIFIED, _BAD_REQUEST, _FORBIDDEN, _NOT_FOUND = 200, 204, 307, 304, 400, 403, 404
CONSOLE_HEADER = b"x-courser-console"
_COOKIE = "courser_session"
_SAFE_METHODS = ("GET", "HEAD")
_USUAL_PORTS: Final = {"http": ":80", "https": ":443"}
_START_PAGE = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILE_NAME: Final = re.compile(rb'\b(href|src)="(\w+\.\w+)"')
"""A file that the page names."""
_FILE_COUNT_MAX = 100
"""Files that are kept in memory: all there are."""

PAGE_HEADERS = {
    # No script and no style but those of the server itself, and no text that becomes HTML.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
PRIVATE = {"cache-control": "no-store"}
"""Nothing that a user may see stays in a cache."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the console."""

    data: bytes
    packed: bytes
    """With gzip."""
    content_type: str
    tag: str


@lru_cache(_FILE_COUNT_MAX)
def _read(name: str) -> _File | None:
    ending = name[name.rfind(".") :]
    if ending not in _TYPES or "/" in name or name.startswith("."):
        return None
    path = files("courser") / "console" / name
    if not path.is_file():
        return None
    data = path.read_bytes()
    if name == _START_PAGE:
        data = _FILE_NAME.sub(rb'\1="%b/\2"' % files_version().encode(), data)
    return _File(data, gzip.compress(data, mtime=0), _TYPES[ending], f'"{_hash_of(data)}"')


@lru_cache(1)
def files_version() -> str:
    """Changes with every file. It is a part of their addresses, so a browser never has to ask for one again."""
    paths = sorted((files("courser") / "console").iterdir(), key=lambda path: path.name)
    return _hash_of(b"".join(path.name.encode() + path.read_bytes() for path in paths if path.is_file()))


def _hash_of(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


_login_decoder = msgspec.json.Decoder(ConsoleLoginBody)


class Console:
    """Answers the routes below ``/ui``, and finds the access token in a cookie."""

    def __init__(
        self, services: HttpServices, commands: HttpCommands, settings: ConsoleSettings, body_size_max: int
    ) -> None:
        self._services = services
        self._commands = commands
        self._settings = settings
        self._body_size_max = body_size_max

    # --- files ---

    async def redirect(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        """Relative, because a proxy may have put something before the path."""
        return Answer(_REDIRECT, headers={"location": "ui/"})

    async def page(self, exchange: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        """The one page; everything else is loaded by it."""
        return _file_answer(exchange, _START_PAGE)

    async def file(self, exchange: Exchange, values: Mapping[str, str], _access: Access | None) -> Answer:
        """A script, a style or an image."""
        return _file_answer(exchange, values["file"])

    async def versioned_file(self, exchange: Exchange, values: Mapping[str, str], _access: Access | None) -> Answer:
        """A file as the page names it. A page of before an update gets what there is now, but keeps none of it."""
        return _file_answer(exchange, values["file"], is_final=values["version"] == files_version())

    # --- sessions ---

    async def log_in(self, exchange: Exchange, values: Mapping[str, str], _access: Access | None) -> Answer:
        """Log in by the same commands as on every other transport, so the same delays apply."""
        if not exchange.header(CONSOLE_HEADER) or _is_foreign(exchange):
            raise _not_from_console()
        body = await self._commands.read_body(exchange, self._body_size_max)
        login = from_json(RestRequest(values, {}, exchange.header(b"content-type"), body), _login_decoder)
        command: c.Command = c.LoginUser(login.username, login.password)
        if login.token:
            command = c.LoginWithToken(login.token)
        session = self._commands.make_session(exchange, None)
        try:
            reply = await self._commands.carry_out(exchange, session, command)
        except CourserError as error:
            status, text = encode_failure(type(command), error)
            return Answer(status, text, JSON_TYPE, PRIVATE)
        assert isinstance(reply, r.LoggedIn), "logins have this reply"
        token, expires_at = self._services.tokens.issue(reply.user_id, session.token_name, session.login_hash)
        view = self._view(self._services.tokens.check(token))
        cookie = self._cookie(exchange, token, expires_at)
        return Answer(_OK, msgspec.json.encode(view), JSON_TYPE, {**PRIVATE, "set-cookie": cookie})

    async def show(self, _: Exchange, _values: Mapping[str, str], access: Access | None) -> Answer:
        """Who is logged in."""
        assert access is not None, "the route is not public"
        if not access.user.is_active:
            raise CommandRejected(ErrorCode.USER_INACTIVE, f"user {access.user.name!r} is inactive")
        return Answer(_OK, msgspec.json.encode(self._view(access)), JSON_TYPE, PRIVATE)

    async def log_out(self, exchange: Exchange, _values: Mapping[str, str], access: Access | None) -> Answer:
        """The token is revoked, and the cookie is gone."""
        assert access is not None, "the route is not public"
        session = self._commands.make_session(exchange, access)
        await self._commands.carry_out(exchange, session, c.LogoutUser())
        await self._services.tokens.revoke(access)
        return Answer(_NO_CONTENT, headers={**PRIVATE, "set-cookie": self._cookie(exchange, "", 0)})

    def _view(self, access: Access) -> ConsoleSessionView:
        user = access.user
        return ConsoleSessionView(
            user_id=user.user_id,
            username=user.name,
            permissions=permissions_to_json(user.permissions),
            expires_at=access.expires_at,
            read_only=self._settings.is_read_only,
            version=__version__,
        )

    # --- the cookie ---

    def token_of(self, exchange: Exchange) -> str | None:
        """The access token in the cookie; None if there is none. Raises ``RestRefused`` if it does not count here."""
        name = _cookie_name(exchange)
        cookies = exchange.header(b"cookie").split("; ")
        token = next((cookie[len(name) + 1 :] for cookie in cookies if cookie.startswith(f"{name}=")), "")
        if not token:
            return None
        is_own = exchange.header(b"sec-fetch-site") == "same-origin" and exchange.method in _SAFE_METHODS
        if _is_foreign(exchange) or not (is_own or exchange.header(CONSOLE_HEADER)):
            raise _not_from_console()
        if self._settings.is_read_only and _is_change(exchange):
            raise RestRefused(_FORBIDDEN, "the console is read only on this server: ui.read_only is set")
        return token

    def _cookie(self, exchange: Exchange, token: str, expires_at: int) -> str:
        parts = [
            f"{_cookie_name(exchange)}={token}",
            f"Path={self._settings.base_path or '/'}",
            f"Expires={formatdate(min(expires_at, _EXPIRY_MAX), usegmt=True)}",
            "HttpOnly",
            "SameSite=Strict",
        ]
        if exchange.scheme == "https" or exchange.header(b"x-forwarded-proto") == "https":
            parts.append("Secure")
        return "; ".join(parts)


_EXPIRY_MAX = 253_402_300_799
"""The last second of the year 9999: later ones have no date."""


def _cookie_name(exchange: Exchange) -> str:
    """With the port: a browser sends the cookies of one server on a machine to all others there."""
    return f"{_COOKIE}_{exchange.port}"


def _is_change(exchange: Exchange) -> bool:
    if exchange.method in _SAFE_METHODS:
        # The one read that stores something.
        return exchange.query.get("auto_commit", "false") != "false"
    return not exchange.path.endswith(b"/ui/session")


def _is_foreign(exchange: Exchange) -> bool:
    """Whether the browser says that a page of another origin makes the request."""
    site, origin = exchange.header(b"sec-fetch-site"), exchange.header(b"origin")
    if site or not origin:
        # The browser has compared the origin with the address as it knows it. Proxies may have changed the header Host.
        return site not in ("", "same-origin")
    scheme, _, address = origin.lower().partition("://")
    host = exchange.header(b"host").lower()
    return not address or _without_port(address, scheme) != _without_port(host, scheme)


def _without_port(address: str, scheme: str) -> str:
    """A host and port, without a port that goes without saying."""
    return address.removesuffix(_USUAL_PORTS.get(scheme, ":"))


def _not_from_console() -> RestRefused:
    return RestRefused(
        _FORBIDDEN,
        "the cookie of the console counts only for requests of its own page, with the header X-Courser-Console; "
        "programs send an access token in the header Authorization",
    )


def _file_answer(exchange: Exchange, name: str, *, is_final: bool = False) -> Answer:
    file = _read(name)
    if file is None:
        raise RestRefused(_NOT_FOUND, "the console has no such file")
    # The page is always asked for again, and seldom sent again: an update of the server takes effect at once.
    caching = "public, max-age=31536000, immutable" if is_final else "no-cache"
    headers = {**PAGE_HEADERS, "cache-control": caching, "etag": file.tag, "vary": "accept-encoding"}
    if exchange.header(b"if-none-match") == file.tag:
        return Answer(_NOT_MODIFIED, headers=headers)
    if "gzip" in exchange.header(b"accept-encoding"):
        return Answer(_OK, file.packed, file.content_type, {**headers, "content-encoding": "gzip"})
    return Answer(_OK, file.data, file.content_type, headers)
