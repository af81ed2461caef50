"""``courser context``, ``login`` and ``logout``: which server, as whom; secrets are never shown."""

import json
import stat
import tomllib
from pathlib import Path

import pytest

from courser.cli.main import run
from tests.cli.commands import Cli, at_terminal, courser
from tests.cli.scenes import make_user
from tests.servers import RunningServer

SECRET = "canary-in-a-coal-mine"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "contexts.toml"


@pytest.fixture
def unset(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line without an address in the environment."""
    monkeypatch.delenv("COURSER_URL")
    return cli


def test_life_of_a_context(unset: Cli, file: Path, server: RunningServer) -> None:
    assert unset("context", "list").err == ("no contexts yet; courser dev and courser context create save one\n")
    assert unset("context", "create", "one", f"iggy://iggy:iggy@{server.address}").code == 0
    assert unset("context", "create", "two", "10.0.0.5:8090", "--user", "app", "--password", SECRET).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = json.loads(unset("context", "list", "-o", "json").out)
    assert rows == [
        {"selected": True, "name": "one", "url": f"iggy://{server.address}?username=iggy", "login": "password"},
        {"selected": False, "name": "two", "url": "iggy://10.0.0.5:8090?username=app", "login": "password"},
    ]
    assert unset("ping").code == 0
    assert unset("context", "use", "two").err == 'selected context "two"\n'
    assert unset("ping", "--context", "one").code == 0
    assert unset("--context", "one", "ping").code == 0
    assert unset("context", "delete", "two").code == 2
    assert unset("context", "delete", "two", "--yes", "-o", "json").out
    assert [row["selected"] for row in json.loads(unset("context", "list", "-o", "json").out)] == [False]


def test_secrets_are_never_shown(unset: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSER_TOKEN", SECRET)
    results = [
        unset("context", "create", "a", f"iggy://app:{SECRET}@127.0.0.1:1", "-o", "json"),
        unset("context", "create", "b", "127.0.0.1:1", "-o", "csv"),
        unset("context", "create", "c", f"iggy://{SECRET}-{SECRET}@127.0.0.1:1"),
        *(unset("context", verb, "-o", output) for verb in ("list", "show") for output in ("table", "json", "csv")),
        unset("context", "show", "a"),
        unset("context", "use", "a"),
        unset("ping"),
        unset("ping", "--url", f"iggy://app:{SECRET}@127.0.0.1:1"),
        unset("ping", "--url", f"nonsense://app:{SECRET}@127.0.0.1:1"),
    ]
    assert [result.code for result in results][-3:] == [3, 3, 2]
    assert not [result for result in results if SECRET in result.out + result.err]


def test_show_says_who_decided(unset: Cli, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    def shown(*arguments: str) -> tuple[str, str]:
        record = json.loads(unset("context", "show", "-o", "json", *arguments).out)
        return record["address"], record["source"]

    assert shown() == ("127.0.0.1:8090", "the default")
    unset("context", "create", "a", "a.example:1", "--user", "app", "--password", "x")
    unset("context", "create", "b", "b.example:2")
    assert shown() == ("a.example:1", 'context "a"')
    monkeypatch.setenv("COURSER_CONTEXT", "b")
    assert shown() == ("b.example:2", 'context "b" of COURSER_CONTEXT')
    monkeypatch.setenv("COURSER_URL", "c.example:3")
    assert shown() == ("c.example:3", "COURSER_URL")
    assert shown("--context", "a") == ("a.example:1", 'context "a"')
    assert shown("--url", "d.example:4") == ("d.example:4", "--url")
    assert shown("b") == ("b.example:2", 'context "b"')
    precedence = json.loads(unset("context", "show", "-o", "json").out)["precedence"]
    assert precedence[0] == "--url"
    text = unset("context", "show").out
    assert str(file) in text
    assert "COURSER_URL" in text


def test_the_login_of_the_environment_is_for_those_who_name_none(unset: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSER_USERNAME", "somebody")
    monkeypatch.setenv("COURSER_PASSWORD", SECRET)
    record = json.loads(unset("context", "show", "-o", "json").out)
    assert (record["username"], record["login"]) == ("somebody", "password")
    record = json.loads(unset("context", "show", "-o", "json", "--url", "iggy://a:b@h:1").out)
    assert record["username"] == "a"
    record = json.loads(unset("context", "show", "-o", "json", "--user", "c").out)
    assert (record["username"], record["login"]) == ("c", "password")
    record = json.loads(unset("context", "show", "-o", "json", "--token", "t").out)
    assert (record["username"], record["login"]) == (None, "token")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["context", "show", "prdo"], 5, 'did you mean "prod"?'),
        (["context", "use", "prdo"], 5, 'did you mean "prod"?'),
        (["context", "delete", "prdo", "--yes"], 5, 'did you mean "prod"?'),
        (["context", "create", "prod", "h:1"], 1, "--force"),
        (["context", "create", "x", "http://h:1"], 2, "only TCP"),
        (["context", "create", "x", "iggy://h:99999"], 2, "hint:"),
        (["ping", "--context", "prdo"], 5, 'did you mean "prod"?'),
        (["login", "--url", "h:1"], 2, "courser context create"),
        (["logout"], 5, "has no token"),
    ],
)
def test_mistakes(arguments: list[str], code: int, words: str, unset: Cli) -> None:
    unset("context", "create", "prod", "prod.example:1", "--user", "app", "--password", "x")
    result = unset(*arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert result.err.splitlines()[-1].startswith("hint:  ")


def test_a_file_that_is_not_understood(unset: Cli, file: Path) -> None:
    file.parent.mkdir()
    file.write_text("current = [")
    for arguments in (["context", "list"], ["context", "show"], ["ping"], ["login"]):
        result = unset(*arguments)
        assert result.code in (1, 2)
        assert "is not a valid contexts file" in result.err
        assert result.err.endswith("hint:  repair the file, or delete it to start over\n")
    assert unset("ping", "--url", "127.0.0.1:1").code == 3


def test_login_and_logout(unset: Cli, file: Path, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    unset("context", "create", "work", server.address)
    monkeypatch.setenv("COURSER_PASSWORD", "iggy")
    result = unset("login", "--user", "iggy", "1 hour")
    assert result.err == 'logged in as iggy; context "work" holds a token, valid for 1h\n'
    monkeypatch.delenv("COURSER_PASSWORD")
    saved = tomllib.loads(file.read_text())["contexts"]["work"]
    assert "password" not in saved
    token = saved["token"]
    assert token not in result.out + result.err
    assert unset("me").code == 0
    names = [entry["name"] for entry in json.loads(unset("pat", "list", "-o", "json").out)]
    # A token is not prolonged by itself.
    result = unset("login")
    assert result.code == 4
    assert result.err.startswith("error: the password of iggy is required")
    # Again: the old token goes.
    monkeypatch.setenv("COURSER_PASSWORD", "iggy")
    assert unset("login", "-o", "json").code == 0
    monkeypatch.delenv("COURSER_PASSWORD")
    assert [entry["name"] for entry in json.loads(unset("pat", "list", "-o", "json").out)] == names
    assert tomllib.loads(file.read_text())["contexts"]["work"]["token"] != token
    monkeypatch.setenv("COURSER_URL", server.address)
    assert unset("login").code == 2
    monkeypatch.delenv("COURSER_URL")
    assert unset("logout", "-o", "json").code == 0
    assert "token" not in tomllib.loads(file.read_text())["contexts"]["work"]
    assert unset("pat", "list", "--token", token).code == 4


def test_a_user_without_a_password_is_not_a_token(
    unset: Cli, file: Path, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in ([server.address, "--user", "iggy"], [f"iggy://iggy@{server.address}"]):
        assert unset("context", "create", "work", *arguments, "--force").code == 0
        saved = tomllib.loads(file.read_text())["contexts"]["work"]
        assert saved == {"url": f"iggy://{server.address}", "username": "iggy"}
        result = unset("ls")
        assert result.code == 4
        assert result.err.startswith("error: the password of iggy is required")
        monkeypatch.setenv("COURSER_PASSWORD", "iggy")
        assert unset("login").code == 0
        monkeypatch.delenv("COURSER_PASSWORD")
        assert unset("ls").code == 0
        assert unset("logout").code == 0
        assert "the password of iggy is required" in unset("ls").err
        monkeypatch.setenv("IGGY_PASSWORD", "iggy")
        assert unset("ls").code == 0
        monkeypatch.delenv("IGGY_PASSWORD")
    assert "the password of iggy is required" in unset("ls", "--url", f"iggy://iggy@{server.address}").err


def test_a_certificate_is_found_from_every_directory(
    unset: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert unset("context", "create", "safe", "iggy://a:bcd@h:1?tls=true&ca_file=keys/ca.pem").code == 0
    assert tomllib.loads(file.read_text())["contexts"]["safe"]["url"] == (
        f"iggy://h:1?tls=true&ca_file={tmp_path}/keys/ca.pem"
    )


def test_who_cannot_log_in_learns_where_the_password_comes_from(
    unset: Cli, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hint(*options: str) -> str:
        result = unset("me", *options)
        assert result.code == 4
        return result.err.partition("hint:  ")[2].rstrip()

    wrong = f"iggy://iggy:wrong@{server.address}"
    which = 'check the user name "iggy" and the password, which comes from'
    assert hint("--url", wrong) == f"{which} --url"
    assert hint("--url", wrong, "--password", "nonsense") == f"{which} --password"
    assert unset("context", "create", "mine", wrong).code == 0
    assert hint() == f'{which} context "mine"'
    monkeypatch.setenv("COURSER_PASSWORD", "nonsense")
    assert hint("--user", "iggy") == f"{which} COURSER_PASSWORD"
    assert hint("--url", f"iggy@{server.address}") == f"{which} the environment"


def test_a_password_is_asked_for_at_a_terminal_only(server: RunningServer, unset: Cli, tmp_path: Path) -> None:
    make_user(server.address, "asked")
    arguments = ["--url", server.address, "--user", "asked", "me"]
    result = courser(*arguments)
    assert (result.returncode, result.stdout) == (4, "")
    assert "no terminal to ask for it" in result.stderr
    assert "set COURSER_PASSWORD" in result.stderr
    terminal = at_terminal(arguments)
    terminal.read_until("password of asked")
    terminal.type("secret\n")
    assert terminal.end() == 0
    assert "transport" in terminal.text
    assert "secret" not in terminal.text


def test_the_address_of_a_command_may_stand_before_or_behind_it(server: RunningServer) -> None:
    url = f"iggy://iggy:iggy@{server.address}"
    assert run(["--url", url, "ping"]) == 0
    assert run(["ping", "--url", url]) == 0
    assert run(["--url", "127.0.0.1:1", "ping", "-u", url]) == 0
