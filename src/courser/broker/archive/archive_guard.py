"""What the archive lets the server do with its local segments: delete them, purge them, condense them."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from courser.archive.manifest_writer import Confirmed
from courser.archive.reader import PartitionArchive
from courser.archive.settings import ArchiveMoment, ArchiveSettings
from courser.records.stored_header import PartitionIdentity
from courser.storage.ledger import SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment


class ArchivedTopics(Protocol):
    """What archives the topics of this process."""

    @property
    def is_known(self) -> bool:
        """Whether the store has answered."""

    def archive_of(self, log: PartitionLog) -> PartitionArchive | None:
        """Where the archived messages of a partition are; None if there are none."""

    def hurry(self) -> None:
        """Begin the next run now."""


class ArchiveGuard:
    """What is archived, and what follows from it. Belongs to the event loop."""

    def __init__(self, settings: ArchiveSettings, share: ArchivedTopics) -> None:
        self._settings = settings
        self._share = share
        self._confirmed: Confirmed = {}
        self._wanted: dict[PartitionIdentity, int] = {}
        """Up to which offset retention wants to delete, if only that is archived."""

    # --- what is archived ---

    def confirm(self, confirmed: Confirmed) -> None:
        """What is archived of all partitions."""
        self._confirmed = confirmed

    def want(self, identity: PartitionIdentity, end_offset: int) -> None:
        """Have a partition archived up to an offset, if it is not in any case."""
        self._wanted[identity] = max(end_offset, self._wanted.get(identity, 0))

    def forget_others(self, known: Iterable[PartitionIdentity]) -> None:
        """Forget partitions that were deleted."""
        kept = set(known)
        self._wanted = {identity: end for identity, end in self._wanted.items() if identity in kept}

    def wanted_end(self, log: PartitionLog) -> int:
        """The offset up to which sealed segments are to be archived now."""
        is_late = self._settings.moment is ArchiveMoment.EXPIRY
        return self._wanted.get(log.identity, 0) if is_late else log.next_offset

    def is_archived(self, log: PartitionLog, segment: Segment) -> bool:
        """Whether the archive has confirmed a sealed segment."""
        confirmed = self._confirmed.get(log.identity)
        return confirmed is not None and (segment.base_offset, segment.size) in confirmed.segments

    def has_messages(self, log: PartitionLog, segment: Segment) -> bool:
        """Whether the archive has all messages of a segment, if perhaps in another form.

        It may have been condensed since. Or it is damaged, and the archive has it in parts, as good as they were.
        """
        return self.has_all_of(log.identity, segment.base_offset, segment.end_offset, segment.message_count)

    def has_all_of(self, identity: PartitionIdentity, base_offset: int, end_offset: int, message_count: int) -> bool:
        """``is_archived`` for a segment of which only this is known."""
        confirmed = self._confirmed.get(identity)
        archived_end = 0 if confirmed is None else confirmed.ends.get(base_offset, 0)
        return not message_count or end_offset <= archived_end

    def remote_segments(self, log: PartitionLog) -> Iterator[SegmentFacts]:
        """The segments that only the archive has now, oldest first; none before the store has answered."""
        archive = self._share.archive_of(log) if self._share.is_known else None
        pieces, end_offset = archive.manifest.pieces if archive is not None else (), log.start_offset
        return (
            SegmentFacts(
                piece.base_offset,
                piece.end_offset,
                piece.size,
                piece.first_timestamp,
                piece.last_timestamp,
                piece.message_count,
                piece.batch_count,
            )
            for piece in pieces
            if piece.is_whole and piece.end_offset <= end_offset
        )

    def hurry(self) -> None:
        """Begin the next run of the archiver now."""
        self._share.hurry()

    # --- what may be deleted ---

    def deletable_end(
        self, log: PartitionLog, before_offset: int, *, is_expiry: bool = False, is_request: bool = False
    ) -> int:
        """The offset up to which segments may be deleted now. The others are archived soon.

        A damaged segment is deleted only at a client's request, if the archive has all that is left of it.
        """
        if is_expiry and not self._settings.protects_expired:
            return before_offset
        for segment in log.segments:
            if segment.base_offset >= before_offset:
                break
            is_given_up = is_request and bool(segment.damages) and self.has_messages(log, segment)
            if segment.message_count and not is_given_up and not self.is_archived(log, segment):
                self.want(log.identity, before_offset)
                self.hurry()
                return segment.base_offset
        return before_offset

    def purgeable_end(self, log: PartitionLog) -> int:
        """The offset up to which a purge may delete."""
        missing = (segment.base_offset for segment in log.segments if not self.has_messages(log, segment))
        return next(missing, log.next_offset)

    # --- what may be condensed ---

    def condensable_end(self, log: PartitionLog) -> int:
        """The offset up to which segments may be condensed.

        Only archived ones are: whatever supersedes a message is then in the archive before the message goes.
        """
        if self._settings.moment is ArchiveMoment.EXPIRY:
            # The archive is no copy of what the server has.
            return log.next_offset
        missing = (
            segment.base_offset
            for segment in log.segments
            if segment.message_count and not self.is_archived(log, segment)
        )
        return next(missing, log.next_offset)

    def may_have_older(self, log: PartitionLog) -> bool:
        """Whether the archive may have messages of a log that condensing does not reach."""
        if not self._share.is_known:
            return True
        archive = self._share.archive_of(log)
        if archive is None or archive.start_offset is None:
            return False
        return self._settings.moment is ArchiveMoment.EXPIRY or archive.start_offset < log.start_offset
