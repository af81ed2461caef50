"""The manifest of an export: which ranges are started and finished, in one small file in the topic's folder.

A range is recorded before its first file is visible, so after a crash the next run writes the same range to the same
file names. Only the driver writes the manifest.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from courser.errors import ClientFailure
from courser.lake.atomic_files import write_atomically
from courser.spark.sources import OffsetRange

BOOKS = "_courser"
"""Folder for bookkeeping next to the data. Readers ignore it because of the underscore."""
STAGING = f"{BOOKS}/staging"
"""Folder for files that are not visible yet."""
_NAME = "export.json"
_VERSION = 1


class ManifestRefused(ClientFailure):
    """The folder holds an export that cannot be continued."""

    def __init__(self, folder: Path, reason: str, remedy: str = "export to another folder") -> None:
        super().__init__(f"{folder}: {reason}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The exports of one topic to one folder."""

    topic_uuid: bytes
    folders: tuple[str, ...]
    """The columns that select the folders."""
    include_headers: bool
    ranges: tuple[OffsetRange, ...] = ()
    """Every range that was ever started. The files are named after them."""
    unfinished: frozenset[OffsetRange] = frozenset()
    is_merged: bool = field(default=False)
    """Whether files were merged. Then finished ranges cannot be written again."""

    def ends(self) -> dict[int, int]:
        """The end of the last range, by partition."""
        ends: dict[int, int] = {}
        for part in self.ranges:
            ends[part.partition] = max(part.end, ends.get(part.partition, 0))
        return ends

    def with_ranges(self, added: Iterable[OffsetRange]) -> "Manifest":
        """A copy with ranges that are about to be started."""
        new = [part for part in added if part not in self.ranges]
        return replace(self, ranges=(*self.ranges, *new), unfinished=self.unfinished | set(new))

    def with_finished(self, finished: Iterable[OffsetRange]) -> "Manifest":
        """A copy in which these ranges are finished."""
        return replace(self, unfinished=self.unfinished - set(finished))


def load_manifest(folder: Path) -> Manifest | None:
    """The manifest in a topic's folder.

    Raises:
        ManifestRefused: it has an unknown version, or cannot be parsed.
    """
    path = folder / BOOKS / _NAME
    try:
        values = json.loads(path.read_bytes())
        if values["v"] != _VERSION:
            raise ManifestRefused(
                folder, f"its manifest has the unknown version {values['v']}", "use the release that wrote it"
            )
        return Manifest(
            topic_uuid=bytes.fromhex(values["topic_uuid"]),
            folders=tuple(values["folders"]),
            include_headers=values["include_headers"],
            ranges=tuple(OffsetRange(*part) for part in values["ranges"]),
            unfinished=frozenset(OffsetRange(*part) for part in values["unfinished"]),
            is_merged=values["is_merged"],
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestRefused(
            folder, f"could not read its manifest: {error!r}", "restore it, or export to another folder"
        ) from error


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Save a manifest durably in a topic's folder."""
    values: Mapping[str, object] = {
        "v": _VERSION,
        "topic_uuid": manifest.topic_uuid.hex(),
        "folders": list(manifest.folders),
        "include_headers": manifest.include_headers,
        "is_merged": manifest.is_merged,
        "unfinished": [_triple(part) for part in sorted(manifest.unfinished, key=_triple)],
        "ranges": [_triple(part) for part in manifest.ranges],
    }
    write_atomically(folder / BOOKS / _NAME, json.dumps(values).encode())


def _triple(part: OffsetRange) -> list[int]:
    return [part.partition, part.start, part.end]
