"""Publishing: append staged parts to the logs, all or nothing, once per sink and batch.

One journal entry decides a publish and is the point of no return. Before it nothing has happened. After it the publish
is carried out by this session or by the next start, which need only the entry and the parts; both are durable. So the
driver gets its reply as soon as readers can see all messages. The publish is then settled in the background: the logs
are synced, a second entry ends the publish, and only then are the staged parts removed. ``redo`` appends the messages;
ADR 0013 has the reasons.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from courser.api.commands import PublishStaged
from courser.api.replies import Published
from courser.broker.catalog.catalog_service import CatalogService
from courser.broker.partition.partition import Partition
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.partition.peers import FirstProcess, Peers, RedoStep
from courser.broker.partition.waiting import Background
from courser.broker.publishing.redo import AppendProgress, Redo
from courser.broker.publishing.staging import Staging
from courser.catalog import changes
from courser.catalog.entities import Publish, PublishedPart, PublishTarget, Sink
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.identifiers import TopicAddress
from courser.records.encryption import KeyRing
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.staged_file import PartIdentity, StagingTarget

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

CheckAccess = Callable[[TopicAddress], None]
"""Raises if the user may not send to this topic."""
TakeRoom = Callable[[dict[tuple[int, int], int]], None]
"""Counts bytes by stream and topic against the topics' size limits. Raises if they do not fit."""


class Gate:
    """Any number of tasks are inside, or one has closed it: it waits until all are out, and those that come wait."""

    def __init__(self) -> None:
        self._entrance = asyncio.Lock()
        self._inside_count = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        """Wait until the gate is open. Nobody who is inside may enter again: it may be closing."""
        async with self._entrance:
            self._inside_count += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._inside_count -= 1
            if not self._inside_count:
                self._is_empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Keep everybody out during the block."""
        async with self._entrance:
            await self._is_empty.wait()
            yield


class _Turn:
    """The lock of a sink, and how many tasks hold it or wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting_count = 0


