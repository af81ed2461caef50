"""Topics as tables: what the driver and the tasks of a job do with an Iceberg or a Delta table.

The table is the checkpoint (``docs/adr/0027``): the commit that adds the rows of a topic also stores the position up to
which the topic was read. Both are there or neither is. Per interval:

1. The driver calls ``open_table`` (``table_opening``) once. ``Table.standing`` says where the topic goes on.
2. If rows have columns that the table lacks, ``Table.evolve`` adds them, in a commit of its own.
3. ``Table.describe`` and ``Table.access`` are handed to the tasks. The description is JSON without secrets and may be
   part of a plan; the access contains credentials and belongs into a broadcast or a closure.
4. Each task decodes its range of messages into an Arrow table, calls ``write_files`` (``table_files``), and returns the
   rows ``WrittenFile``. Nobody sees these files yet. A repeated or abandoned task leaves files that nobody will see.
5. The driver calls ``Table.commit`` with all rows, the position they start from, the new position and a new token.
   A commit without files moves only the position: for a range in which every row is bad.
   To replace rows instead of only adding them, tasks write changes, and ``upserts.upsert`` takes the place of steps 4
   and 5.
6. Now and then it calls ``Table.merge_plans``, has the tasks rewrite the files (``rewrite_files``), and calls
   ``Table.commit_merge``; then ``Table.expire`` and ``Table.remove_orphans``.

What ``commit`` raises says what to do: ``PositionMoved``, stop or go on from the position found; ``LayoutMoved``,
describe and write again; ``CommitUnsettled``, the same commit again; ``TableRefused`` and ``TableMismatch``, tell the
user. A table may have several topics: their positions do not disturb each other. One process commits a topic; if two
try, one of them gets ``PositionMoved``.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, Self

from courser.errors import ClientFailure

Format = Literal["iceberg", "delta"]
Transform = Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"]


# --- positions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where a partition of a topic goes on."""

    partition: int
    incarnation: int
    """Which partition of this number it is: a topic may lose partitions and get new ones."""
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPosition:
    """Up to where a topic is in the table. Topics that were created again have another uuid, and no position."""

    topic: str
    """The uuid of the topic, in hexadecimal."""
    partitions: tuple[PartitionPosition, ...] = ()
    """In ascending order. A partition that is not named goes on at its start."""

    def next_offset(self, partition: int) -> int | None:
        return next((found.next_offset for found in self.partitions if found.partition == partition), None)

    def to_json(self) -> str:
        numbers = {str(each.partition): [each.incarnation, each.next_offset] for each in self.partitions}
        return json.dumps({"topic": self.topic, "partitions": numbers}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        numbers = sorted((int(number), *values) for number, values in found["partitions"].items())
        return cls(topic=found["topic"], partitions=tuple(PartitionPosition(*each) for each in numbers))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a table says about a topic."""

    position: TopicPosition | None
    """None: the table has nothing of this topic."""
    is_rolled_back: bool = False
    """Whether somebody took the table back to an earlier state. ``position`` is that of this state: rows come again."""
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Those of the commit that stored the position, as far as they are known."""


# --- what a table looks like --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """One column, or a function of it, that divides the files of a table."""

    source: str
    transform: Transform = "identity"
    argument: int | None = None
    """The number of buckets, or the width to truncate to."""

    @property
    def name(self) -> str:
        """As Iceberg's tools name it. In Delta it is the name of a column, which is added unless it is the source."""
        suffix = {"identity": "", "truncate": "_trunc"}.get(self.transform, f"_{self.transform}")
        return f"{self.source}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """What a table is created with."""

    columns: Any
    """An Arrow schema. Columns that may be null are optional."""
    partition_by: tuple[PartitionField, ...] | None = None
    """None: not partitioned if it is created, and whatever it has if it exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """What a task has to know to write files, and nothing else: no credentials. ``body`` depends on the format."""

    format: Format
    table: str
    """The id that the format gave the table: a table that is dropped and made again has another one."""
    layout: str
    """A digest of columns and partitioning. Files that were written for another layout are refused."""
    root: str
    """The location below which files are written, as a URL or an absolute path."""
    body: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to open the store of a table. Contains credentials: never part of a plan, a log or a file."""

    root: str
    """A URL or an absolute path: all keys are relative to it."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the names of ``table_place.STORE_OPTIONS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRange:
    """The messages whose rows a task writes. Files are named after it."""

    topic: str
    """The uuid of the topic, in hexadecimal."""
    partition: int
    incarnation: int
    first_offset: int
    last_offset: int
    attempt: str
    """Names one attempt of one task: up to 64 letters and digits, used only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that a task has written: what the driver needs to commit it. A row of numbers and texts."""

    path: str
    """Iceberg: the whole location. Delta: relative to the table."""
    size: int
    row_count: int
    layout: str
    """``TableDescription.layout`` of the task."""
    partition_values: str
    """A JSON array: one value for each partition field."""
    statistics: str
    """JSON: counts and bounds by column, in the form of the format."""

    def to_row(self) -> dict[str, Any]:
        """By the names of the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Rows of a topic, and how far they take the table."""

    start: TopicPosition | None
    """The position that the rows begin at. If the table stands elsewhere, the commit is refused."""
    stop: TopicPosition
    token: str
    """Names this commit and no other, also after a crash: a repetition has the same one."""
    files: Sequence[WrittenFile]
    description: TableDescription
    """What the files were written with."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What else the commit should say about itself, such as the run and the number of the schema."""
    plan: "UpsertPlan | None" = None
    """Of an upsert: refused if other files may hold its keys now."""
    replaced: Sequence[str] = ()
    """Of an upsert: paths of files whose rows are in ``files`` as far as they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """Files that become fewer, all of one partition of the table."""

    description: TableDescription
    sources: tuple[str, ...]
    """The files, as JSON that tasks understand."""
    size: int
    planned_at: int
    """Microseconds. An old plan is refused, because what it wrote may have been removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContents:
    """All rows of one state of a table, and where the topic goes on behind them."""

    standing: Standing
    description: TableDescription
    sources: tuple[str, ...]
    """The files, as JSON that tasks understand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenChanges:
    """A file of changes by key that a task has written beside the table, for the tasks that apply them."""

    key: str
    """Of the file in the store."""
    row_count: int
    layout: str
    """``TableDescription.layout`` of the task."""
    partition: str | None
    """The only partition of the table that has the keys, as ``WrittenFile`` says it. None: any may have them."""

    def to_row(self) -> dict[str, Any]:
        """By the names of the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertWork:
    """What one task of an upsert does: drop the keys of the changes from some files, and add the new rows or not."""

    description: TableDescription
    key: tuple[str, ...]
    """The columns that identify a row."""
    sources: tuple[str, ...]
    """The files, as JSON that tasks understand."""
    changes: tuple[str, ...]
    """Keys of files of changes."""
    adds: bool
    """Whether this task writes the new rows of these changes: one of those that share them does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertPlan:
    """How changes become part of the table, as of one look at it."""

    description: TableDescription
    partitions: frozenset[str] | None
    """Those that have the keys. None: any may have them."""
    holders: frozenset[str]
    """The paths of all files that may hold a key."""
    works: tuple[UpsertWork, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted:
    """What one task of an upsert has done."""

    files: tuple[WrittenFile, ...]
    replaced: tuple[str, ...]
    """The paths of files that held a key. Files that held none stay as they are."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(files=tuple(WrittenFile(**each) for each in found["files"]), replaced=tuple(found["replaced"]))


# --- errors -------------------------------------------------------------------------------------------


class TableRefused(ClientFailure):
    """The table cannot be written, and a repetition does not help. Says why, and what to do."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"cannot write to the table {table}: {reason}")


class PositionMoved(ClientFailure):
    """The table is not where the commit starts: another runner was here, or somebody rolled the table back."""

    def __init__(self, table: str, found: TopicPosition | None, start: TopicPosition | None) -> None:
        super().__init__(
            f"the table {table} is at {_text(found)}, but the commit starts at {_text(start)}; "
            "another runner writes this topic to it, or somebody rolled it back. Stop the other one, and start again"
        )
        self.found = found


class PositionUnknown(ClientFailure):
    """Nobody can say whether the rows up to the stored position are still in the table."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"the position of the topic in the table {table} is unknown: {reason}")


class LayoutMoved(ClientFailure):
    """Somebody changed the columns or the partitioning after the files were written. Describe and write again."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the columns or the partitioning of the table {table} have changed; write the files again")


class CommitUnsettled(ClientFailure):
    """The catalog or the store gave no clear answer for too long. The same commit may be tried again."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"the table {table} did not settle a commit: {reason}; try again when it can be reached")


class MergeOvertaken(ClientFailure):
    """The files of a merge plan are not in the table any more. Nothing has changed; plan again."""

    def __init__(self, table: str) -> None:
        super().__init__(f"the files to merge in the table {table} were replaced meanwhile; plan again")


class UpsertOvertaken(ClientFailure):
    """Somebody else added or replaced files that may hold the keys of an upsert. Nothing has changed; plan again."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"somebody else keeps writing to the same part of the table {table}, and rows with the same key could be "
            "there twice; let only one job write to it"
        )


def _text(position: TopicPosition | None) -> str:
    if position is None:
        return "the beginning"
    shown = [f"{each.partition}: {each.next_offset}" for each in position.partitions[:8]]
    return f"offsets {{{', '.join(shown)}{', …' if len(position.partitions) > 8 else ''}}}"


# --- the interface ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to look whether a commit has landed, and to try again."""

    first_wait: float = 0.05
    """Seconds before the second attempt. Each wait is twice as long as the one before."""
    wait_max: float = 5.0
    limit: float = 600.0
    """Seconds after which the outcome stays unsettled: enough for the restart of a catalog."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def attempts(self) -> Iterator[int]:
        """Numbers of attempts, with a wait before each but the first, until the time is over."""
        deadline, wait, number = self.clock() + self.limit, self.first_wait, 0
        while number == 0 or self.clock() < deadline:
            yield number
            self.sleep(min(wait, max(0.0, deadline - self.clock())))
            wait, number = min(2 * wait, self.wait_max), number + 1


class Table(Protocol):
    """A table that rows of topics are written to. One thread uses it."""

    @property
    def name(self) -> str:
        """For messages: without credentials."""

    def standing(self, topic: str) -> Standing:
        """Read where a topic goes on. Looks at the newest state of the table. Raises ``PositionUnknown``."""

    def earlier_batch(self, query: str | None) -> int | None:
        """The last batch of a query of Spark that Courser appended when tables had no position of a topic.

        None: none of this query; without a query, no rows of any. Delta does not tell the number then: it is 0.
        """

    def describe(self) -> TableDescription:
        """What tasks need to know, as of the last look at the table."""

    def access(self) -> StoreAccess:
        """How tasks open the store. Credentials that a catalog vends expire: ask for each interval."""

    def evolve(self, columns: Any) -> bool:
        """Add the columns of an Arrow schema that the table lacks, as optional ones, and widen types.

        Returns whether anything changed. Raises ``TableMismatch`` if a column has a type that rows cannot have.
        """

    def commit(self, commit: Commit) -> bool:
        """Add the files and move the position. Returns False if this very commit had landed before.

        Raises ``PositionMoved``, ``LayoutMoved``, ``CommitUnsettled``, ``PositionUnknown``, ``UpsertOvertaken``.
        """

    def plan_upsert(self, key: Sequence[str], changes: Sequence[WrittenChanges]) -> UpsertPlan:
        """Which files tasks have to look through, as of now. Raises ``LayoutMoved``, ``TableRefused``."""

    def contents(self, topic: str) -> TableContents:
        """The newest state of the table. Raises ``PositionUnknown``, and ``TableRefused`` if tasks cannot read it."""

    def merge_plans(self, target_size: int, *, now: int) -> Sequence[MergePlan]:
        """Which small files to merge, toward ``target_size`` bytes. ``now`` in microseconds."""

    def commit_merge(self, plan: MergePlan, files: Sequence[WrittenFile], *, now: int) -> None:
        """Replace the files of a plan. Raises ``MergeOvertaken``, ``CommitUnsettled``."""

    def expire(self, *, older_than: int) -> int:
        """Forget states of the table before a time, in microseconds, but never a position. Returns how many."""

    def remove_orphans(self, *, now: int) -> int:
        """Remove files of ours that no state names and no commit can name any more. Returns how many."""
