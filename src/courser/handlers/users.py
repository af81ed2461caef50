"""Users and permissions. What changes here acts on open connections at once."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.authentication import check_password, check_user_name
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.catalog.finding import find_user
from courser.catalog import changes
from courser.catalog.entities import User
from courser.catalog.rules import ROOT_USER_ID
from courser.errors import CommandRejected, ErrorCode
from courser.model.permissions import ALL_PERMISSIONS, Action


async def get_user(broker: Broker, session: Session, command: c.GetUser) -> r.UserDetails:
    """Users may read their own account."""
    user = find_user(broker.catalog.state, command.user)
    if user.user_id != session.user_id:
        broker.finder.check(session, command)
    return _details(user)


async def get_users(broker: Broker, session: Session, command: c.GetUsers) -> r.UserList:
    """All users, by id."""
    broker.finder.check(session, command)
    users = broker.catalog.state.users
    return r.UserList([_info(users[user_id]) for user_id in sorted(users)])


async def create_user(broker: Broker, session: Session, command: c.CreateUser) -> r.UserDetails:
    """The permission is checked before the password is hashed: hashing is expensive."""
    check_user_name(command.name)
    check_password(command.password)
    broker.finder.check(session, command)
    broker.access.user_of_own_login(session)
    if command.name in broker.catalog.state.user_by_name:
        raise CommandRejected(ErrorCode.USER_ALREADY_EXISTS, f"user {command.name!r} already exists")
    password_hash = await broker.authentication.hash_password(session, command.password)
    # Hashing takes a while, and the permission may have been revoked.
    broker.finder.check(session, command)
    change = changes.UserCreation(command.name, password_hash, command.is_active, command.permissions)
    user = await broker.catalog.submit(change)
    assert isinstance(user, User), "creating a user makes one"
    return _details(user)


async def delete_user(broker: Broker, session: Session, command: c.DeleteUser) -> None:
    """Ends all sessions of that user, perhaps this one."""
    user = broker.finder.user(session, command)
    await broker.catalog.submit(changes.UserDeletion(user.user_id))
    broker.authentication.user_deleted(user)


async def update_user(broker: Broker, session: Session, command: c.UpdateUser) -> None:
    """An inactive user leaves its consumer groups, and others get its partitions."""
    if command.name is not None:
        check_user_name(command.name)
    user = broker.finder.user(session, command)
    if command.protects_root and user.user_id == ROOT_USER_ID:
        raise CommandRejected(ErrorCode.CANNOT_MODIFY_ROOT_USER, "the root user cannot be changed")
    await broker.catalog.submit(changes.UserUpdate(user.user_id, command.name, command.is_active))
    broker.user_updated(user)


async def update_permissions(broker: Broker, session: Session, command: c.UpdatePermissions) -> None:
    """The user leaves groups of topics that it may no longer read."""
    user = broker.finder.user(session, command)
    await broker.catalog.submit(changes.PermissionUpdate(user.user_id, command.permissions))
    broker.permissions_updated(user)


async def change_password(broker: Broker, session: Session, command: c.ChangePassword) -> None:
    """Users may change their own password."""
    check_password(command.current_password)
    check_password(command.new_password)
    broker.access.user_of_own_login(session)
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
