"""The target of a client: server, login and options, parsed from a connection string.

Forms: ``iggy://user:password@host:port``, ``iggy+tcp://``, ``courser://`` and plain ``host:port``; a token instead of
user and password; options after a question mark.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from courser.client.argument_checks import has_type
from courser.errors import TargetRefused
from courser.model.quantities import parse_seconds

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8090
DEFAULT_NAME = DEFAULT_PASSWORD = "iggy"
"""The login of a development server: tried only on this machine, and only if no login is given."""

_SCHEMES = ("iggy", "iggy+tcp", "courser", "courser+tcp")
_OTHER_TRANSPORTS = ("http", "https", "ws", "wss", "quic")
_TOKEN_LENGTH_MIN = 32
"""Of what is taken as a token. A user name has up to 50 characters, but rarely that many."""
_TOKEN_PREFIX = "iggypat-"
"""Of the tokens in Iggy's examples."""
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server, one login, and timeouts. Times are in seconds.

    Example:
        target = courser.Target(host="10.0.0.5", username="clerk", password="secret", tls=True)
        print(target.address, target.url, target.is_local)
    """

    host: str = DEFAULT_HOST
    """A name or an IP address."""
    port: int = DEFAULT_PORT
    """The TCP port."""
    username: str | None = None
    """The user; needs ``password``."""
    password: str | None = field(default=None, repr=False)
    """The password of the user."""
    token: str | None = field(default=None, repr=False)
    """A personal access token, instead of user and password."""
    tls: bool = False
    """Whether the connection is encrypted."""
    tls_ca_file: str | None = None
    """PEM file of the certificate authority; None uses those of the system."""
    tls_domain: str | None = None
    """The name in the server's certificate, if it is not the host."""
    tls_verify: bool = True
    """False accepts any certificate; for tests only."""
    connect_timeout: float = 5.0
    """How long connecting and logging in may take."""
    request_timeout: float = 30.0
    """How long a reply may take, and how long a request waits for a reconnect."""
    heartbeat_interval: float = 2.0
    """Idle time before a heartbeat. Servers remove silent group members: Iggy 0.8 after 6 s."""
    reconnect: bool = True
    """Whether to connect again after a connection broke."""
    reconnect_attempts: int | None = None
    """None: no limit while a request waits."""
    reconnect_interval: float = 0.1
    """The pause before the second attempt. It doubles with each attempt, up to ``reconnect_interval_max``."""
    reconnect_interval_max: float = 5.0
    """The longest pause between two attempts."""
    encryption_key: str | bytes | None = field(default=None, repr=False)
    """AES-256-GCM key for payloads: 32 bytes, or their Base64."""
    tracing: bool = False
    """Whether sent messages carry the trace context of OpenTelemetry, and handlers continue it; needs the extra
    ``otel``."""

    @property
    def address(self) -> str:
        """The address as ``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url(self) -> str:
        """The connection string, without secrets. Not ``iggy://user@host``: there, a long name would be a token."""
        options = ([f"username={quote(self.username, safe='')}"] if self.username else []) + ["tls=true"] * self.tls
        return f"iggy://{self.address}" + ("?" + "&".join(options) if options else "")

    def with_default_login(self) -> "Target":
        """The target with the login of a development server, if it has no login and is on this machine.

        Example:
            print(courser.Target().with_default_login().username)
        """
        if self.token is not None or self.username is not None or not self.is_local:
            return self
        return replace(self, username=DEFAULT_NAME, password=self.password or DEFAULT_PASSWORD)

    def check_login(self) -> None:
        """Check that the login is complete: a server takes a user name with an empty password for a token.

        Raises:
            TargetRefused: the user name or the password is missing.
        """
        if self.token is not None:
            return
        if self.username is not None and not self.password:
            raise TargetRefused(
                f'the password of user "{self.username}" is missing: pass password=, or set COURSER_PASSWORD'
            )
        if self.username is None and self.password is not None:
            raise TargetRefused("a password is given without a user name: pass username=, or set COURSER_USERNAME")


