"""A broker from its first start to its next one."""

from pathlib import Path

from courser.api.commands import PollMessages, SendMessages
from courser.broker.broker import Broker, RootUser
from courser.broker.consuming import consumer_key
from courser.broker.settings import BrokerSettings
from courser.catalog.commands import CreateStream, CreateTopic
from courser.catalog.entities import Stream, Topic
from courser.model.consumers import ConsumerKind
from courser.model.identifiers import Consumer
from courser.model.messaging import Balanced, PollingKind, Transport
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.storage.data_directory import DataDirectory
from tests.records.reference import read_wire


def root() -> RootUser:
    return RootUser("iggy", "$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA")


async def test_what_was_sent_is_there_after_the_next_start(tmp_path: Path) -> None:
    broker = await Broker.open(DataDirectory.open(tmp_path), BrokerSettings(), make_root=root)
    stream = await broker.catalog.submit(CreateStream("orders", bytes(16)))
    assert isinstance(stream, Stream)
    topic = await broker.catalog.submit(CreateTopic(stream.stream_id, "paid", bytes(range(16)), 2, TopicOptions()))
    assert isinstance(topic, Topic)
    batch = build_batch([NewMessage(b"one"), NewMessage(b"two")])
    command = SendMessages(stream.stream_id, topic.topic_id, Balanced(), [batch])
    sent = await broker.sends.append(broker.partitions.topics[stream.stream_id, topic.topic_id], command)
    assert (sent.partition_id, sent.base_offset) == (0, 0)
    assert await broker.close()

    broker = await Broker.open(DataDirectory.open(tmp_path), BrokerSettings(), make_root=root)
    assert [user.name for user in broker.catalog.state.users.values()] == ["iggy"]
    opened = broker.partitions.topics[stream.stream_id, topic.topic_id]
    session = broker.sessions.open(Transport.TCP, "127.0.0.1:1")
    poll = PollMessages(Consumer(ConsumerKind.CONSUMER, 1), "orders", "paid", None, PollingKind.NEXT, 0, 10, True)
    polled = await broker.polls.poll(session, opened, poll)
    assert [message.payload for message in read_wire(b"".join(polled.pieces))] == [b"one", b"two"]
    assert opened.partition(0).log.offsets.get(consumer_key(1)) == 1
    assert await broker.close()