class Publishing:
    """Carries out publishes. One per broker, on its event loop."""

    def __init__(
        self,
        file_system: FileSystem,
        catalog: CatalogService,
        partitions: PartitionRegistry,
        staging: Staging,
        pool: Executor,
        *,
        keys: KeyRing,
        draw: Callable[[int], bytes],
        take_room: TakeRoom,
        peers: Peers | None = None,
        first: FirstProcess | None = None,
    ) -> None:
        """``keys`` decrypt staged messages. ``draw(size)`` returns ``size`` random bytes.

        ``peers`` own further partitions; ``first`` decides publishes, if this process does not.
        """
        self._catalog = catalog
        self._staging = staging
        self._redo = Redo(file_system, partitions, staging, pool, keys=keys, check_open=self._check_open)
        self._owns = partitions.owns
        self._peers = peers
        self._first = first
        self._draw = draw
        self._take_room = take_room
        self._turns: dict[str, _Turn] = {}
        """By sink: one publish of a sink runs at a time."""
        self._gate = Gate()
        """Whoever has the turn of a sink is inside."""
        self._left: Counter[str] = Counter()
        """Sinks whose open publish is not continued, and how many purges want that."""
        self._background = Background()
        self._is_closed = False
        staging.make_room = self.settle

    # --- publishes ---

    async def publish(self, user_id: int, command: PublishStaged, check_access: CheckAccess) -> Published:
        """Publish a batch of a sink. On return it is durable and visible to readers. May be repeated.

        Raises:
            CommandRejected: refused before the point of no return; nothing was changed. 20019: it is decided, and will
                be finished.
            CourserError: the disk refused. A repeated publish continues where this one stopped; so does a start.
        """
        # A driver that disconnects must not leave it unfinished.
        return await self._background.shielded(
            self._in_turn(command.sink, partial(self._publish, user_id, command, check_access))
        )

    async def _publish(self, user_id: int, command: PublishStaged, check_access: CheckAccess) -> Published:
        sink = self._catalog.state.sinks.get(command.sink)
        if sink is not None:
            if sink.open is not None:
                with _decided(command, sink):
                    await self._carry_out(sink, sink.open)
            if command.batch <= sink.batch:
                await self._staging.discard(user_id, command.sink, up_to=sink.batch)
                return Published(True, 0, 0)
        parts = self._chosen_parts(user_id, command)
        targets: dict[StagingTarget, int] = {}
        for identity in parts:
            for target, size in self._staging.finished_part(identity).contents.target_sizes.items():
                targets[target] = targets.get(target, 0) + size
        for target in targets:
            if self._owns(target.stream_id, target.topic_id):
                self._existing(target)
            check_access(TopicAddress(target.stream_id, target.topic_id))
        offsets = await self._check_remote(targets)
        self.check_targets({target: size for target, size in targets.items() if target not in offsets})
        nonce = self._draw(8)
        await self._catalog.submit(lambda: self._begin(user_id, command, parts, list(targets), offsets, nonce))
        # From here on the publish survives a kill and a power cut: the parts and the entry are synced.
        sink = self._catalog.state.sinks[command.sink]
        if sink.open is None:
            return Published(False, 0, 0)
        self._redo.begin(sink.open)
        with _decided(command, sink):
            progress = await self._append(sink, sink.open)
            await self._everywhere(sink, RedoStep.SHOW)
        # It gets its turn when this one is over; the next publish of the sink does the same if it comes first.
        _ = self._background.start(self._settle_quietly(command.sink))
        return Published(False, progress.message_count, progress.size)

    def _chosen_parts(self, user_id: int, command: PublishStaged) -> list[PartIdentity]:
        if len({part for part, _ in command.parts}) != len(command.parts):
            raise CommandRejected(
                ErrorCode.INVALID_COMMAND, "a part is listed twice; only one attempt of each part can be published"
            )
        return [
            PartIdentity(user_id, command.sink, command.batch, part, attempt) for part, attempt in sorted(command.parts)
        ]

    def _begin(
        self,
        user_id: int,
        command: PublishStaged,
        parts: list[PartIdentity],
        targets: list[StagingTarget],
        offsets: Mapping[StagingTarget, int],
        nonce: bytes,
    ) -> changes.PublishStart:
        """The journal entry. Called when it is this change's turn, so that offsets and targets are current."""
        published = []
        batch_counts = dict.fromkeys(targets, 0)
        for identity in parts:
            contents = self._staging.finished_part(identity).contents
            published.append(PublishedPart(identity.part, identity.attempt, contents.file_size, contents.digest))
            for target, count in contents.batch_counts.items():
                batch_counts[target] += count
        # Not the next offset: a power cut can lose unsynced messages, and then those of the publish get their offsets.
        rows = [
            PublishTarget(*target, self._synced_offset(target, offsets), count)
            for target, count in batch_counts.items()
        ]
        return changes.PublishStart(
            command.sink, user_id, command.batch, nonce, tuple(published), tuple(rows), command.keep
        )

    def check_targets(self, targets: Mapping[StagingTarget, int]) -> dict[StagingTarget, int]:
        """Check that staged messages fit into partitions of this process, by their bytes; give their synced offsets.

        Raises:
            CourserError: a partition was deleted or is read-only, or a topic is full.
        """
        found = {target: self._existing(target).log.marks.synced.offset for target in targets}
        self._take_room(_by_topic(targets))
        return found

    async def _check_remote(self, targets: Mapping[StagingTarget, int]) -> Mapping[StagingTarget, int]:
        """Have other processes check the targets that are theirs."""
        remote = {target: size for target, size in targets.items() if not self._owns(target.stream_id, target.topic_id)}
        return await self._peers.check_targets(remote) if remote and self._peers is not None else {}

    def _synced_offset(self, target: StagingTarget, offsets: Mapping[StagingTarget, int]) -> int:
        if target not in offsets:
            return self._existing(target).log.marks.synced.offset
        # It was synced up to there a moment ago. Since then it can have grown, or be gone.
        topic = self._catalog.state.topic(target.stream_id, target.topic_id)
        partitions = topic.partitions if topic is not None and topic.uuid == target.topic_uuid else []
        if not any(
            found.partition_id == target.partition_id and found.incarnation == target.incarnation
            for found in partitions
        ):
            raise _gone(target)
        return offsets[target]

    def _existing(self, target: StagingTarget) -> Partition:
        """The partition that messages were staged for. Raises if it was deleted or is read-only."""
        partition = self._redo.find(target)
        if partition is None:
            raise _gone(target)
        partition.log.check_writable()
        return partition

    # --- after the point of no return ---

    async def _carry_out(self, sink: Sink, publish: Publish) -> None:
        """Append what is not in the logs yet, then settle the publish. May be repeated after a failure."""
        await self._append(sink, publish)
        await self._everywhere(sink, RedoStep.SYNC)
        # Until this entry is durable, the parts are what a power cut leaves.
        await self._catalog.submit(changes.PublishEnd(sink.name, publish.op))
        self._redo.forget(publish)
        await self._staging.discard(sink.user_id, sink.name, up_to=sink.batch)

    async def _append(self, sink: Sink, publish: Publish) -> AppendProgress:
        """Append what is not in the logs yet, here and in other processes. Each skips what belongs to others."""
        if sink.name in self._left:
            raise CommandRejected(ErrorCode.SERVER_BUSY, "a topic of this publish is being purged")
        progress = await self._redo.append(sink, publish)
        if self._peers is not None:
            await self._peers.redo(sink.name, RedoStep.APPEND)
        return progress

    async def _everywhere(self, sink: Sink, step: RedoStep) -> None:
        await (self._redo.show(sink) if step is RedoStep.SHOW else self._redo.sync(sink))
        if self._peers is not None:
            await self._peers.redo(sink.name, step)

    async def redo_here(self, name: str, step: RedoStep) -> None:
        """Carry out a step of a publish that the first process has decided. May be repeated after a failure."""
        sink = self._catalog.state.sinks.get(name)
        if sink is None or sink.open is None:
            return
        if step is RedoStep.APPEND:
            self._redo.forget_ended(self._catalog.state.sinks.values())
            await self._redo.append(sink, sink.open)
        elif step is RedoStep.SHOW:
            await self._redo.show(sink)
        else:
            await self._redo.sync(sink)

    async def _finish(self, name: str) -> bool:
        """Carry out the open publish of a sink; return False if it has none."""
        sink = self._catalog.state.sinks.get(name)
        if sink is None or sink.open is None:
            return False
        await self._carry_out(sink, sink.open)
        return True

    async def _settle_quietly(self, name: str) -> None:
        """In the background: if it fails, the publish stays open and is retried."""
        try:
            await self._in_turn(name, partial(self._finish, name), is_last=True)
        except CourserError as error:
            _log.error("publish acknowledged but not finalized sink=%r reason=%s", name, error)
        except Exception:  # noqa: BLE001 - a defect in a background task; only the log reports it
            _log.exception("publish acknowledged but not finalized sink=%r", name)

    async def settle(self) -> None:
        """Settle all that was answered. Raises ``CourserError`` if the disk refuses."""
        await self._settle(lambda _: True)

    async def settle_below(self, identity: PartitionIdentity, before_offset: int) -> None:
        """Settle what was answered and lies in a partition below an offset.

        Retention is about to delete there. After a crash an open publish looks for its messages in the log, and
        appends them again if it finds none.

        Raises:
            CourserError: the disk refuses.
        """
        if self._first is not None:
            await self._first.settle_below(identity, before_offset)
            return

        def concerns(row: PublishTarget) -> bool:
            found = PartitionIdentity(row.topic_uuid, row.partition_id, row.incarnation)
            return found == identity and row.offset < before_offset

        await self._settle(concerns)

    def first_open_offset(self, identity: PartitionIdentity) -> int | None:
        """The first offset in a partition that the messages of an unfinished publish may have; None if there is none.

        After a crash, such a publish looks for its messages from there on.
        """
        rows = [row for sink in self._catalog.state.sinks.values() if sink.open for row in sink.open.targets]
        return min(
            (
                row.offset
                for row in rows
                if PartitionIdentity(row.topic_uuid, row.partition_id, row.incarnation) == identity
            ),
            default=None,
        )

    async def _settle(self, concerns: Callable[[PublishTarget], bool]) -> None:
        for sink in list(self._catalog.state.sinks.values()):
            publish = sink.open
            if publish is not None and self._redo.is_appended(publish) and any(map(concerns, publish.targets)):
                await self._background.shielded(self._in_turn(sink.name, partial(self._finish, sink.name)))

    # --- what purges do ---

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No publish is being carried out: one that is open has been appended as a whole, or has failed."""
        async with self._gate.closed():
            yield

    def open_ops(self, topics: Iterable[TopicAddress]) -> frozenset[int]:
        """The ops of the open publishes for some topics."""
        return frozenset(publish.op for _, publish in self._open_for(topics))

    async def append_open(self, topics: Iterable[TopicAddress]) -> list[str]:
        """While paused: append all of the open publishes for some topics. Return the sinks of those that still fail."""
        failed = []
        for sink, publish in self._open_for(topics):
            try:
                await self._append(sink, publish)
            except CourserError as error:
                _log.warning("purging a part of an unfinished publish sink=%r reason=%s", sink.name, error)
                failed.append(sink.name)
        return failed

    @contextmanager
    def left_unfinished(self, names: Sequence[str]) -> Iterator[None]:
        """Do not continue the open publishes of these sinks."""
        self._left.update(names)
        try:
            yield
        finally:
            self._left -= Counter(names)

    async def end_open(self, topics: Iterable[TopicAddress], *, besides: Collection[int]) -> None:
        """While paused: end the open publishes for some topics, but not those with the ops ``besides``.

        Raises:
            CourserError: one cannot be ended now.
        """
        for sink, publish in self._open_for(topics):
            if publish.op not in besides:
                await self._carry_out(sink, publish)

    def _open_for(self, topics: Iterable[TopicAddress]) -> list[tuple[Sink, Publish]]:
        wanted = set(topics)
        return [
            (sink, sink.open)
            for sink in self._catalog.state.sinks.values()
            if sink.open is not None
            and any(TopicAddress(row.stream_id, row.topic_id) in wanted for row in sink.open.targets)
        ]

    # --- starting, forgetting, stopping ---

    async def finish_open(self) -> None:
        """Finish open publishes: at a start, and periodically. A publish that fails stays open."""
        names = [sink.name for sink in self._catalog.state.sinks.values() if sink.open is not None]
        for name in names:
            if self._is_closed:
                return
            try:
                if await self._background.shielded(self._in_turn(name, partial(self._finish, name))):
                    _log.info("publish finished sink=%r", name)
            except CourserError as error:
                _log.error("could not finish a publish sink=%r reason=%s", name, error)

    async def forget(self, name: str) -> None:
        """Forget a sink, and give up the messages of its last batch that are not in the logs yet."""

        async def give_up() -> None:
            sink = self._catalog.state.sinks.get(name)
            if sink is not None and sink.open is not None:
                await self._sync_before_giving_up(sink, sink.open)
                self._redo.forget(sink.open)
            await self._catalog.submit(changes.SinkRemoval(name))

        await self._background.shielded(self._in_turn(name, give_up))

    async def _sync_before_giving_up(self, sink: Sink, publish: Publish) -> None:
        """What was answered must not depend on parts that nobody will look for any more."""
        try:
            await self._everywhere(sink, RedoStep.SYNC)
        except CourserError:
            if self._redo.is_appended(publish):
                raise

    async def _in_turn(
        self, sink: str, work: Callable[[], Coroutine[Any, Any, Result]], *, is_last: bool = False
    ) -> Result:
        """Run ``work`` while holding the lock of a sink. ``is_last``: also while the server is stopping."""
        turn = self._turns.setdefault(sink, _Turn())
        turn.waiting_count += 1
        try:
            async with turn.lock, self._gate.inside():
                if not is_last:
                    self._check_open()
                return await work()
        finally:
            turn.waiting_count -= 1
            if not turn.waiting_count:
                del self._turns[sink]

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommandRejected(
                ErrorCode.SERVER_BUSY, "the server is stopping; a publish that is already decided will be completed"
            )

    async def idle(self) -> None:
        """Wait until no publish and no background task is running."""
        await self._background.idle()

    async def close(self) -> None:
        """Accept no more publishes. Acknowledged ones are settled; the next start continues unfinished ones."""
        self._is_closed = True
        await self.idle()


@contextmanager
def _decided(command: PublishStaged, sink: Sink) -> Iterator[None]:
    """Steps behind the point of no return. A refusal there must not be taken for one of the whole request."""
    try:
        yield
    except CourserError as error:
        if error.code is not ErrorCode.SERVER_BUSY or sink.batch != command.batch:
            raise
        reason = f"batch {command.batch} of sink {command.sink!r} is decided, but not finished yet: {error}"
        raise CommandRejected(ErrorCode.PUBLISH_UNFINISHED, reason) from error


def _gone(target: StagingTarget) -> CommandRejected:
    reason = (
        f"partition {target.partition_id} of topic {target.topic_id} of stream {target.stream_id}, for which "
        "messages are staged, was deleted; discard them and stage them for a topic that exists"
    )
    return CommandRejected(ErrorCode.STAGED_TARGET_GONE, reason)


def _by_topic(targets: Mapping[StagingTarget, int]) -> dict[tuple[int, int], int]:
    sizes: dict[tuple[int, int], int] = {}
    for target, size in targets.items():
        key = target.stream_id, target.topic_id
        sizes[key] = sizes.get(key, 0) + size
    return sizes
