"""Users, their permissions, logins and tokens. What changes here acts on open connections at once."""

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.access.authentication import check_password, check_user_name
from courser.broker.access.sessions import Session, sdk_of
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


# --- logins, and tokens: those are always one's own, so they need no permission ---


async def login_user(broker: Broker, session: Session, command: c.LoginUser) -> r.LoggedIn:
    reply = await broker.authentication.login(session, command.name, command.password, command.token)
    session.sdk = sdk_of(command.sdk or command.context)
    return reply


async def login_with_token(broker: Broker, session: Session, command: c.LoginWithToken) -> r.LoggedIn:
    """Log in with a personal access token."""
    reply = await broker.authentication.login_with_token(session, command.token)
    session.sdk = sdk_of(command.sdk)
    return reply


async def logout_user(broker: Broker, session: Session, _: c.LogoutUser) -> None:
    broker.authentication.logout(session)


async def get_tokens(broker: Broker, session: Session, _: c.GetTokens) -> r.TokenList:
    """Names and expiries, expired ones included until the cleaner has run."""
    tokens = broker.access.user(session).tokens
    return r.TokenList([r.TokenInfo(token.name, token.expires_at) for token in tokens.values()])


async def create_token(broker: Broker, session: Session, command: c.CreateToken) -> r.NewToken:
    """The secret is in the reply and nowhere else."""
    user, tokens = broker.access.user_of_own_login(session), broker.authentication.tokens
    login = tokens.of_login(session)
    return r.NewToken(await tokens.create(user.user_id, command.name, command.expiry, login=login))


async def create_one_time_token(broker: Broker, session: Session, _: c.CreateOneTimeToken) -> o.OneTimeToken:
    """For the user who asks, with what they logged in with."""
    user, login = broker.access.user_of_own_login(session), broker.authentication.tokens.of_login(session)
    return o.OneTimeToken(*broker.authentication.one_time_tokens.create(user, login))


async def delete_token(broker: Broker, session: Session, command: c.DeleteToken) -> None:
    """Ends the other sessions that logged in with it."""
    user = broker.access.user(session)
    await broker.authentication.tokens.delete(user.user_id, command.name, by_client=session.client_id)


def _info(user: User) -> r.UserInfo:
    return r.UserInfo(user.user_id, user.created_at, user.is_active, user.name)


def _details(user: User) -> r.UserDetails:
    # Root may do everything, whatever is stored: clients are told so.
    permissions = ALL_PERMISSIONS if user.user_id == ROOT_USER_ID else user.permissions
    return r.UserDetails(_info(user), permissions)
