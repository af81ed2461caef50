"""Sending and polling in tests: short words for long commands."""

from collections.abc import Iterable
from pathlib import Path

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import OpenTopic
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import Balanced, Partitioning, PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.storage.partition_log import PartitionLog
from tests.handlers.scenes import Scene
from tests.records.reference import WireMessage, read_wire

ME = Consumer(ConsumerKind.CONSUMER, 1)


async def add_topic(scene: Scene, *, partition_count: int = 1, **options: int | str | bool) -> r.TopicDetails:
    """Topic "t" of stream "s"."""
    if "s" not in scene.broker.catalog.state.stream_by_name:
        await scene.ask(scene.root, c.CreateStream("s"))
    command = c.CreateTopic("s", "t", partition_count, TopicOptions(**options))  # type: ignore[arg-type]
    reply = await scene.ask(scene.root, command)
    assert isinstance(reply, r.TopicDetails)
    return reply


def send_command(*texts: str, to: Partitioning | int = 0) -> c.SendMessages:
    batch = build_batch([NewMessage(text.encode()) for text in texts or ("x",)])
    return c.SendMessages("s", "t", ToPartition(to) if isinstance(to, int) else to, [batch])


async def send(scene: Scene, *texts: str, to: Partitioning | int = 0, session: Session | None = None) -> r.Sent:
    reply = await scene.ask(session or scene.root, send_command(*texts, to=to))
    assert isinstance(reply, r.Sent)
    return reply


async def send_balanced(scene: Scene, text: str) -> int:
    return (await send(scene, text, to=Balanced())).partition_id


def poll_command(
    kind: PollingKind = PollingKind.NEXT,
    value: int = 0,
    *,
    count: int = 100,
    partition: int | None = 0,
    consumer: Consumer = ME,
    commit: bool = False,
    topic: Identifier = "t",
) -> c.PollMessages:
    return c.PollMessages(consumer, "s", topic, partition, kind, value, count, commit)


async def poll(scene: Scene, command: c.PollMessages, session: Session | None = None) -> r.Polled:
    session = session or scene.root
    reply = await scene.ask(session, command)
    assert isinstance(reply, r.Polled)
    return reply


def messages_of(reply: r.Polled) -> list[WireMessage]:
    messages = read_wire(b"".join(reply.pieces))
    assert len(messages) == reply.message_count
    assert sum(len(piece) for piece in reply.pieces) == reply.size
    return messages


def texts_of(reply: r.Polled) -> list[str]:
    return [message.payload.decode() for message in messages_of(reply)]


async def texts(scene: Scene, command: c.PollMessages, session: Session | None = None) -> list[str]:
    """What a poll gives; the reply is sent afterwards."""
    found = texts_of(await poll(scene, command, session))
    scene.broker.buffers.give_back(session or scene.root)
    return found


def open_topic(scene: Scene) -> OpenTopic:
    state = scene.broker.catalog.state
    stream_id = state.stream_by_name["s"]
    return scene.broker.partitions.topics[stream_id, state.topic_by_name[stream_id, "t"]]


def partition_of(scene: Scene, partition_id: int = 0) -> Partition:
    return open_topic(scene).partition(partition_id)


def log_of(scene: Scene, partition_id: int = 0) -> PartitionLog:
    return partition_of(scene, partition_id).log


async def fill_segments(scene: Scene, contents: Iterable[str], partition_id: int = 0) -> None:
    """One sealed segment for each text."""
    for text in contents:
        await send(scene, text, to=partition_id)
        await partition_of(scene, partition_id).roll()


def damage(path: Path) -> None:
    """Change the last byte of a file: rot."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
