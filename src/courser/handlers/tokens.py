"""Personal access tokens: always one's own, so that no permission is needed."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.sessions import Session


async def get_tokens(broker: Broker, session: Session, _: c.GetTokens) -> r.TokenList:
    """Names and expiries, expired ones included until the cleaner has run."""
    tokens = broker.access.user(session).tokens
    return r.TokenList([r.TokenInfo(token.name, token.expires_at) for token in tokens.values()])


async def create_token(broker: Broker, session: Session, command: c.CreateToken) -> r.NewToken:
    """The secret is in the reply and nowhere else."""
    user = broker.access.user(session)
    return r.NewToken(await broker.authentication.tokens.create(user.user_id, command.name, command.expiry))


async def delete_token(broker: Broker, session: Session, command: c.DeleteToken) -> None:
    """Ends the other sessions that logged in with it."""
    user = broker.access.user(session)
    await broker.authentication.tokens.delete(user.user_id, command.name, by_client=session.client_id)
