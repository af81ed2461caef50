"""A producer's batch from its first message to its acknowledgement, and what its messages' senders hold of it."""

import asyncio

import msgspec

from courser.api.replies import Sent
from courser.client.outbox import Outbox
from courser.errors import CourserError
from courser.model.messaging import Partitioning
from courser.records.batch import Batch


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was put."""

    partition_id: int
    offset: int


class Parcel(Outbox):
    """A batch on its way: collected, sent, acknowledged or failed."""

    __slots__ = ("batch", "error", "is_uncertain", "is_watched", "number", "sent", "target", "waiters")

    def __init__(self, target: Partitioning) -> None:
        super().__init__()
        self.target = target
        self.batch: Batch | None = None
        self.number = 0
        """In the order in which they are sent."""
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
