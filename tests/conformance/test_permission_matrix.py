"""Every command with every single permission at every level, over every transport.

A user holds the permission on the stream and topic that the command names, or on others only.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest
import pytest_asyncio

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import COMMANDS
from courser.api.table import SDK_0_10
from courser.catalog import changes
from courser.catalog.entities import User
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.permissions import Permissions
from tests.conformance.callers import Caller, caller
from tests.conformance.conftest import USUAL_OPTIONS, no_sleep
from tests.conformance.rest import REQUESTS
from tests.conformance.serving import Served, served
from tests.conformance.wire_0_12 import GONE
from tests.handlers.permission_table import ANYBODY, GRANTS, SUFFICIENT, is_sufficient, permissions_of
from tests.handlers.samples import SAMPLES

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRANSPORTS = ("tcp", "tls", "websocket", "quic", "http", "tcp-0.12.0", "tcp-0.12.2")
DENIALS = (ErrorCode.UNAUTHORIZED, ErrorCode.UNAUTHENTICATED, ErrorCode.ACCESS_TOKEN_MISSING)
LOGINS = (c.LoginUser, c.LoginWithToken, c.LogoutUser)
"""They end the login of a connection."""
ELSEWHERE = (
    permissions_of(*(grant for grant in GRANTS if not grant.startswith("everywhere")), stream_id=1),
    permissions_of(*(grant for grant in GRANTS if grant.startswith("topic")), topic_id=1),
)


def has_command(transport: str, kind: type[c.Command]) -> bool:
    """Whether a command can be sent over a transport."""
    if transport == "http":
        return kind in REQUESTS
    if "-" not in transport:
        return kind.row.since < SDK_0_10
    if kind is c.SyncConsumerGroup:
        return False  # Who may not read the topic is told what somebody is who is no member.
    # Each of the two ways to wait for messages belongs to some versions only.
    return kind not in GONE and kind is not (c.FetchMessages if transport.endswith(".0") else c.AwaitMessages)


CASES = [
    pytest.param(transport, sample, id=f"{transport}-{type(sample).__name__}")
    for transport in TRANSPORTS
    for sample in SAMPLES
    if has_command(transport, type(sample))
]


class Scene:
    """A server with one user whose permissions change, and nothing else does."""

    def __init__(self, server: Served, subject: User, connections: AsyncExitStack) -> None:
        self._server = server
        self.subject = subject
        self._connections = connections
        self._callers: dict[str, Caller] = {}

    async def is_allowed(self, transport: str, sample: c.Command, held: Permissions | None) -> bool:
        """Whether the user gets past access control with these permissions."""
        self.subject.permissions = held
        # As a command that changes them would.
        self._server.broker.catalog.version += 1
        return await self._passes(transport, sample, "subject")

    async def may_root(self, transport: str, sample: c.Command) -> bool:
        return await self._passes(transport, sample, "iggy")

    async def _passes(self, transport: str, sample: c.Command, user: str) -> bool:
        own = await self._caller(transport, user)
        if isinstance(sample, c.GetClient) and transport != "http":
            me = await own.get(r.ClientDetails, c.GetMe())
            sample = msgspec.structs.replace(sample, client_id=me.client.client_id)
        if isinstance(sample, LOGINS):
            del self._callers[f"{transport} {user}"]
        try:
            await own.ask(sample)
        except CourserError as refusal:
            return refusal.code not in DENIALS
        return True

    async def _caller(self, transport: str, user: str) -> Caller:
        key = f"{transport} {user}"
        if key not in self._callers:
            opened = await self._connections.enter_async_context(caller(self._server, transport))
            self._callers[key] = await opened.login(user, "iggy")
        return self._callers[key]


async def refuse(_change: changes.AnyChange) -> None:
    """Past access control, where something would change."""
    raise CommandRejected(ErrorCode.ERROR, "nothing is changed here")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """Streams s and other, each with topics t and other, and a group g in each."""
    async with served() as server, AsyncExitStack() as connections:
        root = await (await connections.enter_async_context(caller(server, "tcp"))).login()
        for stream in ("s", "other"):
            await root.ask(c.CreateStream(stream))
            for topic in ("t", "other"):
                await root.ask(c.CreateTopic(stream, topic, 1, USUAL_OPTIONS))
                await root.ask(c.CreateConsumerGroup(stream, topic, "g"))
        for user in ("target", "subject"):
            await root.ask(c.CreateUser(user, "iggy", True, None))
        state = server.broker.catalog.state
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.broker.catalog, "submit", refuse)
            patch.setattr(server.broker.authentication, "_sleep", no_sleep)
            yield Scene(server, state.users[state.user_by_name["subject"]], connections)


async def test_the_table_knows_every_command() -> None:
    assert set(SUFFICIENT) == {entry.kind for entry in COMMANDS}


async def test_http_knows_every_command_that_has_a_route() -> None:
    assert set(REQUESTS) - {c.Ping} == {entry.kind for entry in COMMANDS if entry.route is not None}


@pytest.mark.parametrize(("transport", "sample"), CASES)
async def test_permissions_allow_what_the_table_says(scene: Scene, transport: str, sample: c.Command) -> None:
    # Each of these needs a new connection, and whether anybody may send it one permission shows as well as many.
    grants = GRANTS[:1] if isinstance(sample, LOGINS) else GRANTS
    found = {grant: await scene.is_allowed(transport, sample, permissions_of(grant)) for grant in grants}
    assert found == {grant: is_sufficient(type(sample), grant) for grant in grants}
    assert await scene.may_root(transport, sample)

    is_free = SUFFICIENT[type(sample)] == ANYBODY
    useless = [grant for grant in GRANTS if not is_sufficient(type(sample), grant)]
    for held in (None, Permissions(), *ELSEWHERE, permissions_of(*useless)):
        assert await scene.is_allowed(transport, sample, held) is is_free, held
