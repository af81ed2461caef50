"""Names of the data files of tables. A name says who wrote the file, and so whether anybody can still commit it.

``courser-<table>-<layout>-<topic>-<partition>.<incarnation>-<first>-<last>-<attempt>.<n>.parquet`` has rows of these
offsets. The commit that names it starts at or before the first of them: once the table's position is past it, every
such commit is refused, and the file is either in the table or an orphan. ``courser-<table>-<layout>-merged-<seconds>-``
… has rows of older files, from a plan that was made then; a plan is committed within ``MERGE_TIME_MAX``. Files of an
upsert, and those of its changes in the folder ``CHANGES``, have names of the first kind: its commit moves the position.
"""

import re
from dataclasses import dataclass

from courser.lake.tables import MessageRange, TableDescription, TopicPosition
from courser.model.quantities import SECOND

MERGE_TIME_MAX = 3600 * SECOND
"""Microseconds between the plan of a merge and its commit. A slower one is given up and planned again."""
ORPHAN_AGE_MIN = 24 * MERGE_TIME_MAX
"""Microseconds after the plan of a merge at which nobody commits its files any more, whatever clocks say."""

CHANGES = "_courser"
"""The folder below the root for changes that are about to be applied. Readers skip such names."""

_SUFFIX = ".parquet"
_TABLE_DIGITS = 12
_NAME = re.compile(
    rf"courser-(?P<table>[0-9a-f]{{{_TABLE_DIGITS}}})-(?P<layout>[0-9a-f]+)-"
    r"(?:merged-(?P<planned>\d+)|(?P<topic>[0-9a-f]+)-(?P<partition>\d+)\.(?P<incarnation>\d+)-(?P<first>\d+)-(?P<last>\d+))"
    r"-[0-9A-Za-z.]+\.parquet"
)


def rows_name(description: TableDescription, source: MessageRange, number: int) -> str:
    """``number``: which of the files with these rows."""
    offsets = f"{source.first_offset:020d}-{source.last_offset:020d}"
    place = f"{source.topic}-{source.partition}.{source.incarnation}"
    return f"{_prefix(description)}-{place}-{offsets}-{_checked(source.attempt)}.{number}{_SUFFIX}"


def merged_name(description: TableDescription, planned_at: int, attempt: str, number: int) -> str:
    return f"{_prefix(description)}-merged-{planned_at // SECOND}-{_checked(attempt)}.{number}{_SUFFIX}"


def _prefix(description: TableDescription) -> str:
    return f"courser-{table_digits(description.table)}-{description.layout}"


def table_digits(table: str) -> str:
    """The part of a table's id that is in names: one that is made again may get the same folder."""
    return table.replace("-", "")[:_TABLE_DIGITS]


def _checked(attempt: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z]{1,64}", attempt):
        raise ValueError(f"an attempt is named by up to 64 letters and digits, not by {attempt}")
    return attempt


@dataclass(frozen=True, slots=True)
class OwnFile:
    """What the name of a data file says."""

    table: str
    planned_at: int | None
    """Microseconds; of a merge."""
    topic: str = ""
    partition: int = 0
    incarnation: int = 0
    first_offset: int = 0
    last_offset: int = 0

    def is_settled(self, positions: dict[str, TopicPosition], now: int) -> bool:
        """Whether no commit can name the file for the first time any more."""
        if self.planned_at is not None:
            return now - self.planned_at > ORPHAN_AGE_MIN
        position = positions.get(self.topic)
        found = [each for each in position.partitions if each.partition == self.partition] if position else []
        return any((each.incarnation, each.next_offset) > (self.incarnation, self.first_offset) for each in found)


def own_file(key: str) -> OwnFile | None:
    """What the last part of a key says; None if the file is not ours."""
    found = _NAME.fullmatch(key.rpartition("/")[2])
    if found is None:
        return None
    if found["planned"] is not None:
        return OwnFile(found["table"], int(found["planned"]) * SECOND)
    numbers = (int(found[name]) for name in ("partition", "incarnation", "first", "last"))
    return OwnFile(found["table"], None, found["topic"], *numbers)
