"""Staged writes: messages put aside by the tasks of a job, and published together. Permissions are those of sends."""

from collections.abc import Callable
from operator import attrgetter

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.partition.waiting import Steps
from courser.broker.publishing.staged_parts import OpenPart
from courser.catalog.entities import Sink
from courser.catalog.rules import BATCH_NUMBER_MAX, ROOT_USER_ID
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import TopicAddress
from courser.model.messaging import ByKey
from courser.model.permissions import Action


async def stage_messages(broker: Broker, session: Session, command: c.StageMessages) -> None:
    """Stage a chunk. Readers cannot see it until its part is published."""
    address = broker.finder.address(session, command)
    user_id = _owner(broker, session, command.name.sink, command.name.batch)
    broker.sends.check_space()
    partitioning, batch = command.partitioning, command.batch
    target = broker.sends.target_of(address, partitioning)
    if type(partitioning) is ByKey:
        (batch,) = await broker.sends.with_key([batch], partitioning.key)
    await broker.staging.stage(user_id, command.name, command.chunk, target, batch)


async def finish_stage(broker: Broker, session: Session, command: c.FinishStage) -> r.StagedPart:
    user_id = _owner(broker, session, command.name.sink, command.name.batch)
    return await broker.staging.finish(user_id, command.name, command.chunk_count)


async def publish_staged(broker: Broker, session: Session, command: c.PublishStaged) -> r.Published:
    """All or nothing, once; durable on return."""

    def check_access(address: TopicAddress) -> None:
        broker.access.require(session, Action.SEND_MESSAGES, *address)

    user_id = _owner(broker, session, command.sink, command.batch)
    return await broker.publishing.publish(user_id, command, check_access)


async def discard_staged(broker: Broker, session: Session, command: c.DiscardStaged) -> None:
    """What is published stays."""
    user_id = _owner(broker, session, command.sink, command.batch or 0)
    if command.forget and command.sink in broker.catalog.state.sinks:
        await broker.publishing.forget(command.sink)
    await broker.staging.discard(user_id, command.sink, command.batch)


async def get_sink(broker: Broker, session: Session, command: c.GetSink) -> r.SinkInfo:
    """What its owner may know about a sink; one that was never used is no error."""
    user_id = _owner(broker, session, command.sink, 0)
    part_count, size = await broker.staging.figures(user_id, command.sink)
    sink = broker.catalog.state.sinks.get(command.sink)
    if sink is None:
        return r.SinkInfo(None, False, 0, part_count, size)
    return r.SinkInfo(sink.batch, sink.open is not None, sink.published_at, part_count, size)


async def get_sinks(broker: Broker, session: Session, command: c.GetSinks) -> r.SinkList:
    """Sinks that have published, and names for which something is staged."""
    del command
    wanted = _seen_by(broker, session)
    figures: dict[tuple[str, int], tuple[int, int]] = {}
    steps = Steps()
    for part in broker.staging.parts():
        await steps.take()
        if wanted(part.identity.user_id):
            key = part.identity.sink, part.identity.user_id
            count, size = figures.get(key, (0, 0))
            figures[key] = count + 1, size + part.contents.file_size
    published = {(sink.name, sink.user_id): sink for sink in broker.catalog.state.sinks.values()}
    keys = sorted(figures.keys() | {key for key in published if wanted(key[1])})
    return r.SinkList([_summary(*key, published.get(key), *figures.get(key, (0, 0))) for key in keys])


def _summary(name: str, user_id: int, sink: Sink | None, part_count: int, staged_size: int) -> r.SinkSummary:
    if sink is None:
        return r.SinkSummary(name, user_id, None, False, 0, 0, part_count, staged_size)
    is_open, times = sink.open is not None, (sink.published_at, sink.expires_at)
    return r.SinkSummary(name, user_id, sink.batch, is_open, *times, part_count, staged_size)


async def get_staged_parts(broker: Broker, session: Session, command: c.GetStagedParts) -> r.StagedPartList:
    """None is no error."""
    wanted = _seen_by(broker, session)
    found: list[r.StagedPartInfo] = []
    steps = Steps()
    for part in broker.staging.parts():
        await steps.take()
        if part.identity.sink == command.sink and wanted(part.identity.user_id):
            found.append(_part_info(part))
    return r.StagedPartList(sorted(found, key=attrgetter("user_id", "batch", "part", "attempt")))


def _part_info(part: OpenPart) -> r.StagedPartInfo:
    identity, contents = part.identity, part.contents
    return r.StagedPartInfo(
        identity.user_id,
        identity.batch,
        identity.part,
        identity.attempt,
        contents.chunk_count,
        contents.message_count,
        contents.file_size,
        contents.is_finished,
        part.touched_at,
    )


def _seen_by(broker: Broker, session: Session) -> Callable[[int], bool]:
    """Whose sinks this user may look at: all, who may read the server; else those of the user itself."""
    user = broker.access.user(session)
    if user.user_id == ROOT_USER_ID or broker.access.allows(user.permissions, Action.READ_SERVER):
        return lambda _: True
    return lambda user_id: user_id == user.user_id


def _owner(broker: Broker, session: Session, name: str, batch: int) -> int:
    """Whose parts these are. Raises 41 for a sink of somebody else: its next batch could be made to look published."""
    if batch > BATCH_NUMBER_MAX:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"a batch is numbered from 0 to {BATCH_NUMBER_MAX}")
    user = broker.access.user(session)
    sink = broker.catalog.state.sinks.get(name)
    if sink is None or sink.user_id == user.user_id:
        return user.user_id
    if user.user_id == ROOT_USER_ID:
        return sink.user_id
    raise CommandRejected(ErrorCode.UNAUTHORIZED, f"sink {name!r} does not belong to user {user.name!r}")
