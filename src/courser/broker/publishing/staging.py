"""Staged parts: messages that the tasks of a job write first and that are then published all at once or not at all.

A part belongs to a user, a sink, a batch, a task and one attempt of the task. Readers cannot see it. A finished part
survives a power cut. An unfinished one survives a kill of the server, and its client continues with the next chunk. A
part that is not published is removed: by the next publish of its sink, by its client, or when it expires.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash

from courser.api import replies as r
from courser.api.commands import StagedPartName
from courser.broker.background import Background
from courser.broker.settings import BrokerSettings
from courser.catalog.entities import Sink
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, CourserError, ErrorCode, MetadataReadOnly, StorageFailure
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


class OpenPart:
    """One part in memory."""

    __slots__ = ("contents", "identity", "lock", "path", "rests_since", "touched_at", "upkeep", "writer")

    def __init__(self, identity: PartIdentity, path: Path, contents: PartContents, clock: Clock) -> None:
        self.identity = identity
        self.path = path
        self.contents = contents
        self.touch(clock)
        self.writer: StagedFileWriter | None = None
        self.upkeep: asyncio.Future[None] | None = None
        """Write-back hints to the kernel that are running."""
        self.lock = asyncio.Lock()
        """Held while disk work on this part is running."""

    def touch(self, clock: Clock) -> None:
        """Something was added to it, or the server has found it."""
        self.touched_at = clock.now()
        """For people."""
        self.rests_since = clock.monotonic()
        """By the monotonic clock: parts expire by it, so that no step of the wall clock removes or keeps any."""


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
        self._parts: dict[PartIdentity, OpenPart] = {}
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
            self._parts[part.identity] = part
            self.size += part.contents.file_size
        if self._parts:
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
        return sink is None or identity.batch > sink.batch or is_in_open_publish(sink, identity)

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
        part = self._parts.get(identity)
        if part is None:
            if chunk:
                self._check_undamaged(identity)
                raise _not_found(identity, f"the {chunk} chunks staged before are gone; run the task again")
            self._check_room(batch.size)
            part = await self._background.shielded(self._begin(identity))
        if self._encoding is not PLAIN:
            batch = await self._in_pool(partial(encode, batch, self._encoding))
        async with part.lock:
            self._add(part, chunk, target, batch)

    def _add(self, part: OpenPart, chunk: int, target: StagingTarget, batch: Batch) -> None:
        contents = part.contents
        if chunk < contents.chunk_count:
            # The reply was lost, and the client sent it again.
            return
        if contents.is_finished:
            raise CommandRejected(ErrorCode.STAGED_PART_INCOMPLETE, f"{_words(part.identity)} is already finished")
        if chunk > contents.chunk_count:
            raise _incomplete(part, chunk)
        self._check_room(batch.size)
        if part.writer is None:
            part.writer = StagedFileWriter.reopen(self._file_system, part.path, contents, self._engine_limits)
        before = contents.file_size
        part.writer.append(target, batch)
        self.size += contents.file_size - before
        part.touch(self._clock)
        self._keep_up(part, part.writer)

    def _keep_up(self, part: OpenPart, writer: StagedFileWriter) -> None:
        """Ask the kernel to start write-back, one hint at a time: on a busy disk the call blocks."""
        if part.upkeep is not None and not part.upkeep.done():
            return
        if (work := writer.take_upkeep()) is not None:
            part.upkeep = asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _begin(self, identity: PartIdentity) -> OpenPart:
        """Create the file of a new part."""
        limits = self._limits
        if len(self._parts) >= limits.part_count_max:
            reason = f"the limit of {limits.part_count_max} staged parts is reached"
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)
        if sum(part.writer is not None for part in self._parts.values()) >= limits.unfinished_count_max:
            reason = f"{limits.unfinished_count_max} parts are already being staged; try again later"
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)
        own = [part.writer is not None for part in self._parts.values() if part.identity.user_id == identity.user_id]
        if len(own) >= limits.part_count_of_user_max or sum(own) >= limits.unfinished_count_of_user_max:
            reason = (
                f"this user has {len(own)} staged parts, {sum(own)} of them unfinished: "
                f"the limits are {limits.part_count_of_user_max} and {limits.unfinished_count_of_user_max}"
            )
            raise CommandRejected(ErrorCode.STAGING_FULL, reason)
        path = self._path_of(identity)
        part = OpenPart(identity, path, PartContents(0), self._clock)
        self._parts[identity] = part
        self._set_aside.discard(path.name)
        async with part.lock:
            try:
                part.writer = await self._in_pool(partial(self._create, path, identity, part.touched_at))
            except BaseException:
                del self._parts[identity]
                raise
        part.contents = part.writer.contents
        self.size += part.contents.file_size
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
            contents = part.contents
            if chunk_count != contents.chunk_count:
                raise _incomplete(part, chunk_count)
            if not contents.is_finished:
                await self._finish(part)
            return r.StagedPart(contents.message_count, contents.size)

    async def _finish(self, part: OpenPart) -> None:
        writer = part.writer or StagedFileWriter.reopen(
            self._file_system, part.path, part.contents, self._engine_limits
        )
        before = part.contents.file_size
        await _rest(part)
        try:
            await self._in_pool(partial(_finish_file, writer))
            await self._sync_names()
        except CourserError:
            # A failed sync does not say what was lost, and a second sync may succeed without writing it.
            part.contents.is_finished = False
            self.size += part.contents.file_size - before
            await self._drop(part)
            raise
        part.writer = None
        self.size += part.contents.file_size - before
        part.touch(self._clock)

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
            for part in self._of_sink(user_id, sink)
            if (batch is None or part.identity.batch == batch) and (up_to is None or part.identity.batch <= up_to)
        ]
        await self._remove(chosen)

    async def remove_expired(self) -> None:
        """Remove parts to which nothing was added for long."""
        before = self._clock.monotonic() - self._expiry
        expired = [part for part in self._parts.values() if part.rests_since < before]
        if expired:
            _log.info("staged parts expired count=%d", len(expired))
        await self._remove(expired)

    async def _remove(self, parts: Iterable[OpenPart]) -> None:
        for part in list(parts):
            sink = self._state.sinks.get(part.identity.sink)
            if sink is not None and is_in_open_publish(sink, part.identity):
                continue
            async with part.lock:
                if self._parts.get(part.identity) is part:
                    await self._drop(part)

    async def _drop(self, part: OpenPart) -> None:
        """Remove a part and its file. Not synced: if a power cut brings it back, a start removes it or it expires."""
        del self._parts[part.identity]
        self.size -= part.contents.file_size
        try:
            # Before any await: another part with this name may be created meanwhile.
            unlink_if_there(self._file_system, part.path)
        except OSError as error:
            _log.warning("could not remove a staged part path=%s reason=%s", part.path, error)
        await _let_go(part)

    async def close(self) -> None:
        """Wait for running work and close all files."""
        await self._background.idle()
        for part in list(self._parts.values()):
            await _let_go(part)

    # --- facts ---

    def parts(self) -> Collection[OpenPart]:
        """All staged parts of all users."""
        return self._parts.values()

    def figures(self, user_id: int, sink: str) -> tuple[int, int]:
        """How many parts of a sink are staged, and the size of their files in bytes."""
        parts = self._of_sink(user_id, sink)
        return len(parts), sum(part.contents.file_size for part in parts)

    def _of_sink(self, user_id: int, sink: str) -> list[OpenPart]:
        return [
            part for part in self._parts.values() if part.identity.sink == sink and part.identity.user_id == user_id
        ]

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


def _finish_file(writer: StagedFileWriter) -> None:
    writer.finish()
    writer.close()


def is_in_open_publish(sink: Sink, identity: PartIdentity) -> bool:
    """Whether a decided publish still needs this part."""
    if sink.open is None or identity.batch != sink.batch or identity.user_id != sink.user_id:
        return False
    return any(part.part == identity.part and part.attempt == identity.attempt for part in sink.open.parts)


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
