"""What happens on open connections of both wires when the access of their user changes."""

import uuid
from collections.abc import Iterator

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode as E
from courser.model.permissions import GlobalPermissions, Permissions
from tests.torture.clients import WIRES, Answer, Client
from tests.torture.conftest import Target

READER = Permissions(GlobalPermissions(read_streams=True))
NO_SESSION = Answer(12, is_eviction=True)
"""What a client of 0.9 is told before the connection is closed: log in again."""

pytestmark = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture
def root(target: Target, wire: str) -> Iterator[Client]:
    with target.connect(wire) as client:
        yield client


@pytest.fixture
def name(root: Client) -> str:
    """A user of the test's own, who may read streams."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    root.do(c.CreateUser(name, "secret", True, READER))
    return name


def goodbye(client: Client) -> Answer:
    """What comes without being asked for. Behind it there is nothing more."""
    answer = client.receive()
    assert client.fate() is None
    return answer


def ended(wire: str, classic: E) -> Answer:
    return Answer(classic) if wire == "classic" else NO_SESSION


def test_permissions_act_on_the_next_request(target: Target, wire: str, root: Client, name: str) -> None:
    with WIRES[wire](target.port).login(name, "secret") as user:
        user.do(c.GetStreams())
        root.do(c.UpdatePermissions(name, None))
        assert user.ask(c.GetStreams()) == Answer(E.UNAUTHORIZED)
        root.do(c.UpdatePermissions(name, READER))
        user.do(c.GetStreams())


def test_an_inactive_user_is_told_so_until_it_is_active_again(
    target: Target, wire: str, root: Client, name: str
) -> None:
    with WIRES[wire](target.port).login(name, "secret") as user:
        root.do(c.UpdateUser(name, None, False))
        for command in (c.GetStreams(), c.GetMe()):
            assert user.ask(command) == Answer(E.USER_INACTIVE)
        user.do(c.Ping())
        root.do(c.UpdateUser(name, None, True))
        user.do(c.GetStreams())


def test_a_changed_password_ends_the_other_sessions(target: Target, wire: str, root: Client, name: str) -> None:
    kind = WIRES[wire]
    with kind(target.port).login(name, "secret") as user, kind(target.port).login(name, "secret") as other:
        user.do(c.ChangePassword(name, "secret", "another"))
        assert goodbye(other) == ended(wire, E.UNAUTHENTICATED)
        user.do(c.GetStreams())
    root.do(c.GetStreams())
    with kind(target.port) as late:
        assert late.ask(late.login_command(name, "secret")).status


def test_a_deleted_token_ends_the_sessions_that_used_it(target: Target, wire: str, root: Client, name: str) -> None:
    kind = WIRES[wire]
    with kind(target.port).login(name, "secret") as user, kind(target.port) as other:
        token = user.do(c.CreateToken("token", 0))[1:].decode()
        assert not other.login_with_token(token).status
        other.do(c.GetStreams())
        user.do(c.DeleteToken("token"))
        assert goodbye(other) == ended(wire, E.UNAUTHENTICATED)
        user.do(c.GetStreams())
    root.do(c.GetStreams())


def test_a_deleted_user_is_sent_home(target: Target, wire: str, root: Client, name: str) -> None:
    with WIRES[wire](target.port).login(name, "secret") as user:
        root.do(c.DeleteUser(name))
        assert goodbye(user) == ended(wire, E.CLIENT_NOT_FOUND)
    root.do(c.GetStreams())


def test_root_is_neither_deleted_nor_demoted_nor_made_inactive(root: Client) -> None:
    assert root.ask(c.DeleteUser("iggy")) == Answer(E.CANNOT_DELETE_USER)
    assert root.ask(c.UpdatePermissions("iggy", None)) == Answer(E.CANNOT_CHANGE_PERMISSIONS)
    assert root.ask(c.UpdateUser("iggy", None, False)) == Answer(E.CANNOT_CHANGE_PERMISSIONS)
    root.do(c.GetStreams())
