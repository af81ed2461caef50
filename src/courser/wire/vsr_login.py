"""The login of SDK 0.9: version of the protocol, name of the SDK, and either a password or a token.

Nothing in the bytes says which of the two it is. A token is followed by the length of its context, nearly always four
zeros, so that it reads as a user name with an empty password: that is taken as the token. If both readings are
possible, the password is tried first, and the token goes along.
"""

from courser.api.commands import LoginUser, LoginWithToken
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_headers import PROTOCOL_VERSION

PROTOCOL_VERSION_MAX = PROTOCOL_VERSION
PROTOCOL_VERSION_MIN = PROTOCOL_VERSION
"""What a client that is turned away is told; the patch number plays no part."""


class VersionRefused(Exception):
    """A client of another protocol version."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version

    def __str__(self) -> str:
        version = self.version
        return f"protocol {version >> 20}.{version >> 10 & 1023}.{version & 1023} is not spoken here"


def sdk_name_of(body: memoryview) -> str:
    """What the client's library calls itself; empty if the body does not say."""
    reader = Reader(body)
    try:
        reader.u32()
        return reader.name()
    except Malformed:
        return ""


def read_login(body: memoryview) -> LoginUser | LoginWithToken:
    """Understand the body of a Register.

    Raises:
        Malformed: neither form fits.
        VersionRefused: a form fits, but the client is of another version.
    """
    reader = Reader(body)
    version = reader.u32()
    reader.name()
    sdk_version = reader.name()
    login = _read_credentials(body, reader.position, sdk_version)
    if version >> 10 != PROTOCOL_VERSION >> 10:
        raise VersionRefused(version)
    return login


def _read_credentials(body: memoryview, position: int, sdk_version: str) -> LoginUser | LoginWithToken:
    by_password = _read_password_form(body, position)
    by_token = _read_token_form(body, position)
    if by_password is None and by_token is None:
        raise Malformed("the login is cut, or has an empty name")
    if by_password is None or (by_token is not None and by_token[1] == 0 and by_password[3] != 0):
        # Only the token's reading ends where the body ends.
        assert by_token is not None
        return LoginWithToken(by_token[0], sdk_version)
    name, password, context, rest = by_password
    token = by_token[0] if by_token is not None and by_token[1] <= rest else None
    return LoginUser(name, password, sdk_version, context, token)


def _read_password_form(body: memoryview, position: int) -> tuple[str, str, str, int] | None:
    """Name, password, context, and how many bytes are behind them."""
    reader = Reader(body, position)
    try:
        name, password = reader.name(), reader.name()
        context = _read_context(reader)
    except Malformed:
        return None
    return name, password, context, reader.remaining


def _read_token_form(body: memoryview, position: int) -> tuple[str, int] | None:
    """Token, and how many bytes are behind it and its context."""
    reader = Reader(body, position)
    try:
        token = reader.text8()
        _read_context(reader)
    except Malformed:
        return None
    return token, reader.remaining


def _read_context(reader: Reader) -> str:
    return str(reader.take(reader.u32()), "utf-8", "replace")
