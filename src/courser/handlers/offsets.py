"""Stored offsets: how far consumers and groups got, partition by partition."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.sessions import Session


async def get_consumer_offset(broker: Broker, session: Session, command: c.GetConsumerOffset) -> r.StoredOffset:
    """How far a consumer got."""
    return broker.offsets.get(broker.finder.address(session, command), command)


async def store_consumer_offset(broker: Broker, session: Session, command: c.StoreConsumerOffset) -> None:
    """Remember how far a consumer got."""
    await broker.offsets.store(session, broker.finder.address(session, command), command)


async def delete_consumer_offset(broker: Broker, session: Session, command: c.DeleteConsumerOffset) -> None:
    """Forget how far a consumer got."""
    await broker.offsets.delete(session, broker.finder.address(session, command), command)
