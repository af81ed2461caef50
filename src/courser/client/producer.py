"""The producer: messages are collected into batches, batches are sent without waiting for each other's answers.

Memory is bounded: who sends faster than the server takes it waits. Order is kept per partition. A batch whose answer
was lost with the connection is looked for on the server before it is sent again (``resending``).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec
import xxhash

from courser.api import commands as c
from courser.api.replies import Reply, Sent, TopicDetails
from courser.client.connection import Connection
from courser.client.encryption import Encryptor
from courser.client.link import Link
from courser.client.messages import (
    AnyPartitioning,
    Headers,
    Payload,
    SendMessage,
    key_bytes,
    partitioning_of,
    payload_bytes,
    write_headers,
)
from courser.client.outbox import FRAME_HEADER_SIZE, Outbox
from courser.client.resending import find_batch
from courser.errors import ClientClosed, ConnectionFailed, CourserError, NotAllowed, RequestFailed, TimedOut, Uncertain
from courser.model.buffers import Buffer
from courser.model.identifiers import Identifier
from courser.model.messaging import Balanced, ByKey, Partitioning, ToPartition
from courser.records.batch import Batch

_BUFFER_WORDS = "a producer's batch_count, batch_size, buffer_size and max_in_flight are at least 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer collects and sends."""

    batch_count: int = 1000
    """Messages of a batch."""
    batch_size: int = 1024 * 1024
    """Bytes of a batch; a single message may have more."""
    linger: float = 0.005
    """Seconds that a message waits for others to go with it. 0: no longer than the event loop takes to come round."""
    buffer_size: int = 32 * 1024 * 1024
    """Bytes of messages that are not acknowledged: beyond it ``send`` waits."""
    max_in_flight: int = 4
    """Batches that are sent without waiting for an answer."""
    resend: bool = True
    """Whether batches are sent again whose answers were lost; False raises ``Uncertain`` for them."""

    def __post_init__(self) -> None:
        if min(self.batch_count, self.batch_size, self.buffer_size, self.max_in_flight) < 1 or self.linger < 0:
            raise ValueError(_BUFFER_WORDS)


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was put."""

    partition_id: int
    offset: int


class Parcel:
    """A batch on its way: collected, sent, acknowledged or failed."""

    __slots__ = (
        "batch",
        "error",
        "is_uncertain",
        "is_watched",
        "number",
        "outbox",
        "sent",
        "size",
        "target",
        "waiters",
    )

    def __init__(self, target: Partitioning) -> None:
        self.target = target
        self.outbox = Outbox()
        self.batch: Batch | None = None
        self.number = 0
        """In the order in which they are sent."""
        self.size = 0
        """Bytes that it takes of the producer's memory."""
        self.sent: Sent | None = None
        self.error: CourserError | None = None
        self.is_uncertain = False
        """Whether it was sent on a connection that broke before the answer came."""
        self.is_watched = False
        """Whether somebody was told of its failure, or waits to be."""
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def is_done(self) -> bool:
        """Whether its fate is known."""
        return self.sent is not None or self.error is not None

    async def settled(self) -> Sent:
        """Wait for the answer. Raises what the batch failed with."""
        self.is_watched = True
        if not self.is_done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            await waiter
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.sent is not None
        return self.sent

    def settle(self, *, sent: Sent | None = None, error: CourserError | None = None) -> None:
        """The fate is known."""
        self.sent, self.error = sent, error
        self.batch = None
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """A message that was handed over."""

    parcel: Parcel
    number: int

    async def acknowledged(self) -> Receipt:
        """Wait until the server has acknowledged the message. Raises what it failed with."""
        sent = await self.parcel.settled()
        return Receipt(sent.partition_id, sent.base_offset + self.number)

    @property
    def is_done(self) -> bool:
        """Whether the fate of the message is known."""
        return self.parcel.is_done


