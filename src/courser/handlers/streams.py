"""Streams."""

import uuid

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.catalog import changes
from courser.catalog.entities import Stream


async def get_stream(broker: Broker, session: Session, command: c.GetStream) -> r.StreamDetails:
    """One stream with its topics, by id."""
    stream = broker.finder.stream(session, command)
    info = await broker.figures.stream(stream)
    return r.StreamDetails(info, await broker.figures.topics(stream))


async def get_streams(broker: Broker, session: Session, command: c.GetStreams) -> r.StreamList:
    """All streams, by id."""
    broker.finder.check(session, command)
    streams = broker.catalog.state.streams
    return r.StreamList(await broker.figures.streams([streams[stream_id] for stream_id in sorted(streams)]))


async def create_stream(broker: Broker, session: Session, command: c.CreateStream) -> r.StreamInfo:
    """Its directory exists, durably, before the reply."""
    broker.finder.check(session, command)
    change = changes.StreamCreation(command.name, uuid.uuid4().bytes, command.stream_id)
    stream = await broker.catalog.submit(change)
    assert isinstance(stream, Stream), "creating a stream makes one"
    return await broker.figures.stream(stream)


async def update_stream(broker: Broker, session: Session, command: c.UpdateStream) -> None:
    stream = broker.finder.stream(session, command)
    await broker.catalog.submit(changes.StreamUpdate(stream.stream_id, command.name))


async def delete_stream(broker: Broker, session: Session, command: c.DeleteStream) -> None:
    """Its topics are deleted with it."""
    stream = broker.finder.stream(session, command)
    await broker.catalog.submit(changes.StreamDeletion(stream.stream_id))


async def purge_stream(broker: Broker, session: Session, command: c.PurgeStream) -> None:
    """Delete all messages and stored offsets; numbering continues."""
    stream = broker.finder.stream(session, command)
    await broker.purge(changes.StreamPurge(stream.stream_id))
