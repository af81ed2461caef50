"""A server for all tests of the command line, and the command line pointed at it."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from courser.cli.main import run
from tests.servers import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server; tests make streams of their own."""
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_settings_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor contexts of whoever runs the tests count."""
    for name in os.environ:
        if name.startswith(("COURSER_", "IGGY_")) and name != "COURSER_SEED":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COURSER_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def cli(server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, against the server."""
    monkeypatch.setenv("COURSER_URL", f"iggy://iggy:iggy@{server.address}")

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(code), captured.out, captured.err)

    return call


@pytest.fixture
def stream(request: pytest.FixtureRequest, cli: Cli) -> str:
    """The name of a new stream that has a topic ``orders`` with one partition."""
    name = f"s{abs(hash(request.node.nodeid)) % 10**12}x"
    assert cli("stream", "create", name).code == 0
    assert cli("topic", "create", f"{name}/orders").code == 0
    return name
