"""Records which topic a lake belongs to.

Files are named after offsets, so two topics would overwrite each other's files. The first pipeline leaves a note next
to the folder, and pipelines for another topic are refused.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from courser.errors import ClientFailure
from courser.lake.atomic_files import write_atomically
from courser.lake.file_names import PARQUET_SUFFIX


@dataclass(frozen=True, slots=True)
class Origin:
    """A topic. If it is deleted and recreated, it may have the same name, but never the same id."""

    topic: str
    uuid: str


class LakeTaken(ClientFailure):
    """The folder holds messages of another topic."""

    def __init__(self, lake: Path, known: Origin, wanted: Origin) -> None:
        other = f'topic "{known.topic}"'
        if known.topic == wanted.topic:
            other = f"an earlier {other}, which was deleted"
        super().__init__(
            f"{lake} holds messages of {other}. Files are named after offsets, so those of "
            f'"{wanted.topic}" would overwrite them; use another folder, or empty this one'
        )


def note_path(lake: Path) -> Path:
    """Next to the lake, because readers take everything inside a folder for rows."""
    return lake.parent / f".{lake.name}.origin"


def check_origin(lake: Path, wanted: Origin) -> bool:
    """Whether the lake already belongs to this topic; False if it is unclaimed. Raises ``LakeTaken`` otherwise."""
    with suppress(FileNotFoundError):
        known = Origin(**json.loads(note_path(lake).read_text("utf-8")))
        if known.uuid == wanted.uuid:
            return True
        # The folder was emptied, so it can be claimed again.
        if any(lake.rglob(f"*{PARQUET_SUFFIX}")):
            raise LakeTaken(lake, known, wanted)
    return False


def claim(lake: Path, wanted: Origin) -> None:
    """Claim the lake for this topic. Raises ``LakeTaken``."""
    if not check_origin(lake, wanted):
        write_atomically(note_path(lake), json.dumps(asdict(wanted)).encode())
