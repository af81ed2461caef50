"""The consumer: reads the messages of a topic one by one, from all its assigned partitions.

It has its own connection, because the members of a group are connections, and because its waits must not delay other
requests. The consumer keeps the position in each partition; the server keeps committed offsets. After a reconnect or a
rebalance, reading continues at the old position, or after the last commit of the partition's previous owner.
"""

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Self

from courser.api import commands as c
from courser.api import replies as r
from courser.client.batches import fields_of
from courser.client.commits import Commits
from courser.client.consumed import ConsumedMessage, ConsumerSettings, PartitionsCallback, call_back
from courser.client.link import Link
from courser.client.membership import Membership
from courser.client.messages import Message
from courser.client.payload_encryption import Encryptor
from courser.client.positions import Positions
from courser.client.starting_point import Start, StartingPoint
from courser.errors import (
    ClientClosed,
    ConnectionFailed,
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

    To be used by one task; only ``seek``, ``pause``, ``resume`` and ``close`` may be called by others. Close it, or the
    client, to leave the group at once.

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
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
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
        self._commits_by_itself = self._reader is not None and self.settings.commit == "auto"
        """Whether messages are committed automatically after the body of the loop."""
        self._encryptor = encryptor
        begin: Start = start if start is not None else "first" if self._reader is None else "next"
        self._starting = StartingPoint(link, stream, topic, self._reader, begin)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self.starts_over = False
        """Whether to give up all partitions after a reconnect and read again from the last commit. For callers that
        hold messages which this consumer cannot take back."""
        self._positions = Positions()
        self._ahead: tuple[int, int, asyncio.Task[r.Polled]] | None = None
        """The next poll, sent while the messages of the last one are processed: partition, offset and reply."""
        self._current: ConsumedMessage | None = None
        """The message that the body of the loop is processing."""
        self._connection_count = 0
        self._due = 0.0
        """When periodic work is due next, by the monotonic clock."""
        self._is_refused = False
        """Whether the server has refused a commit since the partitions were last looked at."""
        self._is_waiting = False
        """Whether the server is asked to reply when there are messages."""
        self._assigning = asyncio.Lock()
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
        """
        if self._is_closed:
            raise ClientClosed("the consumer is closed")
        if self._is_open:
            return
        await self._link.open()
        if self._membership is not None:
            await self._membership.join(patient=False)
        await self._look_again()
        self._commits.stored_at = monotonic()
        self._is_open = True

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(failed=kind is not None)

    async def close(self, *, failed: bool = False) -> None:
        """Commit processed messages, leave the group, close the connection. May be called more than once.

        The message that was read last counts as processed, unless ``failed``.
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
        # The same as in ``pop``: nearly all messages take this path, and a call per message is much.
        fetched = self._positions.fetched
        if fetched and monotonic() < self._due and self._link.connection_count == self._connection_count:
            if self._current is not None:
                self._finish_current()
            self._current = message = fetched.popleft()
            return message
        if not self._is_open:
            if self._is_closed:
                raise StopAsyncIteration
            await self.open()
        self._finish_current()
        try:
            await self._refill()
        except ClientClosed:
            # Closed by another task while this one waited.
            if not self._is_closed:
                raise
            raise StopAsyncIteration from None
        self._current = message = self._positions.fetched.popleft()
        return message

    def pop(self) -> ConsumedMessage | None:
        """The next message if it is here already. None: ask with ``anext``, which also does periodic work."""
        fetched = self._positions.fetched
        if not fetched or monotonic() >= self._due or self._link.connection_count != self._connection_count:
            return None
        if self._current is not None:
            self._finish_current()
        self._current = message = fetched.popleft()
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
        taken = [first, *self._positions.fetched]
        self._positions.fetched.clear()
        return taken

    async def _refill(self) -> None:
        """Get messages. Ends the iteration if there will be no more."""
        while True:
            if self._is_closed:
                raise StopAsyncIteration
            await self.keep_up()
            if self._positions.fetched:
                return
            if (poll := self._positions.next_poll) is not None:
                await self._read(*poll)
                continue
            await self.commit_done()
            if self.settings.stop_at_end:
                raise StopAsyncIteration
            await self._wait()

    async def _read(self, partition_id: int, offset: int) -> None:
        """Poll one partition once."""
        try:
            reply = await self._polled(partition_id, offset)
        except OffsetsUnavailable as gap:
            if self.settings.on_gap == "raise":
                raise
            self.skipped_count += gap.end_offset - gap.first_offset
            self._positions.advance(partition_id, gap.end_offset)
            return
        except (NotAssigned, NotFound):
            await self._look_again()
            return
        if partition_id not in self._positions:
            return
        self._positions.turn()
        if not reply.message_count:
            self._positions.mark_drained(partition_id)
            return
        messages = (ConsumedMessage(*fields, self.commit) for fields in fields_of(reply, self._encryptor))
        if self._positions.fill(partition_id, offset, messages):
            self._look_ahead()

    async def _polled(self, partition_id: int, offset: int) -> r.Polled:
        if self._ahead is not None and self._ahead[:2] == (partition_id, offset):
            (*_, task), self._ahead = self._ahead, None
            reply = await task
        else:
            await self._drop_ahead()
            reply = await self._link.ask(self._poll(partition_id, offset), r.Polled, patient=True)
        return reply

    def _look_ahead(self) -> None:
        """Send the next poll now: its messages arrive while the current ones are processed."""
        if (poll := self._positions.next_poll) is not None:
            task = asyncio.ensure_future(self._link.ask(self._poll(*poll), r.Polled, patient=True))
            self._ahead = (*poll, task)

    async def _drop_ahead(self) -> None:
        if self._ahead is not None:
            (*_, task), self._ahead = self._ahead, None
            task.cancel()
            with suppress(asyncio.CancelledError, CourserError):
                await task

    def _poll(self, partition_id: int, offset: int) -> c.WaitForMessages:
        reader, settings, kind = self._reader or _NOBODY, self.settings, PollingKind.OFFSET
        place = (self._stream, self._topic, partition_id)
        poll = c.PollMessages(reader, *place, kind, offset, settings.batch_count, auto_commit=False)
        return c.WaitForMessages(poll, 0, settings.batch_size)

    async def _wait(self) -> None:
        """Wait until there are messages, or the assignment has changed."""
        wait = int(self.settings.wait * 1_000_000)
        reader = self._reader or _NOBODY
        generation = self._membership.generation if self._membership is not None else 0
        positions = self._positions.waiting
        command = c.WaitForArrivals(reader, self._stream, self._topic, positions, generation, wait)
        self._is_waiting = True
        try:
            reply = await self._link.ask(command, r.Arrivals, patient=True)
        except (NotAssigned, NotFound):
            await self._look_again()
            return
        finally:
            self._is_waiting = False
        if reply.generation != generation or not reply.partition_ids:
            await self._look_again()
        self._positions.mark_readable(reply.partition_ids)

    # --- moving ---------------------------------------------------------------------------------------

    @property
    def partitions(self) -> tuple[int, ...]:
        """The ids of the assigned partitions."""
        return self._positions.partition_ids

    @property
    def paused(self) -> tuple[int, ...]:
        """The ids of the paused partitions."""
        return self._positions.paused

    def position(self, partition_id: int) -> int:
        """The offset of the next message.

        Raises:
            KeyError: the partition is not assigned to this consumer.
        """
        return self._positions.position(partition_id)

    async def seek(self, partition_id: int, start: Start) -> None:
        """Continue elsewhere in an assigned partition: at an offset, a time, ``"first"``, ``"last"`` or ``"end"``.

        Messages that were processed but not committed before stay uncommitted.

        Raises:
            NotAssigned: the partition is not assigned to this consumer.
            ValueError: an unknown word, or a negative offset.
            TypeError: the start is of another type.

        Example:
            async with client.consumer("shop/orders") as consumer:
                await consumer.seek(0, 2)
                print((await anext(consumer)).offset)
        """
        self._positions.check(partition_id)
        starting = StartingPoint(self._link, self._stream, self._topic, None, start)
        offset = start if isinstance(start, int) else (await starting.offsets([partition_id])).get(partition_id, 0)
        self._positions.check(partition_id)
        await self._drop_ahead()
        if self._current is not None and self._current.partition_id == partition_id:
            self._current = None
        self._commits.forget(partition_id)
        self._positions.move(partition_id, offset)
        await self._interrupt_wait()

    async def pause(self, *partition_ids: int) -> None:
        """Read nothing more from these partitions, or from all, until ``resume``. They stay assigned.

        Fetched messages are dropped and fetched again later. A partition that is revoked is no longer paused.

        Raises:
            NotAssigned: a partition is not assigned to this consumer.

        Example:
            async with client.consumer("shop/orders", stop_at_end=True) as consumer:
                await consumer.pause(1)
                print([message.partition_id async for message in consumer], consumer.paused)
        """
        self._positions.pause(partition_ids or self.partitions)

    async def resume(self, *partition_ids: int) -> None:
        """Continue to read paused partitions: these, or all."""
        self._positions.resume(partition_ids or self.paused)
        await self._interrupt_wait()

    async def _interrupt_wait(self) -> None:
        """Let a waiting task look again. Any request ends the wait on the server."""
        if self._is_waiting:
            await self._link.request(c.Ping(), patient=True)

    # --- partitions -----------------------------------------------------------------------------------

    async def keep_up(self) -> None:
        """Do the periodic work that is due: ask for the assigned partitions, and commit. Reading does it too.

        Raises:
            NotFound: the topic no longer exists.
        """
        settings, member, commits = self.settings, self._membership, self._commits
        is_sync_due = member is not None and monotonic() - member.synced_at >= settings.sync_interval
        if is_sync_due or self._is_refused or self._link.connection_count != self._connection_count:
            await self._look_again()
        dues = [member.synced_at + settings.sync_interval] if member is not None else []
        if settings.commit == "auto":
            if monotonic() - commits.stored_at >= settings.commit_interval:
                await self.commit_done()
            dues.append(commits.stored_at + settings.commit_interval)
        self._due = 0.0 if self._is_refused else min(dues, default=math.inf)

    async def _look_again(self) -> None:
        """Find out which partitions to read."""
        async with self._assigning:
            connection_count = self._link.connection_count
            is_doubtful = self._is_open and (connection_count != self._connection_count or self._is_refused)
            self._is_refused = False
            if self._membership is None:
                await self._choose_partitions()
            else:
                await self._sync(self._membership, connection_count, is_doubtful=is_doubtful)
            self._connection_count = self._commits.connection_count = connection_count

    async def _choose_partitions(self) -> None:
        """Choose all partitions, or the requested ones."""
        bounds = await self._starting.bounds()
        wanted = tuple(bounds) if self._wanted is None else self._wanted
        missing = [partition_id for partition_id in wanted if partition_id not in bounds]
        if missing:
            raise NotFound(ErrorCode.PARTITION_NOT_FOUND, f"the topic has no partition {missing[0]}")
        await self._assign(wanted)

    async def _sync(self, membership: Membership, connection_count: int, *, is_doubtful: bool) -> None:
        """Ask the group for the partitions assigned to this member, until it has confirmed the newest assignment."""
        while share := await membership.sync(is_doubtful=is_doubtful, patient=self._is_open):
            if share.is_doubtful:
                await self._drop_ahead()
                await self._catch_up(share.partition_ids)
                # It is known now what was committed meanwhile: no commit on this connection takes the group back.
                self._commits.connection_count = connection_count
            await self._assign(share.partition_ids, anew=share.is_doubtful and self.starts_over)
            membership.generation, is_doubtful = share.generation, False

    async def _assign(self, partition_ids: Sequence[int], *, anew: bool = False) -> None:
        """Give up partitions that were taken away, or all, and start to read new ones."""
        kept = set() if anew else set(self.partitions).intersection(partition_ids)
        lost = [partition_id for partition_id in self.partitions if partition_id not in kept]
        gained = [partition_id for partition_id in partition_ids if partition_id not in kept]
        if lost or gained:
            self.rebalance_count += 1
        if lost:
            await self._give_up(lost)
        if gained:
            self._positions.add(await self._starting.offsets(gained))
            await call_back(self._on_assigned, gained)
        self._positions.mark_readable(partition_ids)

    async def _give_up(self, partition_ids: Sequence[int]) -> None:
        """Commit what is processed of lost partitions, as long as the server accepts it, and forget them."""
        await self._drop_ahead()
        for partition_id in partition_ids:
            self._positions.put_back(partition_id)
            self._positions.mark_drained(partition_id)
        try:
            await call_back(self._on_revoked, partition_ids)
        finally:
            await self._commits.store_noted(partition_ids)
            for partition_id in partition_ids:
                self._commits.forget(partition_id)
            self._positions.remove(partition_ids)

    async def _catch_up(self, partition_ids: Sequence[int]) -> None:
        """Skip messages that another member has committed in the meantime. Follow a group that was reset."""
        for partition_id in partition_ids:
            if partition_id in self._positions:
                stored = await self._starting.stored(partition_id)
                if self._commits.is_reset(partition_id, stored):
                    await self._start_over(partition_id)
                    continue
                self._commits.raise_floor(partition_id, stored)
                if stored is not None:
                    self._positions.advance(partition_id, stored + 1)

    async def _start_over(self, partition_id: int) -> None:
        """Read a partition as a new member would. What was read of it before is not committed any more."""
        if self._current is not None and self._current.partition_id == partition_id:
            self._current = None
        self._commits.forget(partition_id)
        self._positions.move(partition_id, (await self._starting.offsets([partition_id])).get(partition_id, 0))

    # --- commits --------------------------------------------------------------------------------------

    def _finish_current(self) -> None:
        """Mark the current message as processed."""
        message, self._current = self._current, None
        if message is not None and self._commits_by_itself:
            self._commits.note(message.partition_id, message.offset)

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
        """
        self._refuse(await self._commits.store_all())

    async def commit(self, message: Message) -> bool:
        """Commit a message and all before it in its partition. See ``ConsumedMessage.commit``.

        Raises:
            NotFound: the topic or the group no longer exists.
            ClientClosed: the consumer has neither a name nor a group.
        """
        if self._reader is None:
            raise ClientClosed("a consumer without a name or a group cannot store offsets")
        current, partition_id = self._current, message.partition_id
        if current is not None and (current.partition_id, current.offset) == (partition_id, message.offset):
            self._current = None
        while True:
            try:
                is_stored = await self._commits.store(partition_id, message.offset)
            except ConnectionFailed:
                if self._membership is None or self._is_closed or not self._link.target.reconnect:
                    raise
                if self._assigning.locked():
                    # Called by on_revoked, perhaps: it cannot wait for itself.
                    return False
                await self._look_again()
                if partition_id not in self._positions or self._commits.is_behind(partition_id, message.offset):
                    return partition_id in self._positions
                continue
            if not is_stored:
                self._refuse([partition_id])
            return is_stored

    def _refuse(self, partition_ids: Collection[int]) -> None:
        """Look at the assigned partitions before anything else is handed out: others have got some of them."""
        if partition_ids:
            self._is_refused, self._due = True, 0.0


def _reader_of(group: Identifier | None, name: Identifier | None) -> Reader | None:
    if group is not None:
        return Reader(ConsumerKind.GROUP, group)
    return None if name is None else Reader(ConsumerKind.CONSUMER, name)
