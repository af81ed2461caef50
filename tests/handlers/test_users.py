"""Users and permissions: what changes acts on open connections at once."""

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.catalog import changes
from courser.errors import ErrorCode
from courser.model.permissions import ALL_PERMISSIONS, GlobalPermissions, Permissions, StreamPermissions
from tests.handlers.scenes import PASSWORD_HASH, Scene

READER = Permissions(GlobalPermissions(read_streams=True))


async def user_of(scene: Scene, name: str) -> r.UserDetails:
    details = await scene.ask(scene.root, c.GetUser(name))
    assert isinstance(details, r.UserDetails)
    return details


# --- making and finding ---


async def test_a_new_user_is_as_asked_for(scene: Scene) -> None:
    created = await scene.ask(scene.root, c.CreateUser("alice", "secret", True, READER))
    assert isinstance(created, r.UserDetails)
    assert created == r.UserDetails(r.UserInfo(1, scene.clock.now(), True, "alice"), READER)
    assert await user_of(scene, "alice") == created
    assert await scene.ask(scene.root, c.GetUser(1)) == created


async def test_a_new_user_can_log_in_unless_it_is_inactive(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateUser("alice", "secret", True, None))
    await scene.ask(scene.root, c.CreateUser("bob", "secret", False, None))
    session = scene.connect()
    reply = await scene.ask(session, c.LoginUser("alice", "secret"))
    assert isinstance(reply, r.LoggedIn)
    assert reply.user_id == session.user_id == 1
    assert await scene.refusal(session, c.LoginUser("bob", "secret")) is ErrorCode.USER_INACTIVE
    assert await scene.refusal(session, c.LoginUser("alice", "wrong")) is ErrorCode.INVALID_CREDENTIALS


async def test_users_are_listed_by_id(scene: Scene) -> None:
    for name in ("zoe", "alice"):
        await scene.add_user(name)
    listed = await scene.ask(scene.root, c.GetUsers())
    assert isinstance(listed, r.UserList)
    assert [(user.user_id, user.name) for user in listed.users] == [(0, "iggy"), (1, "zoe"), (2, "alice")]


async def test_root_has_all_permissions(scene: Scene) -> None:
    assert (await user_of(scene, "iggy")).permissions == ALL_PERMISSIONS


async def test_names_and_passwords_have_bounds(scene: Scene) -> None:
    for name in ("ab", "a" * 51):
        assert await scene.refusal(scene.root, c.CreateUser(name, "secret", True, None)) is ErrorCode.INVALID_USERNAME
    for password in ("", "ab", "a" * 101):
        refusal = await scene.refusal(scene.root, c.CreateUser("alice", password, True, None))
        assert refusal is ErrorCode.INVALID_PASSWORD
    await scene.add_user("alice")
    assert await scene.refusal(scene.root, c.UpdateUser("alice", "ab", None)) is ErrorCode.INVALID_USERNAME


async def test_a_name_is_used_once_and_case_matters(scene: Scene) -> None:
    await scene.add_user("alice")
    assert await scene.refusal(scene.root, c.CreateUser("alice", "secret", True, None)) is ErrorCode.USER_ALREADY_EXISTS
    await scene.ask(scene.root, c.CreateUser("Alice", "secret", True, None))
    assert await scene.refusal(scene.root, c.UpdateUser("Alice", "alice", None)) is ErrorCode.USER_ALREADY_EXISTS
    await scene.ask(scene.root, c.UpdateUser("alice", "alice", None))


async def test_what_is_missing_is_not_found_before_permissions_are_asked(scene: Scene) -> None:
    await scene.add_user("alice")
    session = scene.connect(1)
    commands = (
        c.GetUser("nobody"),
        c.GetUser(77),
        c.DeleteUser("nobody"),
        c.UpdateUser("nobody", None, None),
        c.UpdatePermissions("nobody", None),
        c.ChangePassword("nobody", "secret", "better"),
    )
    for command in commands:
        assert await scene.refusal(session, command) is ErrorCode.RESOURCE_NOT_FOUND, command


async def test_everybody_may_read_himself_and_nobody_else(scene: Scene) -> None:
    for name in ("alice", "bob"):
        await scene.add_user(name)
    session = scene.connect(1)
    assert await scene.ask(session, c.GetUser("alice")) is not None
    assert await scene.ask(session, c.GetUser(1)) is not None
    assert await scene.refusal(session, c.GetUser("bob")) is ErrorCode.UNAUTHORIZED
    assert await scene.refusal(session, c.UpdateUser("alice", "queen", None)) is ErrorCode.UNAUTHORIZED


# --- root ---


async def test_root_cannot_be_deleted_demoted_or_made_inactive(scene: Scene) -> None:
    manager = await scene.add_user("manager", Permissions(GlobalPermissions(manage_users=True)))
    for session in (scene.root, scene.connect(manager.user_id)):
        assert await scene.refusal(session, c.DeleteUser("iggy")) is ErrorCode.CANNOT_DELETE_USER
        assert await scene.refusal(session, c.DeleteUser(0)) is ErrorCode.CANNOT_DELETE_USER
        for permissions in (None, READER):
            refusal = await scene.refusal(session, c.UpdatePermissions(0, permissions))
            assert refusal is ErrorCode.CANNOT_CHANGE_PERMISSIONS
        refusal = await scene.refusal(session, c.UpdateUser(0, None, False))
        assert refusal is ErrorCode.CANNOT_CHANGE_PERMISSIONS
    await scene.ask(scene.root, c.UpdateUser(0, "boss", None))
    assert (await user_of(scene, "boss")).user.user_id == 0


