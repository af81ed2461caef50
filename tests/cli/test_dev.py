"""``courser dev``: one command, and everything else finds the server. A root password that was lost."""

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from courser.cli.serve_commands import forget_dev_context, greet, save_dev_context
from courser.client.contexts import Context, load_contexts
from courser.server.server import Listening
from tests.cli.commands import courser, in_this_process, start
from tests.server.test_root_user import log_in, make_directory
from tests.servers import RunningServer


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


def test_a_root_user_of_an_earlier_start(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its password is neither announced as iggy nor saved; a lost one is replaced."""
    asyncio.run(make_directory(place / "local_data", "forgotten"))
    with start("dev", "--port", 0) as process:
        assert process.stdout is not None
        _, login, advice, data = (process.stdout.readline() for _ in range(4))
        assert login == "login    iggy, with the password of an earlier start\n"
        assert advice == "         if it is lost: Ctrl-C, courser user reset-root --data local_data\n"
        assert data == 'data     local_data (existing data)    context "dev" saved and selected\n'
        cli = in_this_process(capsys)
        assert "password of iggy is required" in cli("ls").err
        assert cli("ls", "--user", "iggy", "--password", "forgotten").code == 0
        result = cli("user", "reset-root", "--data", "local_data", "--generate")
        assert result.code == 1
        assert "in use by another server" in result.err
        assert stop(process) == (0, "")


def test_reset_root(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cli = in_this_process(capsys)
    asyncio.run(make_directory(place / "local_data", "forgotten"))
    result = cli("user", "reset-root")
    assert result.code == 1
    assert result.err.endswith("hint:  set COURSER_NEW_PASSWORD, or pass --generate\n")
    result = cli("user", "reset-root", "--generate")
    assert (result.code, result.err) == (0, 'changed the password of the root user "iggy" in local_data\n')
    asyncio.run(log_in(place / "local_data", result.out.strip()))
    monkeypatch.setenv("COURSER_NEW_PASSWORD", "found again")
    assert cli("user", "reset-root", "--data", "local_data", "-o", "json").code == 0
    asyncio.run(log_in(place / "local_data", "found again"))
    monkeypatch.setenv("COURSER_NEW_PASSWORD", "no")
    assert cli("user", "reset-root").code == 2
    result = cli("user", "reset-root", "--data", "none", "--generate")
    assert (result.code, (place / "none").exists()) == (1, False)
    assert "not the data directory of a server" in result.err


def listening(address: str, password: str | None = "iggy") -> Listening:
    return Listening(
        address, f"iggy://{address}", is_first_start=True, username="iggy", console_url=None, password=password
    )


def test_a_second_server_leaves_the_context_of_the_first_alone(server: RunningServer) -> None:
    assert save_dev_context(listening(server.address)) == "dev"
    assert save_dev_context(listening("127.0.0.1:1")) == "dev-2"
    contexts = load_contexts()
    assert contexts.current == "dev"
    assert contexts.get("dev").target().address == server.address
    assert contexts.get("dev-2").target().address == "127.0.0.1:1"
    # The context of a second server goes with it; the usual one stays for the next start.
    forget_dev_context("dev-2")
    forget_dev_context("dev")
    assert list(load_contexts().saved) == ["dev"]


def test_the_context_of_a_server_that_is_gone_is_replaced() -> None:
    assert save_dev_context(listening("127.0.0.1:1")) == "dev"
    assert save_dev_context(listening("127.0.0.1:2", password=None)) == "dev"
    saved = load_contexts().get("dev")
    assert (saved.url, saved.username, saved.password) == ("iggy://127.0.0.1:2", "iggy", None)


def test_a_context_of_that_name_for_another_machine_is_kept() -> None:
    load_contexts().with_context("dev", Context("iggy://elsewhere.example:1")).save()
    assert save_dev_context(listening("127.0.0.1:1")) == "dev-2"


def test_the_commands_that_a_second_server_prints_name_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    greet(listening("127.0.0.1:1"), Path("other"), "dev-2", "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == 'data     other    context "dev-2" saved'
    assert lines[5] == "         courser --context dev-2 ls"


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
