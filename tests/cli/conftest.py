"""A server for all tests of the command line, and the command line pointed at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Cli, forget_settings_of_others, in_this_process
from tests.servers import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server; tests make streams of their own."""
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_settings_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_settings_of_others(monkeypatch, tmp_path)


@pytest.fixture
def cli(server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, against the server."""
    monkeypatch.setenv("COURSER_URL", f"iggy://iggy:iggy@{server.address}")
    return in_this_process(capsys)


@pytest.fixture
def stream(request: pytest.FixtureRequest, cli: Cli) -> str:
    """The name of a new stream that has a topic ``orders`` with one partition."""
    name = f"s{abs(hash(request.node.nodeid)) % 10**12}x"
    assert cli("stream", "create", name).code == 0
    assert cli("topic", "create", f"{name}/orders").code == 0
    return name
