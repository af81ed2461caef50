"""Splits ranges by the objects of the archive that hold their messages. The driver plans with manifests alone."""

from collections.abc import Iterator, Sequence
from functools import cache

from courser.archive.archived_log import pieces_below
from courser.archive.objects import Piece
from courser.archive.reader import PartitionArchive
from courser.catalog.directories import identity_of
from courser.spark.archive_source import ArchiveSource
from courser.spark.background_clients import archive_at, with_retries
from courser.spark.errors import ReadFailed
from courser.spark.open_archive import partition_in
from courser.spark.read_options import ReadOptions
from courser.spark.sources import MissingSegment, OffsetRange, Source
from courser.storage.read_result import SkipReason


class ArchivedRanges:
    """Splits ranges by the objects of the archive."""

    def __init__(self, options: ReadOptions, uuid: bytes, server: tuple[Source, ...]) -> None:
        """``server``: what to read from if the archive does not have a message."""
        self._options = options
        self._uuid = uuid
        self._server = server
        self._partition = cache(self._find_partition)

    def split(self, wanted: OffsetRange) -> Sequence[OffsetRange]:
        """The parts of a range: runs of objects, and what is missing between them. Raises ``ReadFailed``."""
        return list(self._parts(wanted))

    def _parts(self, wanted: OffsetRange) -> Iterator[OffsetRange]:
        found = self._partition(wanted.partition)
        run: list[Piece] = []
        offset = start = wanted.start
        for piece in () if found is None else pieces_below(found, wanted.end, wanted.start):
            if piece.first_offset > offset:
                yield from self._run(found, wanted.partition, run, start, offset)
                yield from self._missing(found, wanted.partition, offset, piece.first_offset)
                run, start = [], piece.first_offset
            run.append(piece)
            offset = min(piece.end_offset, wanted.end)
        yield from self._run(found, wanted.partition, run, start, offset)
        yield from self._missing(found, wanted.partition, offset, wanted.end)

    def _find_partition(self, partition_id: int) -> PartitionArchive | None:
        return with_retries(lambda: self._partition_now(partition_id), self._options.retries)

    def _partition_now(self, partition_id: int) -> PartitionArchive | None:
        assert self._options.archive is not None
        archive = archive_at(self._options.archive)
        if self._server:
            # The facts are those of the server; the archive must be at least as new.
            archive.refresh()
        topic = archive.topic_of(self._uuid)
        if topic is None:
            raise ReadFailed(
                f"{self._options.name}: the archive {archive.store.name} has no topic with the id {self._uuid.hex()}: "
                "it is the archive of another server; check the options archive.*"
            )
        partition = partition_in(topic, partition_id)
        return None if partition is None else archive.partition(identity_of(topic, partition))

    def _run(
        self, found: PartitionArchive | None, partition: int, run: list[Piece], start: int, end: int
    ) -> Iterator[OffsetRange]:
        if found is None or start >= end:
            return
        options = self._options
        assert options.archive is not None
        source = ArchiveSource(
            access=options.archive,
            cluster=found.cluster,
            identity=found.manifest.identity,
            pieces=tuple(run),
            read_size=options.batch_size,
            verify=options.verify,
            skip_corrupt=options.skip_corrupt,
            quarantine=options.quarantine,
            keys=options.keys,
            retries=options.retries,
            has_fallback=bool(self._server),
        )
        yield OffsetRange(partition, start, end, (source, *self._server))

    def _missing(self, found: PartitionArchive | None, partition: int, start: int, end: int) -> Iterator[OffsetRange]:
        """What is not archived: the server may have it. Offsets that no message ever had need no source."""
        if start >= end:
            return
        if self._server:
            yield OffsetRange(partition, start, end, self._server)
            return
        missing = [(start, end, SkipReason.TRIMMED)] if found is None else found.missing_between(start, end)
        for first, behind, reason in missing:
            if reason is not SkipReason.RESERVED:
                yield OffsetRange(partition, first, behind, (MissingSegment("the archive"),))
