"""A server for all tests of the load generator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.client.targets import Target
from tests.cli.commands import forget_settings_of_others
from tests.servers import ROOT_NAME, ROOT_PASSWORD, RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server; runs make streams of their own and remove them."""
    with RunningServer(tmp_path_factory.mktemp("bench-server")) as running:
        yield running


@pytest.fixture
def target(server: RunningServer) -> Target:
    """How to log in there."""
    return Target(host=server.host, port=server.port, username=ROOT_NAME, password=ROOT_PASSWORD)


@pytest.fixture(autouse=True)
def no_settings_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_settings_of_others(monkeypatch, tmp_path)
