"""Publishing: staged parts into the logs, all or nothing, once per sink and batch.

One journal entry is the point of no return. Before it nothing has happened; after it the publish is carried out, by
this session or by the next start. Every batch that is appended carries the entry's number as producer, and its number
among those of the same partition as sequence: so a start sees in the log itself how far the last session got. A second
entry closes it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from courser.api.commands import PublishStaged
from courser.api.replies import Published
from courser.broker.catalog_service import CatalogService
from courser.broker.partition import Partition
from courser.broker.partition_registry import PartitionRegistry
from courser.broker.staging import Staging
from courser.catalog import commands as c
from courser.catalog.entities import Publish, PublishedPart, PublishTarget, Sink
from courser.errors import CommandRejected, CourserError, ErrorCode, PartitionReadOnly
from courser.records.batch import Batch, parse_batch
from courser.storage.files import FileSystem
from courser.storage.producer_search import last_sequence
from courser.storage.staged_file import PartIdentity, StagedBatch, StagedFileReader, Target

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_READ_SIZE = 8 * 1024 * 1024
"""Bytes of staged batches that are read ahead of the append: twice as much is in memory."""

CheckTarget = Callable[[Target], None]
"""Raises if this user may not send there."""
TakeRoom = Callable[[dict[tuple[int, int], int]], None]
"""Counts bytes by stream and topic against the limits of topics. Raises if they do not fit."""


class _Progress:
    """How far a publish got in this session."""

    def __init__(self, last: dict[Target, int]) -> None:
        self.last = last
        """The last sequence that is in the log, by partition."""
        self.message_count = 0
        self.size = 0


class _Turn:
    """Who is at work on a sink, and who waits for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting_count = 0


