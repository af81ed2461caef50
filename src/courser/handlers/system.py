"""The server itself: signs of life and connections."""

from courser.api import commands as c
from courser.broker.broker import Broker
from courser.broker.sessions import Session


async def ping(_broker: Broker, _session: Session, _: c.Ping) -> None:
    """Any request counts as a sign of life; this one does nothing else."""
