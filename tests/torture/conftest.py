"""A server that many bad clients share, and what must be true of it afterwards."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.model.topic_options import TopicOptions
from tests.servers import RunningServer
from tests.torture.clients import WIRES, Client, VsrClient
from tests.torture.witness import Witness


@dataclass(frozen=True)
class Target:
    """A server with a stream s, a topic t, a group g, a user target, and a token with which root logs in quickly."""

    server: RunningServer
    token: str

    @property
    def port(self) -> int:
        return self.server.port

    def connect(self, wire: str, address: str = "127.0.0.1") -> Client:
        """A connection on which root is logged in."""
        client = WIRES[wire](self.port, address)
        assert not client.login_with_token(self.token).status
        return client

    def restore(self) -> None:
        """Make what was destroyed."""
        with self.connect("vsr") as root:
            prepare(root)

    def watch(self) -> Witness:
        """Somebody who is not to be disturbed."""
        return Witness(self.port)


def prepare(root: Client) -> None:
    """Make all that requests speak of; what is there already stays."""
    for command in (
        c.CreateStream("s"),
        c.CreateTopic("s", "t", 3, TopicOptions(compression=1)),
        c.CreateConsumerGroup("s", "t", "g"),
        c.CreateUser("target", "password", True, None),
    ):
        root.ask(command)


def start_target(server: RunningServer) -> Target:
    """Prepare a server that has just been started for the first time."""
    with VsrClient(server.port).login() as root:
        prepare(root)
        return Target(server, root.do(c.CreateToken("kept", 0))[1:].decode())


def assert_no_defect(output: str) -> None:
    for sign in ("defect", "Traceback"):
        begin = output.find(sign)
        assert begin < 0, output[max(0, begin - 500) : begin + 3000]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One server for all tests of a module. At its end it has no defect in its log, and stops cleanly."""
    directory: Path = tmp_path_factory.mktemp("target")
    with RunningServer(directory) as server:
        yield start_target(server)
        assert server.stop() == 0
        output = server.output
        assert_no_defect(output)
        assert "stopped clean=True" in output


@pytest.fixture
def make_target(tmp_path: Path) -> Iterator[Callable[..., Target]]:
    """Starts servers with settings of the test's own."""
    servers: list[RunningServer] = []

    def make(**options: object) -> Target:
        server = RunningServer(tmp_path / f"server-{len(servers)}", **options)  # type: ignore[arg-type]
        servers.append(server)
        return start_target(server.start())

    yield make
    for server in servers:
        server.__exit__(None, None, None)
        assert_no_defect(server.output)
