"""A pipeline's checkpoint: generations of Spark checkpoints, and the rules for what may change under one.

``CHECKPOINT/lock`` is held by the runner. ``CHECKPOINT/current`` names the generation in use. In ``generation-N`` are
``spark`` (Spark's own checkpoint), ``quarantine`` (that of the query that puts bad rows aside), ``published`` (what the
last batch wrote to a lake), ``facts.json`` (what the definition was) and ``start.json`` (where a reset begins).
A reset makes the next generation, and keeps all older ones.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from courser.errors import ClientFailure
from courser.lake.atomic_files import write_atomically
from courser.pipelines.definition import Definition, FileSource, Start

_STATEFUL = re.compile(
    r"\b(group\s+by|distinct|join|over\s*\(|count|sum|avg|min|max|collect_\w+|first|last|dedup\w*|session_window|window)\b",
    re.IGNORECASE,
)
"""What makes a query remember rows between batches. Taking too much for stateful costs a reset, too little an error of
Spark's in the middle of a run."""
_GROUPING = re.compile(r"\b(group\s+by\b|(count|sum|avg|min|max|first|last|collect_\w+)\s*\()", re.IGNORECASE)
"""What makes groups for certain: columns may be called like functions, and rows that are only joined come out."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class ResetNeeded(ClientFailure):
    """The definition does not fit the checkpoint."""

    def __init__(self, definition: Definition, changes: list[str]) -> None:
        what = "; ".join(changes)
        super().__init__(
            f"the checkpoint {definition.checkpoint} was made by another definition: {what}. Undo the change, or begin "
            f"a new checkpoint: courser pipeline reset {definition.name} --to current (or earliest, latest, a time)"
        )
        self.changes = tuple(changes)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder, and the generation in use."""

    path: Path
    generation: int

    @property
    def folder(self) -> Path:
        """Of the generation."""
        return self.path / f"generation-{self.generation}"

    @property
    def spark(self) -> Path:
        """Spark's own."""
        return self.folder / "spark"

    @property
    def quarantine(self) -> Path:
        """Of the second query."""
        return self.folder / "quarantine"

    @property
    def lock_path(self) -> Path:
        """Held by the runner."""
        return lock_path(self.path)

    @property
    def is_fresh(self) -> bool:
        """Whether no batch was ever planned under it."""
        return not any(_batches(self.spark / "offsets"))

    def start(self, definition_start: Start) -> Start:
        """Where to begin, if it is fresh: what the reset said, else what the definition says."""
        with suppress(FileNotFoundError):
            return Start(**json.loads((self.folder / "start.json").read_text("utf-8")))
        return definition_start

    def check(self, definition: Definition, *, write: bool = True) -> None:
        """Compare with what the definition was when the checkpoint was begun; ``write`` remembers what it is now.

        Raises:
            ResetNeeded: the two do not go together.
        """
        path = self.folder / "facts.json"
        new = facts_of(definition)
        try:
            old: dict[str, object] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            old = new
        if not self.is_fresh and (changes := list(_changes(old, new))):
            raise ResetNeeded(definition, changes)
        if write:
            write_atomically(path, json.dumps(new, indent=1, sort_keys=True).encode())

    def last_offsets(self) -> str | None:
        """Where the last finished batch ends, as the source wrote it; None if there is none."""
        done = max(_batches(self.spark / "commits"), default=None)
        if done is None:
            return None
        lines = (self.spark / "offsets" / str(done)).read_text("utf-8").splitlines()
        # A version, the state of the query, then one line for each source: there is one.
        return lines[2] if len(lines) > 2 and lines[2] != "-" else None


def lock_path(checkpoint: Path) -> Path:
    """The file that a runner holds."""
    return checkpoint / "lock"


def open_checkpoint(path: Path) -> Checkpoint:
    """The generation in use; the first one if there is none."""
    try:
        text = (path / "current").read_text("utf-8").strip()
    except FileNotFoundError:
        return Checkpoint(path, 1)
    if not text.isdecimal():
        raise ClientFailure(f"{path / 'current'} should hold the number of a generation, and holds {text[:40]!r}")
    return Checkpoint(path, int(text))


def begin_generation(path: Path, start: Start) -> Checkpoint:
    """Make the next generation, which begins at ``start``, the one in use. The lock must be held."""
    numbers = [int(found[1]) for entry in _entries(path) if (found := re.fullmatch(r"generation-(\d+)", entry))]
    fresh = Checkpoint(path, max([open_checkpoint(path).generation, *numbers]) + 1)
    write_atomically(fresh.folder / "start.json", json.dumps(asdict(start)).encode())
    write_atomically(path / "current", f"{fresh.generation}\n".encode())
    return fresh


def facts_of(definition: Definition) -> dict[str, object]:
    """What must stay the same under one checkpoint."""
    source = definition.source
    sql = definition.transform.sql
    facts: dict[str, object] = {
        "source": f"files {source.path}" if isinstance(source, FileSource) else f"topic {source.place}",
        "sink": _sink_text(definition),
        "is_stateful": is_stateful(sql),
        "sql": " ".join(sql.split()) if sql else None,
        "watermark": list(definition.transform.watermark or ()),
        "output_mode": definition.transform.output_mode,
        "schema": definition.decoding.schema,
        "shuffle_partitions": definition.spark.get(SHUFFLE_PARTITIONS),
    }
    return facts


def is_stateful(sql: str | None) -> bool:
    """Whether a query remembers rows from batch to batch, as far as its words tell."""
    return sql is not None and _STATEFUL.search(sql) is not None


def makes_groups(sql: str | None) -> bool:
    """Whether a query certainly groups rows, which are written when a group is finished."""
    return sql is not None and _GROUPING.search(sql) is not None


_ALWAYS = {"source": "the source", "sink": "the sink"}
_IF_STATEFUL = {
    "sql": "the SQL, which groups rows",
    "watermark": "the watermark",
    "output_mode": "the output mode",
    "schema": "the schema of the rows that are grouped",
    "shuffle_partitions": f"{SHUFFLE_PARTITIONS}, by which the groups are kept",
}


def _changes(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    names = dict(_ALWAYS)
    if old.get("is_stateful") or new.get("is_stateful"):
        names |= _IF_STATEFUL
    for key, name in names.items():
        if old.get(key) != new.get(key):
            yield f"{name} was {_shown(old.get(key))} and is {_shown(new.get(key))}"


def _shown(value: object) -> str:
    return "not set" if value in (None, []) else json.dumps(value)


def _sink_text(definition: Definition) -> str:
    sink = definition.sink
    return " ".join(filter(None, (sink.type, sink.path, sink.table, str(sink.place) if sink.place else None)))


def _batches(folder: Path) -> list[int]:
    return [int(name) for name in _entries(folder) if name.isdecimal()]


def _entries(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
