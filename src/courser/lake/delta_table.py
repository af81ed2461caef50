"""Delta tables: position and rows in one commit of the log, with application transactions.

The log keeps for each topic the number of its last commit, which is the fence, and the next offset and incarnation of
each partition, all as application transactions: they survive checkpoints and the cleaning of the log, which what a
commit says about itself does not. A commit lands only as the version right after the one that was looked at. So nothing
can happen in between unseen, neither a rival's commit nor a restore. After any error the log is read again: the commit
is ours if it has our token.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake._internal import RemoveAction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from courser.lake.atomic_files import make_folders
from courser.lake.delta_files import as_text, derived_type, described
from courser.lake.merging import FileFigures, grouped, partitions_of, upsert_works
from courser.lake.schema_changes import holds
from courser.lake.table_file_names import CHANGES, MERGE_TIME_MAX, own_file, table_digits
from courser.lake.table_files import open_table_store
from courser.lake.table_mismatch import TableMismatch
from courser.lake.table_place import delta_options
from courser.lake.tables import (
    Commit,
    CommitUnsettled,
    LayoutMoved,
    MergeOvertaken,
    MergePlan,
    PartitionField,
    PartitionPosition,
    Patience,
    PositionMoved,
    Standing,
    StoreAccess,
    TableContents,
    TableDescription,
    TableLayout,
    TableRefused,
    TopicPosition,
    UpsertOvertaken,
    UpsertPlan,
    WrittenChanges,
    WrittenFile,
)

_TOKEN = "courser.commit"
_TOPIC = "courser.topic"
_NOTE = "courser.note."
_APPLICATION = "courser:"
_MERGE = "courser.merge"
_FIGURES = ("path", "size_bytes", "partition")
_NEW_TABLE = {"delta.checkpointInterval": "100"}
_RESTORE = "RESTORE"
_LOG_PAGE = 10
"""Commits that are looked through at first; ten times as many each time that is not enough."""
_FEATURES_REFUSED = {
    "columnMapping": "its files have other names for the columns (column mapping)",
    "rowTracking": "it numbers its rows (row tracking)",
    "identityColumns": "it has identity columns, which only Delta's own writers fill",
    "generatedColumns": "it has generated columns, which only Delta's own writers fill",
    "icebergCompatV1": "it must stay readable as Iceberg",
    "icebergCompatV2": "it must stay readable as Iceberg",
}
_DELETION_VECTORS = "deletionVectors"

_EARLIER = (frozenset({"_partition", "_offset"}), frozenset({"stream", "topic", "partition", "offset"}))
"""Columns by which rows of versions without positions are known: of decoded messages, and of raw ones."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What the log says of a topic."""

    version: int
    standing: Standing
    token: str | None = None
    """Of the newest commit, if nothing took the table back since."""


