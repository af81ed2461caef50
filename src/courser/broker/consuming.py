"""Polling: where a read begins, what it gives, and the offsets that consumers store."""

from courser.api.commands import PollMessages
from courser.api.replies import Polled
from courser.broker.partition import Partition
from courser.model.consumers import ConsumerKind
from courser.model.identifiers import Identifier
from courser.model.messaging import PollingKind
from courser.storage.offset_table import ConsumerKey
from courser.storage.read_result import ReadBuffer

_NUMBER = b"\x01"
_NAME = b"\x02"


def consumer_key(identifier: Identifier) -> ConsumerKey:
    """The key of a single consumer: the identifier as it was sent, so a number never finds a name."""
    if isinstance(identifier, str):
        return ConsumerKey(ConsumerKind.CONSUMER, _NAME + identifier.encode())
    return ConsumerKey(ConsumerKind.CONSUMER, _NUMBER + identifier.to_bytes(4, "little"))


def group_key(group_id: int) -> ConsumerKey:
    """The key of a consumer group, however a client names it."""
    return ConsumerKey(ConsumerKind.GROUP, _NUMBER + group_id.to_bytes(4, "little"))


def current_offset(partition: Partition) -> int:
    """The offset of the newest message that polls can see; 0 if there never was one."""
    return max(partition.log.visible_end - 1, 0)


async def start_of_poll(partition: Partition, key: ConsumerKey, command: PollMessages) -> int:
    """The offset at which a poll begins to read."""
    log, kind = partition.log, command.kind
    if kind is PollingKind.NEXT:
        stored = log.offsets.get(key)
        return log.start_offset if stored is None else stored + 1
    if kind is PollingKind.OFFSET:
        return command.value
    if kind is PollingKind.FIRST:
        return log.start_offset
    if kind is PollingKind.LAST:
        return log.offset_of_last(command.count)
    return await partition.offset_at_time(command.value)


async def read_messages(
    partition: Partition, key: ConsumerKey, command: PollMessages, buffer: ReadBuffer, size_max: int
) -> Polled:
    """Read for a poll. What is gone or damaged is passed over."""
    partition_id = partition.log.identity.partition_id
    offset = await start_of_poll(partition, key, command)
    result = await partition.read(offset, count=command.count, size_max=size_max, buffer=buffer)
    if command.auto_commit and result.message_count:
        await commit_forward(partition, key, result.next_offset - 1)
    return Polled(partition_id, current_offset(partition), result.message_count, result.pieces, result.size)


async def commit_forward(partition: Partition, key: ConsumerKey, offset: int, *, persisted: bool = False) -> None:
    """Store how far a poll got. It never moves back."""
    stored = partition.log.offsets.get(key)
    if stored is None or stored < offset:
        await partition.store_offset(key, offset, persisted=persisted)
