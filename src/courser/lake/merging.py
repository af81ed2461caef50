"""Which files of a table to write again, to merge small ones or to replace rows: pure plans."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from courser.lake.tables import TableDescription, UpsertWork, WrittenChanges

COUNT_MIN = 4
"""Files. Merging fewer costs a commit and gains little."""

UPSERT_SIZE = 128 * 1024 * 1024
"""Bytes of files that one task of an upsert looks through: it holds the rows of those with a key in memory."""


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


def partitions_of(changes: Sequence[WrittenChanges]) -> frozenset[str] | None:
    """The partitions that have the keys of changes. None: any may have them."""
    found = {each.partition for each in changes}
    return None if None in found else frozenset(each for each in found if each is not None)


def upsert_works(
    description: TableDescription, key: Sequence[str], changes: Sequence[WrittenChanges], holders: Sequence[FileFigures]
) -> tuple[UpsertWork, ...]:
    """Divide an upsert among tasks. ``holders``: the files that may hold a key; ``detail`` is their source."""
    by_partition: dict[str | None, list[str]] = {}
    for each in sorted(changes, key=lambda one: one.key):
        by_partition.setdefault(each.partition, []).append(each.key)
    works = []
    for partition, names in by_partition.items():
        files = [file for file in holders if partition in (None, file.partition)]
        groups: list[list[FileFigures]] = [[]]
        for file in sorted(files, key=lambda each: (each.size, each.path)):
            if groups[-1] and sum(each.size for each in groups[-1]) + file.size > UPSERT_SIZE:
                groups.append([])
            groups[-1].append(file)
        works += [
            UpsertWork(
                description=description,
                key=tuple(key),
                sources=tuple(file.detail for file in group),
                changes=tuple(names),
                adds=number == 0,
            )
            for number, group in enumerate(groups)
        ]
    return tuple(works)
