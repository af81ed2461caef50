"""Staged parts: messages that the tasks of a job write first and that are then published all at once or not at all.

A part belongs to a user, a sink, a batch, a task and one attempt of the task. Readers cannot see it. A finished part
survives a power cut. An unfinished one survives a kill of the server, and its client continues with the next chunk. A
part that is not published is removed: by the next publish of its sink, by its client, or when it expires.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash

from courser.api import replies as r
from courser.api.commands import StagedPartName
from courser.broker.partition.waiting import Background, Steps
from courser.broker.publishing.staged_parts import OpenPart, PartTable
from courser.broker.settings import BrokerSettings
from courser.catalog.entities import Publish
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode, MetadataReadOnly, StorageFailure
from courser.model.clock import Clock
from courser.records.batch import Batch
from courser.records.stored_body import PLAIN, Encoding, encode
from courser.storage.durable_files import (
    is_failed_sync,
    list_if_there,
    make_directories,
    storage_failure,
    sync_directory,
    unlink_if_there,
)
from courser.storage.files import EntryKind, FileSystem
from courser.storage.paths import QUARANTINE, STAGED_SUFFIX, STAGING
from courser.storage.quarantine import Quarantine
from courser.storage.staged_file import (
    RECORD_SIZE,
    DamagedPart,
    PartContents,
    PartIdentity,
    StagedFileWriter,
    StagingTarget,
    read_staged_file,
)

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_BATCH_HEADROOM = RECORD_SIZE + 512
"""Bytes that a chunk needs in addition to its messages."""


class Staging:
    """All staged parts of a server. Used from the event loop; disk work runs in the pool."""

    def __init__(
        self,
        file_system: FileSystem,
        data_directory: Path,
        pool: Executor,
        clock: Clock,
        *,
        state: CatalogState,
        settings: BrokerSettings,
    ) -> None:
        self._file_system = file_system
        self._data_directory = data_directory
        self.directory = data_directory / STAGING
        self._pool = pool
        self._clock = clock
        self._state = state
        self._size_max = settings.staging_size_max
        self._expiry = settings.staging_expiry
        self._limits = settings.limits
        self._engine_limits = settings.engine_limits
        self._encoding = PLAIN if settings.encryption is None else Encoding(encryption=settings.encryption)
        self._parts = PartTable()
        self._leaving: dict[PartIdentity, asyncio.Task[None]] = {}
        """Parts that are gone, while their files are being removed."""
        self._needed: tuple[Publish | None, frozenset[tuple[int, int]]] = (None, frozenset())
        """The parts, with their attempts, of the open publish that was looked at last."""
        self.size = 0
        """Size of all files in bytes."""
        self._background = Background()
        self._naming = asyncio.Lock()
        self.make_room: Callable[[], Awaitable[None]] | None = None
        """Called before a batch is refused for lack of room: settling publishes removes their parts."""
        self._set_aside: set[str] = set()
        """Names of damaged files in quarantine, found by this start or an earlier one."""
        self._failure: str | None = None
        """Why nothing can be staged until a restart (a failed sync of the directory), or None."""

    @property
    def part_count(self) -> int:
        """How many parts there are."""
        return len(self._parts)

    # --- the start ---

    async def open(self, *, is_crashed: bool = False) -> None:
        """Find the parts that the last session left, and remove those that are published or abandoned.

        Damaged parts are reported and moved to quarantine. ``is_crashed``: the machine crashed or lost power.

        Raises:
            StorageFailure: the directory cannot be read.
        """
        for part in await self._in_pool(partial(self._load, is_crashed=is_crashed)):
            self._parts.add(part)
            self.size += part.contents.file_size
        if len(self._parts):
            _log.info("staged parts found count=%d size=%d", len(self._parts), self.size)

    def _load(self, *, is_crashed: bool) -> list[OpenPart]:
        self._set_aside = {entry.name for entry in list_if_there(self._file_system, self.directory / QUARANTINE)}
        found: list[OpenPart] = []
        for entry in list_if_there(self._file_system, self.directory):
            path = self.directory / entry.name
            if entry.kind is not EntryKind.FILE or not entry.name.endswith(STAGED_SUFFIX):
                continue
            try:
                part = self._take(path, is_crashed=is_crashed)
            except (OSError, StorageFailure) as error:
                # If a decided publish needs this part, finishing it will fail and say so. Other parts are not worth
                # a failed start.
                _log.warning("could not read a staged part path=%s reason=%s", path, error)
                continue
            if part is not None:
                found.append(part)
        if found:
            sync_directory(self._file_system, self.directory)
        return found

    def _take(self, path: Path, *, is_crashed: bool) -> OpenPart | None:
        """Check one file: keep it as a part that can be published, remove it, or move it to quarantine."""
        staged = read_staged_file(self._file_system, path, is_in_question=self._is_in_question, is_crashed=is_crashed)
        if staged is None:
            _log.info("removed a staged part whose creation was interrupted path=%s", path)
            unlink_if_there(self._file_system, path)
            return None
        identity = staged.identity
        is_named_so = identity is not None and path == self._path_of(identity)
        if identity is not None and is_named_so and not self._is_wanted(identity):
            # Published or superseded: not needed any more, damaged or not.
            unlink_if_there(self._file_system, path)
            return None
        if isinstance(staged, DamagedPart):
            self._put_aside(path, staged)
            return None
        if not is_named_so:
            self._put_aside(path, DamagedPart(identity, 0, "its name belongs to another part"))
            return None
        if staged.contents.is_finished and self._is_in_question(staged.identity):
            self._sync_found(path)
        return OpenPart(staged.identity, path, staged.contents, self._clock)

    def _put_aside(self, path: Path, damage: DamagedPart) -> None:
        """Report a damaged part and keep its file for inspection."""
        identity = damage.identity
        whose = "unknown part" if identity is None else _words(identity)
        if path in self._paths_of_open_publishes():
            # Leave it in place: the publish that needs it fails and says what to do.
            _log.error(
                "staged part damaged, cannot finish its publish: %s path=%s position=%d reason=%s",
                whose,
                path,
                damage.position,
                damage.reason,
            )
            return
        Quarantine(self._file_system, self.directory).move(path)
        self._set_aside.add(path.name)
        _log.error(
            "staged part damaged and quarantined, run its task again: %s path=%s position=%d reason=%s",
            whose,
            self.directory / QUARANTINE / path.name,
            damage.position,
            damage.reason,
        )

    def _paths_of_open_publishes(self) -> set[Path]:
        return {
            self._path_of(PartIdentity(sink.user_id, sink.name, sink.batch, part.part, part.attempt))
            for sink in self._state.sinks.values()
            if sink.open is not None
            for part in sink.open.parts
        }

    def _is_in_question(self, identity: PartIdentity) -> bool:
        """Whether a part may not be synced. Parts of a decided publish are."""
        sink = self._state.sinks.get(identity.sink)
        return sink is None or identity.batch > sink.batch

    def _sync_found(self, path: Path) -> None:
        """Sync a finished part: the server may have been killed before the sync, and its client will not ask again."""
        file = self._file_system.open(path)
        try:
            file.sync()
        except OSError:
            # A failed sync does not say what was lost, and the next start might not get an error.
            unlink_if_there(self._file_system, path)
            raise
        finally:
            file.close()

    def _is_wanted(self, identity: PartIdentity) -> bool:
        """Whether a part can still be published, or is being published."""
        sink = self._state.sinks.get(identity.sink)
        return sink is None or identity.batch > sink.batch or self._is_needed(identity)

    def _is_needed(self, identity: PartIdentity) -> bool:
        """Whether a decided publish still needs this part."""
        sink = self._state.sinks.get(identity.sink)
        if sink is None or sink.open is None or identity.batch != sink.batch or identity.user_id != sink.user_id:
            return False
        publish, needed = self._needed
        if publish is not sink.open:
            # Looked up once for all parts of a publish: there may be ten thousand.
            needed = frozenset((part.part, part.attempt) for part in sink.open.parts)
            self._needed = sink.open, needed
        return (identity.part, identity.attempt) in needed

    # --- what tasks do ---

    async def stage(self, user_id: int, name: StagedPartName, chunk: int, target: StagingTarget, batch: Batch) -> None:
        """Stage one batch. A chunk that is already present is not added again.

        Raises:
            CommandRejected: the batch is already published, chunks are missing, or there is no room.
            StorageFailure: nothing was staged.
        """
        identity = PartIdentity(user_id, name.sink, name.batch, name.part, name.attempt)
        self._check_unpublished(identity)
        self._check_names()
        if self.make_room is not None and not self._has_room(batch.size):
            await self.make_room()
        if self._encoding is not PLAIN:
            batch = await self._in_pool(partial(encode, batch, self._encoding))
        # A client that disconnects must not leave a write behind that nobody waits for.
        await self._background.shielded(self._stage_in_turn(identity, chunk, target, batch))

    async def _stage_in_turn(self, identity: PartIdentity, chunk: int, target: StagingTarget, batch: Batch) -> None:
        while True:
            if (leaving := self._leaving.get(identity)) is not None:
                # The file of an earlier part with this name.
                await asyncio.wait((leaving,))
                continue
            # Nothing is awaited before it is listed: a repeated request finds it.
            part = self._parts.get(identity) or self._new_part(identity, chunk, batch.size)
            async with part.lock:
                if self._parts.get(identity) is part:
                    await self._add(part, chunk, target, batch)
                    return
                # It was removed meanwhile, or could not be created.

    async def _add(self, part: OpenPart, chunk: int, target: StagingTarget, batch: Batch) -> None:
        """Add a chunk, with the lock of the part held."""
        contents = part.contents
        if chunk < contents.chunk_count:
            # The reply was lost, and the client sent it again.
            return
        if contents.is_finished:
            raise CommandRejected(ErrorCode.STAGED_PART_INCOMPLETE, f"{_words(part.identity)} is already finished")
        if chunk > contents.chunk_count:
            raise _incomplete(part, chunk)
        self._check_room(batch.size)
        before, expected = contents.file_size, batch.size + _BATCH_HEADROOM
        # Counted before it is written: other parts may grow at the same time.
        self.size += expected
        try:
            if part.writer is not None and batch.size <= self._engine_limits.inline_size:
                part.writer.append(target, batch)
            else:
                self._parts.begin_work(part)
                await self._in_pool(partial(self._write, part, target, batch))
        except BaseException:
            if part.writer is None and before:
                self._parts.end_work(part)
            elif part.writer is None:
                self._parts.remove(part)
            raise
        finally:
            self.size += part.contents.file_size - before - expected
        part.touch(self._clock)
        if part.writer is not None:
            self._keep_up(part, part.writer)

    def _write(self, part: OpenPart, target: StagingTarget, batch: Batch) -> None:
        """Append a batch whose hash and write take long, or the first one since the part or the server began."""
        if part.writer is None:
            part.writer = self._writer_of(part)
            part.contents = part.writer.contents
        part.writer.append(target, batch)

    def _writer_of(self, part: OpenPart) -> StagedFileWriter:
        if not part.contents.file_size:
            return self._create(part.path, part.identity, part.touched_at)
        return StagedFileWriter.reopen(self._file_system, part.path, part.contents, self._engine_limits)

    def _keep_up(self, part: OpenPart, writer: StagedFileWriter) -> None:
        """Ask the kernel to start write-back, one hint at a time: on a busy disk the call blocks."""
        if part.upkeep is not None and not part.upkeep.done():
            return
        if (work := writer.take_upkeep()) is not None:
            part.upkeep = asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _new_part(self, identity: PartIdentity, chunk: int, size: int) -> OpenPart:
        """A part that is not there yet; its file is created with the first batch, of ``size`` bytes."""
        if chunk:
            self._check_undamaged(identity)
            raise _not_found(identity, f"the {chunk} chunks staged before are gone; run the task again")
        self._check_room(size)
        limits = self._limits
        if len(self._parts) >= limits.part_count_max:
            reason = f"the limit of {limits.part_count_max} staged parts is reached"
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)
        if self._parts.in_work_count >= limits.unfinished_count_max:
            reason = f"{limits.unfinished_count_max} parts are already being staged; try again later"
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)
        own_count, own_in_work = self._parts.counts_of_user(identity.user_id)
        if own_count >= limits.part_count_of_user_max or own_in_work >= limits.unfinished_count_of_user_max:
            reason = (
                f"this user has {own_count} staged parts, {own_in_work} of them unfinished: "
                f"the limits are {limits.part_count_of_user_max} and {limits.unfinished_count_of_user_max}"
            )
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)
        path = self._path_of(identity)
        part = OpenPart(identity, path, PartContents(0), self._clock)
        self._parts.add(part)
        self._parts.begin_work(part)
        self._set_aside.discard(path.name)
        return part

    def _create(self, path: Path, identity: PartIdentity, created_at: int) -> StagedFileWriter:
        try:
            return StagedFileWriter.create(self._file_system, path, identity, created_at, self._engine_limits)
        except StorageFailure as failure:
            if not isinstance(failure.cause, FileNotFoundError):
                raise
        # The first part needs the directory.
        try:
            make_directories(self._file_system, self.directory, below=self._data_directory)
        except OSError as error:
            raise storage_failure("create", self.directory, error) from error
        return StagedFileWriter.create(self._file_system, path, identity, created_at, self._engine_limits)

    async def finish(self, user_id: int, name: StagedPartName, chunk_count: int) -> r.StagedPart:
        """Make a part durable. May be repeated.

        Raises:
            CommandRejected: the part does not exist or is incomplete.
            StorageFailure: the disk refused. After a failed sync the part is dropped: run the task again.
        """
        # A client that disconnects must not leave a part that only looks finished.
        identity = PartIdentity(user_id, name.sink, name.batch, name.part, name.attempt)
        return await self._background.shielded(self._finish_in_turn(identity, chunk_count))

    async def _finish_in_turn(self, identity: PartIdentity, chunk_count: int) -> r.StagedPart:
        self._check_unpublished(identity)
        part = self._parts.get(identity)
        if part is None:
            self._check_undamaged(identity)
            raise _not_found(identity, "nothing is staged under this name")
        async with part.lock:
            if self._parts.get(identity) is not part:
                raise _not_found(identity, "it was removed meanwhile")
            contents = part.contents
            if chunk_count != contents.chunk_count:
                raise _incomplete(part, chunk_count)
            if not contents.is_finished:
                await self._finish(part)
            return r.StagedPart(contents.message_count, contents.size)

    async def _finish(self, part: OpenPart) -> None:
        before = part.contents.file_size
        await _rest(part)
        try:
            await self._in_pool(partial(self._finish_file, part))
            await self._sync_names()
        except Exception:
            # Also after a defect: a part that is not durable must not look finished when its task asks again. A failed
            # sync does not say what was lost, and a second sync may succeed without writing it.
            part.contents.is_finished = False
            self.size += part.contents.file_size - before
            await self._drop(part)
            raise
        part.writer = None
        self._parts.end_work(part)
        self.size += part.contents.file_size - before
        part.touch(self._clock)

    def _finish_file(self, part: OpenPart) -> None:
        if part.writer is None:
            part.writer = self._writer_of(part)
        part.writer.finish()
        part.writer.close()

    async def _sync_names(self) -> None:
        """Make the names of files durable; otherwise a power cut could lose a part that a publish needs."""
        # One at a time: after a failed sync the next one may succeed without having written anything.
        async with self._naming:
            self._check_names()
            try:
                await self._in_pool(partial(sync_directory, self._file_system, self.directory))
            except StorageFailure as failure:
                if is_failed_sync(failure):
                    self._failure = str(failure)
                raise

    def _check_names(self) -> None:
        if self._failure is not None:
            raise MetadataReadOnly(self.directory, self._failure)

    # --- what publishes do ---

    def finished_part(self, identity: PartIdentity) -> OpenPart:
        """A finished part, which can be published. Raises ``CommandRejected``."""
        part = self._parts.get(identity)
        if part is None:
            self._check_undamaged(identity)
            raise _not_found(identity, "it was discarded, or it is too old, or another user staged it")
        if not part.contents.is_finished:
            raise CommandRejected(ErrorCode.STAGED_PART_INCOMPLETE, f"{_words(identity)} is not finished")
        return part

    async def discard(self, user_id: int, sink: str, batch: int | None = None, *, up_to: int | None = None) -> None:
        """Remove parts of a sink: those of one batch, those up to a batch, or all; never those of an open publish."""
        chosen = [
            part
            for part in self._parts.of_sink(user_id, sink)
            if (batch is None or part.identity.batch == batch) and (up_to is None or part.identity.batch <= up_to)
        ]
        await self._remove(chosen)

    async def remove_expired(self) -> None:
        """Remove parts to which nothing was added for long."""
        before = self._clock.monotonic() - self._expiry
        expired: list[OpenPart] = []
        steps = Steps()
        for part in self.parts():
            await steps.take()
            if part.rests_since < before:
                expired.append(part)
        if expired:
            _log.info("staged parts expired count=%d", len(expired))
        await self._remove(expired)

    async def _remove(self, parts: Iterable[OpenPart]) -> None:
        for part in list(parts):
            if self._is_needed(part.identity):
                continue
            async with part.lock:
                if self._parts.get(part.identity) is part:
                    await self._drop(part)

    async def _drop(self, part: OpenPart) -> None:
        """Remove a part and its file, with its lock held. Nothing finds it any more; a new one of this name waits.

        Not synced: if a power cut brings the file back, a start removes it or it expires.
        """
        self._parts.remove(part)
        self.size -= part.contents.file_size
        leaving = self._leaving[part.identity] = self._background.start(self._remove_file(part))
        await asyncio.shield(leaving)

    async def _remove_file(self, part: OpenPart) -> None:
        try:
            # First: whoever removes the last name of a closed file frees its space, which takes long for a large one.
            await _let_go(part)
            await self._in_pool(partial(unlink_if_there, self._file_system, part.path))
        except OSError as error:
            _log.warning("could not remove a staged part path=%s reason=%s", part.path, error)
        finally:
            del self._leaving[part.identity]

    async def close(self) -> None:
        """Wait for running work and close all files."""
        await self._background.idle()
        for part in list(self._parts.all()):
            await _let_go(part)

    # --- facts ---

    def parts(self) -> list[OpenPart]:
        """All staged parts of all users, as of now: there may be many, so walk over them in steps."""
        return list(self._parts.all())

    async def figures(self, user_id: int, sink: str) -> tuple[int, int]:
        """How many parts of a sink are staged, and the size of their files in bytes."""
        parts, size, steps = self._parts.of_sink(user_id, sink), 0, Steps()
        for part in parts:
            await steps.take()
            size += part.contents.file_size
        return len(parts), size

    def path_of(self, identity: PartIdentity) -> Path:
        """The file of a part."""
        return self._path_of(identity)

    def _path_of(self, identity: PartIdentity) -> Path:
        text = f"{identity.user_id}/{identity.batch}/{identity.part}/{identity.attempt}/{identity.sink}"
        return self.directory / f"{xxhash.xxh3_128_hexdigest(text.encode())}{STAGED_SUFFIX}"

    # --- checks ---

    def _check_unpublished(self, identity: PartIdentity) -> None:
        sink = self._state.sinks.get(identity.sink)
        if sink is not None and identity.batch <= sink.batch:
            reason = f"batch {identity.batch} of sink {sink.name!r} is already published"
            raise CommandRejected(ErrorCode.BATCH_ALREADY_PUBLISHED, reason)

    def _check_undamaged(self, identity: PartIdentity) -> None:
        """Raise if a missing part is in quarantine because it was damaged."""
        name = self._path_of(identity).name
        if name in self._set_aside:
            reason = (
                f"{_words(identity)} is damaged on disk and was kept as "
                f"{self.directory / QUARANTINE / name} for inspection; run the task again"
            )
            raise CommandRejected(ErrorCode.DAMAGED_DATA, reason)

    def _has_room(self, size: int) -> bool:
        return self.size + size + _BATCH_HEADROOM <= self._size_max

    def _check_room(self, size: int) -> None:
        if not self._has_room(size):
            reason = (
                f"{self.size} bytes are staged but not published, and {size} more would exceed the limit of "
                f"{self._size_max}; raise system.staging.size_max, write smaller batches, or discard abandoned parts"
            )
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


async def _rest(part: OpenPart) -> None:
    """Wait until no hint is running: it must not reach another file that reuses this file descriptor."""
    if part.upkeep is not None:
        await asyncio.wait([part.upkeep])


async def _let_go(part: OpenPart) -> None:
    """Close the file of a part."""
    await _rest(part)
    if part.writer is not None:
        part.writer.close()
        part.writer = None


def _words(identity: PartIdentity) -> str:
    return f"attempt {identity.attempt} at part {identity.part} of batch {identity.batch} of sink {identity.sink!r}"


def _not_found(identity: PartIdentity, reason: str) -> CommandRejected:
    return CommandRejected(ErrorCode.STAGED_PART_NOT_FOUND, f"{_words(identity)} does not exist: {reason}")


def _incomplete(part: OpenPart, chunk: int) -> CommandRejected:
    reason = (
        f"{_words(part.identity)} holds {part.contents.chunk_count} chunks, not {chunk}: "
        "the rest was lost when the server stopped; run the task again"
    )
    return CommandRejected(ErrorCode.STAGED_PART_INCOMPLETE, reason)
