"""Whose messages a lake holds: one topic's, because files are named after offsets, and those of two topics are alike.

A second topic in the same folder would take the place of the first one's files. So the first pipeline leaves a note
beside the folder, and who comes with another topic is refused.
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
    """A topic. Its name comes again when it is deleted and made anew, its number does not."""

    topic: str
    uuid: str


class LakeTaken(ClientFailure):
    """The folder holds messages of another topic."""

    def __init__(self, lake: Path, known: Origin, wanted: Origin) -> None:
        other = f'topic "{known.topic}"'
        if known.topic == wanted.topic:
            other = f"an earlier {other}, which was deleted"
        super().__init__(
            f'{lake} holds messages of {other}: its files are named after offsets, and those of "{wanted.topic}" '
            "would take their place; name another folder, or empty this one"
        )


def note_path(lake: Path) -> Path:
    """Beside the lake: readers of a folder take everything inside it for rows."""
    return lake.parent / f".{lake.name}.origin"


def check_origin(lake: Path, wanted: Origin) -> bool:
    """Whether the lake is noted as this topic's; False if it is nobody's. Raises ``LakeTaken`` if it is another's."""
    with suppress(FileNotFoundError):
        known = Origin(**json.loads(note_path(lake).read_text("utf-8")))
        if known.uuid == wanted.uuid:
            return True
        # Whoever has emptied the folder wants to begin anew.
        if any(lake.rglob(f"*{PARQUET_SUFFIX}")):
            raise LakeTaken(lake, known, wanted)
    return False


def claim(lake: Path, wanted: Origin) -> None:
    """Leave a note that the lake is this topic's. Raises ``LakeTaken``."""
    if not check_origin(lake, wanted):
        write_atomically(note_path(lake), json.dumps(asdict(wanted)).encode())
