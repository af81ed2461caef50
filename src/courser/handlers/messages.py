"""Messages: sent, polled, flushed. The path of every message: look-ups, one call, nothing else."""

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.lookup import find_open_topic
from courser.broker.sessions import Session
from courser.handlers.audit import Answer
from courser.model.permissions import Action

# By name: a member of an enum takes as long to find as the topic.
_SEND_MESSAGES, _POLL_MESSAGES = Action.SEND_MESSAGES, Action.POLL_MESSAGES


def send_messages(broker: Broker, session: Session, command: c.SendMessages) -> Answer | r.Sent:
    """Acknowledged when the topic's durability allows it: most sends without a coroutine."""
    routes, stream, name = broker.routes, command.stream, command.topic
    topic = routes.known(session, _SEND_MESSAGES, stream, name)
    if topic is None:
        found = find_open_topic(broker.catalog.state, broker.partitions, stream, name)
        topic = routes.allow(session, _SEND_MESSAGES, stream, name, found)
    return broker.sends.append_at_once(topic, command) or broker.sends.append(topic, command)


async def poll_messages(broker: Broker, session: Session, command: c.PollMessages) -> r.Polled:
    """The reply refers to memory that is the session's until the reply is sent."""
    routes, stream, name = broker.routes, command.stream, command.topic
    topic = routes.known(session, _POLL_MESSAGES, stream, name)
    if topic is None:
        found = find_open_topic(broker.catalog.state, broker.partitions, stream, name)
        broker.polls.check_consumer(found, command.consumer)
        topic = routes.allow(session, _POLL_MESSAGES, stream, name, found)
    return await broker.polls.poll(session, topic, command)


async def flush_messages(broker: Broker, session: Session, command: c.FlushMessages) -> None:
    """Wait for the sends that were begun before, and for a sync if one is asked for: nothing is only in memory."""
    topic = find_open_topic(broker.catalog.state, broker.partitions, command.stream, command.topic)
    broker.access.require(session, _SEND_MESSAGES, topic.stream_id, topic.topic_id)
    partition = topic.partition(command.partition_id)
    await partition.settle()
    if command.fsync:
        await partition.sync()
