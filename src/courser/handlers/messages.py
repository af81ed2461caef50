"""Messages and stored offsets. Every message takes this path: look up, one call, nothing else."""

from dataclasses import dataclass
from typing import ClassVar

from courser.api import commands as c
from courser.api import internal_commands as i
from courser.api import replies as r
from courser.api.table import CommandRow
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.messages.searching import filter_of
from courser.broker.partition.waiting import Waiting
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Identifier


def send_messages(broker: Broker, session: Session, command: c.SendMessages) -> r.Sent | Waiting[r.Sent]:
    """Acknowledged when the topic's durability allows it: most sends without a coroutine."""
    return broker.sends.append(broker.finder.address(session, command), command)


def poll_messages(broker: Broker, session: Session, command: c.PollMessages) -> r.Polled | Waiting[r.Polled]:
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


async def await_messages(broker: Broker, session: Session, command: c.AwaitMessages) -> r.ReadyPartitions:
    """Which of several partitions can be read, once they have enough messages."""
    address = broker.finder.address(session, command)
    ready = await broker.fetches.wait(session, address, command)
    # The wait may have been long, and the permission may have been revoked.
    broker.finder.check(session, command, *address)
    return ready


def read_messages(broker: Broker, session: Session, command: c.ReadMessages) -> r.Polled | Waiting[r.Polled]:
    """A poll with a limit to the size of its reply."""
    return broker.polls.poll(session, broker.finder.address(session, command.poll), command.poll, command.size_max)


async def fetch_messages(broker: Broker, session: Session, command: c.FetchMessages) -> r.Fetched:
    """Messages of several partitions."""
    return await broker.fetches.fetch(session, broker.finder.address(session, command), command)


async def find_messages(broker: Broker, session: Session, command: c.FindMessages) -> r.FoundMessages:
    """Which messages may match: the client polls and checks them."""
    address = broker.finder.address(session, command)
    return await broker.polls.find(session, address, command, filter_of(command.conditions))


async def wait_for_arrivals(broker: Broker, session: Session, command: c.WaitForArrivals) -> r.Arrivals:
    """Which of several partitions have something to read, once one has."""
    address = broker.finder.address(session, command)
    arrivals = await broker.polls.wait_for_arrivals(session, address, command)
    # The wait may have been long, and the permission may have been revoked.
    broker.finder.check(session, command, *address)
    return arrivals


@dataclass(frozen=True, slots=True)
class _WaitedFor:
    """One of the topics that a command waits for."""

    row: ClassVar[CommandRow] = c.WaitForTopics.row
    stream: Identifier
    topic: Identifier


async def wait_for_topics(broker: Broker, session: Session, command: c.WaitForTopics) -> r.ArrivalsInTopics:
    """Which partitions of several topics have something to read, once one has."""
    finder = broker.finder
    topics = dict.fromkeys(_WaitedFor(stream, topic) for stream, topic, _, _ in command.positions)
    addresses = {topic: finder.address(session, topic) for topic in topics}
    places = [
        (addresses[_WaitedFor(stream, topic)], partition_id, offset)
        for stream, topic, partition_id, offset in command.positions
    ]
    arrivals = await broker.polls.wait_for_topics(session, places, command.wait)
    # The wait may have been long, and permissions may have been revoked.
    for topic, address in addresses.items():
        finder.check(session, topic, *address)
    return arrivals


async def get_partition_route(broker: Broker, session: Session, command: c.GetPartitionRoute) -> r.PartitionRoute:
    """From the metadata, which every process has. Raises 3007."""
    _, topic = broker.finder.topic(session, command)
    if command.partition_id >= len(topic.partitions):
        reason = f"the topic has {len(topic.partitions)} partitions, and none with number {command.partition_id}"
        raise CommandRejected(ErrorCode.PARTITION_NOT_FOUND, reason)
    return r.PartitionRoute(topic.partitions[command.partition_id].incarnation, len(topic.partitions))


async def flush_messages(broker: Broker, session: Session, command: c.FlushMessages) -> None:
    """Wait for earlier sends, and for a sync if one is asked for."""
    address = broker.finder.address(session, command)
    await broker.sends.flush(address, command.partition_id, fsync=command.fsync)


async def get_consumer_offset(broker: Broker, session: Session, command: c.GetConsumerOffset) -> r.StoredOffset:
    """How far a consumer got."""
    return broker.offsets.get(broker.finder.address(session, command), command)


async def store_consumer_offset(broker: Broker, session: Session, command: c.StoreConsumerOffset) -> None:
    """Remember how far a consumer got."""
    await broker.offsets.store(session, broker.finder.address(session, command), command)


async def delete_consumer_offset(broker: Broker, session: Session, command: c.DeleteConsumerOffset) -> None:
    """Forget how far a consumer got."""
    await broker.offsets.delete(session, broker.finder.address(session, command), command)


# --- what subscriptions and searches need of a topic, in the process that owns it ---


async def find_start_offsets(broker: Broker, session: Session, command: i.FindStartOffsets) -> i.StartOffsets:
    """Where a subscription starts."""
    return await broker.polls.find_start_offsets(broker.finder.address(session, command), command)


async def find_ranges_to_scan(broker: Broker, session: Session, command: i.FindRangesToScan) -> i.RangesToScan:
    """What a scan looks at."""
    return await broker.scan_pieces.find_ranges(broker.finder.address(session, command), command)


async def scan_piece(broker: Broker, session: Session, command: i.ScanPiece) -> i.ScannedPiece:
    """Which messages of a piece match."""
    address = broker.finder.address(session, command)
    return await broker.scan_pieces.look(address, command, filter_of(command.conditions))
