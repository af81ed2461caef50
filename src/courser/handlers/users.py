"""Users and permissions. What changes here acts on open connections at once."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.authentication import check_password, check_user_name
from courser.broker.broker import Broker
from courser.broker.lookup import find_user
from courser.broker.sessions import Session
from courser.catalog import changes
from courser.catalog.entities import User
from courser.catalog.rules import ROOT_USER_ID
from courser.errors import CommandRejected, ErrorCode
from courser.model.permissions import ALL_PERMISSIONS, Action


async def get_user(broker: Broker, session: Session, command: c.GetUser) -> r.UserDetails:
    """Everybody may look at himself."""
    user = find_user(broker.catalog.state, command.user)
    if user.user_id != session.user_id:
        broker.access.require(session, Action.READ_USERS)
    return _details(user)


async def get_users(broker: Broker, session: Session, _: c.GetUsers) -> r.UserList:
    """By id."""
    broker.access.require(session, Action.READ_USERS)
    users = broker.catalog.state.users
    return r.UserList([_info(users[user_id]) for user_id in sorted(users)])


async def create_user(broker: Broker, session: Session, command: c.CreateUser) -> r.UserDetails:
    """The permission is asked before the password is hashed: hashing is work."""
    check_user_name(command.name)
    check_password(command.password)
    broker.access.require(session, Action.MANAGE_USERS)
    if command.name in broker.catalog.state.user_by_name:
        raise CommandRejected(ErrorCode.USER_ALREADY_EXISTS, f"a user is called {command.name!r} already")
    password_hash = await broker.authentication.hash_password(session, command.password)
    # The permission may have been taken away meanwhile.
    broker.access.require(session, Action.MANAGE_USERS)
    change = changes.CreateUser(command.name, password_hash, command.is_active, command.permissions)
    user = await broker.catalog.submit(change)
    assert isinstance(user, User), "creating a user makes one"
    return _details(user)


async def delete_user(broker: Broker, session: Session, command: c.DeleteUser) -> None:
    """Ends all sessions of that user, the own one included."""
    user = find_user(broker.catalog.state, command.user)
    broker.access.require(session, Action.MANAGE_USERS)
    await broker.catalog.submit(changes.DeleteUser(user.user_id))
    broker.authentication.user_deleted(user)


async def update_user(broker: Broker, session: Session, command: c.UpdateUser) -> None:
    """An inactive user leaves its consumer groups: its partitions are for others."""
    if command.name is not None:
        check_user_name(command.name)
    user = find_user(broker.catalog.state, command.user)
    broker.access.require(session, Action.MANAGE_USERS)
    await broker.catalog.submit(changes.UpdateUser(user.user_id, command.name, command.is_active))
    if not user.is_active:
        for other in broker.sessions.of_user(user.user_id):
            broker.groups.drop_session(other)


async def update_permissions(broker: Broker, session: Session, command: c.UpdatePermissions) -> None:
    """Memberships in groups that the user may no longer read end."""
    user = find_user(broker.catalog.state, command.user)
    broker.access.require(session, Action.MANAGE_USERS)
    await broker.catalog.submit(changes.UpdatePermissions(user.user_id, command.permissions))
    for other in broker.sessions.of_user(user.user_id):
        for key in tuple(other.groups):
            if not broker.access.allows(user.permissions, Action.READ_TOPIC, key[0], key[1]):
                broker.groups.leave(other, key)


async def change_password(broker: Broker, session: Session, command: c.ChangePassword) -> None:
    """Everybody may change his own."""
    check_password(command.current_password)
    check_password(command.new_password)
    user = find_user(broker.catalog.state, command.user)
    if user.user_id != session.user_id:
        broker.access.require(session, Action.MANAGE_USERS)
    await broker.authentication.change_password(session, user.user_id, command.current_password, command.new_password)


def _info(user: User) -> r.UserInfo:
    return r.UserInfo(user.user_id, user.created_at, user.is_active, user.name)


def _details(user: User) -> r.UserDetails:
    # Root may do everything, whatever is stored: clients are told so.
    permissions = ALL_PERMISSIONS if user.user_id == ROOT_USER_ID else user.permissions
    return r.UserDetails(_info(user), permissions)
