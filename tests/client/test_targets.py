"""Connection strings, saved contexts, and which of them wins."""

import stat
from pathlib import Path

import pytest

from courser.client.client import connect
from courser.client.contexts import Context, Contexts, contexts_path, load_contexts, resolve_target
from courser.client.sync import connect_sync
from courser.client.targets import Target, parse_target, with_options
from courser.errors import TargetRefused

# --- connection strings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iggy://iggy:iggy@localhost:8090", Target(host="localhost", username="iggy", password="iggy")),
        ("iggy+tcp://a:b@10.0.0.1:9000", Target(host="10.0.0.1", port=9000, username="a", password="b")),
        ("courser://host", Target(host="host")),
        ("host:1234", Target(host="host", port=1234)),
        ("[::1]:1234", Target(host="::1", port=1234)),
        ("iggy://a%40b:p%3Aw%2F@h", Target(host="h", username="a@b", password="p:w/")),
        ("iggy://iggypat-123@h:1", Target(host="h", port=1, token="iggypat-123")),
        (f"iggy://{'t' * 43}@h:1", Target(host="h", port=1, token="t" * 43)),
        # A user name without a password is no token.
        ("iggy://iggy@h:1", Target(host="h", port=1, username="iggy")),
        ("iggy://h?tls=true&tls_domain=d", Target(host="h", tls=True, tls_domain="d")),
        ("iggy://h?tls_ca_file=ca.pem", Target(host="h", tls_ca_file="ca.pem")),
        ("iggy://h?heartbeat_interval=5s&nodelay=true", Target(host="h", heartbeat_interval=5.0)),
        ("iggy://h?reconnection_retries=3", Target(host="h", reconnect_attempts=3)),
        ("iggy://h?reconnection_interval=500ms", Target(host="h", reconnect_interval=0.5)),
        ("iggy://h?reconnection_retries=unlimited&request_timeout=2.5", Target(host="h", request_timeout=2.5)),
    ],
)
def test_connection_strings(text: str, expected: Target) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://host:3000", "supports only TCP"),
        ("iggy+quic://host:3000", "supports only TCP"),
        ("kafka://host", "unknown"),
        ("iggy://", "iggy://user:password@host:port"),
        ("iggy://host:port", "invalid address"),
        ("iggy://host/path", "iggy://user:password@host:port"),
        ("iggy://host?colour=red", 'unknown connection option "colour"'),
        ("iggy://host?tls=perhaps", 'invalid value "perhaps"'),
        ("iggy://host?request_timeout=soon", 'invalid value "soon"'),
    ],
)
def test_addresses_that_make_no_sense(text: str, reason: str) -> None:
    with pytest.raises(TargetRefused, match=reason):
        parse_target(text)


def test_secrets_are_not_shown() -> None:
    target = parse_target("iggy://me:secret@host", Target(encryption_key="secret"))
    assert "secret" not in repr(target)
    assert target.url == "iggy://host:8090?username=me"
    assert parse_target(target.url) == Target(host="host", username="me")
    with pytest.raises(TargetRefused) as refused:
        parse_target("iggy://me:secret@host:port")
    assert "secret" not in str(refused.value)


def test_addresses_are_written_as_they_are_read() -> None:
    assert Target(host="::1").address == "[::1]:8090"
    assert Target(tls=True).url == "iggy://127.0.0.1:8090?tls=true"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("host", False)],
)
def test_the_login_of_a_development_server_is_tried_on_this_machine_only(host: str, is_local: bool) -> None:
    assert Target(host=host).with_default_login().username == ("iggy" if is_local else None)
    assert Target(host=host, token="t").with_default_login().username is None


def test_options_have_the_values_of_their_kind() -> None:
    target = with_options(Target(), {"tls": "yes", "port": "1", "user": "me", "reconnect": False, "connect_timeout": 1})
    assert (target.tls, target.port, target.username, target.reconnect, target.connect_timeout) == (
        True,
        1,
        "me",
        False,
        1,
    )


# --- contexts -----------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"COURSER_CONFIG_HOME": str(tmp_path / "configuration")}


def test_there_are_no_contexts_at_first(environment: dict[str, str]) -> None:
    contexts = load_contexts(environment)
    assert (dict(contexts.saved), contexts.current) == ({}, None)


def test_contexts_are_saved_for_their_owner_only(environment: dict[str, str]) -> None:
    context = Context(
        "iggy://host:1", "me", 'se"cret\\\n', None, {"tls": True, "request_timeout": 2.5, "tls_domain": "d"}
    )
    token = Context(token="t")
    load_contexts(environment).with_context("prod", context).with_context('odd "name".x', token).save()
    again = load_contexts(environment)
    assert dict(again.saved) == {"prod": context, 'odd "name".x': token}
    assert again.current == "prod"
    path = contexts_path(environment)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    target = again.get("prod").target()
    assert (target.host, target.username, target.password, target.tls) == ("host", "me", 'se"cret\\\n', True)


def test_contexts_are_chosen_and_removed(environment: dict[str, str]) -> None:
    contexts = load_contexts(environment).with_context("a", Context("iggy://a")).with_context("b", Context("iggy://b"))
    assert contexts.current == "a"
    assert contexts.selecting("b").current == "b"
    assert contexts.with_context("c", Context(), select=True).current == "c"
    assert contexts.without("a").current is None
    for forbidden in (contexts.without, contexts.selecting, contexts.get):
        with pytest.raises(TargetRefused, match="saved: a, b"):
            forbidden("x")


