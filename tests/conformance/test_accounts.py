"""Users, permissions, passwords, logins and tokens."""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from tests.conformance.callers import Caller
from tests.conformance.conftest import Connect

pytestmark = pytest.mark.asyncio(loop_scope="package")

NOT_LOGGED_IN = (ErrorCode.UNAUTHENTICATED, ErrorCode.ACCESS_TOKEN_MISSING)
"""The second is that of HTTP."""
NO_SUCH_TOKEN = (ErrorCode.INVALID_TOKEN, ErrorCode.RESOURCE_NOT_FOUND)
"""The second is that of 0.8."""
HOUR = 3600 * 1_000_000
PASSWORD, NEW_PASSWORD = "a password", "another one"
PERMISSIONS = Permissions(
    GlobalPermissions(read_servers=True, poll_messages=True),
    {7: StreamPermissions(read_stream=True, topics={0: TopicPermissions(send_messages=True)}), 9: StreamPermissions()},
)


@pytest.fixture
def user(request: pytest.FixtureRequest, transport: str) -> str:
    """The name of a user that no other test has; it may be 50 characters long."""
    return f"{str(request.node.originalname)[5:35]}-{transport}"


async def test_a_user_from_beginning_to_end(root: Caller, user: str) -> None:
    made = await root.get(r.UserDetails, c.CreateUser(user, PASSWORD, True, PERMISSIONS))
    assert (made.user.name, made.user.is_active, made.permissions) == (user, True, PERMISSIONS)
    for identifier in (user, made.user.user_id):
        assert await root.get(r.UserDetails, c.GetUser(identifier)) == made
    assert made.user in (await root.get(r.UserList, c.GetUsers())).users
    again = c.CreateUser(user, PASSWORD, True, None)
    assert await root.refusal(again) is ErrorCode.USER_ALREADY_EXISTS

    await root.ask(c.UpdateUser(user, f"{user}-2", False))
    changed = (await root.get(r.UserDetails, c.GetUser(f"{user}-2"))).user
    assert (changed.user_id, changed.is_active) == (made.user.user_id, False)
    assert await root.is_missing(c.GetUser(user))
    await root.ask(c.UpdatePermissions(made.user.user_id, None))
    assert (await root.get(r.UserDetails, c.GetUser(made.user.user_id))).permissions is None

    await root.ask(c.DeleteUser(made.user.user_id))
    assert await root.is_missing(c.GetUser(f"{user}-2"))
    assert await root.refusal(c.DeleteUser(user)) is ErrorCode.RESOURCE_NOT_FOUND
    assert await root.refusal(c.DeleteUser("iggy")) is ErrorCode.CANNOT_DELETE_USER


async def test_permissions_act_at_once(root: Caller, connect: Connect, user: str) -> None:
    await root.ask(c.CreateUser(user, PASSWORD, True, None))
    async with connect() as own:
        await own.login(user, PASSWORD)
        assert await own.refusal(c.GetStreams()) is ErrorCode.UNAUTHORIZED
        await root.ask(c.UpdatePermissions(user, Permissions(GlobalPermissions(read_streams=True))))
        assert await own.ask(c.GetStreams()) is not None
        assert await own.refusal(c.CreateStream(user)) is ErrorCode.UNAUTHORIZED
        await root.ask(c.UpdatePermissions(user, None))
        assert await own.refusal(c.GetStreams()) is ErrorCode.UNAUTHORIZED


async def test_passwords_change(root: Caller, connect: Connect, user: str) -> None:
    await root.ask(c.CreateUser(user, PASSWORD, True, None))
    wrong = c.ChangePassword(user, NEW_PASSWORD, NEW_PASSWORD)
    assert await root.refusal(wrong) is ErrorCode.INVALID_CREDENTIALS
    await root.ask(c.ChangePassword(user, PASSWORD, NEW_PASSWORD))
    async with connect() as own:
        assert await own.refusal(c.LoginUser(user, PASSWORD)) is ErrorCode.INVALID_CREDENTIALS
    async with connect() as own:
        await own.login(user, NEW_PASSWORD)


async def test_who_is_not_logged_in_may_do_nothing(root: Caller, connect: Connect, user: str) -> None:
    await root.ask(c.CreateUser(user, PASSWORD, False, None))
    async with connect() as stranger:
        assert await stranger.refusal(c.GetStreams()) in NOT_LOGGED_IN
    async with connect() as stranger:
        assert await stranger.refusal(c.LoginUser("nobody at all", PASSWORD)) is ErrorCode.INVALID_CREDENTIALS
    async with connect() as inactive:
        assert await inactive.refusal(c.LoginUser(user, PASSWORD)) is not None
    async with connect() as own:
        await own.login()
        await own.ask(c.LogoutUser())
        assert await own.refusal(c.GetStreams()) in NOT_LOGGED_IN


async def test_tokens_log_in_until_they_are_deleted(root: Caller, connect: Connect, user: str) -> None:
    secret = (await root.get(r.NewToken, c.CreateToken(user[:30], HOUR))).token
    listed = (await root.get(r.TokenList, c.GetTokens())).tokens
    (own,) = [token for token in listed if token.name == user[:30]]
    assert own.expires_at > 0
    assert await root.refusal(c.CreateToken(user[:30], HOUR)) is ErrorCode.TOKEN_ALREADY_EXISTS
    async with connect() as bearer:
        assert (await bearer.get(r.LoggedIn, c.LoginWithToken(secret))).user_id == 0
        assert await bearer.ask(c.GetStreams()) is not None
    await root.ask(c.DeleteToken(user[:30]))
    async with connect() as bearer:
        assert await bearer.refusal(c.LoginWithToken(secret)) in NO_SUCH_TOKEN
    assert await root.refusal(c.DeleteToken(user[:30])) is ErrorCode.RESOURCE_NOT_FOUND
