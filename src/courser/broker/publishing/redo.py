"""Carry out a decided publish: append its staged parts to the logs, in this session or the next one.

Every appended batch has a producer, made from the op and the nonce of the publish, and a sequence, which counts the
batches of the publish in this partition. So the log itself shows a start how far the last session got.

A purge that is journaled after the decision also covers the messages of the publish for that topic. It removes the
topic's partitions from the targets of the publish, and no redo appends to them afterwards, even if it was waiting while
the purge was journaled.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import numpy as np

from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.publishing.staging import Staging
from courser.catalog.entities import Publish, PublishTarget, Sink
from courser.errors import DamagedData, PartitionReadOnly, PublishDamaged, StorageFailure
from courser.records.batch import Batch
from courser.records.encryption import KeyRing
from courser.storage.durable_files import list_if_there
from courser.storage.files import FileSystem
from courser.storage.staged_file import PartIdentity, StagedBatch, StagedFileReader, StagingTarget

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_READ_SIZE = 8 * 1024 * 1024
"""Bytes of staged batches to read ahead of the append."""
_BLOCK_SIZE = 12 * 1024 * 1024
"""Bytes of a buffer for them: the last batch may exceed the limit. There are two buffers: one is filled while the other
is appended."""
_READ_COUNT_MAX = 1024
"""Batches to read ahead, a limit for small batches."""


class AppendProgress:
    """How far a publish has been appended in this session."""

    def __init__(self, last: dict[StagingTarget, int]) -> None:
        self.last = last
        """The last sequence in the log, by partition."""
        self.message_count = 0
        self.size = 0
        self.is_appended = False
        """Whether everything is in the logs, synced or not."""
        self._known: Publish | None = None
        self._targets: frozenset[StagingTarget] = frozenset()

    def wants(self, sink: Sink, target: StagingTarget) -> bool:
        """Whether the open publish of a sink appends to a partition: not after a purge of its topic."""
        if sink.open is not self._known:
            self._known = sink.open
            self._targets = frozenset(map(_target_of, sink.open.targets if sink.open is not None else ()))
        return target in self._targets


class Redo:
    """Appends the staged parts of decided publishes. One per broker, on its event loop; one task per publish."""

    def __init__(
        self,
        file_system: FileSystem,
        partitions: PartitionRegistry,
        staging: Staging,
        pool: Executor,
        *,
        keys: KeyRing,
        check_open: Callable[[], None],
    ) -> None:
        """``keys`` decrypt staged messages.

        ``check_open`` is called between batches and raises if the server is stopping.
        """
        self._file_system = file_system
        self._partitions = partitions
        self._staging = staging
        self._pool = pool
        self._keys = keys
        self._check_open = check_open
        self._progress: dict[int, AppendProgress] = {}
        """By op."""

    def begin(self, publish: Publish) -> None:
        """Register a publish that was just decided: none of its messages are in the logs."""
        self._progress[publish.op] = AppendProgress({})

    def is_appended(self, publish: Publish) -> bool:
        """Whether all its messages are in the logs: readers see them, and its driver may have its reply."""
        progress = self._progress.get(publish.op)
        return progress is not None and progress.is_appended

    def forget(self, publish: Publish) -> None:
        """Forget a publish that ended or was given up."""
        self._progress.pop(publish.op, None)

    def forget_ended(self, sinks: Iterable[Sink]) -> None:
        """Forget all publishes but those that these sinks have open."""
        still_open = {sink.open.op for sink in sinks if sink.open is not None}
        self._progress = {op: progress for op, progress in self._progress.items() if op in still_open}

    # --- partitions ---

    def find(self, target: StagingTarget) -> Partition | None:
        """The partition that messages were staged for, or None if it was deleted."""
        topic = self._partitions.topics.get((target.stream_id, target.topic_id))
        if topic is None or target.partition_id >= len(topic.partitions):
            return None
        partition = topic.partitions[target.partition_id]
        identity = partition.log.identity
        is_same = identity.topic_uuid == target.topic_uuid and identity.incarnation == target.incarnation
        return partition if is_same else None

    def partitions_of(self, sink: Sink) -> list[Partition]:
        """The target partitions of the open publish that still exist and were not purged since."""
        rows = sink.open.targets if sink.open is not None else ()
        return [found for row in rows if (found := self.find(_target_of(row))) is not None]

    # --- appending ---

    async def append(self, sink: Sink, publish: Publish) -> AppendProgress:
        """Append what is not in the logs yet. May be repeated after a failure.

        Raises:
            CourserError: the disk refused, a part is damaged, or the server is stopping.
        """
        progress = self._progress.get(publish.op)
        if progress is None:
            # Decided by an earlier session: the logs show how far it got.
            progress = AppendProgress(await self._look(publish))
            progress.is_appended = await self._is_whole(sink, publish, progress)
            self._progress[publish.op] = progress
        if progress.is_appended:
            return progress
        try:
            await self._append_parts(sink, publish, progress)
        except (DamagedData, StorageFailure) as error:
            if isinstance(error, DamagedData) or isinstance(error.cause, FileNotFoundError):
                raise PublishDamaged(sink.name, sink.batch, str(error)) from error
            raise
        progress.is_appended = True
        return progress

    async def _is_whole(self, sink: Sink, publish: Publish, progress: AppendProgress) -> bool:
        """Whether all messages of an earlier session's publish are in the logs, so that its parts are not needed.

        Rebuilt metadata may contain the start of a publish but not its end. In that case the parts are gone, because
        they are removed only after the end.
        """
        missing = [row for row in publish.targets if not self._is_in_log(row, progress)]
        if not missing:
            return True
        if not all(map(self._is_trimmed, missing)) or await self._in_pool(partial(self._has_parts, sink, publish)):
            return False
        _log.warning(
            "assuming that a publish is finished: its staged parts are gone, and retention or a purge deleted from all "
            "partitions that do not have its messages sink=%r batch=%d",
            sink.name,
            sink.batch,
        )
        return True

    def _is_in_log(self, row: PublishTarget, progress: AppendProgress) -> bool:
        """Whether a partition has the last batch, and so all batches before it, or was deleted."""
        target = _target_of(row)
        if self.find(target) is None:
            return True
        return row.batch_count > 0 and progress.last.get(target, -1) >= row.batch_count - 1

    def _is_trimmed(self, row: PublishTarget) -> bool:
        """Whether messages were deleted at the offsets where those of the publish would be."""
        partition = self.find(_target_of(row))
        return partition is not None and partition.log.start_offset > row.offset

    def _has_parts(self, sink: Sink, publish: Publish) -> bool:
        """In the pool: whether any part still exists, complete or not."""
        names = {self._staging.path_of(identity).name for identity in _identities(sink, publish)}
        return any(entry.name in names for entry in list_if_there(self._file_system, self._staging.directory))

    async def _append_parts(self, sink: Sink, publish: Publish, progress: AppendProgress) -> None:
        seen: dict[StagingTarget, int] = {}
        # Reused for all parts: clearing new memory would take the kernel as long as copying the data.
        blocks = np.empty(_BLOCK_SIZE, np.uint8).data, np.empty(_BLOCK_SIZE, np.uint8).data
        for part, identity in zip(publish.parts, _identities(sink, publish), strict=True):
            path = self._staging.path_of(identity)
            open_reader = partial(StagedFileReader, self._file_system, path, file_size=part.size, digest=part.digest)
            reader = await self._in_pool(open_reader)
            try:
                await self._append_part(reader, sink, publish, progress, seen, blocks)
            finally:
                reader.close()

    async def _append_part(
        self,
        reader: StagedFileReader,
        sink: Sink,
        publish: Publish,
        progress: AppendProgress,
        seen: dict[StagingTarget, int],
        blocks: tuple[memoryview, memoryview],
    ) -> None:
        producer = producer_of(publish)
        rest = self._missing(reader, progress, seen)
        loop = asyncio.get_running_loop()
        block, other = blocks
        ahead = loop.run_in_executor(self._pool, _load, reader, rest, block, self._keys)
        while batches := await ahead:
            # Read the next batches while these are appended.
            block, other = other, block
            ahead = loop.run_in_executor(self._pool, _load, reader, rest, block, self._keys)
            try:
                for record, sequence, batch in batches:
                    self._check_open()
                    is_wanted = partial(progress.wants, sink, record.target)
                    await self._append_batch(record, batch, producer, sequence, is_wanted)
                    progress.last[record.target] = sequence
                    progress.message_count += record.message_count
                    progress.size += record.size
            except BaseException:
                await asyncio.wait([ahead])
                raise

    def _missing(
        self, reader: StagedFileReader, progress: AppendProgress, seen: dict[StagingTarget, int]
    ) -> Iterator[tuple[StagedBatch, int]]:
        """The batches of a part that are not in their log yet, with their sequences."""
        for record in reader.records():
            sequence = seen[record.target] = seen.get(record.target, -1) + 1
            if sequence > progress.last.get(record.target, -1):
                yield record, sequence

    async def _append_batch(
        self, record: StagedBatch, batch: Batch, producer: bytes, sequence: int, is_wanted: Callable[[], bool]
    ) -> None:
        partition = self.find(record.target)
        if partition is None or not is_wanted():
            # Deleted or purged after the decision: its messages would be gone by now in any case.
            return
        try:
            prepared = await partition.prepare(batch)
            # Purges are journaled while writes wait: one may come in here.
            await partition.ready_to_append(batch.count)
            if not is_wanted():
                return
            await partition.append(
                prepared, producer=producer, sequence=sequence, is_synced_later=True, is_prepared=True
            )
        except PartitionReadOnly:
            if not partition.is_deleted:
                raise

    async def _look(self, publish: Publish) -> dict[StagingTarget, int]:
        """The last sequence that an earlier session appended, by partition."""
        producer = producer_of(publish)
        found: dict[StagingTarget, int] = {}
        for row in publish.targets:
            target = _target_of(row)
            partition = self.find(target)
            if partition is None:
                continue
            search = partial(partition.reader.disk.last_sequence, producer, first_offset=row.offset)
            sequence = await self._in_pool(search)
            if sequence is not None:
                found[target] = sequence
        return found

    # --- syncs ---

    async def show(self, sink: Sink) -> None:
        """Sync partitions whose readers see synced messages only, so that acknowledged messages can be read."""
        partitions = self.partitions_of(sink)
        await self._sync([found for found in partitions if found.log.visible_end < found.log.next_offset])

    async def sync(self, sink: Sink) -> None:
        """Sync the logs, whatever the durability levels of the topics. Raises ``CourserError``."""
        await self._sync(self.partitions_of(sink))

    async def _sync(self, partitions: list[Partition]) -> None:
        for partition, result in zip(
            partitions,
            await asyncio.gather(*(partition.sync() for partition in partitions), return_exceptions=True),
            strict=True,
        ):
            if isinstance(result, BaseException) and not partition.is_deleted:
                raise result

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def producer_of(publish: Publish) -> bytes:
    """The producer in the batches of a publish."""
    return publish.op.to_bytes(8, "little") + publish.nonce


def _identities(sink: Sink, publish: Publish) -> list[PartIdentity]:
    return [PartIdentity(sink.user_id, sink.name, sink.batch, part.part, part.attempt) for part in publish.parts]


def _target_of(row: PublishTarget) -> StagingTarget:
    return StagingTarget(row.stream_id, row.topic_id, row.topic_uuid, row.partition_id, row.incarnation)


def _load(
    reader: StagedFileReader, records: Iterator[tuple[StagedBatch, int]], block: memoryview, keys: KeyRing
) -> list[tuple[StagedBatch, int, Batch]]:
    """In the pool: read and check the next batches, into the block if they fit. An empty list means the end."""
    loaded: list[tuple[StagedBatch, int, Batch]] = []
    size = 0
    for record, sequence in records:
        fits = size + record.size <= len(block)
        memory = block[size : size + record.size] if fits else np.empty(record.size, np.uint8).data
        reader.read(record, memory)
        loaded.append((record, sequence, reader.batch(record, memory, keys)))
        size += record.size
        if size >= _READ_SIZE:
            reader.forget(record)
            break
        if len(loaded) >= _READ_COUNT_MAX:
            break
    return loaded
