"""Which small files of a table to merge: a pure plan."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

COUNT_MIN = 4
"""Files. Merging fewer costs a commit and gains little."""


@dataclass(frozen=True, slots=True)
class FileFigures:
    """A file of a table, as far as the plan cares."""

    path: str
    partition: str
    """Files with different ones never become one file."""
    size: int
    detail: Any = None
    """What the format knows about it."""


def grouped(files: Iterable[FileFigures], target_size: int) -> Iterator[list[FileFigures]]:
    """Groups of files that become about one file of ``target_size`` bytes each.

    A group is at least twice as large as its largest file. So a row that comes in small commits is written again only
    as often as its file doubles, and a file of half the target never.
    """
    by_partition: dict[str, list[FileFigures]] = {}
    for file in files:
        if file.size * 2 <= target_size:
            by_partition.setdefault(file.partition, []).append(file)
    for small in by_partition.values():
        group: list[FileFigures] = []
        for file in sorted(small, key=lambda each: (each.size, each.path)):
            group.append(file)
            if sum(each.size for each in group) >= target_size:
                yield group
                group = []
        while len(group) >= COUNT_MIN and group[-1].size * 2 > sum(each.size for each in group):
            group.pop()
        if len(group) >= COUNT_MIN:
            yield group
