"""Sends, polls and stored offsets, one request each. Producers and consumers use the same commands."""

from collections.abc import Iterable, Mapping, Sequence

from courser.api import commands as c
from courser.api import replies as r
from courser.client.argument_checks import check_seconds
from courser.client.asking import Asking, place_of
from courser.client.batches import PolledBatches, messages_of
from courser.client.link import Link
from courser.client.messages import (
    AnyPartitioning,
    Message,
    Payload,
    PollingStrategy,
    SendMessage,
    key_bytes,
    outgoing,
    partitioning_of,
    payload_bytes,
    write_headers,
)
from courser.client.outbox import Outbox
from courser.client.payload_encryption import Encryptor
from courser.errors import OffsetsUnavailable
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import Partitioning
from courser.records.batch import Batch

POLL_SIZE_MAX = 3 * 1024 * 1024
"""Default maximum bytes of one reply. Two full batches of a producer with default settings fit; a larger reply would
not stay in the CPU cache until it is read."""
_DEFAULT_CONSUMER = Consumer(ConsumerKind.CONSUMER, 0)


def consumer_of(consumer: Identifier | Consumer | None, group: Identifier | None) -> Consumer:
    """The polling consumer: a group, a single consumer by name or id, or the anonymous one."""
    if group is not None:
        return Consumer(ConsumerKind.GROUP, group)
    if isinstance(consumer, Consumer):
        return consumer
    return _DEFAULT_CONSUMER if consumer is None else Consumer(ConsumerKind.CONSUMER, consumer)


def make_batch(messages: Iterable[SendMessage], encryptor: Encryptor | None = None, link: Link | None = None) -> Batch:
    """Build one batch from messages, each with a time and an id, small enough for the link.

    Raises:
        InvalidBatch: there are no messages, or a header or time is invalid.
        TooLarge: the server does not accept so large a batch.
    """
    outbox = Outbox()
    for message in messages:
        key = None if message.key is None else key_bytes(message.key)
        headers = write_headers(message.headers, key)
        outbox.add(payload_bytes(message.payload), headers, message.id, message.timestamp)
    if link is not None:
        link.check_size(len(outbox), outbox.size)
    return outbox.pack(encryptor)


def _check_positions(positions: object) -> None:
    if not isinstance(positions, Mapping) or not all(isinstance(offsets, Mapping) for offsets in positions.values()):
        raise TypeError(f"positions must be a mapping of topics to partitions and offsets, not {positions!r}")


def _names_of(topic: str | tuple[Identifier, Identifier]) -> tuple[Identifier, Identifier]:
    return topic if isinstance(topic, tuple) else place_of(topic, None)


def _microseconds(wait: float) -> int:
    return int(check_seconds("wait", wait) * 1_000_000)


