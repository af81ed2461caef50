"""Logins of SDK 0.9: two forms that nothing tells apart, and the gate for other versions of the protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.api import commands as c
from courser.api.replies import LoggedIn
from courser.errors import CommandRejected, ErrorCode
from courser.wire.reading import Malformed
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_headers import HEADER_SIZE
from courser.wire.vsr_login import read_login
from courser.wire.writing import text8
from tests.wire.vsr_captures import channel_of, frame

VERSION = (11 << 10).to_bytes(4, "little")
SECRET = bytes(range(1, 33))
names = st.text(min_size=1, max_size=60)
contexts = st.binary(max_size=20)


def prefix(version: bytes = VERSION) -> bytes:
    return version + text8("rust-sdk") + text8("0.11.0")


def context(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def login(body: bytes) -> c.Command:
    return read_login(memoryview(body))


@given(names, names, contexts)
def test_a_password_is_found(name: str, password: str, data: bytes) -> None:
    command = login(prefix() + text8(name) + text8(password) + context(data))
    assert isinstance(command, c.LoginUser)
    assert (command.name, command.password, command.version) == (name, password, "0.11.0")
    assert command.context == data.decode(errors="replace")


@given(st.text(max_size=60))
def test_a_token_is_found(token: str) -> None:
    assert login(prefix() + text8(token) + context(b"")) == c.LoginWithToken(token, "0.11.0", sdk="rust-sdk")


@given(st.text(max_size=60), contexts)
def test_a_token_with_a_context_is_found_or_goes_along(token: str, data: bytes) -> None:
    command = login(prefix() + text8(token) + context(data))
    if isinstance(command, c.LoginUser):
        assert command.token == token
    else:
        assert command == c.LoginWithToken(token, "0.11.0", sdk="rust-sdk")


def test_bytes_that_end_well_in_both_forms() -> None:
    # A token with a context of 261 bytes, or a password of 5 bytes with a context of 255.
    body = prefix() + text8("name") + context(b"ab" + context(bytes(255)))
    assert login(body) == c.LoginUser("name", "\x01\0\0ab", "0.11.0", "\0" * 255, token="name", sdk="rust-sdk")


def test_the_form_that_ends_with_the_body_is_meant() -> None:
    # As a password, three bytes would be too few for the length of the context.
    assert login(prefix() + text8("name") + context(b"abcde")) == c.LoginWithToken("name", "0.11.0", sdk="rust-sdk")
    # As a password, there would be bytes behind it.
    body = prefix() + text8("name") + context(b"ab" + context(bytes(251)) + bytes(4))
    assert login(body) == c.LoginWithToken("name", "0.11.0", sdk="rust-sdk")


def test_bytes_behind_the_login_do_not_matter() -> None:
    command = login(prefix() + text8("iggy") + text8("secret") + context(b"") + b"more")
    assert command == c.LoginUser("iggy", "secret", "0.11.0", "", sdk="rust-sdk")


def logged_in(codec: VsrCodec, version: int, secret: bytes = b"") -> bytes:
    """The reply to a login of a client of some version, whatever it is."""
    body = prefix(version.to_bytes(4, "little")) + secret + text8("iggy") + text8("iggy") + context(b"")
    incoming = codec.decode(memoryview(frame(1, body, request=0, session=0)), is_logged_in=False)
    if incoming.answer is not None:
        return b"".join(incoming.answer)
    assert isinstance(incoming.command, c.LoginUser)
    assert (incoming.command.name, incoming.command.password) == ("iggy", "iggy")
    return b"".join(codec.encode_reply(incoming, LoggedIn(7, 9)))


@pytest.mark.parametrize("patch", [0, 1, 7, 1023])
@pytest.mark.parametrize(("line", "secret", "release"), [(11, b"", "0.9.0"), (12, SECRET, "0.10.0")])
def test_any_patch_of_a_version_is_welcome(patch: int, line: int, secret: bytes, release: str) -> None:
    warnings: list[str] = []
    version = (line << 10) + patch
    reply = logged_in(VsrCodec(warn=warnings.append), version, secret)
    told = version if line == 12 else 11 << 10
    login_reply = b"\7\0\0\0\x09" + bytes(7) + told.to_bytes(4, "little") + text8(release)
    assert reply[HEADER_SIZE:] == bytes(4) + login_reply
    # Only of a line that is still growing are later patches surprising.
    assert [words for words in warnings if f"speaks protocol 0.12.{patch}" in words] == warnings
    assert len(warnings) == (line == 12 and patch > 2)


@pytest.mark.parametrize("version", [0, 10 << 10, (11 << 10) - 1, 13 << 10, 1 << 20, (1 << 20) + (11 << 10), 2**32 - 1])
@pytest.mark.parametrize("secret", [b"", SECRET, b"\xff" * 32])
def test_other_versions_are_not(version: int, secret: bytes) -> None:
    warnings: list[str] = []
    answer = logged_in(VsrCodec(warn=warnings.append), version, secret)
    assert channel_of(answer) == ("evict", 14)
    assert answer[144:152] == ((12 << 10) + 2).to_bytes(4, "little") + VERSION
    assert len(warnings) == 1
    assert "the client ('rust-sdk 0.11.0') speaks protocol " in warnings[0]
    assert "0.12.0 to 0.12.2 (SDK 0.10)" in warnings[0]


@given(st.binary(min_size=32, max_size=32))
def test_the_secret_of_a_session_is_no_part_of_the_credentials(secret: bytes) -> None:
    body = prefix((12 << 10).to_bytes(4, "little")) + secret + text8("iggy") + text8("pass") + context(b"")
    command = read_login(memoryview(body), 32)
    assert isinstance(command, c.LoginUser)
    assert (command.name, command.password, command.sdk, command.version) == ("iggy", "pass", "rust-sdk", "0.11.0")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        VERSION,
        VERSION + text8("") + text8("1") + text8("iggy") + text8("iggy") + context(b""),
        VERSION + text8("x") + text8("") + text8("iggy") + text8("iggy") + context(b""),
        VERSION + b"\x02\xff\xfe" + text8("1") + text8("iggy") + text8("iggy") + context(b""),
        prefix() + text8("") + text8("secret") + context(b""),
        prefix() + text8("iggy") + text8("iggy"),
        prefix() + text8("iggy") + text8("iggy") + b"\x09\x00\x00\x00",
        prefix() + b"\x03\xff\xfe\xfd" + text8("secret") + context(b""),
        (12 << 10).to_bytes(4, "little") + b"\xff",
        (12 << 10).to_bytes(4, "little") + prefix()[4:] + SECRET[:31],
    ],
)
def test_what_is_no_login_is_evicted_as_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        login(body)
    incoming = VsrCodec().decode(memoryview(frame(1, body, request=0, session=0)), is_logged_in=False)
    assert incoming.answer is not None
    assert channel_of(b"".join(incoming.answer)) == ("evict", 15)


@pytest.mark.parametrize(
    ("code", "by_password", "by_token"),
    [
        (ErrorCode.INVALID_CREDENTIALS, ("evict", 9), ("evict", 10)),
        (ErrorCode.INVALID_USERNAME, ("evict", 9), ("evict", 10)),
        (ErrorCode.INVALID_PASSWORD, ("evict", 9), ("evict", 10)),
        (ErrorCode.USER_INACTIVE, ("evict", 9), ("evict", 10)),
        (ErrorCode.INVALID_TOKEN, ("evict", 10), ("evict", 10)),
        (ErrorCode.TOKEN_EXPIRED, ("evict", 10), ("evict", 10)),
        (ErrorCode.SERVER_BUSY, ("status", 20010), ("status", 20010)),
        (ErrorCode.UNAUTHENTICATED, ("evict", 1), ("evict", 1)),
        (ErrorCode.STALE_CLIENT, ("evict", 13), ("evict", 13)),
    ],
)
def test_refused_logins(code: ErrorCode, by_password: tuple[str, int], by_token: tuple[str, int]) -> None:
    for form, expected in ((text8("iggy") + text8("wrong"), by_password), (text8("token"), by_token)):
        codec = VsrCodec()
        request = frame(1, prefix() + form + context(b""), request=0, session=0)
        incoming = codec.decode(memoryview(request), is_logged_in=False)
        answer = codec.encode_failure(incoming, CommandRejected(code, "no"))
        assert channel_of(b"".join(answer)) == expected