class Producer:
    """Sends messages to one topic. ``Client.producer`` makes it; use it in ``async with``, which flushes at the end."""

    def __init__(
        self,
        link: Link,
        stream: Identifier,
        topic: Identifier,
        *,
        partitioning: AnyPartitioning = None,
        settings: ProducerSettings | None = None,
        encryptor: Encryptor | None = None,
    ) -> None:
        self._link = link
        self._stream, self._topic = stream, topic
        self._partitioning = partitioning_of(partitioning)
        self.settings = settings or ProducerSettings()
        self._encryptor = encryptor
        self._partition_count: int | None = None
        """None if it is not known: then the server chooses."""
        self._turn = 0
        self._open: dict[Partitioning, Parcel] = {}
        """Parcels that still take messages, by where they go."""
        self._current: Parcel | None = None
        """The one that takes messages without a destination of their own, if nothing has to be looked at before."""
        self._batch_count, self._batch_size = self.settings.batch_count, self.settings.batch_size
        self._ready: deque[Parcel] = deque()
        self._flying: deque[Parcel] = deque()
        self._sealed_count = 0
        self._size = 0
        """Bytes that are not acknowledged."""
        self._timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._failed: Parcel | None = None
        """The first failure that nobody was told of."""
        self._failed_count = 0
        self._bounds: dict[int, int] = {}
        """By partition, an offset above which all that is not acknowledged lies."""
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._is_open = False
        self.message_count = 0
        """Messages that were acknowledged."""

    # --- life -----------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    async def open(self) -> None:
        """Look at the topic. Called by the first ``send`` if nobody else did. Raises ``NotFound``."""
        if self._is_open:
            return
        await self._look()
        self._is_open = True

    async def _look(self) -> None:
        """How many partitions there are, and where they end. Who may send, but not look, lets the server choose."""
        try:
            details = await self._link.request(c.GetTopic(self._stream, self._topic))
        except NotAllowed:
            self._partition_count = None
            return
        assert isinstance(details, TopicDetails)
        self._partition_count = details.topic.partition_count or None
        for partition in details.partitions:
            self._bounds.setdefault(partition.partition_id, partition.current_offset)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()

    async def close(self) -> None:
        """Send what is left and wait for all answers. Raises what failed and was not told yet."""
        if self._is_closed:
            return
        try:
            await self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give up: what was not sent is not sent any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._recovery is not None:
            self._recovery.cancel()
        for parcel in (*self._flying, *self._ready, *self._open.values()):
            if not parcel.is_done:
                parcel.settle(error=ClientClosed("the producer was closed before this was acknowledged"))
        self._open.clear()
        self._current = None
        self._ready.clear()
        self._flying.clear()
        self._size = 0
        self._let_in()

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
        """Hand a message over. Returns when there is room for it; the ticket waits for the acknowledgement.

        A failure that nobody awaits is raised by the next ``send``, ``flush`` or ``close``.

        Args:
            payload: Bytes, text, or anything that JSON has a word for.
            key: Chooses the partition, and is kept with the message.
            headers: By name.
            id: 128 bits; by default a random one.
            partition: Goes there, whatever the key.
            timestamp: When it was made, in microseconds since 1970; by default now.
        """
        parcel = self._current
        is_plain = key is None and headers is None and id is None and partition is None and timestamp is None
        if is_plain and parcel is not None and type(payload) is bytes:
            # Nearly all messages come this way: as few steps as possible.
            outbox = parcel.outbox
            payloads = outbox.payloads
            number = len(payloads)
            size = outbox.size + FRAME_HEADER_SIZE + len(payload)
            if size <= self._batch_size and number + 1 < self._batch_count:
                payloads.append(payload)
                outbox.size = size
                return Ticket(parcel, number)
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
        if self._is_closed or self._failed is not None or not self._is_open:
            await self._get_ready()
        block = write_headers(headers, None if key is None else key_bytes(key))
        parcel = self._parcel_for(key, partition)
        outbox = parcel.outbox
        is_full = len(outbox) and outbox.size + len(payload) > self._batch_size
        if is_full or ((timestamp is not None or outbox.has_times) and not outbox.fits(timestamp)):
            self._seal(parcel)
            await self._make_room()
            parcel = self._parcel_for(key, partition)
            outbox = parcel.outbox
        number = len(outbox)
        outbox.add(payload, block, message_id, timestamp)
        if number + 1 >= self._batch_count:
            self._seal(parcel)
            await self._make_room()
        elif key is None and partition is None and not outbox.has_times:
            self._current = parcel
        return Ticket(parcel, number)

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
        """Send one message and wait for its acknowledgement."""
        ticket = await self.send(payload, key=key, headers=headers, id=id, partition=partition, timestamp=timestamp)
        if not self.settings.linger:
            self._seal_all()
        return await ticket.acknowledged()

    async def send_many(self, messages: Iterable[Payload | SendMessage], *, key: str | bytes | None = None) -> None:
        """Hand several messages over, as ``send`` does."""
        for message in messages:
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

    async def flush(self) -> None:
        """Send what is waiting, and return when everything is acknowledged.

        Raises:
            CourserError: the first failure that nobody was told of.
        """
        self._seal_all()
        while self._ready or self._flying:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)
        self._raise_failure()

    async def _get_ready(self) -> None:
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        self._raise_failure()
        await self.open()

    def _raise_failure(self) -> None:
        failed, self._failed, self._failed_count = self._failed, None, 0
        if failed is not None and not failed.is_watched:
            assert failed.error is not None
            raise failed.error.with_traceback(None)

    # --- collecting -----------------------------------------------------------------------------------

    def _parcel_for(self, key: str | bytes | None, partition: int | None) -> Parcel:
        target = self._partitioning
        if partition is not None:
            target = ToPartition(partition)
        elif key is not None:
            target = self._target_of(key_bytes(key))
        parcel = self._open.get(target)
        if parcel is None:
            parcel = self._open[target] = Parcel(target)
            if self._timer is None:
                self._timer = self._loop.call_later(self.settings.linger, self._linger_over)
        return parcel

    def _target_of(self, key: bytes) -> Partitioning:
        if self._partition_count is None:
            return ByKey(key)
        return ToPartition(xxhash.xxh32_intdigest(key) % self._partition_count)

    def _linger_over(self) -> None:
        self._timer = None
        self._seal_all()

    def _seal_all(self) -> None:
        for parcel in tuple(self._open.values()):
            self._seal(parcel)

    def _seal(self, parcel: Parcel) -> None:
        """No more messages for this one: it is packed and sent, or waits its turn."""
        del self._open[parcel.target]
        if parcel is self._current:
            self._current = None
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sealed_count += 1
        parcel.number = self._sealed_count
        parcel.size = parcel.outbox.size
        self._size += parcel.size
        if parcel.target == Balanced() and self._partition_count is not None:
            # Chosen here, so that it is known where to look if the answer is lost.
            parcel.target = ToPartition(self._turn % self._partition_count)
            self._turn += 1
        self._ready.append(parcel)
        self._pump()

    # --- the wire -------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what can be sent now."""
        while self._ready and len(self._flying) < self.settings.max_in_flight and self._recovery is None:
            connection = self._link.current
            if connection is None:
                self._recovery = self._loop.create_task(self._recover(), name="courser-producer")
                return
            if not connection.is_writable and self._flying:
                # An answer comes, and with it the next look.
                return
            self._launch(connection, self._ready.popleft())

    def _launch(self, connection: Connection, parcel: Parcel) -> None:
        try:
            if parcel.batch is None:
                parcel.batch = parcel.outbox.pack(self._encryptor)
            command = c.SendMessages(self._stream, self._topic, parcel.target, [parcel.batch])
            answer = connection.begin(command)
        except ConnectionFailed:
            self._ready.appendleft(parcel)
            self._recovery = self._loop.create_task(self._recover(), name="courser-producer")
            return
        except CourserError as error:
            self._fail(parcel, error)
            return
        self._flying.append(parcel)
        answer.add_done_callback(lambda done: self._answered(connection, parcel, done))

    def _answered(self, connection: Connection, parcel: Parcel, answer: "asyncio.Future[Reply | None]") -> None:
        if parcel.is_done:
            return
        self._flying.remove(parcel)
        error = answer.exception()
        if error is None:
            sent = answer.result()
            assert isinstance(sent, Sent)
            self._acknowledge(parcel, sent)
        elif isinstance(error, ConnectionFailed):
            if self.settings.resend and self._link.target.reconnect and not isinstance(error, TimedOut):
                parcel.is_uncertain = True
                self._put_back(parcel)
            else:
                reason = f"{error.reason} before {len(parcel.outbox)} messages were acknowledged"
                self._fail(parcel, Uncertain(error.address, reason))
        else:
            assert isinstance(error, CourserError)
            if self._link.logs_in_again(error):
                # The server has ended the session and refused: it was not stored.
                self._put_back(parcel)
                connection.fail(ConnectionFailed(connection.address, str(error)))
            else:
                self._fail(parcel, error)
        self._pump()
        self._let_in()

    def _put_back(self, parcel: Parcel) -> None:
        """To where it was before it was sent: order is kept."""
        position = sum(1 for other in self._ready if other.number < parcel.number)
        self._ready.insert(position, parcel)

    def _acknowledge(self, parcel: Parcel, sent: Sent) -> None:
        self._bounds[sent.partition_id] = sent.base_offset
        self.message_count += len(parcel.outbox)
        self._size -= parcel.size
        parcel.settle(sent=sent)

    def _fail(self, parcel: Parcel, error: CourserError) -> None:
        self._size -= parcel.size
        parcel.is_watched = parcel.is_watched or bool(parcel.waiters)
        parcel.settle(error=error)
        if not parcel.is_watched and self._failed is None:
            # The next message stumbles over it.
            self._failed, self._current = parcel, None
        self._failed_count += 1

    async def _recover(self) -> None:
        """Wait for a connection, and find out about the batches whose answers were lost."""
        try:
            while True:
                try:
                    await self._link.connection(patient=True)
                    await self._settle_uncertain()
                except ConnectionFailed as error:
                    if self._link.gave_up or not self._link.target.reconnect:
                        self._fail_all(error)
                        return
                    continue
                except CourserError as error:
                    self._fail_all(error)
                    return
                return
        finally:
            self._recovery = None
            if not self._is_closed:
                self._pump()
                self._let_in()

    async def _settle_uncertain(self) -> None:
        while uncertain := [parcel for parcel in self._ready if parcel.is_uncertain]:
            parcel = uncertain[0]
            assert parcel.batch is not None
            if isinstance(parcel.target, ToPartition):
                partition_id = parcel.target.partition_id
                place = (self._stream, self._topic, partition_id)
                try:
                    sent = await find_batch(self._link, place, parcel.batch, self._bounds.get(partition_id, 0))
                except RequestFailed as error:
                    self._ready.remove(parcel)
                    self._fail(parcel, error)
                    continue
                if sent is not None:
                    self._ready.remove(parcel)
                    self._acknowledge(parcel, sent)
                    continue
            parcel.is_uncertain = False

    def _fail_all(self, error: CourserError) -> None:
        while self._ready:
            parcel = self._ready.popleft()
            failure = error
            if parcel.is_uncertain:
                failure = Uncertain(self._link.target.address, f"it is not known whether these were stored: {error}")
            self._fail(parcel, failure)

    # --- waiting --------------------------------------------------------------------------------------

    async def _make_room(self) -> None:
        """Let answers in, and wait while too much is on its way."""
        await asyncio.sleep(0)
        while self._size > self.settings.buffer_size and not self._is_closed:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def _let_in(self) -> None:
        if self._room is not None and self._size <= self.settings.buffer_size:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)
        if self._idle is not None and not self._ready and not self._flying:
            idle, self._idle = self._idle, None
            if not idle.done():
                idle.set_result(None)


def _own_bytes(payload: Payload) -> Buffer:
    """The payload as bytes that nobody changes any more."""
    data = payload_bytes(payload)
    return data if type(data) is bytes else bytes(data)
