"""Messages: sent, polled, flushed. The path of every message: look up, one call, nothing else."""

from collections.abc import Coroutine
from typing import Any

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.sessions import Session
from courser.broker.waiting import Waiting


def send_messages(broker: Broker, session: Session, command: c.SendMessages) -> r.Sent | Waiting[r.Sent]:
    """Acknowledged when the topic's durability allows it: most sends without a coroutine."""
    return broker.sends.append(broker.finder.address(session, command), command)


def poll_messages(broker: Broker, session: Session, command: c.PollMessages) -> Coroutine[Any, Any, r.Polled]:
    """The reply refers to memory that belongs to the session until the reply is sent."""
    return broker.polls.poll(session, broker.finder.address(session, command), command)


async def wait_for_messages(broker: Broker, session: Session, command: c.WaitForMessages) -> r.Polled:
    """Messages that are gone or damaged are an error that names the offsets."""
    poll = command.poll
    address = broker.finder.address(session, poll)

    def check_access() -> None:
        # The wait may have been long, and the permission may have been revoked.
        broker.finder.check(session, poll, *address)

    return await broker.polls.wait(session, address, command, check_access)


async def wait_for_arrivals(broker: Broker, session: Session, command: c.WaitForArrivals) -> r.Arrivals:
    """Which of several partitions have something to read, once one has."""
    address = broker.finder.address(session, command)
    arrivals = await broker.polls.wait_for_arrivals(session, address, command)
    # The wait may have been long, and the permission may have been revoked.
    broker.finder.check(session, command, *address)
    return arrivals


async def flush_messages(broker: Broker, session: Session, command: c.FlushMessages) -> None:
    """Wait for earlier sends, and for a sync if one is asked for."""
    address = broker.finder.address(session, command)
    await broker.sends.flush(address, command.partition_id, fsync=command.fsync)