class Messaging(Asking):
    """Messages, one request at a time."""

    async def send_messages(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partitioning: AnyPartitioning = None,
        messages: Iterable[Payload | SendMessage] | Payload | SendMessage = (),
    ) -> r.Sent:
        """Append messages to one partition, all or none. Returns their offsets when they are acknowledged.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partitioning: A partition id, or a ``Partitioning``; None uses all partitions in turn.
            messages: Bytes, text, any JSON value, or ``SendMessage``; one, or several in a list.

        Raises:
            InvalidBatch: there are no messages, or a header or time is invalid.
            TooLarge: the server does not accept so large a request. Nothing was sent.
            Uncertain: the connection was lost before the reply.

        Example:
            sent = await client.send_messages("shop/orders", partitioning=1, messages=["text", b"bytes", {"n": 1}])
            print(sent.partition_id, sent.base_offset)
        """
        place, wanted, several = place_of(stream, topic), partitioning_of(partitioning), outgoing(messages)
        if self._tracing is None:
            return await self._append(place, wanted, several)
        with self._tracing.sending(list(several), "/".join(map(str, place))) as marked:
            return await self._append(place, wanted, marked)

    async def _append(
        self, place: tuple[Identifier, Identifier], partitioning: Partitioning, messages: Iterable[SendMessage]
    ) -> r.Sent:
        batch = make_batch(messages, self._encryptor, self._link)
        return await self._ask(c.SendMessages(*place, partitioning, [batch]), r.Sent)

    async def poll_messages(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int | None = None,
        polling_strategy: PollingStrategy | None = None,
        count: int = 10,
        *,
        auto_commit: bool = True,
        consumer: Identifier | Consumer | None = None,
        group: Identifier | None = None,
        wait: float = 0.0,
        size_max: int = POLL_SIZE_MAX,
        skip_missing: bool = False,
    ) -> list[Message]:
        """Read messages of one partition.

        Without consumer and group, it polls as the joined group of this topic, if any.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partition_id: The partition; a member of a group that gives none reads its partitions in turn.
            polling_strategy: Where to start; by default after the stored offset.
            count: Maximum number of messages.
            auto_commit: Whether the server stores the offset of the last message.
            consumer: The name or id under which offsets are stored.
            group: The consumer group; this client must have joined it.
            wait: Seconds to wait for messages if there are none, at most 20.
            size_max: Maximum bytes of the reply; a single larger message is returned anyway.
            skip_missing: Skip deleted or damaged messages instead of raising ``OffsetsUnavailable``.

        Raises:
            NotAssigned: the partition does not belong to this member of the group.
            OffsetsUnavailable: messages were deleted or are damaged.
            DecryptionFailed: the messages are encrypted with another key.

        Example:
            first = courser.PollingStrategy.First()
            for message in await client.poll_messages("shop/orders", partition_id=0, polling_strategy=first, count=100):
                print(message.offset, message.payload)
        """
        polled = await self.poll_batches(
            stream,
            topic,
            partition_id,
            polling_strategy,
            count,
            auto_commit=auto_commit,
            consumer=consumer,
            group=group,
            wait=wait,
            size_max=size_max,
            skip_missing=skip_missing,
        )
        return messages_of(polled, self._encryptor)

    async def poll_batches(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int | None = None,
        polling_strategy: PollingStrategy | None = None,
        count: int = 2**32 - 1,
        *,
        auto_commit: bool = False,
        consumer: Identifier | Consumer | None = None,
        group: Identifier | None = None,
        wait: float = 0.0,
        size_max: int = POLL_SIZE_MAX,
        skip_missing: bool = False,
    ) -> PolledBatches:
        """Read messages of one partition as whole batches: buffers and columns, no object per message.

        Like ``poll_messages`` with other defaults: as many messages as fit into the reply, and no commit. Encrypted
        payloads are not decrypted.

        Raises:
            NotAssigned: the partition does not belong to this member of the group.
            OffsetsUnavailable: messages were deleted or are damaged.

        Example:
            first = courser.PollingStrategy.First()
            polled = await client.poll_batches("shop/orders", partition_id=0, polling_strategy=first)
            print(polled.message_count, polled.next_offset)
        """
        place, strategy = place_of(stream, topic), polling_strategy or PollingStrategy.Next()
        if not isinstance(strategy, PollingStrategy):
            raise TypeError(f"polling_strategy must be a PollingStrategy, not {strategy!r}")
        if consumer is None and group is None:
            joined = self._link.memberships_in(*place)
            group = joined[0] if len(joined) == 1 else None
        reader = consumer_of(consumer, group)
        poll = c.PollMessages(reader, *place, partition_id, strategy.kind, strategy.value, count, auto_commit)
        if wait or not skip_missing:
            try:
                waiting = c.WaitForMessages(poll, _microseconds(wait), size_max)
                return PolledBatches(await self._ask(waiting, r.Polled))
            except OffsetsUnavailable:
                if not skip_missing:
                    raise
        return PolledBatches(await self._ask(poll, r.Polled))

    async def find_messages(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int = 0,
        offset: int = 0,
        conditions: Sequence[str] = (),
    ) -> r.FoundMessages:
        """Let the server search a partition. One request looks at up to 2,000 messages; continue at ``next_offset``.

        All messages that match are in the returned range. Others may be in it, too: poll the range, and use
        ``courser.records.message_filter.MessageFilter`` to select. The server cannot search encrypted messages.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partition_id: The partition.
            offset: Where to start.
            conditions: As ``--filter`` of ``courser tail``; all of them must be satisfied.

        Raises:
            InvalidRequest: a condition has a wrong form.
            OffsetsUnavailable: messages from ``offset`` on are deleted or damaged.
            TypeError: ``conditions`` is not a list of texts.

        Example:
            found = await client.find_messages("shop/orders", conditions=["key=customer-7", ".total > 100"])
            print(found.first_offset, found.end_offset, found.next_offset)
        """
        if not isinstance(conditions, list | tuple) or not all(isinstance(text, str) for text in conditions):
            raise TypeError(f"conditions must be a list of texts, not {conditions!r}")
        command = c.FindMessages(*place_of(stream, topic), partition_id, offset, tuple(conditions))
        return await self._ask(command, r.FoundMessages)

    async def wait_for_arrivals(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        positions: Mapping[int, int] | None = None,
        *,
        consumer: Identifier | Consumer | None = None,
        group: Identifier | None = None,
        generation: int = 0,
        wait: float = 20.0,
    ) -> r.Arrivals:
        """Wait until one of several partitions has messages.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            positions: By partition, the next offset to read.
            consumer: The waiting consumer.
            group: The consumer group, for a member.
            generation: The known generation of the group's assignment: a newer one ends the wait.
            wait: Seconds, at most 20. Another request on this connection also ends the wait.

        Example:
            arrivals = await client.wait_for_arrivals("shop/orders", positions={0: 3, 1: 0}, wait=0.1)
            print(arrivals.partition_ids)
        """
        if positions is not None and not isinstance(positions, Mapping):
            raise TypeError(f"positions must be a mapping of partitions to offsets, not {positions!r}")
        rows = tuple((positions or {}).items())
        who = consumer_of(consumer, group)
        command = c.WaitForArrivals(who, *place_of(stream, topic), rows, generation, _microseconds(wait))
        return await self._ask(command, r.Arrivals)

    async def wait_for_topics(
        self, positions: Mapping[str | tuple[Identifier, Identifier], Mapping[int, int]], *, wait: float = 20.0
    ) -> dict[str | tuple[Identifier, Identifier], list[int]]:
        """Wait until a partition of one of several topics has messages. Returns the partitions by topic.

        Args:
            positions: By topic, the next offset to read in each partition. A topic is ``"stream/topic"``, or a tuple.
            wait: Seconds, at most 20. Another request on this connection also ends the wait.

        Example:
            arrived = await client.wait_for_topics({"shop/orders": {0: 3}, ("shop", "orders"): {1: 0}}, wait=0.1)
            print(arrived)
        """
        _check_positions(positions)
        places = [(topic, partition_id) for topic, offsets in positions.items() for partition_id in offsets]
        rows = tuple(
            (*_names_of(topic), partition_id, positions[topic][partition_id]) for topic, partition_id in places
        )
        arrivals = await self._ask(c.WaitForTopics(rows, _microseconds(wait)), r.ArrivalsInTopics)
        found: dict[str | tuple[Identifier, Identifier], list[int]] = {}
        for number in arrivals.numbers:
            topic, partition_id = places[number]
            found.setdefault(topic, []).append(partition_id)
        return found

    # --- stored offsets -------------------------------------------------------------------------------

    async def get_consumer_offset(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int = 0,
        *,
        consumer: Identifier | Consumer | None = None,
        group: Identifier | None = None,
    ) -> r.StoredOffset:
        """The stored offset of a consumer or group.

        Raises:
            NotFound: the stream, topic, partition or group does not exist, or no offset is stored.

        Example:
            await client.store_consumer_offset("shop/orders", partition_id=0, offset=1, consumer="audit")
            stored = await client.get_consumer_offset("shop/orders", partition_id=0, consumer="audit")
            print(stored.stored_offset, stored.current_offset)
        """
        command = c.GetConsumerOffset(consumer_of(consumer, group), *place_of(stream, topic), partition_id)
        return await self._ask(command, r.StoredOffset)

    async def store_consumer_offset(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int = 0,
        offset: int = 0,
        *,
        consumer: Identifier | Consumer | None = None,
        group: Identifier | None = None,
    ) -> None:
        """Store the offset of a consumer or group: that of the last processed message.

        Raises:
            InvalidRequest: the offset is beyond the end of the partition.
            NotAssigned: the partition does not belong to this member of the group.

        Example:
            await client.store_consumer_offset("shop/orders", partition_id=0, offset=1, consumer="audit")
        """
        place = place_of(stream, topic)
        await self._tell(c.StoreConsumerOffset(consumer_of(consumer, group), *place, partition_id, offset))

    async def delete_consumer_offset(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partition_id: int = 0,
        *,
        consumer: Identifier | Consumer | None = None,
        group: Identifier | None = None,
    ) -> None:
        """Delete the stored offset of a consumer or group.

        Raises:
            NotFound: the stream, topic, partition or group does not exist, or no offset is stored.
        """
        place = place_of(stream, topic)
        await self._tell(c.DeleteConsumerOffset(consumer_of(consumer, group), *place, partition_id))
