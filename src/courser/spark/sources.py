"""Ranges of offsets and the sources that their messages are read from: the seam between planning and reading.

A *range* is a run of offsets of one partition. A *source* returns the stored batches of a range; there are three kinds:
the server, a segment file, and objects of the archive. A planned range lists its sources in order of preference. If a
task cannot use one of them, it falls back to the next. Ranges are pickled to tasks, so sources hold no sockets and no
open files.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from courser.errors import ErrorCode, OffsetsUnavailable
from courser.spark.errors import ReadFailed, fewer_than_planned, unavailable

_log = logging.getLogger(__name__)


class FetchedBatches(NamedTuple):
    """Consecutive batches from a source, and how far the range has been read with them."""

    records: memoryview
    """Valid until the next fetch. May contain messages outside the range."""
    next_offset: int


class SourceUnavailable(Exception):
    """This task cannot read from the source; nothing was read from the current offset on."""


class Source(Protocol):
    """Where messages are read from."""

    def fetch(self, partition: int, start: int, end: int) -> Iterator[FetchedBatches]:
        """The messages from offset ``start`` up to, but not including, ``end``.

        Raises:
            SourceUnavailable: try the next source.
            OffsetsUnavailable: messages are gone or damaged; reading can continue after them.
        """
        ...


@dataclass(frozen=True, slots=True)
class MissingSegment:
    """Stands for a segment that should be there, between others that are."""

    place: str
    """Where it should be: ``the files in ...``."""

    def fetch(self, partition: int, start: int, end: int) -> Iterator[FetchedBatches]:  # noqa: ARG002
        reason = f"missing from {self.place}"
        raise OffsetsUnavailable(ErrorCode.OFFSET_GONE, first_offset=start, end_offset=end, reason=reason)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, from ``start`` up to, but not including, ``end``."""

    partition: int
    start: int
    end: int
    sources: tuple[Source, ...] = ()
    """In order of preference. Empty until they are chosen."""

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LossRule:
    """What to do if messages are gone."""

    topic: str
    """``stream/topic``, for error messages."""
    fails: bool

    def apply(self, partition: int, error: OffsetsUnavailable, end: int) -> int:
        """The offset to continue at. Raises ``DataLost`` if the read must fail."""
        behind = min(error.end_offset, end)
        lost = unavailable(self.topic, partition, error.first_offset, behind, error.reason)
        if self.fails:
            raise lost
        _log.warning("%s", lost)
        return behind


def read_range(wanted: OffsetRange, rule: LossRule) -> Iterator[FetchedBatches]:
    """All messages of a range, from the first of its sources that works.

    Raises:
        DataLost: messages are gone, and the rule does not allow that.
        ReadFailed: no source has them, or fewer came than were planned.
    """
    offset = wanted.start
    failures: list[str] = []
    sources = list(wanted.sources)
    while sources and offset < wanted.end:
        try:
            for fetched in sources[0].fetch(wanted.partition, offset, wanted.end):
                offset = fetched.next_offset
                yield fetched
        except SourceUnavailable as failure:
            failures.append(str(failure))
            sources.pop(0)
        except OffsetsUnavailable as error:
            offset = rule.apply(wanted.partition, error, wanted.end)
        else:
            break
    if offset >= wanted.end:
        return
    if failures and not sources:
        raise ReadFailed(
            f"{rule.topic}: partition {wanted.partition}: could not read offsets {offset} to {wanted.end - 1}: "
            + "; ".join(failures)
        )
    raise fewer_than_planned(rule.topic, wanted.partition, wanted.start, wanted.end, offset)