class DeltaLakeTable:
    """Implements ``Table``."""

    def __init__(
        self, location: str, options: Mapping[str, str], fields: Sequence[PartitionField] | None, patience: Patience
    ) -> None:
        self.name = location
        self._location, self._options, self._patience = location, options, patience
        self._table = DeltaTable(location, storage_options=delta_options(options))
        names = self._table.metadata().partition_columns
        self._fields = tuple(PartitionField(source=name) for name in names) if fields is None else tuple(fields)
        self._looks: dict[str, _Look] = {}
        self._failure: Exception | None = None
        """The last answer that was not a success."""
        self._check()

    def _check(self) -> None:
        protocol = self._table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        mapping = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mapping != "none":
            features.add("columnMapping")
        for feature, reason in _FEATURES_REFUSED.items():
            if feature in features and not (feature == "columnMapping" and mapping == "none"):
                raise TableRefused(self.name, f"{reason}; write to another table")
        if "delta.setTransactionRetentionDuration" in self._table.metadata().configuration:
            reason = "it forgets application transactions (delta.setTransactionRetentionDuration); unset that property"
            raise TableRefused(self.name, reason)
        names = [field.name for field in self._fields]
        if (found := self._table.metadata().partition_columns) != names:
            shown = ", ".join(found) or "nothing"
            raise TableRefused(
                self.name, f"it is partitioned by {shown}; say the same in sink.partition_by, or nothing"
            )

    # --- reading ---

    def _refresh(self) -> None:
        """Look at the newest version. A handle stays at its own after a commit."""
        self._table.update_incremental()
        self._check()

    def standing(self, topic: str) -> Standing:
        self._refresh()
        return self._look(topic).standing

    def _look(self, topic: str) -> _Look:
        """What the version that is loaded says. Reads only what came since the last look."""
        before = self._looks.get(topic)
        if before is None or before.version != self._table.version():
            self._looks[topic] = self._look_at_log(topic, before)
        return self._looks[topic]

    def _look_at_log(self, topic: str, before: _Look | None) -> _Look:
        """Look for our newest commit. A restore keeps application transactions, but not the rows."""
        table, upto, is_rolled_back = self._table, self._table.version(), False
        if table.transaction_version(_APPLICATION + topic) is None:
            return _Look(upto, Standing(None))
        for commit in self._log():
            version = int(commit["version"])
            if before is not None and version <= before.version and not is_rolled_back:
                return replace(before, version=table.version())
            if version > upto:
                continue
            if commit.get(_TOPIC) == topic:
                if is_rolled_back:
                    return _Look(table.version(), self._standing_at(version, topic))
                notes = {name.removeprefix(_NOTE): str(commit[name]) for name in commit if name.startswith(_NOTE)}
                return _Look(upto, Standing(_position(table, topic), notes=notes), str(commit[_TOKEN]))
            if commit["operation"] == _RESTORE:
                upto, is_rolled_back = self._target(commit), True
        # The rest of the log is cleaned: what it did is in a checkpoint.
        if is_rolled_back:
            return _Look(table.version(), self._standing_at(upto, topic))
        return _Look(upto, Standing(_position(table, topic)))

    def _log(self) -> Iterator[dict[str, Any]]:
        """What commits say of themselves, from the newest on."""
        seen, limit = 0, _LOG_PAGE
        while True:
            page = self._table.history(limit)
            yield from page[seen:]
            if len(page) < limit:
                return
            seen, limit = len(page), limit * 10

    def _standing_at(self, version: int, topic: str) -> Standing:
        earlier = DeltaTable(self._location, version=version, storage_options=delta_options(self._options))
        return Standing(_position(earlier, topic), is_rolled_back=True)

    def _target(self, commit: Mapping[str, Any]) -> int:
        said = commit.get("operationParameters", {})
        if (version := said.get("version")) not in (None, "null"):
            return int(version)
        table = DeltaTable(self._location, storage_options=delta_options(self._options))
        table.load_as_version(str(said.get("datetime") or said.get("timestamp")).strip('"'))
        return table.version()

    def earlier_batch(self, query: str | None) -> int | None:
        if query is not None:
            return self._table.transaction_version(query)
        # The log tells the batches of a query only to those who know its name. The columns tell that there were some.
        names = {field.name for field in self._table.schema().fields}
        return 0 if any(columns <= names for columns in _EARLIER) else None

    def describe(self) -> TableDescription:
        columns = pa.schema(self._table.schema().to_arrow())
        body = described(columns, self._fields)
        table = self._table.metadata().id
        digest = hashlib.sha256(json.dumps([table, self._table.schema().to_json(), body]).encode()).hexdigest()[:8]
        return TableDescription(format="delta", table=str(table), layout=digest, root=self._location, body=body)

    def access(self) -> StoreAccess:
        return StoreAccess(self._location, self._options)

    # --- columns ---

    def evolve(self, columns: Any) -> bool:
        """Add columns. Delta's library cannot widen a type: rows with a wider one are refused."""
        is_changed = False
        for _ in self._settling():
            there = {field.name: field for field in pa.schema(self._table.schema().to_arrow())}
            new = [field.with_nullable(True) for field in columns if field.name not in there]
            for field in columns:
                if field.name in there:
                    _check_fit(self.name, field, there[field.name].type)
            if not new:
                return is_changed
            is_changed = True
            try:
                self._table.alter.add_columns(list(Schema.from_arrow(pa.schema(new)).fields))
            except (DeltaError, OSError) as error:
                self._failure = error
        raise AssertionError("the loop returns or raises")

    # --- commits ---

    def commit(self, commit: Commit) -> bool:
        is_sent = False
        for _ in self._settling():
            try:
                look = self._look(commit.stop.topic)
            except (DeltaError, OSError) as error:
                self._failure = error
                continue
            if look.token == commit.token:
                return is_sent
            if (found := look.standing.position) != commit.start:
                raise PositionMoved(self.name, found, commit.start)
            if self.describe().layout != commit.description.layout:
                raise LayoutMoved(self.name)
            actions = [*self._removed(commit), *self._added(commit.files, commit.description)]
            said = {f"{_NOTE}{name}": value for name, value in commit.notes.items()}
            said |= {_TOKEN: commit.token, _TOPIC: commit.stop.topic}
            is_sent = True
            if self._send(actions, said, self._moves(commit)):
                return True
        raise AssertionError("the loop returns or raises")

    def _removed(self, commit: Commit) -> list[Any]:
        """The files that an upsert replaces."""
        if commit.plan is None:
            return []
        there = {file.path: file.detail for file in self._holders(commit.plan.partitions)}
        if there.keys() != commit.plan.holders:
            raise UpsertOvertaken(self.name)
        moment = time.time_ns() // 1_000_000
        return [RemoveAction(path, True, moment, *there[path]) for path in commit.replaced]

    def plan_upsert(self, key: Sequence[str], changes: Sequence[WrittenChanges]) -> UpsertPlan:
        self._refresh()
        description = self.describe()
        if any(each.layout != description.layout for each in changes):
            raise LayoutMoved(self.name)
        if self._table.metadata().configuration.get("delta.appendOnly", "false").lower() == "true":
            raise TableRefused(self.name, "it takes only new rows (delta.appendOnly); unset that property")
        partitions = partitions_of(changes)
        found = self._holders(partitions)
        return UpsertPlan(
            description=description,
            partitions=partitions,
            holders=frozenset(file.path for file in found),
            works=upsert_works(description, key, changes, self._with_sources(found)),
        )

    def contents(self, topic: str) -> TableContents:
        standing = self.standing(topic)
        sources = tuple(file.detail for file in self._with_sources(self._holders(None)))
        return TableContents(standing=standing, description=self.describe(), sources=sources)

    def _with_sources(self, files: Iterable[FileFigures]) -> list[FileFigures]:
        names = [field.name for field in self._fields]
        return [
            replace(file, detail=json.dumps([file.path, [file.detail[1].get(name) for name in names]]))
            for file in files
        ]

    def _holders(self, partitions: frozenset[str] | None) -> list[FileFigures]:
        """The files of these partitions, or of all. Raises ``TableRefused`` if they cannot be written again."""
        if self._has_deletion_vectors():
            reason = "it may have rows that are deleted beside their files (deletion vectors); write to another table"
            raise TableRefused(self.name, reason)
        names, found = [field.name for field in self._fields], []
        for path, size, values in self._files():
            partition = json.dumps([values.get(name) for name in names])
            if partitions is None or partition in partitions:
                found.append(FileFigures(unquote(path), partition, size, (size, values)))
        return found

    def _moves(self, commit: Commit) -> list[Transaction]:
        """The fence, and what changes of the position."""
        fence = _APPLICATION + commit.stop.topic
        number = (self._table.transaction_version(fence) or 0) + 1
        count = max((each.partition + 1 for each in commit.stop.partitions), default=0)
        values = {fence: number, f"{fence}:partitions": count}
        for each in commit.stop.partitions:
            values[f"{fence}:{each.partition}:incarnation"] = each.incarnation
            values[f"{fence}:{each.partition}"] = each.next_offset
        return [
            Transaction(name, value) for name, value in values.items() if self._table.transaction_version(name) != value
        ]

    def _added(self, files: Sequence[WrittenFile], description: TableDescription, *, is_new: bool = True) -> list[Any]:
        if any(file.layout != description.layout for file in files):
            raise LayoutMoved(self.name)
        names = [field.name for field in self._fields]
        return [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(zip(names, json.loads(file.partition_values), strict=True)),
                modification_time=time.time_ns() // 1_000_000,
                data_change=is_new,
                stats=file.statistics,
            )
            for file in files
        ]

    def _send(self, actions: list[Any], said: Mapping[str, str], moves: list[Transaction]) -> bool:
        """Send a commit. Any answer but a success says nothing about what became of it."""
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                partition_by=[field.name for field in self._fields],
                commit_properties=CommitProperties(
                    custom_metadata=dict(said), max_commit_retries=0, app_transactions=moves
                ),
            )
        except Exception as error:  # noqa: BLE001 -- even a conflict may be the answer to a repetition of ours
            self._failure = error
            return False
        return True

    def _settling(self) -> Iterator[int]:
        """Attempts, each with a fresh look at the table, until the time is over."""
        self._failure = None
        for number in self._patience.attempts():
            try:
                self._refresh()
            except TableNotFoundError as error:
                raise TableRefused(self.name, "it is gone; start again to create it") from error
            except (DeltaError, OSError) as error:
                self._failure = error
                continue
            yield number
        reason = str(self._failure).strip().splitlines() if self._failure else []
        raise CommitUnsettled(self.name, reason[0][:300] if reason else "others were always faster")

    # --- maintenance ---

    def merge_plans(self, target_size: int, *, now: int) -> Sequence[MergePlan]:
        self._refresh()
        if self._has_deletion_vectors():
            return []
        description = self.describe()
        names = [field.name for field in self._fields]
        found = []
        for path, size, values in self._files():
            texts = [values.get(name) for name in names]
            found.append(FileFigures(path, json.dumps(texts), size, (path, texts)))
        return [
            MergePlan(
                description=description,
                sources=tuple(json.dumps([unquote(each.detail[0]), each.detail[1]]) for each in group),
                size=sum(each.size for each in group),
                planned_at=now,
            )
            for group in grouped(found, target_size)
        ]

    def _has_deletion_vectors(self) -> bool:
        """Whether rows may be deleted beside their file: they would come back."""
        return _DELETION_VECTORS in (self._table.protocol().reader_features or ())

    def _files(self) -> Iterator[tuple[str, int, dict[str, str | None]]]:
        """Path as the log has it, size, and partition values as texts."""
        actions = pa.table(self._table.get_add_actions())
        for row in actions.select([name for name in _FIGURES if name in actions.schema.names]).to_pylist():
            values = {name: as_text(value) for name, value in (row.get("partition") or {}).items()}
            yield row["path"], row["size_bytes"], values

    def commit_merge(self, plan: MergePlan, files: Sequence[WrittenFile], *, now: int) -> None:
        if now - plan.planned_at > MERGE_TIME_MAX:
            raise MergeOvertaken(self.name)
        old = [json.loads(source) for source in plan.sources]
        token = uuid4().hex
        for _ in self._settling():
            if self._is_merged(token):
                return
            there = {unquote(path): (size, values) for path, size, values in self._files()}
            is_same = self.describe().layout == plan.description.layout and not self._has_deletion_vectors()
            if not is_same or any(path not in there for path, _ in old):
                raise MergeOvertaken(self.name)
            moment = time.time_ns() // 1_000_000
            removed = [RemoveAction(path, False, moment, *there[path]) for path, _ in old]
            added = self._added(files, plan.description, is_new=False)
            if self._send([*removed, *added], {_MERGE: token}, []):
                return
        raise AssertionError("the loop returns or raises")

    def _is_merged(self, token: str) -> bool:
        return any(commit.get(_MERGE) == token for commit in self._table.history(_LOG_PAGE))

    def expire(self, *, older_than: int) -> int:
        """Forget what is older than both ``older_than`` and the table's own ``delta.logRetentionDuration``."""
        self._refresh()
        oldest = self._table.history()[-1]
        if oldest["timestamp"] * 1000 >= older_than:
            return 0
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        self._table = DeltaTable(self._location, storage_options=delta_options(self._options))
        return int(self._table.history()[-1]["version"]) - int(oldest["version"])

    def remove_orphans(self, *, now: int) -> int:
        # Listed before the table is looked at: what is committed in between is then found in it.
        store = open_table_store(self.access())
        own = {found.key: name for found in store.list_objects("") if (name := own_file(found.key)) is not None}
        self._refresh()
        topics = {name.topic for name in own.values() if name.topic}
        positions = {topic: found for topic in topics if (found := self._look(topic).standing.position) is not None}
        named = {unquote(path) for path, _, _ in self._files()}
        # Files that are not in the newest version: those that older ones still need are not among them.
        unneeded = {unquote(path) for path in self._table.vacuum(dry_run=True, full=True)}
        digits = table_digits(str(self._table.metadata().id))
        orphans = [
            key
            for key, name in own.items()
            if name.table == digits
            and name.is_settled(positions, now)
            and key not in named
            and (key in unneeded or key.startswith(f"{CHANGES}/"))
        ]
        for key in orphans:
            store.delete(key)
        return len(orphans)


