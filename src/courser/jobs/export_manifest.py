"""What an export has done and what it has begun: one small file in the topic's folder, and a mark for each range.

A range is written down before its first file is there, so whoever comes after a crash writes the same range again, to
the same names. The driver alone writes the manifest; a task leaves a mark when the files of its range are durable.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from courser.errors import CourserError
from courser.lake.whole_files import write_whole
from courser.spark.sources import Range

BOOKS = "_courser"
"""The folder beside the data that readers pass over, because of the underscore."""
_NAME = "export.json"
_VERSION = 1


class ManifestRefused(CourserError):
    """The folder holds an export that this one cannot go on with."""

    def __init__(self, folder: Path, reason: str, remedy: str) -> None:
        super().__init__(folder, reason, remedy)
        self.folder = folder
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is known of the exports of one topic into one folder."""

    topic_uuid: bytes
    folders: tuple[str, ...]
    """What the rows are sorted into folders by."""
    include_headers: bool
    ranges: tuple[Range, ...] = ()
    """Every range that was ever begun; the files are named after them."""
    unfinished: frozenset[Range] = frozenset()
    is_merged: bool = field(default=False)
    """Whether files were put together since: then a finished range cannot be written again."""

    def ends(self) -> dict[int, int]:
        """By partition, the offset behind the last range."""
        ends: dict[int, int] = {}
        for part in self.ranges:
            ends[part.partition] = max(part.end, ends.get(part.partition, 0))
        return ends

    def with_ranges(self, added: Iterable[Range]) -> "Manifest":
        """The same with ranges that are about to be begun."""
        new = [part for part in added if part not in self.ranges]
        return replace(self, ranges=(*self.ranges, *new), unfinished=self.unfinished | set(new))

    def without_unfinished(self) -> "Manifest":
        """The same, everything done."""
        return replace(self, unfinished=frozenset())


def load_manifest(folder: Path) -> Manifest | None:
    """What an earlier run left in a topic's folder; marks of tasks are counted in.

    Raises:
        ManifestRefused: it is of another version, or no manifest.
    """
    path = folder / BOOKS / _NAME
    try:
        values = json.loads(path.read_bytes())
        if values["v"] != _VERSION:
            raise ManifestRefused(folder, f"its manifest has version {values['v']}", "use the program that wrote it")
        unfinished = frozenset(Range(*part) for part in values["unfinished"])
        return Manifest(
            topic_uuid=bytes.fromhex(values["topic_uuid"]),
            folders=tuple(values["folders"]),
            include_headers=values["include_headers"],
            ranges=tuple(Range(*part) for part in values["ranges"]),
            unfinished=frozenset(part for part in unfinished if not _mark_path(folder, part).exists()),
            is_merged=values["is_merged"],
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestRefused(
            folder, f"its manifest cannot be read: {error!r}", "restore it, or export elsewhere"
        ) from error


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it down, durably. Marks of ranges that are finished by it may go afterwards: ``forget_marks``."""
    values: Mapping[str, object] = {
        "v": _VERSION,
        "topic_uuid": manifest.topic_uuid.hex(),
        "folders": list(manifest.folders),
        "include_headers": manifest.include_headers,
        "is_merged": manifest.is_merged,
        "unfinished": [_triple(part) for part in sorted(manifest.unfinished, key=_triple)],
        "ranges": [_triple(part) for part in manifest.ranges],
    }
    write_whole(folder / BOOKS / _NAME, json.dumps(values).encode())


def mark_finished(folder: Path, part: Range) -> None:
    """In a task: the files of a range are all there, durably."""
    write_whole(_mark_path(folder, part), b"")


def forget_marks(folder: Path) -> None:
    """Take the marks away that the manifest has taken over."""
    marks = folder / BOOKS / "finished"
    if marks.is_dir():
        for path in marks.iterdir():
            path.unlink(missing_ok=True)


def _mark_path(folder: Path, part: Range) -> Path:
    return folder / BOOKS / "finished" / "-".join(map(str, _triple(part)))


def _triple(part: Range) -> list[int]:
    return [part.partition, part.start, part.end]
