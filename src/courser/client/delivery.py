"""Send the batches of a producer: several in flight, in order, across reconnects.

A batch whose reply was lost with the connection is sent again. Its messages are numbered (``numbering``), so that the
partition stores it once, also if the server has not noticed the broken connection and processes the batch from its
receive buffer later. Messages are not numbered if the server chooses the partition, or is not Courser.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from courser.api import commands as c
from courser.api.replies import Reply, Sent
from courser.client.connection import Connection
from courser.client.link import Link
from courser.client.numbering import PartitionNumbers
from courser.client.payload_encryption import Encryptor
from courser.client.pending_batches import PendingBatch
from courser.errors import (
    ClientClosed,
    ConnectionFailed,
    CourserError,
    ErrorCode,
    NotDelivered,
    TimedOut,
    Uncertain,
)
from courser.model.identifiers import Identifier
from courser.model.messaging import ToPartition

_OUT_OF_LINE = frozenset({ErrorCode.PRODUCER_OUT_OF_ORDER, ErrorCode.PRODUCER_UNKNOWN})
"""Refusals of a batch only because of those before it: a partition does not have them, or does not know them."""
_BUFFER_WORDS = "a producer's batch_count, batch_size, buffer_size and max_in_flight must be at least 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings of a producer. ``Client.producer`` takes them as options.

    Example:
        producer = client.producer("shop/orders", batch_count=500, linger=0.02)
        print(producer.settings.batch_count)
    """

    batch_count: int = 1000
    """Maximum messages of a batch."""
    batch_size: int = 1024 * 1024
    """Maximum bytes of a batch; a single message may be larger."""
    linger: float = 0.005
    """Seconds that a message waits for others to join its batch. 0: at most one iteration of the event loop."""
    buffer_size: int = 32 * 1024 * 1024
    """Maximum bytes of unacknowledged messages; beyond it ``send`` waits."""
    max_in_flight: int = 4
    """Maximum batches that are sent but not acknowledged."""
    resend: bool = True
    """Whether to resend batches whose replies were lost. If False, they raise ``Uncertain``."""
    idempotent: bool = True
    """Whether to number messages, so that a batch that is sent again is stored once."""
    delivery_timeout: float = 120.0
    """Seconds after which a batch that is not acknowledged fails with ``NotDelivered``, also while disconnected."""

    def __post_init__(self) -> None:
        if min(self.batch_count, self.batch_size, self.buffer_size, self.max_in_flight) < 1 or self.linger < 0:
            raise ValueError(_BUFFER_WORDS)
        if not self.delivery_timeout > 0:
            raise ValueError(f"a producer's delivery_timeout must be more than 0 seconds, not {self.delivery_timeout}")


