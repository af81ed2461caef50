"""A pipeline's checkpoint: generations of Spark checkpoints, and the rules for what may change under one.

``CHECKPOINT/lock`` (at an address: the newest ``lock-N``) is held by the runner. ``CHECKPOINT/current`` contains the
number of the current generation. Each
``generation-N`` contains ``spark`` (Spark's own checkpoint), ``quarantine`` (the checkpoint of the query for bad rows),
``published`` (what the last batch wrote to a lake), ``facts.json`` (a summary of the definition) and ``start.json``
(where a reset starts). A reset creates the next generation and keeps all older ones. All of it is in one file system,
of this machine or at an address.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from courser.errors import ClientFailure
from courser.jobs.folders import Folder, HadoopFolder, LocalFolder
from courser.pipelines.definition import Definition, FileSource, Start, is_stateful, parse_start
from courser.pipelines.leases import Lease
from courser.pipelines.locking import Lock, LockHolder, this_process
from courser.pipelines.progress import offsets_of

_GROUPING = re.compile(r"\b(group\s+by\b|(count|sum|avg|min|max|first|last|collect_\w+)\s*\()", re.IGNORECASE)
"""What certainly groups rows. Stricter than ``is_stateful``: a column may be named like a function, and joins output
rows without a watermark."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class ResetNeeded(ClientFailure):
    """The definition does not match the checkpoint."""

    def __init__(self, definition: Definition, changes: list[str]) -> None:
        what = "; ".join(changes)
        super().__init__(
            f"the definition does not match the checkpoint {definition.checkpoint}: {what}. Undo the change, or start "
            f"a new checkpoint: courser pipeline reset {definition.name} --to current (or earliest, latest, a time)"
        )
        self.changes = tuple(changes)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The folder and the current generation."""

    root: Folder
    generation: int

    @property
    def folder(self) -> Folder:
        """The folder of the generation."""
        return self.root.inside(f"generation-{self.generation}")

    @property
    def spark(self) -> Folder:
        """The checkpoint that Spark itself keeps."""
        return self.folder.inside("spark")

    @property
    def quarantine(self) -> Folder:
        """The checkpoint of the query for bad rows."""
        return self.folder.inside("quarantine")

    @property
    def is_fresh(self) -> bool:
        """Whether no batch was ever planned in it."""
        return not any(_batches(self.spark.inside("offsets")))

    def start(self, definition_start: Start) -> Start:
        """Where a fresh checkpoint starts: as the reset says, else as the definition says."""
        told = self.folder.read("start.json")
        return definition_start if told is None else Start(**json.loads(told))

    def check(self, definition: Definition, *, write: bool = True) -> None:
        """Compare the definition with the one that the checkpoint was used with. ``write``: record the new one.

        Raises:
            ResetNeeded: they are incompatible.
        """
        new = facts_of(definition)
        told = self.folder.read("facts.json")
        old: dict[str, object] = new if told is None else json.loads(told)
        if not self.is_fresh and (changes := list(_changes(old, new))):
            raise ResetNeeded(definition, changes)
        if write:
            self.folder.replace("facts.json", json.dumps(new, indent=1, sort_keys=True).encode())

    def batch_offsets(self, batch: int) -> str | None:
        """The end of a batch, as the source wrote it."""
        lines = (self.spark.inside("offsets").read(str(batch)) or b"").decode().splitlines()
        # The lines are a version, the metadata of the batch, and then one line for each source; there is one source.
        return lines[2] if len(lines) > 2 and lines[2] != "-" else None

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query, which lives as long as the checkpoint; None if there is none."""
        found = (self.spark.read("metadata") or b"").strip().splitlines()
        return str(json.loads(found[-1])["id"]) if found else None

    def last_offsets(self) -> str | None:
        """The end of the last finished batch, as the source wrote it; None if there is none."""
        done = max(_batches(self.spark.inside("commits")), default=None)
        return None if done is None else self.batch_offsets(done)


def lock_of(
    root: LocalFolder | HadoopFolder,
    holder: LockHolder,
    tell: Callable[[str], object] = lambda text: None,  # noqa: ARG005
) -> Lock | Lease:
    """The lock of a checkpoint. ``tell`` gets a sentence if somebody else's has to be watched for a while."""
    return Lock(root.path / "lock", holder) if isinstance(root, LocalFolder) else Lease(root, holder, tell=tell)