# --- helpers ------------------------------------------------------------------------------------------


def _position(table: DeltaTable, topic: str) -> TopicPosition | None:
    fence = _APPLICATION + topic
    count = table.transaction_version(f"{fence}:partitions")
    if count is None:
        return None
    found = []
    for partition in range(count):
        offset = table.transaction_version(f"{fence}:{partition}")
        incarnation = table.transaction_version(f"{fence}:{partition}:incarnation")
        if offset is not None and incarnation is not None:
            found.append(PartitionPosition(partition, incarnation, offset))
    return TopicPosition(topic=topic, partitions=tuple(found))


def _check_fit(table: str, field: Any, there: Any) -> None:
    """Raise ``TableMismatch`` if a column does not hold all values of a field.

    A cast would round a double, and drop a field of a struct that the column lacks.
    """
    if not holds(there, field.type):
        raise TableMismatch(
            table, f"column {field.name} is {there} and not {field.type}; Delta tables cannot change it"
        )


def find_delta(
    location: str, options: Mapping[str, str], partition_by: Sequence[PartitionField] | None, patience: Patience
) -> DeltaLakeTable | None:
    """Open a table, if it is there. Raises ``TableRefused``."""
    if not DeltaTable.is_deltatable(location, delta_options(options)):
        return None
    return DeltaLakeTable(location, options, partition_by, patience)


def open_delta(location: str, options: Mapping[str, str], layout: TableLayout, patience: Patience) -> DeltaLakeTable:
    """Open a table, or create it.

    Raises:
        TableRefused: it cannot be written.
    """
    named = delta_options(options)
    if not DeltaTable.is_deltatable(location, named):
        fields = layout.partition_by or ()
        columns = layout.columns
        for field in fields:
            if field.name not in columns.names:
                columns = columns.append(pa.field(field.name, derived_type(field, columns.field(field.source).type)))
        if "://" not in location:
            make_folders(Path(location))
        # Ignored if somebody else has created it meanwhile; what it looks like is checked.
        DeltaTable.create(
            location,
            Schema.from_arrow(columns),
            mode="ignore",
            partition_by=[field.name for field in fields],
            configuration=_NEW_TABLE,
            storage_options=named,
        )
    return DeltaLakeTable(location, options, layout.partition_by, patience)
