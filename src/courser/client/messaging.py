"""Sends, polls and stored offsets: one request each. Producers and consumers are built on the same commands."""

import os
import time
from collections.abc import Iterable

from courser.api import commands as c
from courser.api import replies as r
from courser.client.asking import Asking, place_of
from courser.client.messages import (
    AnyPartitioning,
    Message,
    Payload,
    PollingStrategy,
    SendMessage,
    outgoing,
    partitioning_of,
)
from courser.client.polling import messages_of
from courser.model.consumers import ConsumerKind
from courser.model.identifiers import Consumer, Identifier
from courser.records.batch import Batch, build_batch

POLL_SIZE_MAX = 4 * 1024 * 1024
"""Bytes of one answer, unless told otherwise."""
_DEFAULT_CONSUMER = Consumer(ConsumerKind.CONSUMER, 0)
_ID_SIZE = 16


def consumer_of(consumer: Identifier | Consumer | None, group: Identifier | None) -> Consumer:
    """Who polls: a group, a single consumer by name or number, or the nameless one."""
    if group is not None:
        return Consumer(ConsumerKind.GROUP, group)
    if isinstance(consumer, Consumer):
        return consumer
    return _DEFAULT_CONSUMER if consumer is None else Consumer(ConsumerKind.CONSUMER, consumer)


def make_batch(messages: list[SendMessage]) -> Batch:
    """Messages as one batch, with a time and an id each."""
    now = time.time_ns() // 1000
    ids = os.urandom(_ID_SIZE * len(messages))
    return build_batch(
        [
            message.as_new(int.from_bytes(ids[number * _ID_SIZE : (number + 1) * _ID_SIZE], "little"), now)
            for number, message in enumerate(messages)
        ]
    )


class Messaging(Asking):
    """Messages, one request at a time."""

    async def send_messages(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        partitioning: AnyPartitioning = None,
        messages: Iterable[Payload | SendMessage] | Payload | SendMessage = (),
    ) -> r.Sent:
        """Append messages to one partition, all or none. Returns when they are acknowledged, with their place.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partitioning: The number of a partition, or a ``Partitioning``; None takes the partitions in turn.
            messages: Bytes, text, whatever JSON has a word for, or ``SendMessage``; one, or several in a list.
        """
        batch = make_batch(outgoing(messages))
        return await self._ask(c.SendMessages(*place_of(stream, topic), partitioning_of(partitioning), [batch]), r.Sent)

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

        Without consumer and group: as the group of this topic that was joined, if one was.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partition_id: Which one; a member of a group that names none gets its partitions in turn.
            polling_strategy: Where to begin; by default behind the stored offset.
            count: How many at most.
            auto_commit: Whether the server stores the offset of the last one.
            consumer: The name or number under which offsets are stored.
            group: The consumer group; this client must have joined it.
            wait: Seconds to wait for messages if there are none, at most 20.
            size_max: Bytes of the answer; one message is returned if there is one, however large.
            skip_missing: Pass over messages that are gone or damaged, instead of raising ``OffsetsUnavailable``.
        """
        place = place_of(stream, topic)
        if consumer is None and group is None:
            joined = self._link.memberships_in(*place)
            group = joined[0] if len(joined) == 1 else None
        strategy = polling_strategy or PollingStrategy.Next()
        command = c.PollMessages(
            consumer_of(consumer, group), *place, partition_id, strategy.kind, strategy.value, count, auto_commit
        )
        polled = await self._poll(command, wait, size_max, skip_missing=skip_missing)
        return messages_of(polled)

    async def _poll(self, command: c.PollMessages, wait: float, size_max: int, *, skip_missing: bool) -> r.Polled:
        if skip_missing and not wait:
            return await self._ask(command, r.Polled)
        return await self._ask(c.WaitForMessages(command, int(wait * 1_000_000), size_max), r.Polled)

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
        """How far a consumer or group got. Raises ``NotFound`` if nothing is stored."""
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
        """Store how far a consumer or group got: the offset of the last message that it is done with."""
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
        """Forget how far a consumer or group got. Raises ``NotFound`` if nothing is stored."""
        place = place_of(stream, topic)
        await self._tell(c.DeleteConsumerOffset(consumer_of(consumer, group), *place, partition_id))