def open_checkpoint(root: Folder) -> Checkpoint:
    """The checkpoint with its current generation; the first one if there is none."""
    told = root.read("current")
    if told is None:
        return Checkpoint(root, 1)
    text = told.decode(errors="replace").strip()
    if not text.isdecimal():
        raise ClientFailure(f"{root.place}/current should contain the number of a generation, not {text[:40]!r}")
    return Checkpoint(root, int(text))


def begin_generation(root: Folder, start: Start) -> Checkpoint:
    """Create the next generation, which starts at ``start``, and make it current. The lock must be held."""
    numbers = [int(found[1]) for entry in root.names() if (found := re.fullmatch(r"generation-(\d+)", entry))]
    fresh = Checkpoint(root, max([open_checkpoint(root).generation, *numbers]) + 1)
    fresh.folder.replace("start.json", json.dumps(asdict(start)).encode())
    root.replace("current", f"{fresh.generation}\n".encode())
    return fresh


def facts_of(definition: Definition) -> dict[str, object]:
    """What must not change under a checkpoint."""
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


def makes_groups(sql: str | None) -> bool:
    """Whether a query certainly groups rows, so that they are written when a group closes."""
    return sql is not None and _GROUPING.search(sql) is not None


_ALWAYS = {"source": "the source", "sink": "the sink"}
_IF_STATEFUL = {
    "sql": "the SQL, which groups rows",
    "watermark": "the watermark",
    "output_mode": "the output mode",
    "schema": "the schema of the grouped rows",
    "shuffle_partitions": f"{SHUFFLE_PARTITIONS}, which partitions the state",
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


def _batches(folder: Folder) -> list[int]:
    return [int(name) for name in folder.names() if name.isdecimal()]


# --- reset --------------------------------------------------------------------------------------------

CURRENT = "current"
"""Continue after the last finished batch, but without the state of grouped rows."""


@dataclass(frozen=True, slots=True)
class ResetReport:
    """What a reset did."""

    name: str
    generation: int
    starting: str
    kept: str
    """The folder of the old generation."""
    warning: str | None = None


def reset(root: LocalFolder | HadoopFolder, definition: Definition, to: str) -> ResetReport:
    """Start a new generation at ``to``: ``earliest``, ``latest``, ``current``, a time or offsets as JSON.

    ``root`` is the folder of the definition's checkpoint.

    Raises:
        LockTaken: the pipeline is running.
        ClientFailure: ``to`` is invalid.
    """
    if definition.has_table:
        raise ClientFailure(
            f"{definition.name} has no checkpoint to reset: the table stores the position beside the rows. "
            "To read the topic again, write to another table; to go back, roll the table back to an earlier state"
        )
    with lock_of(root, this_process(definition.name)).acquire():
        old = open_checkpoint(root)
        start = _start(old, definition, to)
        fresh = begin_generation(root, start)
    return ResetReport(
        definition.name,
        fresh.generation,
        start.timestamp or start.offsets,
        old.folder.place,
        _warning(definition, to),
    )


def _start(checkpoint: Checkpoint, definition: Definition, to: str) -> Start:
    if isinstance(definition.source, FileSource):
        if to != "earliest":
            raise ClientFailure("files can only be read from the beginning; use --to earliest")
        return Start()
    if to != CURRENT:
        try:
            return parse_start(to)
        except ValueError as error:
            raise ClientFailure(f"--to {error}") from error
    text = checkpoint.last_offsets()
    offsets = offsets_of(text).next if text is not None else {}
    if not offsets:
        raise ClientFailure(
            f"{definition.checkpoint} has no finished batch to continue from; use --to earliest to start over"
        )
    return Start(json.dumps(offsets))


def _warning(definition: Definition, to: str) -> str | None:
    if to in (CURRENT, "latest") or definition.sink.type == "console":
        return None
    is_topic = not isinstance(definition.source, FileSource)
    if definition.sink.type == "parquet" and definition.transform.sql is None and is_topic:
        # These files are named after offsets, so rows that are read again replace the existing ones.
        return None
    where = definition.sink.place or definition.sink.path
    return f"rows that are read again will be written again; empty {where} first, or use another sink"
