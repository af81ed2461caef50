"""Servers and children that the tests of the SDK share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sdk.conversations import Conversation
from tests.servers import RunningServer


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests of this worker that do not disturb each other."""
    with RunningServer(tmp_path_factory.mktemp("shared-server")) as server:
        yield server


@pytest.fixture(scope="session")
def token(shared_server: RunningServer) -> str:
    """A personal access token of root on the shared server."""
    with Conversation("0.9.0", shared_server.address) as child:
        child.ask("connect", client="root")
        made: str = child.ask("token", client="root", name="for-the-tests")
        return made


@pytest.fixture(scope="session")
def child_of(shared_server: RunningServer, token: str) -> Iterator[Callable[[str], Conversation]]:
    """One child per release, connected to the shared server, kept while the session lasts."""
    children: dict[str, Conversation] = {}
    with ExitStack() as stack:

        def child(release: str) -> Conversation:
            if release not in children:
                children[release] = stack.enter_context(Conversation(release, shared_server.address, token))
            return children[release]

        yield child


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of the test's own."""
    with RunningServer(tmp_path / "server") as server:
        yield server