class Publishing:
    """Carries publishes out. One per broker, on its event loop."""

    def __init__(
        self,
        file_system: FileSystem,
        catalog: CatalogService,
        partitions: PartitionRegistry,
        staging: Staging,
        pool: Executor,
        *,
        draw: Callable[[int], bytes],
        take_room: TakeRoom,
    ) -> None:
        """``draw`` gives so many random bytes."""
        self._file_system = file_system
        self._catalog = catalog
        self._partitions = partitions
        self._staging = staging
        self._pool = pool
        self._draw = draw
        self._take_room = take_room
        self._turns: dict[str, _Turn] = {}
        """One publish of a sink at a time."""
        self._progress: dict[int, _Progress] = {}
        """By op."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    # --- publishes ---

    async def publish(self, user_id: int, command: PublishStaged, check_target: CheckTarget) -> Published:
        """Publish a batch of a sink, durable on return whatever the topics' levels are. May be repeated.

        Raises:
            CommandRejected: before the point of no return; nothing has happened.
            CourserError: the disk refused. The same publish goes on where it stopped; so does the next start.
        """
        # A driver that goes away must not leave it half-way.
        return await self._shielded(self._in_turn(command.sink, partial(self._publish, user_id, command, check_target)))

    async def _publish(self, user_id: int, command: PublishStaged, check_target: CheckTarget) -> Published:
        sink = self._catalog.state.sinks.get(command.sink)
        if sink is not None:
            if sink.open is not None:
                await self._carry_out(sink, sink.open)
            if command.batch <= sink.batch:
                await self._staging.discard(user_id, command.sink, up_to=sink.batch)
                return Published(True, 0, 0)
        parts = self._chosen_parts(user_id, command)
        targets: dict[Target, int] = {}
        for identity in parts:
            for target, size in self._staging.finished_part(identity).contents.target_sizes.items():
                targets[target] = targets.get(target, 0) + size
        for target in targets:
            self._existing(target)
            check_target(target)
        self._take_room(_by_topic(targets))
        nonce = self._draw(8)
        await self._catalog.submit_made(lambda: self._begin(user_id, command, parts, list(targets), nonce))
        # From here on neither a kill nor a power cut takes it back.
        sink = self._catalog.state.sinks[command.sink]
        if sink.open is None:
            return Published(False, 0, 0)
        progress = self._progress[sink.open.op] = _Progress({})
        await self._carry_out(sink, sink.open)
        return Published(False, progress.message_count, progress.size)

    def _chosen_parts(self, user_id: int, command: PublishStaged) -> list[PartIdentity]:
        if len({part for part, _ in command.parts}) != len(command.parts):
            raise CommandRejected(ErrorCode.INVALID_COMMAND, "a part is named twice: one attempt of each is published")
        return [
            PartIdentity(user_id, command.sink, command.batch, part, attempt) for part, attempt in sorted(command.parts)
        ]

    def _begin(
        self, user_id: int, command: PublishStaged, parts: list[PartIdentity], targets: list[Target], nonce: bytes
    ) -> c.BeginPublish:
        """The entry, made when its turn has come: from then on offsets and targets are what it says."""
        published = []
        for identity in parts:
            contents = self._staging.finished_part(identity).contents
            published.append(PublishedPart(identity.part, identity.attempt, contents.file_size, contents.digest))
        rows = [PublishTarget(*target, self._existing(target).log.next_offset) for target in targets]
        return c.BeginPublish(command.sink, user_id, command.batch, nonce, tuple(published), tuple(rows), command.keep)

    def _existing(self, target: Target) -> Partition:
        """The partition that messages were staged for, ready for writes."""
        partition = self._find(target)
        if partition is None:
            reason = (
                f"partition {target.partition_id} of topic {target.topic_id} of stream {target.stream_id}, for which "
                "messages are staged, was deleted meanwhile: discard them, and stage them for a topic that is there"
            )
            raise CommandRejected(ErrorCode.STAGED_TARGET_GONE, reason)
        partition.log.check_writable()
        return partition

    def _find(self, target: Target) -> Partition | None:
        topic = self._partitions.topics.get((target.stream_id, target.topic_id))
        if topic is None or target.partition_id >= len(topic.partitions):
            return None
        partition = topic.partitions[target.partition_id]
        identity = partition.log.identity
        is_same = identity.topic_uuid == target.topic_uuid and identity.incarnation == target.incarnation
        return partition if is_same else None

    # --- after the point of no return ---

    async def _carry_out(self, sink: Sink, publish: Publish) -> None:
        """Append what is not in the logs yet, sync, close. May be repeated after a failure."""
        progress = self._progress.get(publish.op)
        if progress is None:
            # Of an earlier session: the logs tell.
            progress = self._progress[publish.op] = _Progress(await self._look(publish))
        seen: dict[Target, int] = {}
        for part in publish.parts:
            identity = PartIdentity(sink.user_id, sink.name, sink.batch, part.part, part.attempt)
            path = self._staging.path_of(identity)
            open_reader = partial(StagedFileReader, self._file_system, path, file_size=part.size, digest=part.digest)
            reader = await self._in_pool(open_reader)
            try:
                await self._append_part(reader, publish, progress, seen)
            finally:
                reader.close()
        await self._sync(publish)
        await self._catalog.submit(c.EndPublish(sink.name, publish.op))
        del self._progress[publish.op]
        await self._staging.discard(sink.user_id, sink.name, up_to=sink.batch)

    async def _append_part(
        self, reader: StagedFileReader, publish: Publish, progress: _Progress, seen: dict[Target, int]
    ) -> None:
        producer = producer_of(publish)
        rest = self._missing(reader, progress, seen)
        loop = asyncio.get_running_loop()
        ahead = loop.run_in_executor(self._pool, _load, reader, rest)
        while batches := await ahead:
            # The next ones are read while these are written.
            ahead = loop.run_in_executor(self._pool, _load, reader, rest)
            try:
                for record, sequence, batch in batches:
                    self._check_open()
                    await self._append(record, batch, producer, sequence)
                    progress.last[record.target] = sequence
                    progress.message_count += record.message_count
                    progress.size += record.size
            except BaseException:
                await asyncio.wait([ahead])
                raise

    def _missing(
        self, reader: StagedFileReader, progress: _Progress, seen: dict[Target, int]
    ) -> Iterator[tuple[StagedBatch, int]]:
        """The batches of a part that are not in their log yet, with their numbers among those of the partition."""
        for record in reader.records():
            sequence = seen[record.target] = seen.get(record.target, -1) + 1
            if sequence > progress.last.get(record.target, -1):
                yield record, sequence

    async def _append(self, record: StagedBatch, batch: Batch, producer: bytes, sequence: int) -> None:
        partition = self._find(record.target)
        if partition is None:
            # Deleted after the decision: its messages would be gone by now in any case.
            return
        try:
            await partition.append(batch, producer=producer, sequence=sequence, is_synced_later=True)
        except PartitionReadOnly:
            if not partition.is_deleted:
                raise

    async def _sync(self, publish: Publish) -> None:
        """Make everything durable, whatever the topics' levels are."""
        partitions = [found for target in publish.targets if (found := self._find(_target_of(target))) is not None]
        for partition, result in zip(
            partitions,
            await asyncio.gather(*(partition.sync() for partition in partitions), return_exceptions=True),
            strict=True,
        ):
            if isinstance(result, BaseException) and not partition.is_deleted:
                raise result

    async def _look(self, publish: Publish) -> dict[Target, int]:
        """How far an earlier session got, partition by partition."""
        producer = producer_of(publish)
        found: dict[Target, int] = {}
        for row in publish.targets:
            target = _target_of(row)
            partition = self._find(target)
            if partition is None:
                continue
            search = partial(last_sequence, partition.log, producer, first_offset=row.offset)
            sequence = await self._in_pool(search)
            if sequence is not None:
                found[target] = sequence
        return found

    # --- the rest ---

    async def finish_open(self) -> None:
        """Carry out what is decided and not finished: at a start, and now and then. What fails stays open."""
        names = [sink.name for sink in self._catalog.state.sinks.values() if sink.open is not None]
        for name in names:
            if self._is_closed:
                return
            try:
                await self._shielded(self._in_turn(name, partial(self._finish, name)))
            except CourserError as error:
                _log.error("publish not finished sink=%r reason=%s", name, error)
            else:
                _log.info("publish finished sink=%r", name)

    async def _finish(self, name: str) -> None:
        sink = self._catalog.state.sinks.get(name)
        if sink is not None and sink.open is not None:
            await self._carry_out(sink, sink.open)

    async def forget(self, name: str) -> None:
        """Forget a sink, and give up what of its last batch is not in the logs."""

        async def give_up() -> None:
            sink = self._catalog.state.sinks.get(name)
            if sink is not None and sink.open is not None:
                self._progress.pop(sink.open.op, None)
            await self._catalog.submit(c.ForgetSink(name))

        await self._shielded(self._in_turn(name, give_up))

    async def _in_turn(self, sink: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        turn = self._turns.setdefault(sink, _Turn())
        turn.waiting_count += 1
        try:
            async with turn.lock:
                self._check_open()
                return await work()
        finally:
            turn.waiting_count -= 1
            if not turn.waiting_count:
                del self._turns[sink]

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping; a publish that is decided goes on")

    async def _shielded(self, work: Coroutine[Any, Any, Result]) -> Result:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Take no more publishes. Those under way stop between two batches: the next start goes on with them."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def producer_of(publish: Publish) -> bytes:
    """What the batches of a publish carry as their producer."""
    return publish.op.to_bytes(8, "little") + publish.nonce


def _target_of(row: PublishTarget) -> Target:
    return Target(row.stream_id, row.topic_id, row.topic_uuid, row.partition_id, row.incarnation)


def _by_topic(targets: dict[Target, int]) -> dict[tuple[int, int], int]:
    sizes: dict[tuple[int, int], int] = {}
    for target, size in targets.items():
        key = target.stream_id, target.topic_id
        sizes[key] = sizes.get(key, 0) + size
    return sizes


def _load(reader: StagedFileReader, records: Iterator[tuple[StagedBatch, int]]) -> list[tuple[StagedBatch, int, Batch]]:
    """In the pool: read and check the next batches. An empty list is the end."""
    loaded: list[tuple[StagedBatch, int, Batch]] = []
    size = 0
    for record, sequence in islice(records, 1024):
        loaded.append((record, sequence, parse_batch(reader.read(record))))
        size += record.size
        if size >= _READ_SIZE:
            break
    return loaded
