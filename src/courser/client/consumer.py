"""The consumer: reads the messages of a topic one by one, from all its assigned partitions.

It has its own connection, because the members of a group are connections, and because its waits must not delay other
requests. The consumer keeps the position in each partition; the server keeps committed offsets. After a reconnect or a
rebalance, reading continues at the old position, or after the last commit of the partition's previous owner.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from courser.api import commands as c
from courser.api import replies as r
from courser.client.batches import fields_of
from courser.client.commits import Commits
from courser.client.consumed import ConsumedMessage, ConsumerSettings
from courser.client.encryption import Encryptor
from courser.client.link import Link
from courser.client.membership import Membership
from courser.client.messages import Message
from courser.client.starting import Start, StartingPoint
from courser.errors import (
    ClientClosed,
    CourserError,
    ErrorCode,
    NotAssigned,
    NotFound,
    OffsetsUnavailable,
)
from courser.model.identifiers import Consumer as Reader
from courser.model.identifiers import ConsumerKind, Identifier
from courser.model.messaging import PollingKind

_NOBODY = Reader(ConsumerKind.CONSUMER, 0)

__all__ = ["ConsumedMessage", "Consumer", "ConsumerSettings"]


class Consumer:
    """Reads one topic: ``async for message in client.consumer("stream/topic", group="app")``.

    To be used by one task. Close it, or the client, to leave the group at once.

    Example:
        async with client.consumer("shop/orders", group="billing", stop_at_end=True) as consumer:
            async for message in consumer:
                print(consumer.partitions, message.offset, message.text())
    """

    def __init__(
        self,
        link: Link,
        stream: Identifier,
        topic: Identifier,
        *,
        group: Identifier | None = None,
        name: Identifier | None = None,
        partitions: Sequence[int] | None = None,
        start: Start | None = None,
        settings: ConsumerSettings | None = None,
        encryptor: Encryptor | None = None,
    ) -> None:
        if group is not None and (name is not None or partitions is not None):
            raise ValueError("a member of a group cannot have a name or choose partitions")
        self._link = link
        self._stream, self._topic = stream, topic
        self._reader = _reader_of(group, name)
        self._wanted = None if partitions is None else tuple(partitions)
        self.settings = settings or ConsumerSettings()
        self._membership: Membership | None = None
        if group is not None:
            creates_group = self.settings.create_group
            self._membership = Membership(link, (stream, topic), group, creates_group=creates_group)
        self._commits = Commits(link, (stream, topic), self._reader)
        self._encryptor = encryptor
        begin: Start = start if start is not None else "first" if self._reader is None else "next"
        self._starting = StartingPoint(link, stream, topic, self._reader, begin)
        self._positions: dict[int, int] = {}
        """By partition, the next offset to poll."""
        self._hot: deque[int] = deque()
        """Partitions that may have messages, in the order of polling."""
        self._buffer: deque[ConsumedMessage] = deque()
        self._ahead: tuple[int, asyncio.Task[r.Reply | None]] | None = None
        """The next poll, sent while the messages of the last one are processed: partition and reply."""
        self._current: ConsumedMessage | None = None
        """The message that the body of the loop is processing."""
        self._connection_count = 0
        self._is_open = self._is_closed = False
        self.skipped_count = 0
        """Offsets that were skipped because their messages are deleted or damaged."""
        self.rebalance_count = 0
        """How often the assigned partitions have changed."""

    # --- life -----------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    async def open(self) -> None:
        """Connect, join the group, and find the starting positions. The first ``async for`` does this if necessary.

        Raises:
            NotFound: the stream, topic or partition does not exist, or the group if ``create_group`` is off.

        Example:
            consumer = client.consumer("shop/orders", name="audit")
            await consumer.open()
            print(consumer.partitions)
            await consumer.close()
        """
        if self._is_closed:
            raise ClientClosed("the consumer is closed")
        if self._is_open:
            return
        await self._link.open()
        self._connection_count = self._link.connection_count
        if self._membership is not None:
            await self._membership.join(patient=False)
            await self._sync()
        else:
            await self._choose_partitions()
        self._commits.stored_at = asyncio.get_running_loop().time()
        self._is_open = True

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(failed=kind is not None)

    async def close(self, *, failed: bool = False) -> None:
        """Commit processed messages, leave the group, close the connection. May be called more than once.

        The message that was read last counts as processed, unless ``failed``.

        Example:
            consumer = client.consumer("shop/orders", name="audit")
            message = await anext(consumer)
            await consumer.close()
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._commits.is_patient = False
        try:
            await self._drop_ahead()
            if self._is_open and self._link.is_connected:
                if not failed:
                    self._finish_current()
                with suppress(CourserError):
                    await self.commit_done()
                if self._membership is not None:
                    await self._membership.leave()
        finally:
            await self._link.close()

    # --- reading --------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedMessage:
        if not self._is_open:
            if self._is_closed:
                raise StopAsyncIteration
            await self.open()
        self._finish_current()
        if not self._buffer:
            try:
                await self._refill()
            except ClientClosed:
                # Closed by another task while this one waited.
                if not self._is_closed:
                    raise
                raise StopAsyncIteration from None
        self._current = message = self._buffer.popleft()
        return message

    async def take(self) -> list[ConsumedMessage]:
        """All available messages, at least one; empty if there will be no more.

        Callers report processed messages with ``note_done`` or ``commit``.

        Raises:
            OffsetsUnavailable: messages were deleted or are damaged, and ``on_gap`` is ``raise``.

        Example:
            async with client.consumer("shop/orders", name="audit", commit="manual") as consumer:
                messages = await consumer.take()
                await consumer.commit(messages[-1])
        """
        try:
            first = await anext(self)
        except StopAsyncIteration:
            return []
        self._current = None
        taken = [first, *self._buffer]
        self._buffer.clear()
        return taken

    @property
    def partitions(self) -> tuple[int, ...]:
        """The assigned partitions."""
        return tuple(self._positions)

    def position(self, partition_id: int) -> int:
        """The offset of the next message.

        Raises:
            KeyError: the partition is not assigned to this consumer.

        Example:
            async with client.consumer("shop/orders", start="end") as consumer:
                print({partition: consumer.position(partition) for partition in consumer.partitions})
        """
        for message in self._buffer:
            if message.partition_id == partition_id:
                return message.offset
        return self._positions[partition_id]

    async def seek(self, partition_id: int, offset: int) -> None:
        """Continue at another offset of an assigned partition.

        Raises:
            NotAssigned: the partition is not assigned to this consumer.

        Example:
            async with client.consumer("shop/orders") as consumer:
                await consumer.seek(0, 2)
                print((await anext(consumer)).offset)
        """
        if partition_id not in self._positions:
            raise NotAssigned(
                ErrorCode.PARTITION_NOT_OWNED, f"partition {partition_id} is not assigned to this consumer"
            )
        await self._drop_ahead()
        self._buffer = deque(message for message in self._buffer if message.partition_id != partition_id)
        self._positions[partition_id] = offset
        self._heat(partition_id)

    async def _refill(self) -> None:
        """Get messages. Ends the iteration if there will be no more."""
        while not self._buffer:
            if self._is_closed:
                raise StopAsyncIteration
            await self._keep_up()
            if self._hot:
                await self._read(self._hot[0])
                continue
            await self.commit_done()
            if self.settings.stop_at_end:
                raise StopAsyncIteration
            await self._wait()

    async def _read(self, partition_id: int) -> None:
        """Poll one partition once."""
        try:
            reply = await self._polled(partition_id)
        except OffsetsUnavailable as gap:
            if self.settings.on_gap == "raise":
                raise
            self.skipped_count += gap.end_offset - gap.first_offset
            self._positions[partition_id] = gap.end_offset
            return
        except NotAssigned:
            await self._sync()
            return
        except NotFound:
            await self._look_again()
            return
        if partition_id not in self._positions:
            return
        self._hot.rotate(-1)
        if not reply.message_count:
            self._cool(partition_id)
            return
        self._buffer.extend(ConsumedMessage(*fields, self.commit) for fields in fields_of(reply, self._encryptor))
        self._positions[partition_id] = self._buffer[-1].offset + 1
        self._look_ahead()

    async def _polled(self, partition_id: int) -> r.Polled:
        if self._ahead is not None and self._ahead[0] == partition_id:
            (_, task), self._ahead = self._ahead, None
            reply = await task
        else:
            await self._drop_ahead()
            reply = await self._link.request(self._poll(partition_id), patient=True)
        assert isinstance(reply, r.Polled)
        return reply

    def _look_ahead(self) -> None:
        """Send the next poll now: its messages arrive while the current ones are processed."""
        if self._hot:
            partition_id = self._hot[0]
            task = asyncio.ensure_future(self._link.request(self._poll(partition_id), patient=True))
            self._ahead = (partition_id, task)

    async def _drop_ahead(self) -> None:
        if self._ahead is not None:
            (_, task), self._ahead = self._ahead, None
            task.cancel()
            with suppress(asyncio.CancelledError, CourserError):
                await task

    def _poll(self, partition_id: int) -> c.WaitForMessages:
        settings = self.settings
        poll = c.PollMessages(
            self._reader or _NOBODY,
            self._stream,
            self._topic,
            partition_id,
            PollingKind.OFFSET,
            self._positions[partition_id],
            settings.batch_count,
            auto_commit=False,
        )
        return c.WaitForMessages(poll, 0, settings.batch_size)

    async def _wait(self) -> None:
        """Wait until there are messages, or the assignment has changed."""
        positions = tuple(self._positions.items())
        wait = int(self.settings.wait * 1_000_000)
        reader = self._reader or _NOBODY
        generation = self._membership.generation if self._membership is not None else 0
        command = c.WaitForArrivals(reader, self._stream, self._topic, positions, generation, wait)
        try:
            reply = await self._link.request(command, patient=True)
        except NotAssigned:
            await self._sync()
            return
        except NotFound:
            await self._look_again()
            return
        assert isinstance(reply, r.Arrivals)
        if reply.generation != generation:
            await self._sync()
        elif not reply.partition_ids:
            await self._look_again()
        for partition_id in reply.partition_ids:
            self._heat(partition_id)

    def _heat(self, partition_id: int) -> None:
        if partition_id in self._positions and partition_id not in self._hot:
            self._hot.append(partition_id)

    def _cool(self, partition_id: int) -> None:
        if partition_id in self._hot:
            self._hot.remove(partition_id)

    # --- partitions -----------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Do periodic work even while there are messages to read."""
        now = asyncio.get_running_loop().time()
        if self._link.connection_count != self._connection_count:
            # The group was joined again, and its generations may start at 1 again.
            await self._look_again(is_new_connection=True)
        elif self._membership is not None and now - self._membership.synced_at >= self.settings.sync_interval:
            await self._sync()
        if self.settings.commit == "auto" and now - self._commits.stored_at >= self.settings.commit_interval:
            await self.commit_done()

    async def _look_again(self, *, is_new_connection: bool = False) -> None:
        self._connection_count = self._link.connection_count
        if self._membership is None:
            await self._choose_partitions()
        else:
            await self._sync(is_doubtful=is_new_connection)

    async def _choose_partitions(self) -> None:
        """Choose all partitions, or the requested ones."""
        bounds = await self._starting.bounds()
        wanted = tuple(bounds) if self._wanted is None else self._wanted
        missing = [partition_id for partition_id in wanted if partition_id not in bounds]
        if missing:
            raise NotFound(ErrorCode.PARTITION_NOT_FOUND, f"the topic has no partition {missing[0]}")
        await self._assign(wanted)

    async def _sync(self, *, is_doubtful: bool = False) -> None:
        """Ask the group for the partitions assigned to this member."""
        assert self._membership is not None
        share = await self._membership.sync(is_doubtful=is_doubtful, patient=self._is_open)
        if share is not None:
            await self._assign(share.partition_ids, is_doubtful=share.is_doubtful)

    async def _assign(self, partition_ids: Sequence[int], *, is_doubtful: bool = False) -> None:
        """Drop partitions that were taken away, and start to read new ones."""
        lost = self._positions.keys() - set(partition_ids)
        gained = [partition_id for partition_id in partition_ids if partition_id not in self._positions]
        if lost or gained:
            self.rebalance_count += 1
        if self._ahead is not None and (self._ahead[0] in lost or is_doubtful):
            await self._drop_ahead()
        for partition_id in lost:
            del self._positions[partition_id]
            self._commits.forget(partition_id)
            self._cool(partition_id)
        if lost:
            self._buffer = deque(message for message in self._buffer if message.partition_id not in lost)
        if is_doubtful and self._reader is not None:
            for partition_id in tuple(self._positions):
                await self._catch_up(partition_id)
        if gained:
            self._positions |= await self._starting.offsets(gained)
        for partition_id in partition_ids:
            self._heat(partition_id)

    async def _catch_up(self, partition_id: int) -> None:
        """Skip messages that another member has committed in the meantime."""
        stored = await self._starting.stored(partition_id)
        if stored is not None and stored >= self.position(partition_id):
            self._buffer = deque(
                message for message in self._buffer if message.partition_id != partition_id or message.offset > stored
            )
            self._positions[partition_id] = max(self._positions[partition_id], stored + 1)

    # --- commits --------------------------------------------------------------------------------------

    def _finish_current(self) -> None:
        """Mark the current message as processed."""
        message, self._current = self._current, None
        if message is not None and self.commits_by_itself:
            self._commits.note(message.partition_id, message.offset)

    @property
    def commits_by_itself(self) -> bool:
        """Whether messages are committed automatically after the body of the loop."""
        return self._reader is not None and self.settings.commit == "auto"

    def note_done(self, offsets: Mapping[int, int]) -> None:
        """Record processed offsets, by partition, for the next commit.

        Example:
            async with client.consumer("shop/orders", name="audit") as consumer:
                messages = await consumer.take()
                consumer.note_done({message.partition_id: message.offset for message in messages})
                await consumer.commit_done()
        """
        for partition_id, offset in offsets.items():
            if partition_id in self._positions:
                self._commits.note(partition_id, offset)

    async def commit_done(self) -> None:
        """Commit all processed messages.

        Raises:
            NotFound: the topic or the group no longer exists.

        Example:
            async with client.consumer("shop/orders", name="audit", stop_at_end=True) as consumer:
                async for message in consumer:
                    await consumer.commit_done()
        """
        await self._commits.store_all()

    async def commit(self, message: Message) -> bool:
        """Commit a message and all before it in its partition. See ``ConsumedMessage.commit``.

        Raises:
            NotFound: the topic or the group no longer exists.
            ClientClosed: the consumer has neither a name nor a group.

        Example:
            async with client.consumer("shop/orders", name="audit", commit="manual") as consumer:
                print(await consumer.commit(await anext(consumer)))
        """
        if self._reader is None:
            raise ClientClosed("a consumer without a name or a group cannot store offsets")
        if self._current is message:
            self._current = None
        return await self._commits.store(message.partition_id, message.offset)


def _reader_of(group: Identifier | None, name: Identifier | None) -> Reader | None:
    if group is not None:
        return Reader(ConsumerKind.GROUP, group)
    return None if name is None else Reader(ConsumerKind.CONSUMER, name)