_KINDS = get_type_hints(Target)
"""The types of the options. A float is a time in seconds."""
_ALIASES = {
    "user": "username",
    "personal_access_token": "token",
    "tls_enabled": "tls",
    "tls_certificate": "tls_ca_file",
    "ca_file": "tls_ca_file",
    "reconnection_retries": "reconnect_attempts",
    "reconnection_interval": "reconnect_interval",
}
_IGNORED = frozenset({"nodelay", "reestablish_after", "no_delay"})
"""Options of other SDKs' connection strings that have no effect here."""


def parse_target(text: str, base: Target | None = None) -> Target:
    """Parse a connection string, or ``host:port``. Values that it does not set are taken from ``base``.

    Raises:
        TargetRefused: the text is invalid. The message contains no secrets.
    """
    url = text if "://" in text else f"iggy://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise TargetRefused(f"invalid address: {error}") from None
    _check_scheme(parts.scheme)
    if not parts.hostname or parts.path not in ("", "/") or parts.fragment:
        raise TargetRefused("an address must have the form iggy://user:password@host:port?option=value")
    values: dict[str, object] = {"host": parts.hostname, "port": DEFAULT_PORT if port is None else port}
    if parts.username is not None:
        name, password = unquote(parts.username), unquote(parts.password or "") or None
        if parts.password is None and _is_token(name):
            values |= {"token": name, "username": None, "password": None}
        else:
            values |= {"username": name, "password": password, "token": None}
    target = replace(base or Target(), **values)  # type: ignore[arg-type]  # built from the fields' own names
    return with_options(target, dict(parse_qsl(parts.query, keep_blank_values=True)))


def _is_token(text: str) -> bool:
    """Whether the login of an address without a password is a token rather than a user name.

    A user name must not be sent as a token. The tokens of Courser have 43 characters, those of Iggy 68.
    """
    return len(text) >= _TOKEN_LENGTH_MIN or text.startswith(_TOKEN_PREFIX)


def _check_scheme(scheme: str) -> None:
    if scheme in _SCHEMES:
        return
    transport = scheme.rpartition("+")[2]
    if transport in _OTHER_TRANSPORTS:
        raise TargetRefused(f'this client supports only TCP, not "{scheme}": use iggy://host:{DEFAULT_PORT}')
    raise TargetRefused(f'unknown scheme "{scheme}://": use iggy://, iggy+tcp:// or courser://')


def is_certificate_option(name: str) -> bool:
    """Whether an option of a connection string is the path of the file with trusted certificates."""
    return _ALIASES.get(name, name) == "tls_ca_file"


def with_options(target: Target, options: Mapping[str, object]) -> Target:
    """The target with options of a connection string, a context or a call; values may be text.

    Raises:
        TargetRefused: an option is unknown, or its value is invalid.
    """
    values: dict[str, object] = {}
    for name, value in options.items():
        key = _ALIASES.get(name, name)
        if key in _IGNORED:
            continue
        if key not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise TargetRefused(f'unknown connection option "{name}"; known are {known}')
        values[key] = checked = _value_of(key, value) if isinstance(value, str) else value
        if not has_type(checked, Target, key):
            raise TargetRefused(f'invalid value {checked!r} for option "{key}"')
    return replace(target, **values)  # type: ignore[arg-type]  # each by the kind of its field


def _value_of(key: str, text: str) -> object:
    try:
        if _KINDS[key] is bool:
            return _BOOLEANS[text.lower()]
        if _KINDS[key] is float:
            return parse_seconds(text)
        if _KINDS[key] is int:
            return int(text)
        if key == "reconnect_attempts":
            return None if text == "unlimited" else int(text)
    except (ValueError, KeyError):
        raise TargetRefused(f'invalid value "{text}" for option "{key}"') from None
    return text
