"""Logging in and out."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.sessions import Session


async def login_user(broker: Broker, session: Session, command: c.LoginUser) -> r.LoggedIn:
    """By password."""
    return await broker.authentication.login(session, command.name, command.password, command.token)


async def login_with_token(broker: Broker, session: Session, command: c.LoginWithToken) -> r.LoggedIn:
    """By personal access token."""
    return await broker.authentication.login_with_token(session, command.token)


async def logout_user(broker: Broker, session: Session, _: c.LogoutUser) -> None:
    """The connection stays."""
    broker.authentication.logout(session)
