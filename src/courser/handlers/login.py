"""Logging in and out, and personal access tokens. Tokens are always one's own, so they need no permission."""

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.access.sessions import Session, sdk_of
from courser.broker.broker import Broker


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
