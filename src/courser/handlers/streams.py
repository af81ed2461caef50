"""Streams."""

import uuid

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.broker import Broker
from courser.broker.figures import stream_info, topic_info
from courser.broker.lookup import find_stream
from courser.broker.sessions import Session
from courser.catalog import commands as changes
from courser.catalog.entities import Stream
from courser.model.identifiers import Identifier
from courser.model.permissions import Action


async def get_stream(broker: Broker, session: Session, command: c.GetStream) -> r.StreamDetails:
    """One stream with its topics, by id."""
    stream = _find(broker, session, command.stream, Action.GET_STREAM)
    defaults = broker.settings.topic_defaults
    topics = [
        topic_info(stream, stream.topics[topic_id], broker.partitions, defaults) for topic_id in sorted(stream.topics)
    ]
    return r.StreamDetails(stream_info(stream, broker.partitions), topics)


async def get_streams(broker: Broker, session: Session, _: c.GetStreams) -> r.StreamList:
    """By id."""
    broker.access.require(session, Action.LIST_STREAMS)
    streams = broker.catalog.state.streams
    return r.StreamList([stream_info(streams[stream_id], broker.partitions) for stream_id in sorted(streams)])


async def create_stream(broker: Broker, session: Session, command: c.CreateStream) -> r.StreamInfo:
    """Its directory is there, and safe, before the answer."""
    broker.access.require(session, Action.CREATE_STREAM)
    change = changes.CreateStream(command.name, uuid.uuid4().bytes, command.stream_id)

    def make() -> changes.CreateStream:
        broker.quotas.check_new_stream()
        return change

    stream = await broker.catalog.submit_made(make)
    assert isinstance(stream, Stream), "creating a stream makes one"
    return stream_info(stream, broker.partitions)


async def update_stream(broker: Broker, session: Session, command: c.UpdateStream) -> None:
    """Rename it."""
    stream = _find(broker, session, command.stream, Action.MANAGE_STREAM)
    await broker.catalog.submit(changes.UpdateStream(stream.stream_id, command.name))


async def delete_stream(broker: Broker, session: Session, command: c.DeleteStream) -> None:
    """All its topics go with it."""
    stream = _find(broker, session, command.stream, Action.MANAGE_STREAM)
    await broker.catalog.submit(changes.DeleteStream(stream.stream_id))


async def purge_stream(broker: Broker, session: Session, command: c.PurgeStream) -> None:
    """Messages and stored offsets go; numbering goes on."""
    stream = _find(broker, session, command.stream, Action.MANAGE_STREAM)
    await broker.catalog.submit(changes.PurgeStream(stream.stream_id))


def _find(broker: Broker, session: Session, identifier: Identifier, action: Action) -> Stream:
    """A stream, and the permission to deal with it: existence comes first."""
    stream = find_stream(broker.catalog.state, identifier)
    broker.access.require(session, action, stream.stream_id)
    return stream
