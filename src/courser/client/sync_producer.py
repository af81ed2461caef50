"""The sync producer. It passes messages to the event loop in chunks, which is faster than one by one."""

import asyncio
import threading
from collections.abc import Iterable

from courser.client.blocking import Blocking, LoopThread
from courser.client.delivery import joined
from courser.client.messages import Headers, Payload, SendMessage, payload_bytes, several
from courser.client.producer import Producer, Receipt, Ticket
from courser.errors import ClientClosed, CourserError, InvalidRequest, NotDelivered, Rejection

_CHUNK_COUNT = 256
_CHUNK_SIZE = 256 * 1024
"""Maximum messages and bytes of a chunk."""
_WRONG_MESSAGE = (Rejection, InvalidRequest, TypeError, ValueError)
"""How the async producer refuses a message with an invalid size, header, key, id or time."""


class SyncTicket:
    """A message that was passed to the producer.

    Example:
        with client.producer("shop/orders") as producer:
            print(producer.send("hello").acknowledged().offset)
    """

    __slots__ = ("_producer", "error", "ticket")

    def __init__(self, producer: "SyncProducer") -> None:
        self._producer = producer
        self.ticket: Ticket | None = None
        """The ticket of the async producer, once it has the message."""
        self.error: BaseException | None = None
        """Why the async producer refused the message."""

    def acknowledged(self) -> Receipt:
        """Wait until the server has acknowledged the message. Raises the error if it failed."""
        return self._producer.acknowledged(self)


class SyncProducer(Blocking):
    """Sends messages to one topic. May be used by several threads. See ``Producer``.

    Example:
        with client.producer("shop/orders") as producer:
            ticket = producer.send({"n": 1}, key="customer-7")
            print(ticket.acknowledged().offset, producer.acknowledged(ticket).offset)
    """

    def __init__(self, original: Producer, thread: LoopThread) -> None:
        super().__init__(original, thread)
        self._original: Producer = original
        self._lock = threading.Lock()
        self._entries: list[tuple[SendMessage, int | None, SyncTicket]] = []
        """Messages not yet passed to the async producer, with partitions and tickets."""
        self._size = 0
        """Size of these messages in bytes."""
        self._turn = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        """An error that has not been reported yet."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._thread.call(self._abandon())

    @property
    def message_count(self) -> int:
        """Number of acknowledged messages."""
        return self._original.message_count

    def send(
        self,
        payload: Payload,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        id: int | None = None,  # noqa: A002 - what a message calls it
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> SyncTicket:
        """Send a message; the ticket waits for the acknowledgement. See ``Producer.send``."""
        if self._original.is_closed:
            raise ClientClosed("the producer is closed")
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        data = payload_bytes(payload)
        self._original.check_size(len(data))
        # Here, on the caller's thread, where its trace context is current.
        headers = self._original.traced(headers)
        message = SendMessage(data if type(data) is bytes else bytes(data), id, headers, key, timestamp)
        ticket = SyncTicket(self)
        with self._lock:
            self._entries.append((message, partition, ticket))
            self._size += len(data)
            count = len(self._entries)
            is_full = count >= _CHUNK_COUNT or self._size >= _CHUNK_SIZE
        if is_full:
            self._thread.call(self._hand_over())
        elif count == 1:
            self._thread.loop.call_soon_threadsafe(self._linger)
        return ticket

    def send_and_wait(
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
        self._thread.call(self._hand_over())
        return self._thread.call(
            self._original.send_and_wait(
                payload, key=key, headers=headers, id=id, partition=partition, timestamp=timestamp
            )
        )

    def send_many(self, messages: Iterable[Payload | SendMessage], *, key: str | bytes | None = None) -> None:
        """Send several messages, like ``send``."""
        for message in several(messages):
            if isinstance(message, SendMessage):
                self.send(
                    message.payload,
                    key=key if message.key is None else message.key,
                    headers=message.headers,
                    id=message.id,
                    timestamp=message.timestamp,
                )
            else:
                self.send(message, key=key)

    def flush(self) -> None:
        """Send buffered messages, and return when all are acknowledged. See ``Producer.flush``."""
        self._thread.call(self._flush())

    def close(self, *, timeout: float | None = None) -> None:
        """Send remaining messages and wait for all replies. See ``Producer.close``."""
        self._thread.call(self._close(timeout))

    def acknowledged(self, ticket: SyncTicket) -> Receipt:
        """Wait for the acknowledgement of a ticket, like ``Ticket.acknowledged``.

        Raises:
            CourserError: the message could not be sent.
        """
        return self._thread.call(self._receipt(ticket))

    # --- on the event loop ----------------------------------------------------------------------------

    def _linger(self) -> None:
        self._thread.loop.call_later(self._original.settings.linger, self._begin)

    def _begin(self) -> None:
        if self._entries and not self._original.is_closed:
            self._background = self._thread.loop.create_task(self._hand_over_unasked())

    async def _hand_over_unasked(self) -> None:
        try:
            await self._hand_over()
        except (CourserError, *_WRONG_MESSAGE) as error:
            self._error = error

    async def _hand_over(self) -> None:
        """Pass collected messages to the async producer; wait while its buffer is full."""
        # One at a time, or a later message might overtake those that wait.
        async with self._turn:
            with self._lock:
                entries, self._entries, self._size = self._entries, [], 0
            for number, entry in enumerate(entries):
                had_failed = self._original.has_failed
                try:
                    await self._give(*entry)
                except BaseException as error:
                    # The message itself is wrong, and would fail again. Or an earlier batch failed, or the caller was
                    # interrupted: then it is kept for the next call, with those behind it.
                    is_wrong = isinstance(error, _WRONG_MESSAGE) and not had_failed
                    if is_wrong:
                        entry[2].error = error
                    with self._lock:
                        self._entries[:0] = entries[number + is_wrong :]
                    raise

    async def _give(self, message: SendMessage, partition: int | None, ticket: SyncTicket) -> None:
        ticket.ticket = await self._original.send(
            message.payload,
            key=message.key,
            headers=message.headers,
            id=message.id,
            partition=partition,
            timestamp=message.timestamp,
        )

    async def _flush(self) -> None:
        if self._background is not None:
            await self._background
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        await self._hand_over()
        await self._original.flush()

    async def _close(self, timeout: float | None) -> None:  # noqa: ASYNC109 - what is left is reported
        if self._original.is_closed:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._flush()
        except TimeoutError:
            reason = f"closing timed out after {timeout:g} seconds"
            waiting = NotDelivered(reason, [message for message, _, _ in self._entries])
            error = joined(reason, (self._original.not_delivered(reason), waiting))
            raise error from self._original.last_error
        finally:
            await self._abandon()

    async def _abandon(self) -> None:
        if self._background is not None:
            self._background.cancel()
        self._entries = []
        self._original.abandon()

    async def _receipt(self, ticket: SyncTicket) -> Receipt:
        if ticket.ticket is None and ticket.error is None:
            await self._hand_over()
        if ticket.ticket is None and self._background is not None:
            await self._background
        if ticket.error is not None:
            raise ticket.error
        if ticket.ticket is None:
            raise ClientClosed("the producer was closed before the message was acknowledged")
        return await ticket.ticket.acknowledged()
