"""Archives partitions: uploads what the archive does not have of them, and writes their manifests.

Each process of a server does this for its own topics. What it has written becomes valid with the next root, which one
process writes for all (``root_writer``). So a run may be killed at any step: what it uploaded before is found by its
key and used again, and nothing that a root names is ever changed. A segment counts as archived after a root names it
and the epoch was still this server's after that: a server that takes over later has then seen this root.

Nothing is believed of a store before it is proved to be the one that was claimed, at the begin of a run and before
anything is confirmed. If it is not, the archive is gone (``ArchiveGone``): nothing is written or confirmed until it is
claimed again, and after that, an object counts only once it was seen in it.

The batches of a segment are checked before it is uploaded. A sealed segment that was condensed after it was archived is
archived again under another key, and its object takes the place of the old one.

All methods block. One thread uses a writer.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from courser.archive.capture import CapturedPartition, CapturedSegment, Step
from courser.archive.checking import LocalDamage, check_batches
from courser.archive.claiming import ArchiveState, check_claim
from courser.archive.errors import ArchiveFailure, ArchiveGone, ArchiveTakenOver
from courser.archive.keys import ArchiveKeys, Nonces, segment_name
from courser.archive.manifests import (
    empty_manifest,
    is_alike,
    lost_pieces,
    pieces_of,
    versions_before,
    with_piece,
    without_the_gone,
)
from courser.archive.objects import Manifest, Origin, PartitionRoot, Piece, RelativeKey, checksum_of, encode_body
from courser.archive.pacing import Pace
from courser.archive.reader import ArchiveReader, PartitionArchive
from courser.archive.store import Store, create_checked
from courser.archive.transfers import Range, hash_file, is_stored, upload
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.ledger import SegmentFacts
from courser.storage.paths import INDEX_SUFFIX, LOG_SUFFIX, index_path, log_path

_log = logging.getLogger(__name__)

_FINISHED = object()


@dataclass(frozen=True, slots=True)
class ConfirmedLog:
    """What is archived of a partition for good, and was seen in the store since it was claimed."""

    segments: frozenset[tuple[int, int]]
    """First offset and size of the sealed segments, as the server has them."""
    ends: Mapping[int, int]
    """Where the archived messages of each segment end, by its first offset, in whatever form they are archived."""
    manifest: Manifest
    """What names them."""


Confirmed = dict[PartitionIdentity, ConfirmedLog]


@dataclass(frozen=True, slots=True)
class Written:
    """What a step of a run has written, for the root that makes it valid."""

    rows: bytes
    """``PartitionRoot`` of all partitions, encoded: there may be many, and they may be for another process."""
    is_finished: bool
    """Whether nothing of the run is left."""
    is_complete: bool
    """Whether the archive has all that the partitions have."""


@dataclass(slots=True)
class ArchiveCounters:
    """What the archiver has done since the start. Read by the event loop."""

    upload_count: int = 0
    upload_size: int = 0
    adopted_count: int = 0
    """Objects that an earlier run had uploaded."""
    failure_count: int = 0
    """Runs that failed, and partitions and segments that could not be archived."""


@dataclass(slots=True)
class _Head:
    """The newest manifest of a partition, and what was uploaded since."""

    manifest: Manifest
    seen: CapturedPartition | None = None
    """What the manifest was compared with last."""
    key: str = ""
    """Without the prefix of the cluster; empty if there is none."""
    checksum: bytes = b""
    """Of the object with this key."""
    uploaded: dict[tuple[int, int, int], Piece] = field(default_factory=dict)
    """Objects that no manifest names yet, by first and end offset and size."""
    leftovers: dict[tuple[int, int], list[str]] | None = None
    """Keys of earlier processes by first and end offset, which may not be named; None: not looked for yet."""
    attempts: dict[tuple[int, int, str, bytes], str] = field(default_factory=dict)
    """Keys of this epoch by first and end offset, suffix and hash: an upload that failed may have succeeded, or may
    still come. So a key is never used for other bytes."""
    spent: list[RelativeKey] = field(default_factory=list)
    """Keys of objects that have other bytes than those that were wanted under their name."""
    _seen: set[RelativeKey] = field(default_factory=set)
    """Objects that the store was found to have since it was claimed."""
    _confirmed: ConfirmedLog | None = None

    def confirmed(self) -> ConfirmedLog:
        """What is archived once a root names the manifest. Each manifest is walked once, however many roots name it."""
        if self._confirmed is None or self._confirmed.manifest is not self.manifest:
            self._confirmed = confirmed_log(self.manifest, self._seen)
        return self._confirmed

    def has_seen(self, piece: Piece) -> bool:
        """Whether the store was found to have an object."""
        return piece.key in self._seen

    def note_seen(self, piece: Piece) -> None:
        """The store has an object."""
        self._seen.add(piece.key)
        self._confirmed = None

    def forget_key(self) -> None:
        """The manifest has changed: no object has it."""
        self.key, self.checksum = "", b""


class ManifestWriter:
    """Archives the partitions of one process. Call ``begin`` first; after a failure, a run may be repeated."""

    def __init__(
        self,
        store: Store,
        file_system: FileSystem,
        *,
        nonce: bytes,
        pace: Pace,
        part_size: int,
        commit_size: int,
        may_lose: bool = False,
    ) -> None:
        """Make a writer that has archived nothing yet.

        Args:
            store: where the archive is.
            file_system: where the segments are.
            nonce: 16 random bytes, which are new for each process.
            pace: how fast to work.
            part_size: of uploads, in bytes.
            commit_size: bytes after which a step ends, so that a root confirms them.
            may_lose: somebody has said that the server goes on without what only the archive has.
        """
        self._store = store
        self._file_system = file_system
        self._pace = pace
        self._part_size = part_size
        self._commit_size = commit_size
        self._may_lose = may_lose
        self._nonces = Nonces(nonce)
        self._state = ArchiveState(bytes(16))
        """The claim of the server."""
        self._keys = ArchiveKeys(self._state.cluster)
        self._is_current = False
        """Whether what the archive has was read since the claim ..."""
        self._is_open = False
        """... or at any time: what it has is known also while it is gone."""
        self._read_step = 0
        """The step of the root that was read, at least ..."""
        self._first_step = 0
        """... and the first that this process took part in; 0 if it has not yet."""
        self._behind: set[PartitionIdentity] = set()
        """Partitions that lack messages which the archive has."""
        self._heads: dict[PartitionIdentity, _Head] = {}
        self._rows: dict[PartitionIdentity, PartitionRoot] = {}
        """What roots say about the partitions."""
        self._captured: tuple[CapturedPartition, ...] = ()
        """The partitions of this run."""
        self._work: Iterator[None] | None = None
        """Archives them, and stops after each segment that is enough for a step; None: it has failed, or is not due."""
        self._uncommitted_size = 0
        self.counters = ArchiveCounters()
        self.damages: list[LocalDamage] = []
        """What the last run found damaged on the disk. Such segments are not archived."""

    @property
    def is_open(self) -> bool:
        """Whether what the archive has was read since the start."""
        return self._is_open

    def archive_of(self, identity: PartitionIdentity) -> PartitionArchive | None:
        """What the archive has of a partition; None if nothing. May be called from any thread."""
        head = self._heads.get(identity)
        return None if head is None else PartitionArchive(self._store, self._keys, head.manifest)

    # --- start ---

    def must_read(self, state: ArchiveState, newest_step: int) -> bool:
        """Whether the newest root, which a step of the epoch has written, may say what this process does not know.

        It has the rows of all processes that took part in that step. One that was started again meanwhile may have
        read the root before it.
        """
        has_taken_part = self._first_step and self._first_step <= newest_step
        return not self._is_current or state != self._state or (newest_step > self._read_step and not has_taken_part)

    def read_again(self) -> None:
        """Read what the archive has at the next begin: this process has got partitions of another one."""
        self._is_current = False

    def begin(self, state: ArchiveState, newest_step: int, partitions: AbstractSet[PartitionIdentity] | None) -> None:
        """Read what the archive has of the partitions, if that is due, and prove that it is the store of the claim.

        ``partitions``: all of this process; None if it was not due when somebody looked.

        Raises:
            ArchiveTakenOver: another server writes this archive.
            ArchiveGone: another store is there, or none.
            ArchiveFailure: the store did not answer.
        """
        if self.must_read(state, newest_step):
            if partitions is None:
                raise ArchiveFailure("read", self._store.name, "it has to be read again first")
            self._read(state, newest_step, partitions)
        else:
            self._prove()

    def _prove(self) -> None:
        try:
            check_claim(self._store, self._state)
        except ArchiveGone:
            self._lose()
            raise

    def _lose(self) -> None:
        """The archive is gone. If it comes back, what it has may be another state of it, or another server's."""
        self._is_current = False

    def _read(self, state: ArchiveState, newest_step: int, partitions: AbstractSet[PartitionIdentity]) -> None:
        """Read what the archive has. What was known before is forgotten, at the end: readers go by it meanwhile."""
        self._is_current, self._work = False, None
        # Whatever is there is taken for the right store at first: the claim shows whether it is.
        self._store.recognize()
        heads: dict[PartitionIdentity, _Head] = {}
        reader = ArchiveReader(self._store, state.cluster)
        # Only after the claim: a root that the last owner wrote before is visible, and it does not trust a later one.
        damaged: list[ArchiveFailure] = []
        found = next(reader.roots_backwards(before_epoch=state.epoch + 1, damaged=damaged), None)
        for damage in damaged:
            _log.error("%s; using the root before it, and the newest manifests", damage)
        rows = [] if found is None else [row for row in found.root.partitions if row.identity in partitions]
        for row in rows:
            newest = reader.newest_manifest(row.identity) if damaged else None
            if newest is None and row.manifest_key:
                newest = reader.find_manifest(row)
            if newest is not None:
                heads[row.identity] = _Head(newest.manifest, key=newest.key, checksum=newest.checksum)
        fence: ArchiveTakenOver | None = None
        try:
            check_claim(self._store, state)
        except ArchiveTakenOver as found_fence:
            # What it had until then can still be read.
            fence = found_fence
        self._heads, self._rows = heads, {row.identity: row for row in rows}
        self._state, self._keys = state, ArchiveKeys(state.cluster)
        self._read_step, self._first_step = newest_step, 0
        self._is_open, self._is_current = True, fence is None
        if fence is not None:
            raise fence

    # --- a run ---

    def start(self, captured: Sequence[CapturedPartition]) -> None:
        """Archive this with the next steps. It is all that this process has.

        Raises:
            ArchiveFailure: it has got partitions of another process since ``begin``.
        """
        if not self._is_current:
            raise ArchiveFailure("read", self._store.name, "it has to be read again first")
        self.damages, self._uncommitted_size = [], 0
        known = {partition.identity for partition in captured}
        # Partitions that were deleted do not come back.
        self._heads = {identity: head for identity, head in self._heads.items() if identity in known}
        self._captured = tuple(map(self._unless_behind, captured))
        self._work = self._archive_all()

    def write(self, step: Step) -> Written:
        """Upload the next segments, as many as one root confirms, and the manifests that changed.

        Raises:
            ArchiveTakenOver: another server writes this archive now.
            ArchiveGone: this is not the store that was claimed. What was confirmed before does not count any more.
            ArchiveFailure: the store refused or did not answer. What was confirmed before stays confirmed. Or there is
                nothing to go on with: this process was started again.
        """
        work, self._work = self._work, None
        if work is None:
            raise ArchiveFailure("upload", "the partitions of a process", "it was started again since the run began")
        try:
            is_finished = next(work, _FINISHED) is _FINISHED
            rows = tuple(self._row(partition, step) for partition in self._captured)
        except ArchiveGone:
            self._lose()
            raise
        self._first_step = self._first_step or step.number
        self._rows = {row.identity: row for row in rows}
        self._work = work
        is_complete = is_finished and all(map(self._is_complete, self._captured))
        return Written(msgspec.msgpack.encode(rows), is_finished, is_complete)

    def confirm(self) -> Confirmed:
        """A root has the rows of the last step. Returns what is archived now: all of it, of all partitions.

        Raises:
            ArchiveTakenOver: another server may not have seen this root.
            ArchiveGone: this is not the store that was claimed.
            ArchiveFailure: the store did not answer; or this process was started again, and has written nothing.
        """
        if self._work is None:
            raise ArchiveFailure("confirm", "the partitions of a process", "it was started again since the run began")
        self._prove()
        self._uncommitted_size = 0
        for head in self._heads.values():
            head.uploaded.clear()
            head.attempts.clear()
        heads = [(found.identity, self._heads.get(found.identity)) for found in self._captured]
        return {identity: head.confirmed() for identity, head in heads if head is not None}

    def _unless_behind(self, partition: CapturedPartition) -> CapturedPartition:
        """A partition that lacks archived messages counts as lost: its archive stays as it is, until somebody decides.

        If it were archived as it is, the next manifest would not name what it lacks.
        """
        identity, head = partition.identity, self._heads.get(partition.identity)
        if self._may_lose or partition.is_lost or head is None:
            return partition
        if head.seen is not None and is_alike(head.seen, partition):
            return partition
        lost = lost_pieces(head.manifest, partition)
        if not lost:
            self._behind.discard(identity)
            return partition
        self.counters.failure_count += 1
        if identity not in self._behind:
            self._behind.add(identity)
            _log.error(
                "not archiving a partition that lacks messages which the archive has partition=%s first=%d end=%d; "
                "restore them, or go on without them: start once with --set data_maintenance.archiver.take_over=true",
                partition.directory,
                lost[0].first_offset,
                lost[-1].end_offset,
            )
        return CapturedPartition(identity=identity, directory=partition.directory, is_lost=True, segments=())

    def _archive_all(self) -> Iterator[None]:
        for partition in self._captured:
            if partition.is_lost:
                continue
            try:
                yield from self._archive(partition)
            except OSError as error:
                # The partition may have been deleted, or its disk may be failing. The others go on.
                self.counters.failure_count += 1
                _log.warning("could not archive partition=%s reason=%s", partition.directory, error)

    def _archive(self, partition: CapturedPartition) -> Iterator[None]:
        head = self._head(partition)
        for segment in partition.segments:
            try:
                if segment.is_sealed and not segment.is_doubtful:
                    self._archive_sealed(partition, head, segment)
                else:
                    self._archive_part(partition, head, segment)
            except LocalDamage as damage:
                self.damages.append(damage)
            if self._uncommitted_size >= self._commit_size:
                yield

    def _archive_sealed(self, partition: CapturedPartition, head: _Head, segment: CapturedSegment) -> None:
        facts = segment.facts
        parts = pieces_of(head.manifest, facts.base_offset)
        if any(piece.is_copy_of(facts) and self._is_there(head, piece) for piece in parts):
            return
        better = [damage for damage in segment.damages if any(piece.has_position(damage.position) for piece in parts)]
        if better:
            # The server knows that it has damage, but these bytes were archived before they were damaged.
            self._archive_part(partition, head, segment)
            raise LocalDamage(partition.identity, facts, better)
        self._add(head, self._put(partition, head, segment, facts, position=0, is_whole=True))

    def _archive_part(self, partition: CapturedPartition, head: _Head, segment: CapturedSegment) -> None:
        """Add what a segment that is still written, or is damaged, has more than its archived pieces."""
        facts = segment.facts
        # What comes after an object that is missing is archived again.
        named = pieces_of(head.manifest, facts.base_offset)
        pieces = list(takewhile(lambda piece: self._is_there(head, piece), named))
        if any(piece.is_whole for piece in pieces):
            if pieces[-1].end_offset >= facts.end_offset:
                # The segment was sealed after the capture that was archived last, or damaged after it was archived.
                return
            pieces = self._reopened(partition, head, pieces[-1])
        position = sum(piece.size for piece in pieces)
        if position >= facts.size:
            return
        before = SegmentFacts(
            facts.base_offset,
            pieces[-1].end_offset if pieces else facts.base_offset,
            position,
            facts.first_timestamp,
            pieces[-1].last_timestamp if pieces else facts.first_timestamp,
            sum(piece.message_count for piece in pieces),
            sum(piece.batch_count for piece in pieces),
        )
        rest = SegmentFacts(
            before.end_offset,
            facts.end_offset,
            facts.size - before.size,
            before.last_timestamp,
            facts.last_timestamp,
            facts.message_count - before.message_count,
            facts.batch_count - before.batch_count,
        )
        self._add(head, self._put(partition, head, segment, rest, position=position, is_whole=False))

    def _is_there(self, head: _Head, piece: Piece) -> bool:
        """Whether the store has an object that the manifest names. Each is looked for once."""
        if not head.has_seen(piece):
            found = self._store.find(self._keys.base + piece.key)
            if found is None or found.size != piece.size:
                return False
            head.note_seen(piece)
        return True

    def _reopened(self, partition: CapturedPartition, head: _Head, sealed: Piece) -> list[Piece]:
        """The part of a segment that another server had restored and sealed, and that this one goes on writing."""
        with closing(self._file_system.open(log_path(partition.directory, sealed.base_offset))) as file:
            is_same = file.size() >= sealed.size and hash_file(Range(file, 0, sealed.size), self._pace) == sealed.digest
        others = tuple(piece for piece in head.manifest.pieces if piece is not sealed)
        head.manifest = msgspec.structs.replace(head.manifest, pieces=others)
        head.forget_key()
        if not is_same:
            return []
        part = msgspec.structs.replace(sealed, is_whole=False, index_key="", index_size=0, index_digest=b"")
        head.manifest = with_piece(head.manifest, part)
        return [part]

    def _head(self, partition: CapturedPartition) -> _Head:
        """The manifest to continue, without what the partition no longer has."""
        identity = partition.identity
        head = self._heads.setdefault(identity, _Head(empty_manifest(identity, partition.purge_count)))
        old, seen, head.seen = head.manifest, head.seen, partition
        if seen is not None and is_alike(seen, partition):
            return head
        head.manifest = without_the_gone(old, partition)
        if head.manifest != old:
            head.forget_key()
        return head

    # --- objects ---

    def _put(
        self,
        partition: CapturedPartition,
        head: _Head,
        segment: CapturedSegment,
        facts: SegmentFacts,
        *,
        position: int,
        is_whole: bool,
    ) -> Piece:
        """Upload the bytes of a segment from a position on, which ``facts`` describe, unless an earlier try has.

        Raises:
            LocalDamage: they are damaged, and the server did not know that.
        """
        place = facts.base_offset, facts.end_offset, facts.size
        if place in head.uploaded:
            return head.uploaded[place]
        identity, base_offset = partition.identity, segment.facts.base_offset
        file = self._file_system.open(log_path(partition.directory, base_offset))
        try:
            source = Range(file, position, facts.size)
            if segment.is_doubtful:
                # It is damaged, and there is no better copy: the rest of it is worth keeping.
                digest = hash_file(source, self._pace)
            else:
                known = segment.damages
                digest = check_batches(source, identity, segment.facts, facts.base_offset, known, self._pace)
            key = self._find_or_upload(identity, head, facts, source, digest, LOG_SUFFIX)
        finally:
            file.close()
        index_key, index_size, index_digest = "", 0, b""
        if is_whole:
            index_key, index_size, index_digest = self._put_index(partition, head, facts)
        piece = Piece(
            base_offset=base_offset,
            first_offset=facts.base_offset,
            end_offset=facts.end_offset,
            position=position,
            size=facts.size,
            key=self._relative(key),
            digest=digest,
            first_timestamp=facts.first_timestamp,
            last_timestamp=facts.last_timestamp,
            message_count=facts.message_count,
            batch_count=facts.batch_count,
            is_whole=is_whole,
            index_key=self._relative(index_key),
            index_size=index_size,
            index_digest=index_digest,
        )
        head.uploaded[place] = piece
        head.note_seen(piece)
        self._uncommitted_size += facts.size
        return piece

    def _put_index(self, partition: CapturedPartition, head: _Head, facts: SegmentFacts) -> tuple[str, int, bytes]:
        try:
            file = self._file_system.open(index_path(partition.directory, facts.base_offset))
        except FileNotFoundError:
            # It is derived from the log: a reader makes its own.
            return "", 0, b""
        try:
            source = Range(file, 0, file.size())
            digest = hash_file(source, self._pace)
            key = self._find_or_upload(partition.identity, head, facts, source, digest, INDEX_SUFFIX)
            return key, source.size, digest
        finally:
            file.close()

    def _find_or_upload(
        self, identity: PartitionIdentity, head: _Head, facts: SegmentFacts, source: Range, digest: bytes, suffix: str
    ) -> str:
        """The key of an object with these bytes: one that a killed run left, or a new one."""
        place = facts.base_offset, facts.end_offset
        attempt = head.attempts.get((*place, suffix, digest))
        leftovers = [key for key in self._leftovers(identity, head).get(place, []) if key.endswith(suffix)]
        for key in [attempt, *leftovers] if attempt is not None else leftovers:
            if is_stored(self._store, key, source.size, digest, self._part_size, self._pace):
                self.counters.adopted_count += 1
                return key
            head.spent.append(self._relative(key))
        if attempt is None or self._store.find(attempt) is not None:
            # Never over an object that has other bytes.
            attempt = self._keys.segment(identity, *place, self._state.epoch, self._nonces.new(), suffix)
            head.attempts[*place, suffix, digest] = attempt
        if upload(self._store, attempt, source, self._part_size, self._pace) != digest:
            raise OSError(f"{source.file.path} was not the same when it was read again")
        self.counters.upload_count += 1
        self.counters.upload_size += source.size
        return attempt

    def _leftovers(self, identity: PartitionIdentity, head: _Head) -> dict[tuple[int, int], list[str]]:
        """Objects that a run of an earlier process has uploaded: it may have been killed before it named them.

        It may have had the same epoch, if it was one of several processes of this server.
        """
        if head.leftovers is None:
            found: dict[tuple[int, int], list[str]] = {}
            retired = set(head.manifest.retired)
            for stored in self._store.list_objects(self._keys.segments(identity)):
                name = segment_name(stored.key)
                is_retired = self._relative(stored.key) in retired
                if name is not None and name.epoch <= self._state.epoch and not is_retired:
                    found.setdefault((name.first_offset, name.end_offset), []).append(stored.key)
            head.leftovers = found
        return head.leftovers

    def _add(self, head: _Head, piece: Piece) -> None:
        """Name an object, in the place of those that it replaces."""
        old = head.manifest
        head.manifest = with_piece(old, piece)
        replaced = {*versions_before(old, piece), *head.spent} - {piece.key, piece.index_key}
        if replaced:
            # ``prune`` may have removed those of earlier times.
            known = [key for key in old.retired if self._store.find(self._keys.base + key) is not None]
            retired = tuple(sorted(replaced.union(known)))
            head.manifest = msgspec.structs.replace(head.manifest, retired=retired)
            head.spent.clear()
            # Nobody uses them again: they may be gone at any time.
            for keys in (head.leftovers or {}).values():
                keys[:] = [key for key in keys if self._relative(key) not in replaced]
        head.forget_key()

    # --- manifests ---

    def _is_complete(self, partition: CapturedPartition) -> bool:
        """Whether all that a partition has is archived."""
        if partition.is_lost:
            return False
        head = self._heads.get(partition.identity)
        end = head.manifest.pieces[-1].end_offset if head is not None and head.manifest.pieces else 0
        return all(last <= end for _, last in partition.local_segments)

    def _row(self, partition: CapturedPartition, step: Step) -> PartitionRoot:
        head = self._heads.get(partition.identity)
        if head is not None and not head.key and head.manifest.pieces:
            self._put_manifest(head, step)
        known = self._rows.get(partition.identity) if partition.is_lost else None
        if known is not None and head is not None:
            return msgspec.structs.replace(known, manifest_key=head.key, manifest_checksum=head.checksum)
        if known is not None:
            return known
        return PartitionRoot(
            topic_uuid=partition.identity.topic_uuid,
            partition_id=partition.identity.partition_id,
            incarnation=partition.identity.incarnation,
            manifest_key=head.key if head is not None else "",
            manifest_checksum=head.checksum if head is not None else b"",
            start_offset=partition.start_offset,
            next_offset=partition.next_offset,
            reserved_end=partition.reserved_end,
            last_timestamp=partition.last_timestamp,
            purge_count=partition.purge_count,
            offsets=tuple((int(key.kind), key.identifier, offset) for key, offset in partition.offsets),
        )

    def _put_manifest(self, head: _Head, step: Step) -> None:
        key = self._keys.manifest(head.manifest.identity, self._state.epoch, step.number)
        origin = Origin(
            cluster=self._state.cluster,
            epoch=self._state.epoch,
            nonce=self._nonces.own,
            number=step.number,
            time=step.time,
            op=max(step.op, 0),
        )
        data = encode_body(head.manifest, key, origin)
        create_checked(self._store, key, data)
        head.key, head.checksum = self._relative(key), checksum_of(data)

    def _relative(self, key: str) -> str:
        return key.removeprefix(self._keys.base)


def confirmed_log(manifest: Manifest, seen: AbstractSet[RelativeKey]) -> ConfirmedLog:
    """What is archived of a partition, once a root names this manifest."""
    unseen = {piece.base_offset for piece in manifest.pieces if piece.key not in seen}
    found = [piece for piece in manifest.pieces if piece.base_offset not in unseen]
    return ConfirmedLog(
        frozenset((piece.base_offset, piece.size) for piece in found if piece.is_whole),
        {piece.base_offset: piece.end_offset for piece in found},
        manifest,
    )
