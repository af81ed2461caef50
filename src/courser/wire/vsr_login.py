"""The login of SDK 0.9: protocol version, name of the SDK, and either a password or a token.

The bytes do not say which of the two it is. A token is followed by the length of its context, nearly always four zero
bytes, so that it looks like a user name with an empty password: this counts as a token. If both are possible, the
password is tried first, then the token.
"""

from courser.api.commands import LoginUser, LoginWithToken
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_headers import PROTOCOL_VERSION

PROTOCOL_VERSION_MAX = PROTOCOL_VERSION
PROTOCOL_VERSION_MIN = PROTOCOL_VERSION
"""The versions that a refused client gets; the patch number does not count."""


class VersionRefused(Exception):
    """A client of another protocol version."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version

    def __str__(self) -> str:
        version = self.version
        return f"protocol {version >> 20}.{version >> 10 & 1023}.{version & 1023} is not supported"


def sdk_name_of(body: memoryview) -> str:
    """The name of the client's library; empty if the body does not contain it."""
    reader = Reader(body)
    try:
        reader.u32()
        return reader.name()
    except Malformed:
        return ""


def read_login(body: memoryview) -> LoginUser | LoginWithToken:
    """Decode the body of a Register.

    Raises:
        Malformed: neither form matches.
        VersionRefused: a form matches, but the client has another version.
    """
    reader = Reader(body)
    version = reader.u32()
    sdk = reader.name()
    sdk_version = reader.name()
    login = _read_credentials(body, reader.position, sdk_version, sdk)
    if version >> 10 != PROTOCOL_VERSION >> 10:
        raise VersionRefused(version)
    return login


def _read_credentials(body: memoryview, position: int, sdk_version: str, sdk: str) -> LoginUser | LoginWithToken:
    by_password = _read_password_form(body, position)
    by_token = _read_token_form(body, position)
    if by_password is None and by_token is None:
        raise Malformed("the login is truncated or has an empty name")
    if by_password is None or (by_token is not None and by_token[1] == 0 and by_password[3] != 0):
        # Only the token form ends at the end of the body.
        assert by_token is not None
        return LoginWithToken(by_token[0], sdk_version, sdk)
    name, password, context, rest = by_password
    token = by_token[0] if by_token is not None and by_token[1] <= rest else None
    return LoginUser(name, password, sdk_version, context, token, sdk)


def _read_password_form(body: memoryview, position: int) -> tuple[str, str, str, int] | None:
    """Name, password, context, and how many bytes follow them."""
    reader = Reader(body, position)
    try:
        name, password = reader.name(), reader.name()
        context = _read_context(reader)
    except Malformed:
        return None
    return name, password, context, reader.remaining


def _read_token_form(body: memoryview, position: int) -> tuple[str, int] | None:
    """Token, and how many bytes follow it and its context."""
    reader = Reader(body, position)
    try:
        token = reader.text8()
        _read_context(reader)
    except Malformed:
        return None
    return token, reader.remaining


def _read_context(reader: Reader) -> str:
    return str(reader.take(reader.u32()), "utf-8", "replace")
