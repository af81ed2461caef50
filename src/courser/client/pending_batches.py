"""A producer's batch from its first message to its acknowledgement, and the tickets of its messages."""

import asyncio

import msgspec

from courser.api.replies import Sent
from courser.client.outbox import Outbox
from courser.errors import CourserError, NotDelivered
from courser.model.messaging import Partitioning
from courser.records.batch import Batch


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored.

    Example:
        async with client.producer("shop/orders") as producer:
            receipt = await producer.send_and_wait("hello")
            print(receipt.partition_id, receipt.offset)
    """

    partition_id: int
    """The partition."""
    offset: int
    """The number of the message in the partition."""


class PendingBatch(Outbox):
    """A batch that is being collected, was sent, was acknowledged, or has failed."""

    __slots__ = (
        "deadline",
        "error",
        "is_uncertain",
        "is_watched",
        "launch_count",
        "number",
        "packed",
        "sent",
        "target",
        "waiters",
    )

    def __init__(self, target: Partitioning) -> None:
        super().__init__()
        self.target = target
        self.packed: Batch | None = None
        self.number = 0
        """The position in the order of sending."""
        self.deadline = 0.0
        """When it fails if it is not acknowledged, by the event loop's clock."""
        self.launch_count = 0
        """How often it was sent."""
        self.sent: Sent | None = None
        self.error: CourserError | None = None
        self.is_uncertain = False
        """Whether it was sent, and no reply has arrived: it may be stored."""
        self.is_watched = False
        """Whether a caller waits for the result, or its failure was reported."""
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def is_done(self) -> bool:
        """Whether the result is known."""
        return self.sent is not None or self.error is not None

    def not_delivered(self, reason: str) -> NotDelivered:
        """The error for giving up this batch."""
        return NotDelivered(reason, self.messages(), len(self) if self.is_uncertain else 0)

    async def settled(self) -> Sent:
        """Wait for the reply. Raises the error if the batch failed."""
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
        """Set the result, and wake those who wait for it."""
        self.sent, self.error = sent, error
        self.packed = None
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """A message that was passed to the producer.

    Example:
        async with client.producer("shop/orders") as producer:
            tickets = [await producer.send(text) for text in ("one", "two")]
            await producer.flush()
            print([ticket.is_done for ticket in tickets])
    """

    batch: PendingBatch
    """The batch that contains the message."""
    number: int
    """The index of the message in its batch."""

    async def acknowledged(self) -> Receipt:
        """Wait until the server has acknowledged the message.

        Raises:
            CourserError: the message could not be sent: ``NotFound``, ``NotAllowed``, ``Uncertain``, and so on.

        Example:
            async with client.producer("shop/orders") as producer:
                ticket = await producer.send("hello")
                print((await ticket.acknowledged()).offset)
        """
        sent = await self.batch.settled()
        return Receipt(sent.partition_id, sent.base_offset + self.number)

    @property
    def is_done(self) -> bool:
        """Whether the result is known."""
        return self.batch.is_done
