"""The producer: collects messages into batches, and sends batches without waiting for each other's replies.

Memory is bounded: a caller that sends faster than the server accepts has to wait. Order is kept per partition. The
module ``delivery`` sends batches that are full or have waited long enough.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from courser.api import commands as c
from courser.api.replies import TopicDetails
from courser.client.delivery import BatchDelivery, ProducerSettings, give_up, joined
from courser.client.link import Link
from courser.client.messages import (
    AnyPartitioning,
    Headers,
    Payload,
    SendMessage,
    key_bytes,
    partitioning_of,
    payload_bytes,
    several,
    write_headers,
)
from courser.client.outbox import EMPTY_MESSAGE_SIZE, FRAME_HEADER_SIZE, check_numbers
from courser.client.payload_encryption import ENCRYPTION_SIZE, Encryptor
from courser.client.pending_batches import PendingBatch, Receipt, Ticket
from courser.errors import ClientClosed, CourserError, NotAllowed, NotDelivered
from courser.model.buffers import Buffer
from courser.model.identifiers import Identifier
from courser.model.messaging import Balanced, ByKey, Partitioning, ToPartition
from courser.records.message_keys import partition_of_key

if TYPE_CHECKING:
    from courser.client.tracing import Tracing

_REQUEST_RESERVE = 2048
"""Bytes of a request besides its batch: a header, and the names of stream and topic."""

__all__ = ["Producer", "ProducerSettings", "Receipt", "Ticket"]


class Producer:
    """Sends messages to one topic. Created by ``Client.producer``. Use it in ``async with``, to flush at the end.

    Example:
        async with client.producer("shop/orders") as producer:
            for number in range(1000):
                await producer.send({"n": number})
        print(producer.message_count, producer.is_closed)
    """

    def __init__(
        self,
        link: Link,
        stream: Identifier,
        topic: Identifier,
        *,
        partitioning: AnyPartitioning = None,
        settings: ProducerSettings | None = None,
        encryptor: Encryptor | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._link = link
        self._tracing = tracing
        self._stream, self._topic = stream, topic
        self._partitioning = partitioning_of(partitioning)
        self.settings = settings or ProducerSettings()
        self._partition_count: int | None = None
        """None if it is unknown: then the server chooses the partition."""
        self._turn = 0
        self._open: dict[Partitioning, PendingBatch] = {}
        """Batches that still accept messages, by partitioning."""
        self._current: PendingBatch | None = None
        """The batch for messages without their own partitioning; None if something has to be checked first."""
        self._batch_size = self.settings.batch_size
        self._last_number = self.settings.batch_count - 1
        """The index of the message that fills a batch."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._encryptor = encryptor
        self._delivery = BatchDelivery(link, (stream, topic), self.settings, encryptor, self._look_again)
        self._is_closed = False
        self._is_open = False

    # --- life -----------------------------------------------------------------------------------------

    @property
    def message_count(self) -> int:
        """Number of acknowledged messages."""
        return self._delivery.message_count

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def last_error(self) -> CourserError | None:
        """Why there is no connection at the moment, as far as it is known."""
        return self._link.last_error

    @property
    def has_failed(self) -> bool:
        """Whether a message has failed, and the next call will raise its error."""
        return self._delivery.has_failed

    async def open(self) -> None:
        """Look up the topic. The first ``send`` does this if necessary.

        Raises:
            NotFound: the stream or topic does not exist.
        """
        if self._is_open:
            return
        await self._look()
        self._batch_size = self._limited_batch_size()
        self._is_open = True

    def _limited_batch_size(self) -> int:
        """The size of a batch, such that it fits into a request of this server."""
        reserve = _REQUEST_RESERVE + (0 if self._encryptor is None else ENCRYPTION_SIZE * self.settings.batch_count)
        return max(min(self.settings.batch_size, self._link.frame_size_max - reserve), 1)

    async def _look(self) -> None:
        """Get the number of partitions and their ends. Without permission for that, the server chooses partitions."""
        try:
            details = await self._link.ask(c.GetTopic(self._stream, self._topic), TopicDetails)
        except NotAllowed:
            self._partition_count = None
            return
        self._partition_count = details.topic.partition_count or None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - what is left is reported
        """Send remaining messages and wait for all replies: at most ``delivery_timeout``, or ``timeout`` seconds.

        Raises:
            NotDelivered: the time is over. The error lists the messages that were not acknowledged.
            CourserError: the first other failure that was not reported yet.

        Example:
            producer = client.producer("shop/orders")
            await producer.send("hello")
            await producer.close(timeout=5)
        """
        if self._is_closed:
            return
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except TimeoutError:
            raise self.not_delivered(f"closing timed out after {timeout:g} seconds") from self._link.last_error
        finally:
            self.abandon()

    def not_delivered(self, reason: str) -> NotDelivered:
        """The error that lists all messages without a result, for programs that give up in their own way."""
        batches = (*self._delivery.pending, *self._open.values())
        return joined(reason, (batch.not_delivered(reason) for batch in batches))

    def abandon(self) -> None:
        """Give up: unsent messages are not sent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for batch in self._open.values():
            give_up(batch)
        self._open.clear()
        self._current = None
        self._delivery.abandon()

    # --- sending --------------------------------------------------------------------------------------

    async def send(
        self,
        payload: Payload,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        id: int | None = None,  # noqa: A002 - what a message calls it
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Ticket:
        """Send a message. Returns when it is buffered; await the ticket for the acknowledgement.

        If no ticket is awaited, a failure is raised by the next ``send``, ``flush`` or ``close``.

        Args:
            payload: Bytes, text, or any JSON value.
            key: Selects the partition, and is stored with the message.
            headers: By name.
            id: 128 bits; by default a random id.
            partition: The partition, regardless of the key.
            timestamp: The creation time in microseconds since 1970; by default now.

        Raises:
            NotFound: the stream or topic does not exist. Later failures are raised by the ticket.
            TypeError: the payload cannot be represented as JSON, or an argument has another type.
            InvalidBatch: the id or the time is out of range, or a header is empty or too long.
            TooLarge: the server does not accept so large a message. It is not sent; the producer can be used further.

        Example:
            async with client.producer("shop/orders") as producer:
                ticket = await producer.send({"n": 1}, key="customer-7", headers={"source": "web"})
                print((await ticket.acknowledged()).offset)
        """
        batch = self._current
        if (
            batch is not None
            and type(payload) is bytes
            and key is None
            and headers is None
            and id is None
            and partition is None
            and timestamp is None
        ):
            # Nearly all messages take this path: as few steps as possible.
            payloads = batch.payloads
            number = len(payloads)
            size = batch.size + FRAME_HEADER_SIZE + len(payload)
            if size <= self._batch_size and number < self._last_number:
                payloads.append(payload)
                batch.size = size
                return Ticket(batch, number)
        return await self._send(_own_bytes(payload), key, headers, id, partition, timestamp)

    async def _send(
        self,
        payload: Buffer,
        key: str | bytes | None,
        headers: Headers | None,
        message_id: int | None,
        partition: int | None,
        timestamp: int | None,
    ) -> Ticket:
        if self._is_closed or self._delivery.has_failed or not self._is_open:
            await self._get_ready()
        if message_id is not None or timestamp is not None:
            check_numbers(message_id, timestamp)
        headers = self.traced(headers)
        block = write_headers(headers, None if key is None else key_bytes(key))
        self.check_size(len(payload) + len(block))
        batch = self._batch_for(key, partition)
        is_full = len(batch) and batch.size + len(payload) > self._batch_size
        if is_full or ((timestamp is not None or batch.has_times) and not batch.fits(timestamp)):
            self._seal(batch)
            await self._delivery.make_room()
            batch = self._batch_for(key, partition)
        number = len(batch)
        batch.add(payload, block, message_id, timestamp)
        if number >= self._last_number:
            self._seal(batch)
            await self._delivery.make_room()
        elif key is None and partition is None and not batch.has_times and self._tracing is None:
            self._current = batch
        return Ticket(batch, number)

    def traced(self, headers: Headers | None = None) -> Headers | None:
        """Headers with the current trace context, if tracing is switched on. ``send`` adds it by itself.

        Call it where the context is current, if the message is sent from elsewhere.
        """
        if self._tracing is None:
            return headers
        return self._tracing.marked(headers, f"{self._stream}/{self._topic}")

    def check_size(self, size: int) -> None:
        """Check the size of a message: its payload and headers in bytes.

        Raises:
            TooLarge: the server does not accept so large a message.
        """
        self._link.check_size(1, EMPTY_MESSAGE_SIZE + size)

    async def send_and_wait(
        self,
        payload: Payload,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        id: int | None = None,  # noqa: A002
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Send one message and wait for its acknowledgement.

        Raises:
            NotFound: the stream, topic or partition does not exist.
            TypeError: the payload cannot be represented as JSON.
            InvalidBatch: a header is empty or too long.

        Example:
            async with client.producer("shop/orders", linger=0) as producer:
                receipt = await producer.send_and_wait("one at a time")
                print(receipt.partition_id, receipt.offset)
        """
        ticket = await self.send(payload, key=key, headers=headers, id=id, partition=partition, timestamp=timestamp)
        if not self.settings.linger:
            self._seal_all()
        return await ticket.acknowledged()

    async def send_many(self, messages: Iterable[Payload | SendMessage], *, key: str | bytes | None = None) -> None:
        """Send several messages, like ``send``.

        Args:
            messages: Payloads, or ``SendMessage``.
            key: For messages without their own key.

        Raises:
            NotFound: the stream or topic does not exist.
            TypeError: a single message is given, or a payload cannot be represented as JSON.

        Example:
            async with client.producer("shop/orders") as producer:
                await producer.send_many([b"one", "two", courser.SendMessage("three", key="ada")])
        """
        for message in several(messages):
            if type(message) is bytes and key is None and self._takes(message):
                continue
            if isinstance(message, SendMessage):
                await self.send(
                    message.payload,
                    key=key if message.key is None else message.key,
                    headers=message.headers,
                    id=message.id,
                    timestamp=message.timestamp,
                )
            else:
                await self.send(message, key=key)

    def _takes(self, payload: bytes) -> bool:
        """Add a message to the current batch, if nothing has to be checked and the batch does not become full."""
        batch = self._current
        if batch is None or len(batch.payloads) >= self._last_number:
            return False
        size = batch.size + FRAME_HEADER_SIZE + len(payload)
        if size > self._batch_size:
            return False
        batch.payloads.append(payload)
        batch.size = size
        return True

    async def flush(self) -> None:
        """Send buffered messages, and return when all are acknowledged.

        Raises:
            CourserError: the first failure that was not reported yet.
        """
        self._seal_all()
        await self._delivery.drained()
        self._delivery.raise_failure()

    async def _get_ready(self) -> None:
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        self._delivery.raise_failure()
        await self.open()

    def _look_again(self) -> None:
        """A batch has failed: make the next ``send`` check for failures."""
        self._current = None

    # --- collecting -----------------------------------------------------------------------------------

    def _batch_for(self, key: str | bytes | None, partition: int | None) -> PendingBatch:
        target = self._partitioning
        if partition is not None:
            target = partitioning_of(partition)
        elif key is not None:
            target = self._target_of(key_bytes(key))
        batch = self._open.get(target)
        if batch is None:
            batch = self._open[target] = PendingBatch(target)
            if self._timer is None:
                self._timer = self._loop.call_later(self.settings.linger, self._linger_over)
        return batch

    def _target_of(self, key: bytes) -> Partitioning:
        if self._partition_count is None:
            return ByKey(key)
        return ToPartition(partition_of_key(key, self._partition_count))

    def _linger_over(self) -> None:
        self._timer = None
        self._seal_all()

    def _seal_all(self) -> None:
        for batch in tuple(self._open.values()):
            self._seal(batch)

    def _seal(self, batch: PendingBatch) -> None:
        """Close a batch for further messages, and send it."""
        del self._open[batch.target]
        if batch is self._current:
            self._current = None
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if batch.target == Balanced() and self._partition_count is not None:
            # Chosen by the client: if the reply is lost, the batch has to go to the same partition again.
            batch.target = ToPartition(self._turn % self._partition_count)
            self._turn += 1
        self._delivery.put(batch)


def _own_bytes(payload: Payload) -> Buffer:
    """The payload as immutable bytes."""
    data = payload_bytes(payload)
    return data if type(data) is bytes else bytes(data)
