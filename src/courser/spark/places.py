"""Where the messages of a range come from: the one seam between planning and reading.

A ``Place`` gives the batches of a range of offsets as they are stored or sent. Today: the server, and the file of a
segment. A span names its places in order of preference; one that is not there for this task gives way to the next.
Places are pickled to the tasks that read from them, so they hold no sockets and no files.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from courser.errors import ErrorCode, OffsetsUnavailable
from courser.spark.errors import ReadFailed, fewer_than_planned, unavailable

_log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Some batches behind one another, and how far the range is read with them."""

    records: memoryview
    """Valid until the next piece is asked for. There may be messages of other offsets in it."""
    next_offset: int


class NotHere(Exception):
    """This task cannot read from that place; nothing was read yet from this offset on."""


class Place(Protocol):
    """A source of messages."""

    def pieces(self, partition: int, start: int, end: int) -> Iterator[Piece]:
        """The messages from offset ``start`` to below ``end``.

        Raises:
            NotHere: another place has to be asked.
            OffsetsUnavailable: messages are gone or damaged; reading can go on behind them.
        """
        ...


@dataclass(frozen=True, slots=True)
class MissingPlace:
    """Stands where a file should be, between others that are there."""

    directory: str

    def pieces(self, partition: int, start: int, end: int) -> Iterator[Piece]:  # noqa: ARG002
        """See ``Place``. Raises ``OffsetsUnavailable``."""
        reason = f"in no file of {self.directory}"
        raise OffsetsUnavailable(ErrorCode.OFFSET_GONE, first_offset=start, end_offset=end, reason=reason)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets of one partition, and where it can be read."""

    partition: int
    start: int
    end: int
    places: tuple[Place, ...]

    @property
    def count(self) -> int:
        """How many offsets."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LossRule:
    """What to do about messages that are gone."""

    topic: str
    """For messages: ``stream/topic``."""
    fails: bool

    def apply(self, partition: int, error: OffsetsUnavailable, end: int) -> int:
        """Where to go on. Raises ``DataLost`` if it must not go on."""
        behind = min(error.end_offset, end)
        lost = unavailable(self.topic, partition, error.first_offset, behind, error.reason)
        if self.fails:
            raise lost
        _log.warning("%s", lost)
        return behind


def read_span(span: Span, rule: LossRule) -> Iterator[Piece]:
    """All messages of a span, from the first of its places that has them.

    Raises:
        DataLost: messages are gone, and the rule does not allow that.
        ReadFailed: no place has them, or fewer came than were planned.
    """
    position = span.start
    absences: list[str] = []
    places = list(span.places)
    while places and position < span.end:
        try:
            for piece in places[0].pieces(span.partition, position, span.end):
                position = piece.next_offset
                yield piece
        except NotHere as absence:
            absences.append(str(absence))
            places.pop(0)
        except OffsetsUnavailable as error:
            position = rule.apply(span.partition, error, span.end)
        else:
            break
    if position >= span.end:
        return
    if absences and not places:
        raise ReadFailed(
            f"{rule.topic}: partition {span.partition}: offsets {position} to {span.end - 1} cannot be read: "
            + "; ".join(absences)
        )
    raise fewer_than_planned(rule.topic, span.partition, span.start, span.end, position)
