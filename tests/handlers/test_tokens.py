"""Personal access tokens, as their owner sees them."""

from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.settings import BrokerSettings
from courser.errors import ErrorCode
from tests.handlers.scenes import Scene, opened


async def make(scene: Scene, name: str, expiry: int = 0, user_id: int = 0) -> str:
    made = await scene.ask(scene.connect(user_id), c.CreateToken(name, expiry))
    assert isinstance(made, r.NewToken)
    return made.token


async def names(scene: Scene, user_id: int = 0) -> list[tuple[str, int]]:
    listed = await scene.ask(scene.connect(user_id), c.GetTokens())
    assert isinstance(listed, r.TokenList)
    return [(token.name, token.expires_at) for token in listed.tokens]


async def test_a_token_is_shown_once_and_logs_in(scene: Scene) -> None:
    await scene.add_user("alice")
    token = await make(scene, "laptop", user_id=1)
    assert not set(token) & set(":@?"), "it fits into a connection string"
    session = scene.connect()
    assert await scene.ask(session, c.LoginWithToken(token)) == r.LoggedIn(1, session.session_number)
    me = await scene.ask(session, c.GetMe())
    assert isinstance(me, r.ClientDetails)
    assert me.client.user_id == 1


async def test_everybody_sees_his_own_tokens_only(scene: Scene) -> None:
    await scene.add_user("alice")
    await make(scene, "root's")
    await make(scene, "alice's", 60_000_000, user_id=1)
    assert await names(scene) == [("root's", 0)]
    assert await names(scene, 1) == [("alice's", scene.clock.now() + 60_000_000)]
    assert await scene.refusal(scene.connect(1), c.DeleteToken("root's")) is ErrorCode.RESOURCE_NOT_FOUND


async def test_names_have_1_to_255_bytes(scene: Scene) -> None:
    for name in ("", "a" * 256):
        assert await scene.refusal(scene.root, c.CreateToken(name, 0)) is ErrorCode.INVALID_TOKEN_NAME
    for name in ("a", "a" * 255):
        await make(scene, name)
    assert await scene.refusal(scene.root, c.CreateToken("a", 0)) is ErrorCode.TOKEN_ALREADY_EXISTS


async def test_there_is_a_limit(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerSettings(token_count_max=3)) as scene:
        for number in range(3):
            await make(scene, f"token {number}")
        assert await scene.refusal(scene.root, c.CreateToken("one more", 0)) is ErrorCode.TOO_MANY_TOKENS


async def test_a_deleted_token_is_gone_and_so_are_its_sessions(scene: Scene) -> None:
    token = await make(scene, "laptop")
    session = scene.connect()
    await scene.ask(session, c.LoginWithToken(token))
    await scene.ask(scene.root, c.DeleteToken("laptop"))
    assert await scene.refusal(session, c.GetMe()) is ErrorCode.UNAUTHENTICATED
    assert await scene.refusal(scene.connect(), c.LoginWithToken(token)) is ErrorCode.INVALID_TOKEN
    assert await scene.refusal(scene.root, c.DeleteToken("laptop")) is ErrorCode.RESOURCE_NOT_FOUND


async def test_who_deletes_the_token_that_he_used_stays_logged_in(scene: Scene) -> None:
    session = scene.connect()
    await scene.ask(session, c.LoginWithToken(await make(scene, "laptop")))
    await scene.ask(session, c.DeleteToken("laptop"))
    assert await scene.ask(session, c.GetMe()) is not None


async def test_a_token_creates_none_that_outlives_it(scene: Scene) -> None:
    session = scene.connect()
    await scene.ask(session, c.LoginWithToken(await make(scene, "laptop", 60_000_000)))
    for expiry in (0, 2**64 - 1, 60_000_001):
        assert await scene.refusal(session, c.CreateToken("later", expiry)) is ErrorCode.UNAUTHORIZED
    made = await scene.ask(session, c.CreateToken("same", 60_000_000))
    assert isinstance(made, r.NewToken)
    await scene.ask(session, c.LoginWithToken(made.token))
    scene.clock.advance(1)
    assert await scene.refusal(session, c.CreateToken("later", 60_000_000)) is ErrorCode.UNAUTHORIZED
    assert [name for name, _ in await names(scene)] == ["laptop", "same"]


async def test_a_token_without_an_expiry_creates_others_without(scene: Scene) -> None:
    session = scene.connect()
    await scene.ask(session, c.LoginWithToken(await make(scene, "laptop")))
    assert isinstance(await scene.ask(session, c.CreateToken("phone", 0)), r.NewToken)


@pytest.mark.parametrize("end", ["expired", "cleared away", "deleted", "replaced"])
async def test_a_session_whose_token_is_gone_goes_on_but_creates_no_credentials(scene: Scene, end: str) -> None:
    session = scene.connect()
    await scene.ask(session, c.LoginWithToken(await make(scene, "laptop", 1_000)))
    if end in ("deleted", "replaced"):
        await scene.ask(session, c.DeleteToken("laptop"))
    else:
        scene.clock.advance(1_000)
    if end == "cleared away":
        assert await scene.broker.authentication.tokens.remove_expired() == 1
    if end == "replaced":
        await make(scene, "laptop")
    assert await scene.ask(session, c.GetMe()) is not None
    for command in (c.CreateToken("another", 0), c.CreateToken("another", 1), c.CreateOneTimeToken()):
        assert await scene.refusal(session, command) is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("end", ["expired", "deleted", "replaced"])
async def test_a_one_time_token_does_not_outlive_the_token_behind_it(scene: Scene, end: str) -> None:
    session = scene.connect()
    await scene.ask(session, c.LoginWithToken(await make(scene, "laptop", 1_000)))
    made = await scene.ask(session, c.CreateOneTimeToken())
    assert isinstance(made, o.OneTimeToken)
    if end == "expired":
        scene.clock.advance(1_000)
    else:
        await scene.ask(scene.root, c.DeleteToken("laptop"))
    if end == "replaced":
        await make(scene, "laptop")
    assert await scene.refusal(scene.connect(), c.LoginWithToken(made.token)) is ErrorCode.TOKEN_EXPIRED


async def test_expired_tokens_are_listed_until_they_are_cleared_away(scene: Scene) -> None:
    token = await make(scene, "short", 1_000)
    scene.clock.advance(1_000)
    assert await scene.refusal(scene.connect(), c.LoginWithToken(token)) is ErrorCode.TOKEN_EXPIRED
    assert [name for name, _ in await names(scene)] == ["short"]
    assert await scene.broker.authentication.tokens.remove_expired() == 1
    assert await names(scene) == []


async def test_tokens_outlive_the_server(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        token = await make(scene, "laptop")
    async with opened(tmp_path) as scene:
        session = scene.connect()
        assert await scene.ask(session, c.LoginWithToken(token)) == r.LoggedIn(0, session.session_number)