@pytest.mark.parametrize("text", ["current =", "[contexts.a]\nurl = 5", "[contexts.a]\ncolour = 'red'", "\xff"])
def test_a_file_that_makes_no_sense_is_named(environment: dict[str, str], text: str) -> None:
    path = contexts_path(environment)
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TargetRefused, match=path.name):
        load_contexts(environment)


def test_where_contexts_are(tmp_path: Path) -> None:
    assert contexts_path({"COURSER_CONFIG_HOME": "/c"}) == Path("/c/contexts.toml")
    assert contexts_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/courser/contexts.toml")
    assert contexts_path({"HOME": "/h"}) == Path("/h/.config/courser/contexts.toml")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {"COURSER_CONFIG_HOME": str(tmp_path / "file")}
    with pytest.raises(TargetRefused, match="cannot read"):
        load_contexts(environment)
    with pytest.raises(TargetRefused, match="cannot write"):
        Contexts(tmp_path / "file" / "contexts.toml").save()


# --- who wins -----------------------------------------------------------------------------------------


def test_argument_environment_context_default(environment: dict[str, str]) -> None:
    saved = load_contexts(environment).with_context("dev", Context("iggy://saved", "me", "p"))
    saved = saved.with_context("other", Context("iggy://other", token="t"))
    saved.save()
    everything = environment | {"COURSER_URL": "iggy://url", "COURSER_CONTEXT": "other"}

    def host(target: str | None = None, context: str | None = None, *, using: dict[str, str]) -> tuple[str, str]:
        resolved = resolve_target(target, context=context, environment=using)
        return resolved.target.host, resolved.source

    assert host("argument", using=everything) == ("argument", "the argument")
    assert host(context="dev", using=everything) == ("saved", 'context "dev"')
    assert host(using=everything) == ("url", "COURSER_URL")
    assert host(using=environment | {"IGGY_CONNECTION_STRING": "iggy://iggy"}) == ("iggy", "IGGY_CONNECTION_STRING")
    assert host(using=environment | {"COURSER_CONTEXT": "other"}) == ("other", 'context "other" of COURSER_CONTEXT')
    assert host(using=environment) == ("saved", 'context "dev"')
    assert host(using={"HOME": "/nowhere"}) == ("127.0.0.1", "the default")


def test_the_login_comes_from_the_environment_if_nothing_else_names_one() -> None:
    login = {"HOME": "/nowhere", "COURSER_USERNAME": "me", "IGGY_PASSWORD": "secret"}
    target = resolve_target("host", environment=login).target
    assert (target.username, target.password) == ("me", "secret")
    target = resolve_target("iggy://a:b@host", environment=login).target
    assert (target.username, target.password) == ("a", "b")
    target = resolve_target("host", environment=login | {"COURSER_TOKEN": "t"}).target
    assert (target.token, target.username) == ("t", None)
    assert resolve_target("10.1.1.1", environment={}).target.username is None


def test_a_password_that_is_missing_comes_from_the_environment() -> None:
    login = {"HOME": "/nowhere", "COURSER_PASSWORD": "secret"}
    assert resolve_target("host", environment=login, options={"username": "me"}).target.password == "secret"
    assert resolve_target("iggy://me:@host", environment=login).target.password == "secret"
    token = login | {"COURSER_TOKEN": "t"}
    assert resolve_target("host", environment=token, options={"username": "me"}).target.password == "secret"
    other = login | {"COURSER_USERNAME": "other"}
    target = resolve_target("host", environment=other, options={"username": "me"}).target
    assert (target.username, target.password) == ("me", None), "that is the password of somebody else"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (Target(username="me"), 'the password of user "me" is missing: pass password=, or set COURSER_PASSWORD'),
        (Target(username="me", password=""), 'the password of user "me" is missing'),
        (Target(host="host", password="secret"), "a password is given without a user name"),
    ],
)
def test_a_login_that_is_not_complete_is_never_sent(
    target: Target, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of 0.9 takes a name with an empty password for a token."""
    for variable in ("COURSER_PASSWORD", "IGGY_PASSWORD", "COURSER_USERNAME", "IGGY_USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(TargetRefused, match=reason):
        _ = connect(target)
    with pytest.raises(TargetRefused, match=reason):
        connect_sync(target)


def test_a_login_of_the_options_replaces_that_of_the_target() -> None:
    token, user = "iggy://secret@host", "iggy://a:b@host"
    target = resolve_target(token, environment={}, options={"username": "c", "password": "d"}).target
    assert (target.token, target.username, target.password) == (None, "c", "d")
    target = resolve_target(user, environment={}, options={"token": "t"}).target
    assert (target.token, target.username, target.password) == ("t", None, None)
    target = resolve_target(user, environment={}, options={"username": "c"}).target
    assert (target.username, target.password) == ("c", None), "that is the password of a"
    assert resolve_target(environment={"HOME": "/nowhere"}, options={"password": "p"}).target.username == "iggy"


def test_options_win_over_everything() -> None:
    resolved = resolve_target("iggy://a:b@host?tls=true", environment={}, options={"tls": False, "username": "c"})
    assert (resolved.target.tls, resolved.target.username) == (False, "c")
    assert resolve_target(Target(host="x"), environment={}).target.host == "x"
