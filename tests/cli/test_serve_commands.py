"""``courser serve`` and ``courser config``, as far as nothing is started."""

import tomllib
from pathlib import Path

import pytest

from courser.cli.main import run
from courser.server.configuration.reference import reference_markdown


@pytest.fixture(autouse=True)
def no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tests; a server would warn that it is no setting."""
    monkeypatch.delenv("COURSER_SEED")


def test_show_prints_what_holds_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server.toml"
    path.write_text("[tcp]\nipv6 = true\naddress = '127.0.0.1:1'\n[heartbeat]\ninterval = '5s'\n")
    monkeypatch.setenv("IGGY_CONFIG_PATH", str(path))
    monkeypatch.setenv("COURSER_HEARTBEAT_INTERVAL", "7s")
    assert run(["config", "show", "--set", "system.path=data"]) == 0
    out, err = capsys.readouterr()
    contents = tomllib.loads(out)
    assert contents["system"]["path"] == "data"
    assert contents["heartbeat"]["interval"] == "7s"
    assert f'address = "127.0.0.1:1"  # {path}\n' in out
    assert 'interval = "7s"  # COURSER_HEARTBEAT_INTERVAL\n' in out
    assert err == "warning: Iggy settings that Courser does not use, ignored: tcp.ipv6\n"


def test_show_masks_secrets_and_says_what_would_be_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_KEY", "canary")
    assert run(["config", "show"]) == 2
    out, err = capsys.readouterr()
    assert 'key = "***"' in out
    assert "canary" not in out + err
    assert "system.encryption.key (IGGY_SYSTEM_ENCRYPTION_KEY): a key must be 32 random bytes in base64" in err


def test_several_mistakes_are_several_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--set", "a=1", "--set", "tcp.enabled=x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith('error: a = "1" (--set): unknown key')
    assert err.splitlines()[1].startswith('       tcp.enabled = "x" (--set): expected true or false')
    assert err.splitlines()[2].startswith("hint:  courser config keys")


@pytest.mark.parametrize("command", [["config", "show"], ["doctor"], ["serve"], ["user", "reset-root", "--generate"]])
def test_an_invalid_configuration_has_one_exit_code(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--set", "tcp.enabled=x"]) == 2
    assert 'tcp.enabled = "x" (--set): expected true or false' in capsys.readouterr().err


def test_keys_prints_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "keys"]) == 0
    assert capsys.readouterr().out == reference_markdown()


def test_names_that_would_steer_a_terminal_are_made_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--set", "\x1b[31m=1"]) == 2
    assert "\x1b" not in capsys.readouterr().err