# --- changes act at once ---


async def test_permissions_given_and_taken_act_on_the_next_request(scene: Scene) -> None:
    await scene.add_user("alice")
    session = scene.connect(1)
    assert await scene.refusal(session, c.GetStats()) is ErrorCode.UNAUTHORIZED
    reader = Permissions(GlobalPermissions(read_servers=True))
    await scene.ask(scene.root, c.UpdatePermissions("alice", reader))
    assert await scene.ask(session, c.GetStats()) is not None
    await scene.ask(scene.root, c.UpdatePermissions("alice", None))
    assert await scene.refusal(session, c.GetStats()) is ErrorCode.UNAUTHORIZED


async def test_a_user_that_may_no_longer_read_a_topic_leaves_its_groups(scene: Scene) -> None:
    keys = []
    for stream, topic in (("s", "t"), ("other", "t")):
        stream_id, topic_id = await scene.add_topic(stream, topic)
        await scene.ask(scene.root, c.CreateConsumerGroup(stream, topic, "g"))
        keys.append((stream_id, topic_id, 0))
    await scene.add_user("alice", READER)
    session = scene.connect(1)
    for stream in ("s", "other"):
        await scene.ask(session, c.JoinConsumerGroup(stream, "t", "g"))
    one_stream = Permissions(GlobalPermissions(), {keys[0][0]: StreamPermissions(read_stream=True)})
    await scene.ask(scene.root, c.UpdatePermissions("alice", one_stream))
    assert session.groups == {keys[0]}
    assert session.ended is None


async def test_an_inactive_user_leaves_its_groups(scene: Scene) -> None:
    await scene.add_topic("s", "t")
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await scene.add_user("alice", READER)
    session = scene.connect(1)
    await scene.ask(session, c.JoinConsumerGroup("s", "t", "g"))
    await scene.ask(scene.root, c.UpdateUser("alice", "alina", None))
    assert session.groups
    await scene.ask(scene.root, c.UpdateUser("alina", None, False))
    assert not session.groups
    assert await scene.refusal(session, c.GetMe()) is ErrorCode.USER_INACTIVE


async def test_a_deleted_user_is_out_at_once(scene: Scene) -> None:
    await scene.add_user("alice")
    session = scene.connect(1)
    await scene.ask(scene.root, c.DeleteUser("alice"))
    assert await scene.refusal(session, c.GetMe()) is ErrorCode.CLIENT_NOT_FOUND
    assert await scene.refusal(scene.root, c.GetUser("alice")) is ErrorCode.RESOURCE_NOT_FOUND


async def test_the_id_of_a_deleted_user_is_not_used_again(scene: Scene) -> None:
    await scene.add_user("alice")
    await scene.ask(scene.root, c.DeleteUser("alice"))
    created = await scene.ask(scene.root, c.CreateUser("alice", "secret", True, None))
    assert isinstance(created, r.UserDetails)
    assert created.user.user_id == 2


async def test_a_manager_may_delete_himself(scene: Scene) -> None:
    await scene.add_user("manager", Permissions(GlobalPermissions(manage_users=True)))
    session = scene.connect(1)
    await scene.ask(session, c.DeleteUser("manager"))
    assert session.ended is not None


# --- passwords ---


async def test_everybody_may_change_his_own_password_and_stays_logged_in(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateUser("alice", "secret", True, None))
    session, other = scene.connect(), scene.connect()
    for who in (session, other):
        await scene.ask(who, c.LoginUser("alice", "secret"))
    refusal = await scene.refusal(session, c.ChangePassword("alice", "wrong", "better"))
    assert refusal is ErrorCode.INVALID_CREDENTIALS
    await scene.ask(session, c.ChangePassword("alice", "secret", "better"))
    assert await scene.ask(session, c.GetMe()) is not None
    assert await scene.refusal(other, c.GetMe()) is ErrorCode.UNAUTHENTICATED
    assert await scene.refusal(scene.connect(), c.LoginUser("alice", "secret")) is ErrorCode.INVALID_CREDENTIALS
    await scene.ask(scene.connect(), c.LoginUser("alice", "better"))


async def test_the_password_of_another_needs_permission_and_the_password(scene: Scene) -> None:
    await scene.ask(scene.root, c.CreateUser("alice", "secret", True, None))
    await scene.add_user("bob")
    change = c.ChangePassword("alice", "secret", "better")
    assert await scene.refusal(scene.connect(2), change) is ErrorCode.UNAUTHORIZED
    refusal = await scene.refusal(scene.root, c.ChangePassword("alice", "guess", "better"))
    assert refusal is ErrorCode.INVALID_CREDENTIALS
    await scene.ask(scene.root, change)
    for bad in (c.ChangePassword("alice", "ab", "better"), c.ChangePassword("alice", "better", "ab")):
        assert await scene.refusal(scene.root, bad) is ErrorCode.INVALID_PASSWORD


async def test_a_permission_taken_away_while_the_password_is_hashed_is_taken_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hash_password(_session: Session, _password: str) -> str:
        await scene.broker.catalog.submit(changes.PermissionUpdate(1, None))
        return PASSWORD_HASH

    await scene.add_user("manager", Permissions(GlobalPermissions(manage_users=True)))
    monkeypatch.setattr(scene.broker.authentication, "hash_password", hash_password)
    refusal = await scene.refusal(scene.connect(1), c.CreateUser("alice", "secret", True, None))
    assert refusal is ErrorCode.UNAUTHORIZED
    assert "alice" not in scene.broker.catalog.state.user_by_name
