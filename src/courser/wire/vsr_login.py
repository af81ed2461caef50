"""The login of SDK 0.9 and later: protocol version, name of the SDK, and either a password or a token.

The bytes do not say which of the two it is. A token is followed by the length of its context, nearly always four zero
bytes, so that it looks like a user name with an empty password: this counts as a token. If both are possible, the
password is tried first, then the token.

The version decides how the rest is read, and it is judged first: a client of another protocol learns that it has
another protocol, whatever follows.
"""

from courser.api.commands import LoginUser, LoginWithToken
from courser.wire.reading import Malformed, Reader


def version_of(body: memoryview) -> int:
    """The protocol version of the client. Raises ``Malformed``."""
    return Reader(body).u32()


def version_text(version: int) -> str:
    """A protocol version as people write it."""
    return f"{version >> 20}.{version >> 10 & 1023}.{version & 1023}"


def sdk_of(body: memoryview) -> str:
    """The name and the release of the client's library, as far as the body contains them."""
    reader = Reader(body)
    words = []
    try:
        reader.u32()
        words += [reader.name(), reader.name()]
    except Malformed:
        pass
    return " ".join(words)


def sdk_name_of(body: memoryview) -> str:
    """The name of the client's library; empty if the body does not contain it."""
    reader = Reader(body)
    try:
        reader.u32()
        return reader.name()
    except Malformed:
        return ""


def read_login(body: memoryview, secret_size: int = 0) -> LoginUser | LoginWithToken:
    """Decode the body of a Register.

    Args:
        body: what follows the header.
        secret_size: bytes before the credentials with which SDK 0.10 could resume the session on another connection.

    Raises:
        Malformed: neither form matches.
    """
    reader = Reader(body)
    reader.u32()
    sdk = reader.name()
    sdk_version = reader.name()
    reader.take(secret_size)
    return _read_credentials(body, reader.position, sdk_version, sdk)


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
