"""Every command with every single permission at every level, on both wires, over TCP, against the table of the rules.

One user is given one permission after the other; its open connections try everything. What a permission allows to
destroy is made for the occasion.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from courser.api import commands as c
from courser.api.table import SDK_0_10
from courser.errors import ErrorCode
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions
from tests.handlers.permission_table import ANYBODY, GRANTS, SUFFICIENT, is_sufficient, permissions_of
from tests.handlers.samples import SAMPLES
from tests.servers import RunningServer
from tests.torture.clients import WIRES, Answer, Client, VsrClient

PASSWORD = "password"
OPTIONS = TopicOptions(compression=1)
DENIED = (ErrorCode.UNAUTHORIZED, ErrorCode.UNAUTHENTICATED)
NOBODY, USELESS, ROOT = "nobody", "all others", "root"
ELSEWHERE = tuple(f"another stream's {grant}" for grant in GRANTS if not grant.startswith("everywhere")) + tuple(
    f"another topic's {grant}" for grant in GRANTS if grant.startswith("topic")
)


class Scene:
    """A server with two streams of two topics, root on one connection, and the subject on one for each wire."""

    def __init__(self, port: int) -> None:
        self.root = VsrClient(port).login()
        for stream in ("s", "other"):
            self.root.do(c.CreateStream(stream))
            for topic in ("t", "other"):
                self.root.do(c.CreateTopic(stream, topic, 2, OPTIONS))
                self.root.do(c.CreateConsumerGroup(stream, topic, "g"))
        for name in ("target", "subject"):
            self.root.do(c.CreateUser(name, PASSWORD, True, None))
        self.root_client_id: int = struct.unpack_from("<I", self.root.do(c.GetMe()))[0]
        self.hold(permissions_of(*GRANTS))
        self.token = ""
        self.clients: dict[str, Client] = {}
        for wire, kind in WIRES.items():
            self.clients[wire] = kind(port).login("subject", PASSWORD)
            self.token = self.token or self.clients[wire].do(c.CreateToken("kept", 0))[1:].decode()

    def close(self) -> None:
        for client in (self.root, *self.clients.values()):
            client.close()

    def hold(self, permissions: Permissions | None) -> None:
        """Give the subject exactly these permissions."""
        self.root.do(c.UpdatePermissions("subject", permissions))
        self.held = permissions

    # --- one cell of the matrix ---

    def is_allowed(self, wire: str, command: c.Command, client: Client | None = None) -> bool:
        client = client or self.clients[wire]
        match command:
            case c.SyncConsumerGroup():
                # Who may not look is told the same as who is no member, and is one no longer: nothing.
                held = self.held
                self.hold(permissions_of(*GRANTS))
                client.do(c.JoinConsumerGroup("s", "t", "g"))
                self.hold(held)
                answer = client.ask(command)
                return not answer.status and bool(answer.body)
            case c.GetClient():
                answer = client.ask(c.GetClient(self.root_client_id))
                return not answer.status and bool(answer.body)
            case c.LoginUser():
                answer = client.ask(c.LoginUser("subject", PASSWORD))
            case c.LoginWithToken():
                answer = client.login_with_token(self.token)
            case c.LogoutUser():
                answer = client.ask(command)
                assert not client.login_with_token(self.token).status
            case _:
                answer = client.ask(command, [b"hello"])
        assert answer.is_declared, (command, answer)
        return answer.status not in DENIED

    def with_victim(self, command: c.Command, grant: str) -> c.Command:
        """The same command for something that was just made, and may be destroyed; the grant is made to fit."""
        stream_id, topic_id = 0, 0
        match command:
            case c.DeleteStream():
                stream_id = struct.unpack_from("<I", self.root.do(c.CreateStream("victim")))[0]
                command = c.DeleteStream("victim")
            case c.DeleteTopic():
                topic_id = struct.unpack_from("<I", self.root.do(c.CreateTopic("s", "victim", 1, OPTIONS)))[0]
                command = c.DeleteTopic("s", "victim")
            case c.DeleteConsumerGroup():
                self.root.do(c.CreateConsumerGroup("s", "t", "victim"))
                command = c.DeleteConsumerGroup("s", "t", "victim")
            case c.DeleteUser():
                self.root.do(c.CreateUser("victim", PASSWORD, True, None))
                command = c.DeleteUser("victim")
            case c.ChangePassword():
                command = c.ChangePassword("target", PASSWORD, PASSWORD)
        if (stream_id, topic_id) != (0, 0) and grant != ROOT:
            self.hold(permissions_of(grant, stream_id=stream_id, topic_id=topic_id))
        return command


Matrix = dict[tuple[str, type[c.Command]], dict[str, bool]]


KINDS = [type(sample) for sample in SAMPLES if type(sample).row.since < SDK_0_10]
"""What both wires have. ``tests/conformance`` has the matrix of what only SDK 0.10 knows."""


def samples() -> Iterator[c.Command]:
    for sample in SAMPLES:
        if type(sample) not in KINDS:
            continue
        yield msgspec.structs.replace(sample, options=OPTIONS) if hasattr(sample, "options") else sample


def held_by(holder: str, command: c.Command) -> Permissions | None:
    """The permissions of each holder but root."""
    if holder == NOBODY:
        return None
    if holder == USELESS:
        return permissions_of(*(grant for grant in GRANTS if not is_sufficient(type(command), grant)))
    if holder in ELSEWHERE:
        place, _, grant = holder.partition("'s ")
        return permissions_of(grant, stream_id=1) if place == "another stream" else permissions_of(grant, topic_id=1)
    return permissions_of(holder)


def try_everything(scene: Scene) -> Matrix:
    matrix: Matrix = {(wire, kind): {} for wire in WIRES for kind in KINDS}
    for holder in (NOBODY, *GRANTS, *ELSEWHERE, USELESS):
        for sample in samples():
            if holder == USELESS and SUFFICIENT[type(sample)] == ANYBODY:
                continue
            for wire in WIRES:
                if scene.held != (wanted := held_by(holder, sample)):
                    scene.hold(wanted)
                command = sample
                if holder in GRANTS and is_sufficient(type(sample), holder):
                    command = scene.with_victim(sample, holder)
                matrix[wire, type(sample)][holder] = scene.is_allowed(wire, command)
    return matrix


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("permission-matrix")
    with RunningServer(directory) as server:
        scene = Scene(server.port)
        yield scene
        scene.close()
        assert "defect" not in server.output


@pytest.fixture(scope="module")
def matrix(scene: Scene) -> Matrix:
    return try_everything(scene)


every_wire = pytest.mark.parametrize("wire", WIRES)
every_command = pytest.mark.parametrize("command", KINDS, ids=lambda kind: kind.__name__)


def test_the_samples_are_all_commands() -> None:
    assert {type(sample) for sample in SAMPLES} == set(SUFFICIENT)


@every_wire
@every_command
def test_each_permission_allows_what_the_table_says(matrix: Matrix, wire: str, command: type[c.Command]) -> None:
    found = matrix[wire, command]
    assert {grant: found[grant] for grant in GRANTS} == {grant: is_sufficient(command, grant) for grant in GRANTS}


@every_wire
@every_command
def test_permissions_elsewhere_none_and_all_others_allow_nothing(
    matrix: Matrix, wire: str, command: type[c.Command]
) -> None:
    is_free = SUFFICIENT[command] == ANYBODY
    found = matrix[wire, command]
    holders = (NOBODY, *ELSEWHERE) if is_free else (NOBODY, *ELSEWHERE, USELESS)
    assert {holder: found[holder] for holder in holders} == dict.fromkeys(holders, is_free)


@every_wire
def test_root_may_do_everything(scene: Scene, matrix: Matrix, wire: str) -> None:
    del matrix  # built before: root is allowed to destroy what it was built with
    port = scene.root.socket.getpeername()[1]
    with WIRES[wire](port).login() as root:
        for sample in samples():
            if not isinstance(sample, c.LoginUser | c.LoginWithToken | c.LogoutUser | c.SyncConsumerGroup):
                command = scene.with_victim(sample, ROOT)
                assert scene.is_allowed(wire, command, root), command


@every_wire
def test_before_a_login_there_is_nothing_but_a_ping_and_the_login(scene: Scene, matrix: Matrix, wire: str) -> None:
    del matrix
    port = scene.root.socket.getpeername()[1]
    public = (c.Ping, c.LoginUser, c.LoginWithToken)
    with WIRES[wire](port) as stranger:
        if isinstance(stranger, VsrClient):
            stranger.pretend_to_be_logged_in()
        for sample in samples():
            if isinstance(sample, public):
                continue
            answer = stranger.ask(sample, [b"hello"])
            if wire == "vsr" and isinstance(sample, c.LogoutUser):
                assert answer == Answer(0)
            elif answer.is_eviction:
                assert answer.status == 1, sample
            else:
                assert answer.status == ErrorCode.UNAUTHENTICATED, sample
        stranger.do(c.Ping())
