"""``courser dev``: one command, and everything else finds the server."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import courser, start


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_the_first_minutes(place: Path) -> None:
    with start("dev", "--port", 0) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        assert re.fullmatch(r"server   tcp 127\.0\.0\.1:\d+, local connections only\n", lines[0])
        assert lines[1] == "login    iggy / iggy\n"
        assert lines[2] == 'data     local_data    context "dev" saved and selected\n'
        # What is printed works as printed.
        assert lines[3] == """next     echo '{"n":1}' | courser send demo/orders --create\n"""
        sent = courser("send", "demo/orders", "--create", stdin='{"n":1}\n')
        assert sent.returncode == 0
        assert sent.stderr.splitlines()[-1] == "sent 1 message to demo/orders, partition 0, offset 0"
        assert lines[4] == "         courser tail demo/orders --from earliest --follow\n"
        assert re.fullmatch(
            r'0  \d\d:\d\d:\d\d\.\d{3}  \{"n":1\}\n', courser("tail", "demo/orders", "--from", "earliest").stdout
        )
        assert lines[5] == "         courser ls\n"
        heads, row = courser("ls").stdout.splitlines()
        assert heads.split() == ["STREAM", "TOPIC", "PARTS", "MESSAGES", "SIZE", "GROUPS", "MAX", "LAG"]
        assert row.split()[:4] == ["demo", "orders", "1", "1"]
        mistaken = courser("send", "demo/ordrs", "x")
        assert mistaken.returncode == 5
        assert mistaken.stderr.splitlines() == [
            'error: topic "ordrs" not found in stream "demo"',
            'hint:  did you mean "orders"? or pass --create to create a new one',
        ]
        code, errors = stop(process)
    assert (code, errors) == (0, "")
    # The data stays, and so does the context.
    with start("dev", "--port", 0, "-o", "json") as process:
        assert process.stdout is not None
        (facts,) = json.loads(process.stdout.readline())
        assert facts["context"] == "dev"
        assert facts["url"] == f"iggy://{facts['address']}"
        assert courser("tail", "demo/orders", "--raw").stdout == '{"n":1}\n'
        process.kill()


def test_an_environment_that_leads_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSER_URL", "elsewhere.example:1")
    with start("dev", "--port", 0) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "end      Ctrl-C\n":
            pass
        code, errors = stop(process)
    assert code == 0
    assert errors.startswith("warning: COURSER_URL overrides the selected context")


def test_a_port_that_is_taken(place: Path) -> None:
    with start("dev", "--port", 0, "-o", "jsonl") as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["address"].rpartition(":")[2]
        result = courser("dev", "--port", port, "--data", "other")
        assert result.returncode == 1
        assert "Address already in use" in result.stderr
        assert result.stderr.splitlines()[-1] == "hint:  courser dev --port 0 picks a free port"
        result = courser("dev", "--port", 0)
        assert result.returncode == 1
        assert "in use by another server" in result.stderr
        process.kill()


def test_without_a_place_for_contexts_it_still_works(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "blocked").write_text("")
    monkeypatch.setenv("COURSER_CONFIG_HOME", str(place / "blocked"))
    with start("dev", "--port", 0) as process:
        assert process.stdout is not None
        text = "".join(process.stdout.readline() for _ in range(3))
        assert "no context saved" in text
        code, errors = stop(process)
    assert code == 0
    assert errors.startswith('warning: cannot save the context "dev": ')