class BatchDelivery:
    """Sends the batches of a producer to one topic."""

    def __init__(
        self,
        link: Link,
        place: tuple[Identifier, Identifier],
        settings: ProducerSettings,
        encryptor: Encryptor | None,
        on_failure: Callable[[], None],
    ) -> None:
        """``on_failure`` is called when a batch fails that no caller waits for."""
        self._link = link
        self._stream, self._topic = place
        self._settings = settings
        self._encryptor = encryptor
        self._on_failure = on_failure
        self._ready: deque[PendingBatch] = deque()
        self._in_flight: deque[PendingBatch] = deque()
        self._count = 0
        """Number of batches so far."""
        self._size = 0
        """Unacknowledged bytes."""
        self._progress: asyncio.Future[None] | None = None
        """Done at the next result of a batch. None if nobody waits for it."""
        self._recovery: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Runs while there are batches."""
        self._failed: list[PendingBatch] = []
        """Failures that have not been reported."""
        self._numbers: dict[int, PartitionNumbers] = {}
        """By partition."""
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self.message_count = 0
        """Number of acknowledged messages."""

    def put(self, batch: PendingBatch) -> None:
        """Add a batch after all others: it is packed and sent, or waits its turn."""
        self._count += 1
        batch.number = self._count
        batch.deadline = self._loop.time() + self._settings.delivery_timeout
        if self._timer is None:
            self._timer = self._loop.call_at(batch.deadline, self._expire)
        self._size += batch.size
        self._ready.append(batch)
        self._pump()

    def abandon(self) -> None:
        """Give up: unsent batches are not sent."""
        self._is_closed = True
        if self._recovery is not None:
            self._recovery.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for batch in (*self._in_flight, *self._ready):
            give_up(batch)
        self._ready.clear()
        self._in_flight.clear()
        self._size = 0
        self._note_progress()

    # --- waiting --------------------------------------------------------------------------------------

    async def make_room(self) -> None:
        """Let the loop process replies, and wait while the buffer is full."""
        await asyncio.sleep(0)
        while self._size > self._settings.buffer_size and not self._is_closed:
            await self._progressed()

    async def drained(self) -> None:
        """Wait until every batch is acknowledged or has failed."""
        while self._ready or self._in_flight:
            await self._progressed()

    async def _progressed(self) -> None:
        if self._progress is None:
            self._progress = self._loop.create_future()
        await asyncio.shield(self._progress)

    def _note_progress(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.set_result(None)

    @property
    def has_failed(self) -> bool:
        """Whether there is a failure that has not been reported."""
        return bool(self._failed)

    @property
    def pending(self) -> list[PendingBatch]:
        """All batches without a result, in the order of sending."""
        return sorted((*self._in_flight, *self._ready), key=lambda batch: batch.number)

    def raise_failure(self) -> None:
        """Raise the first failure that has not been reported, once. All batches that were given up share one error."""
        failed, self._failed = [batch for batch in self._failed if not batch.is_watched], []
        if failed:
            error = failed[0].error
            assert error is not None
            if isinstance(error, NotDelivered):
                error = joined(error.reason, [row.error for row in failed if isinstance(row.error, NotDelivered)])
            raise error.with_traceback(None)

    def _expire(self) -> None:
        """Give up the batches whose time is over."""
        self._timer = None
        now = self._loop.time()
        for batch in self.pending:
            if batch.deadline > now:
                self._timer = self._loop.call_at(batch.deadline, self._expire)
                break
            (self._ready if batch in self._ready else self._in_flight).remove(batch)
            error = batch.not_delivered(f"the delivery timed out after {self._settings.delivery_timeout:g} seconds")
            error.__cause__ = self._link.last_error
            self._fail(batch, error)
        self._pump()
        self._note_progress()

    # --- the wire -------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send as many batches as possible."""
        while self._ready and len(self._in_flight) < self._settings.max_in_flight and self._recovery is None:
            connection = self._link.current
            if connection is None:
                self._begin_recovery()
                return
            if not connection.is_writable and self._in_flight:
                # The next reply calls this method again.
                return
            if not self._launch(connection, self._ready[0]):
                return

    def _launch(self, connection: Connection, batch: PendingBatch) -> bool:
        """Send the first batch that is ready. False if it has to wait for a reply or for a connection."""
        try:
            if batch.packed is None:
                batch.packed = batch.pack(self._encryptor)
            numbers = self._numbers_of(batch)
            if numbers is not None and not numbers.number(batch.packed):
                return False
            command = c.SendMessages(self._stream, self._topic, batch.target, [batch.packed])
            answer = connection.begin(command)
        except ConnectionFailed:
            self._begin_recovery()
            return False
        except CourserError as error:
            self._ready.popleft()
            self._fail(batch, error)
            return True
        self._ready.popleft()
        batch.launch_count += 1
        batch.is_uncertain = True
        self._in_flight.append(batch)
        if numbers is not None:
            numbers.in_flight_count += 1
        answer.add_done_callback(lambda done: self._answered(connection, batch, numbers, done))
        return True

    def _numbers_of(self, batch: PendingBatch) -> PartitionNumbers | None:
        """How the messages of a batch are numbered; None if they are not."""
        if not self._settings.idempotent or not isinstance(batch.target, ToPartition) or not self._link.is_courser:
            return None
        numbers = self._numbers.get(batch.target.partition_id)
        if numbers is None:
            numbers = self._numbers[batch.target.partition_id] = PartitionNumbers(self._link.draw_producer_id)
        return numbers

    def _answered(
        self,
        connection: Connection,
        batch: PendingBatch,
        numbers: PartitionNumbers | None,
        answer: "asyncio.Future[Reply | None]",
    ) -> None:
        if numbers is not None:
            numbers.in_flight_count -= 1
        if batch.is_done:
            # Its time was over meanwhile. Others may have waited for it.
            self._pump()
            return
        self._in_flight.remove(batch)
        error = answer.exception()
        if error is None:
            sent = answer.result()
            assert isinstance(sent, Sent)
            self._acknowledge(batch, sent)
        elif isinstance(error, ConnectionFailed):
            if self._settings.resend and self._link.target.reconnect and not isinstance(error, TimedOut):
                self._put_back(batch)
            else:
                reason = f"{error.reason} before {len(batch)} messages were acknowledged"
                self._fail(batch, Uncertain(error.address, reason))
        else:
            assert isinstance(error, CourserError)
            if self._link.logs_in_again(error):
                # The server ended the session and rejected the batch: it was not stored.
                batch.is_uncertain = False
                self._put_back(batch)
                connection.fail(ConnectionFailed(connection.address, str(error)))
            elif error.code not in _OUT_OF_LINE or not self._renew(batch):
                self._fail(batch, error)
        self._pump()
        self._note_progress()

    def _renew(self, batch: PendingBatch) -> bool:
        """Send a batch again that was refused for its numbers, with others. False if that would not help."""
        numbers, producer = self._numbers_of(batch), None if batch.packed is None else batch.packed.producer
        if numbers is None or producer is None or not producer.sequence:
            return False
        if batch.launch_count > 1 and numbers.is_doubtful(producer):
            reason = "not known whether these messages were stored: others before them were given up"
            self._fail(batch, Uncertain(self._link.target.address, reason))
            return True
        numbers.renew(producer)
        batch.is_uncertain = False
        self._put_back(batch)
        return True

    def _put_back(self, batch: PendingBatch) -> None:
        """Put the batch back at its old place in the queue, to keep the order."""
        position = sum(1 for other in self._ready if other.number < batch.number)
        self._ready.insert(position, batch)

    def _acknowledge(self, batch: PendingBatch, sent: Sent) -> None:
        self.message_count += len(batch)
        self._size -= batch.size
        batch.settle(sent=sent)

    def _fail(self, batch: PendingBatch, error: CourserError) -> None:
        self._size -= batch.size
        if batch.packed is not None and batch.packed.producer is not None and isinstance(batch.target, ToPartition):
            # The partition waits for its messages, or has stored them: those after it must not depend on that.
            is_doubtful = batch.launch_count > 1 or isinstance(error, ConnectionFailed | NotDelivered)
            self._numbers[batch.target.partition_id].give_up(batch.packed.producer, is_doubtful=is_doubtful)
        batch.is_watched = batch.is_watched or bool(batch.waiters)
        batch.settle(error=error)
        if not batch.is_watched:
            self._failed.append(batch)
            self._on_failure()

    # --- broken connections ---------------------------------------------------------------------------

    def _begin_recovery(self) -> None:
        self._recovery = self._loop.create_task(self._recover(), name="courser-producer")

    async def _recover(self) -> None:
        """Wait for a connection."""
        try:
            while True:
                try:
                    await self._link.connection(patient=True)
                    await asyncio.sleep(self._pause())
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
                self._note_progress()

    def _pause(self) -> float:
        """How long to wait before batches are sent again: not at first, longer if each time the connection breaks."""
        repeats = max((batch.launch_count for batch in self._ready), default=0) - 1
        if repeats <= 0:
            return 0.0
        target = self._link.target
        return min(target.reconnect_interval * 2.0 ** min(repeats, 32), target.reconnect_interval_max)

    def _fail_all(self, error: CourserError) -> None:
        while self._ready:
            batch = self._ready.popleft()
            failure = error
            if batch.is_uncertain:
                failure = Uncertain(self._link.target.address, f"not known whether these messages were stored: {error}")
            self._fail(batch, failure)


def joined(reason: str, errors: Iterable[NotDelivered]) -> NotDelivered:
    """One error for the messages of several."""
    errors = tuple(errors)
    messages = [message for error in errors for message in error.messages]
    whole = NotDelivered(reason, messages, sum(error.uncertain_count for error in errors))
    whole.__cause__ = next((error.__cause__ for error in errors if error.__cause__ is not None), None)
    return whole


def give_up(batch: PendingBatch) -> None:
    """Fail a batch that will not be sent, or whose reply is no longer awaited."""
    if not batch.is_done:
        batch.settle(error=ClientClosed("the producer was closed before the message was acknowledged"))
