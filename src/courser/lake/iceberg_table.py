"""Iceberg tables: position and rows in one snapshot, with a tag of our own as the fence.

The tag ``courser-<topic>`` points to the snapshot that moved the position last. A commit names the snapshot that the
tag must be at, so the catalog itself refuses whoever comes second; it also keeps that snapshot from being expired by
anybody. pyiceberg's own commit would try again after such a refusal, on top of the rows of the winner, and rows would
be there twice. So its updates are taken, and handed to the catalog in a loop of our own: after any error but a refusal
of ours it looks whether the tag is at a snapshot with our token, and only then tries again with the same files.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError, ValidationException
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table as PyTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _OverwriteFiles, _SnapshotProducer
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.transforms import Transform as IcebergTransform

from courser.lake.iceberg_files import data_file, partition_text, partition_types
from courser.lake.merging import FileFigures, grouped, partitions_of, upsert_works
from courser.lake.table_file_names import MERGE_TIME_MAX, own_file, table_digits
from courser.lake.table_files import open_table_store
from courser.lake.table_mismatch import TableMismatch
from courser.lake.tables import (
    Commit,
    CommitUnsettled,
    LayoutMoved,
    MergeOvertaken,
    MergePlan,
    PartitionField,
    Patience,
    PositionMoved,
    PositionUnknown,
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

_log = logging.getLogger(__name__)

_TAG = "courser-"
_TOKEN = "courser.commit."
_POSITION = "courser.position."
"""Before the uuid of a topic: the keys of its last commit and its position in the summary of a snapshot."""
_NOTE = "courser.note."
_EARLIER = "courser.batch."
"""Before the id of a query of Spark: the property with its last batch."""
_NEW_TABLE = {
    # At a commit a minute, metadata files and manifests would otherwise grow for ever, and every commit with them.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    "write.parquet.compression-codec": "zstd",
}
_PARTITION_IDS = 1000
"""The first id of partition fields, as the format has it."""
_PLAIN_TRANSFORMS: Mapping[str, Callable[[], IcebergTransform[Any, Any]]] = MappingProxyType(
    {
        "identity": IdentityTransform,
        "year": YearTransform,
        "month": MonthTransform,
        "day": DayTransform,
        "hour": HourTransform,
    }
)
_REFUSED = (ValidationException, ValidationError, ValueError, TypeError, NotImplementedError)
"""Errors of the library before anything is sent. A repetition changes nothing."""


class _ReplaceFiles(_OverwriteFiles):
    """The same rows in other files: those who read what is new in a table skip such a snapshot."""

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Any:
        summary = super()._summary(dict(snapshot_properties))
        return Summary(Operation.REPLACE, **summary.additional_properties)


class IcebergTable:
    """Implements ``Table``."""

    def __init__(self, catalog: Catalog, table: PyTable, patience: Patience) -> None:
        self._catalog, self._table, self._patience = catalog, table, patience
        self.name = ".".join(table.name())
        self._failure: Exception | None = None
        """The last answer that was not a success."""
        self._check()

    def _check(self) -> None:
        metadata = self._table.metadata
        if metadata.format_version > 2:
            raise TableRefused(
                self.name,
                f"it has format version {metadata.format_version}, and only 1 and 2 can be written; "
                "write to another table",
            )
        for field in metadata.spec().fields:
            if not isinstance(field.transform, (IdentityTransform, BucketTransform, TruncateTransform, TimeTransform)):
                raise TableRefused(self.name, f"it is partitioned by {field.transform}, which is not supported")

    def check_partitioning(self, wanted: Sequence[PartitionField] | None) -> None:
        schema, spec = self._table.schema(), self._table.spec()
        found = [(schema.find_column_name(field.source_id), str(field.transform)) for field in spec.fields]
        if wanted is not None and [(field.source, str(_transform(field))) for field in wanted] != found:
            shown = ", ".join(f"{transform} of {source}" for source, transform in found) or "nothing"
            raise TableRefused(
                self.name, f"it is partitioned by {shown}; say the same in sink.partition_by, or nothing"
            )

    # --- reading ---

    def _refresh(self) -> TableMetadata:
        self._table.refresh()
        self._check()
        return self._table.metadata

    def standing(self, topic: str) -> Standing:
        return self._standing(self._refresh(), topic)

    def _standing(self, metadata: TableMetadata, topic: str) -> Standing:
        """The position of the newest own snapshot behind the head of the table."""
        tagged = _tagged(metadata, topic)
        is_behind = False
        """Whether a snapshot was passed that is older than the tagged one: it is not behind the head then."""
        snapshot = metadata.current_snapshot()
        while snapshot is not None:
            if (position := _position(snapshot, topic)) is not None:
                is_rolled_back = tagged is not None and tagged.snapshot_id != snapshot.snapshot_id
                return Standing(position, is_rolled_back, _notes(snapshot))
            is_behind |= tagged is not None and (snapshot.sequence_number or 0) < (tagged.sequence_number or 0)
            parent = snapshot.parent_snapshot_id
            parent_snapshot = None if parent is None else metadata.snapshot_by_id(parent)
            # Some who expire a snapshot say that the next one has no parent. Only the very first has none.
            if parent_snapshot is None and (parent is not None or snapshot.sequence_number != 1):
                if tagged is not None:
                    # The tag keeps its own snapshot from expiring, but not those on the way to it.
                    return self._beyond(metadata, topic, tagged, is_behind=is_behind)
                if _POSITION + topic in metadata.properties:
                    reason = f"somebody has removed the tag {_TAG}{topic} and expired its snapshot"
                    raise PositionUnknown(self.name, f"{reason}; add the rows of the topic to another table")
            snapshot = parent_snapshot
        return Standing(None, is_rolled_back=tagged is not None)

    def _beyond(self, metadata: TableMetadata, topic: str, tagged: Snapshot, *, is_behind: bool) -> Standing:
        if not is_behind and self._has_files_of(metadata, tagged):
            return Standing(_position(tagged, topic), notes=_notes(tagged))
        raise PositionUnknown(
            self.name,
            "somebody has expired the states of the table since the last commit. If the table was not rolled back, "
            f"add its rows to another table; the last commit was the snapshot {tagged.snapshot_id}",
        )

    def _has_files_of(self, metadata: TableMetadata, tagged: Snapshot) -> bool:
        """Whether files that a snapshot added are still in the table."""
        head = metadata.current_snapshot()
        own = [each for each in tagged.manifests(self._table.io) if each.added_snapshot_id == tagged.snapshot_id]
        if head is None or not own:
            return False
        there = head.manifests(self._table.io)
        if {each.manifest_path for each in own} & {each.manifest_path for each in there}:
            return True
        return bool(self._paths(own) & self._paths(there))

    def _paths(self, manifests: Iterable[Any]) -> set[str]:
        return {
            entry.data_file.file_path
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
        }

    def earlier_batch(self, query: str | None) -> int | None:
        found = {
            name.removeprefix(_EARLIER): int(value)
            for name, value in self._table.metadata.properties.items()
            if name.startswith(_EARLIER)
        }
        return next(iter(found.values()), None) if query is None else found.get(query)

    def describe(self) -> TableDescription:
        metadata = self._table.metadata
        history: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "statistics": [],
        }
        schema, spec = metadata.schema(), metadata.spec()
        bare = metadata.model_copy(
            update={**history, "current_snapshot_id": None, "schemas": [schema], "partition_specs": [spec]}
        )
        return TableDescription(
            format="iceberg",
            table=str(metadata.table_uuid),
            layout=_layout(schema, spec),
            root=self._table.location_provider().data_path,
            body=bare.model_dump_json(),
        )

    def access(self) -> StoreAccess:
        # Whatever the catalog vends expires.
        self._table.refresh()
        properties = {name: value for name, value in self._table.io.properties.items() if isinstance(value, str)}
        options = {name: value for name, value in properties.items() if name.startswith(("s3.", "gcs.", "adls."))}
        return StoreAccess(self._table.location_provider().data_path, options)

    # --- columns ---

    def evolve(self, columns: Any) -> bool:
        """Add and widen columns, in a commit that has nothing else.

        With the rows in the same commit, somebody else's column could get the id that the files give to ours.
        """
        # What rows may lack, they may lack in every file that is there.
        optional = pa.schema([field.with_nullable(True) for field in columns])
        is_changed = False
        for _ in self._settling():
            transaction = Transaction(self._table)
            try:
                with transaction.update_schema() as update:
                    update.union_by_name(optional)
            except _REFUSED as error:
                raise TableMismatch(self.name, str(error).splitlines()[0]) from error
            if not transaction._updates:
                return is_changed
            is_changed = True
            self._send(transaction._updates, transaction._requirements)
        raise AssertionError("the loop returns or raises")

    # --- commits ---

    def commit(self, commit: Commit) -> bool:
        attempts: list[_SnapshotProducer[Any]] = []
        for _ in self._settling():
            try:
                if (is_new := self._commit_once(commit, attempts)) is not None:
                    return is_new
            except OSError as error:
                # The store refused a manifest, or did not answer.
                self._failure = error
        raise AssertionError("the loop returns or raises")

    def _commit_once(self, commit: Commit, attempts: list[_SnapshotProducer[Any]]) -> bool | None:
        """Look at the table, and try. None: it is not known what became of it."""
        topic, metadata = commit.stop.topic, self._table.metadata
        tagged, standing = _tagged(metadata, topic), self._standing(metadata, topic)
        is_ours = tagged is not None and _said(tagged).get(_TOKEN + topic) == commit.token
        if tagged is not None and is_ours and not standing.is_rolled_back:
            self._clean(attempts, tagged.snapshot_id)
            return bool(attempts)
        if standing.position != commit.start:
            raise PositionMoved(self.name, standing.position, commit.start)
        if not self._is_as_described(commit.description):
            raise LayoutMoved(self.name)
        files, old = self._data_files(commit.files, commit.description), self._replaced(commit)
        said = {f"{_NOTE}{name}": value for name, value in commit.notes.items()}
        said |= {_POSITION + topic: commit.stop.to_json(), _TOKEN + topic: commit.token}
        transaction = Transaction(self._table)
        # The tag and its snapshot may be removed by others. This stays, and tells that there was a position.
        transaction.set_properties({_POSITION + topic: commit.stop.to_json()})
        merges = metadata.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
        snapshot = transaction.update_snapshot(snapshot_properties=said)
        producer: _SnapshotProducer[Any]
        if old:
            producer = snapshot.overwrite()
        else:
            producer = snapshot.merge_append() if merges else snapshot.fast_append()
        with producer:
            for file in old:
                producer.delete_data_file(file)
            for file in files:
                producer.append_data_file(file)
        attempts.append(producer)
        if not self._send_snapshot(transaction, producer.snapshot_id, {topic: tagged}):
            return None
        self._clean(attempts, producer.snapshot_id)
        return True

    def _replaced(self, commit: Commit) -> list[DataFile]:
        """The files that an upsert replaces. A snapshot that is built anew would not see what a rival has added."""
        if commit.plan is None:
            return []
        there = {file.path: file.detail for file in self._holders(commit.plan.partitions)}
        if there.keys() != commit.plan.holders:
            raise UpsertOvertaken(self.name)
        return [there[path] for path in commit.replaced]

    def plan_upsert(self, key: Sequence[str], changes: Sequence[WrittenChanges]) -> UpsertPlan:
        self._refresh()
        description = self.describe()
        if any(each.layout != description.layout for each in changes):
            raise LayoutMoved(self.name)
        partitions = partitions_of(changes)
        found = self._holders(partitions)
        sources = _with_sources(found)
        return UpsertPlan(
            description=description,
            partitions=partitions,
            holders=frozenset(file.path for file in found),
            works=upsert_works(description, key, changes, sources),
        )

    def contents(self, topic: str) -> TableContents:
        standing = self._standing(self._refresh(), topic)
        return TableContents(
            standing=standing,
            description=self.describe(),
            sources=tuple(file.detail for file in _with_sources(self._holders(None))),
        )

    def _holders(self, partitions: frozenset[str] | None) -> list[FileFigures]:
        """The files of these partitions, or of all. Raises ``TableRefused`` if one cannot be written again."""
        metadata = self._table.metadata
        types, found = partition_types(metadata.spec(), metadata.schema()), []
        try:
            tasks = list(self._table.scan().plan_files())
        except (ValueError, NotImplementedError) as error:
            raise TableRefused(self.name, f"its files cannot be listed: {str(error).splitlines()[0]}") from error
        for task in tasks:
            file = task.file
            if file.spec_id != metadata.default_spec_id:
                reason = "some of its files are partitioned in an older way; rewrite them, for example with Spark"
                raise TableRefused(self.name, reason)
            partition = partition_text(file.partition, types)
            if partitions is not None and partition not in partitions:
                continue
            if task.delete_files:
                reason = "it has rows that are deleted beside their files; rewrite these files, for example with Spark"
                raise TableRefused(self.name, reason)
            found.append(FileFigures(file.file_path, partition, file.file_size_in_bytes, file))
        return found

    def _data_files(self, files: Sequence[WrittenFile], description: TableDescription) -> list[DataFile]:
        if any(file.layout != description.layout for file in files):
            raise LayoutMoved(self.name)
        return [data_file(file, self._table.metadata) for file in files]

    def _send_snapshot(self, transaction: Transaction, snapshot: int, tags: Mapping[str, Snapshot | None]) -> bool:
        """Send what a transaction has, and move tags that must be where they are now."""
        moves = tuple(_move(topic, snapshot) for topic in tags)
        # A table without snapshots has no tags either: a SQL catalog does not even look for them.
        fences = tuple(
            _fence(_TAG + topic, None if tagged is None else tagged.snapshot_id)
            for topic, tagged in tags.items()
            if self._table.metadata.snapshots
        )
        return self._send(transaction._updates + moves, transaction._requirements + fences)

    def _send(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]) -> bool:
        """Send a commit. Any answer but a success says nothing about what became of it."""
        same = AssertTableUUID(uuid=self._table.metadata.table_uuid)
        try:
            self._catalog.commit_table(self._table, (*requirements, same), updates)
        except Exception as error:  # noqa: BLE001 -- even a refusal may be the answer to a repetition of ours
            self._failure = error
            _log.info("a commit to %s was answered with %s; looking at the table", self.name, type(error).__name__)
            return False
        return True

    def _settling(self) -> Iterator[int]:
        """Attempts, each with a fresh look at the table, until the time is over."""
        self._failure = None
        for number in self._patience.attempts():
            try:
                self._refresh()
            except NoSuchTableError as error:
                raise TableRefused(self.name, "it is gone; start again to create it") from error
            except TableRefused:
                raise
            except Exception as error:  # noqa: BLE001 -- whatever keeps the catalog from answering
                self._failure = error
                continue
            yield number
        reason = str(self._failure).strip().splitlines() if self._failure else []
        raise CommitUnsettled(self.name, reason[0][:300] if reason else "others were always faster")

    def _clean(self, attempts: Sequence[_SnapshotProducer[Any]], landed: int) -> None:
        """Remove the manifests of attempts that did not land: their requirement can never be true again.

        Never before one has landed: the answer may be wrong, and a table without its manifests cannot be opened.
        """
        for attempt in attempts:
            if attempt.snapshot_id != landed:
                with suppress(Exception):
                    attempt._clean_all_uncommitted()

    def _is_as_described(self, description: TableDescription) -> bool:
        metadata = self._table.metadata
        return (str(metadata.table_uuid), _layout(metadata.schema(), metadata.spec())) == (
            description.table,
            description.layout,
        )

    # --- maintenance ---

    def _carried(self, metadata: TableMetadata) -> tuple[dict[str, Snapshot | None], dict[str, str]]:
        """The tags of all topics, and what a snapshot that changes no rows says of them: their positions stay.

        So a topic that is silent for long stays close to the head, and nobody can expire the way to it.
        """
        tags: dict[str, Snapshot | None] = {}
        said: dict[str, str] = {}
        topics = {name.removeprefix(_TAG) for name in metadata.refs if name.startswith(_TAG)}
        # Somebody may have removed a tag while the way to its snapshot is still there: it comes back.
        topics |= {name.removeprefix(_POSITION) for name in metadata.properties if name.startswith(_POSITION)}
        for topic in sorted(topics):
            tagged = _tagged(metadata, topic)
            with suppress(PositionUnknown):
                if (position := self._standing(metadata, topic).position) is not None:
                    tags[topic], said[_POSITION + topic] = tagged, position.to_json()
                    if tagged is not None and (token := _said(tagged).get(_TOKEN + topic)):
                        said[_TOKEN + topic] = token
        return tags, said

    def merge_plans(self, target_size: int, *, now: int) -> Sequence[MergePlan]:
        self._refresh()
        metadata, description = self._table.metadata, self.describe()
        types = partition_types(metadata.spec(), metadata.schema())
        found = [
            FileFigures(
                task.file.file_path, partition_text(task.file.partition, types), task.file.file_size_in_bytes, task.file
            )
            for task in self._table.scan().plan_files()
            # Rows that were deleted beside their file would come back.
            if not task.delete_files and task.file.spec_id == metadata.default_spec_id
        ]
        return [
            MergePlan(
                description=description,
                sources=tuple(_source(each.detail, each.partition) for each in group),
                size=sum(each.size for each in group),
                planned_at=now,
            )
            for group in grouped(found, target_size)
        ]

    def commit_merge(self, plan: MergePlan, files: Sequence[WrittenFile], *, now: int) -> None:
        if now - plan.planned_at > MERGE_TIME_MAX:
            raise MergeOvertaken(self.name)
        attempts: list[_SnapshotProducer[Any]] = []
        for _ in self._settling():
            try:
                if self._merge_once(plan, files, attempts):
                    return
            except OSError as error:
                self._failure = error
        raise AssertionError("the loop returns or raises")

    def _merge_once(
        self, plan: MergePlan, files: Sequence[WrittenFile], attempts: list[_SnapshotProducer[Any]]
    ) -> bool:
        metadata = self._table.metadata
        if landed := [each for each in attempts if metadata.snapshot_by_id(each.snapshot_id) is not None]:
            self._clean(attempts, landed[0].snapshot_id)
            return True
        present = {task.file.file_path: task for task in self._table.scan().plan_files()}
        old = {json.loads(source)["path"] for source in plan.sources}
        is_there = all(path in present and not present[path].delete_files for path in old)
        if not is_there or not self._is_as_described(plan.description):
            raise MergeOvertaken(self.name)
        transaction = Transaction(self._table)
        tags, said = self._carried(metadata)
        replacing = _ReplaceFiles(Operation.OVERWRITE, transaction, self._table.io, snapshot_properties=said)
        with replacing:
            for path in old:
                replacing.delete_data_file(present[path].file)
            for file in self._data_files(files, plan.description):
                replacing.append_data_file(file)
        attempts.append(replacing)
        return self._send_snapshot(transaction, replacing.snapshot_id, tags)

    def expire(self, *, older_than: int) -> int:
        self._refresh()
        oldest = older_than // 1000
        self._carry(oldest)
        metadata = self._table.metadata
        kept = {reference.snapshot_id for reference in metadata.refs.values()}
        expired = {
            each.snapshot_id: each
            for each in metadata.snapshots
            if each.timestamp_ms < oldest and each.snapshot_id not in kept
        }
        if not expired:
            return 0
        files = self._files_of(expired.values())
        for _ in self._settling():
            there = expired.keys() & {each.snapshot_id for each in self._table.metadata.snapshots}
            if not there:
                break
            forget = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(there)})
            self._send((forget,), self._same_references())
        if self._table.metadata.properties.get("gc.enabled", "true").lower() != "false":
            self._delete(files - self._files_of(self._table.metadata.snapshots))
        return len(expired)

    def _carry(self, oldest: int) -> None:
        """Take the positions to a new snapshot at the head, if one of them is older than what is to be expired."""
        for _ in self._settling():
            metadata = self._table.metadata
            tags, said = self._carried(metadata)
            if all(tagged is not None and tagged.timestamp_ms >= oldest for tagged in tags.values()):
                return
            if {tagged and tagged.snapshot_id for tagged in tags.values()} == {metadata.current_snapshot_id}:
                return
            transaction = Transaction(self._table)
            with transaction.update_snapshot(snapshot_properties=said).fast_append() as append:
                pass
            self._send_snapshot(transaction, append.snapshot_id, tags)

    def _same_references(self) -> tuple[TableRequirement, ...]:
        """Somebody may point a tag or a branch to a snapshot that is about to go."""
        references = self._table.metadata.refs.items()
        return tuple(_fence(name, found.snapshot_id) for name, found in references)

    def remove_orphans(self, *, now: int) -> int:
        # Listed before the table is looked at: what is committed in between is then found in it.
        store = open_table_store(self.access())
        own = {found.key: name for found in store.list_objects("") if (name := own_file(found.key)) is not None}
        metadata = self._refresh()
        positions = {}
        for reference in metadata.refs:
            topic = reference.removeprefix(_TAG)
            with suppress(PositionUnknown):
                if reference.startswith(_TAG) and (position := self._standing(metadata, topic).position) is not None:
                    positions[topic] = position
        named = self._files_of(metadata.snapshots)
        root = self._table.location_provider().data_path.rstrip("/")
        orphans = [
            key
            for key, name in own.items()
            if name.table == table_digits(str(metadata.table_uuid))
            and name.is_settled(positions, now)
            and f"{root}/{key}" not in named
        ]
        for key in orphans:
            store.delete(key)
        return len(orphans)

    def _files_of(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """All files that states of the table need: data, and the lists of it."""
        files: set[str] = set()
        for snapshot in snapshots:
            files.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path not in files:
                    files.add(manifest.manifest_path)
                    files |= self._paths([manifest])
        return files

    def _delete(self, files: Iterable[str]) -> None:
        """Remove files that nothing names any more. Rows that others wrote are theirs to remove."""
        for path in files:
            if own_file(path) is not None or path.endswith(".avro"):
                # What is left after a failure is an orphan.
                with suppress(Exception):
                    self._table.io.delete(path)


# --- helpers ------------------------------------------------------------------------------------------


def _move(topic: str, snapshot: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": _TAG + topic, "type": "tag", "snapshot-id": snapshot})


def _fence(reference: str, snapshot: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": reference, "snapshot-id": snapshot})


def _said(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _position(snapshot: Snapshot, topic: str) -> TopicPosition | None:
    text = _said(snapshot).get(_POSITION + topic)
    return None if text is None else TopicPosition.from_json(text)


def _notes(snapshot: Snapshot) -> dict[str, str]:
    said = _said(snapshot).items()
    return {name.removeprefix(_NOTE): value for name, value in said if name.startswith(_NOTE)}


def _tagged(metadata: TableMetadata, topic: str) -> Snapshot | None:
    reference = metadata.refs.get(_TAG + topic)
    return None if reference is None else metadata.snapshot_by_id(reference.snapshot_id)


def _layout(schema: Schema, spec: PartitionSpec) -> str:
    """A digest of the ids, names and types of all columns, and of the partitioning."""
    fields = [[each.field_id, each.name, str(each.field_type), each.required] for each in schema.fields]
    partitioning = [[each.source_id, each.field_id, str(each.transform)] for each in spec.fields]
    text = json.dumps([fields, spec.spec_id, partitioning])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _with_sources(files: Iterable[FileFigures]) -> list[FileFigures]:
    return [replace(file, detail=_source(file.detail, file.partition)) for file in files]


def _source(file: DataFile, partition: str) -> str:
    """A file of the table, as a task needs it to read the file."""
    written = WrittenFile(
        path=file.file_path,
        size=file.file_size_in_bytes,
        row_count=file.record_count,
        layout="",
        partition_values=partition,
        statistics=json.dumps({"record_count": file.record_count}),
    )
    return json.dumps(written.to_row())


# --- opening ------------------------------------------------------------------------------------------


def find_iceberg(
    catalog: Catalog, identifier: str, partition_by: Sequence[PartitionField] | None, patience: Patience
) -> IcebergTable | None:
    """Open a table, if it is there. Raises ``TableRefused``."""
    try:
        table = IcebergTable(catalog, catalog.load_table(identifier), patience)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    table.check_partitioning(partition_by)
    return table


def open_iceberg(catalog: Catalog, identifier: str, layout: TableLayout, patience: Patience) -> IcebergTable:
    """Open a table, or create it.

    Raises:
        TableRefused: it cannot be written.
    """
    if (found := find_iceberg(catalog, identifier, layout.partition_by, patience)) is not None:
        return found
    try:
        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(layout.columns))
        spec = _spec(schema, layout.partition_by or ())
    except _REFUSED as error:
        raise TableRefused(identifier, f"it cannot have these columns: {str(error).splitlines()[0]}") from error
    catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
    # If the answer is lost, or somebody else creates it: it is there, and what it looks like is checked.
    made = catalog.create_table_if_not_exists(identifier, schema, partition_spec=spec, properties=_NEW_TABLE)
    table = IcebergTable(catalog, made, patience)
    table.check_partitioning(layout.partition_by)
    return table


def _spec(schema: Schema, fields: Sequence[PartitionField]) -> PartitionSpec:
    return PartitionSpec(
        *(
            IcebergField(
                source_id=schema.find_field(field.source).field_id,
                field_id=_PARTITION_IDS + number,
                transform=_transform(field),
                name=field.name,
            )
            for number, field in enumerate(fields)
        )
    )


def _transform(field: PartitionField) -> IcebergTransform[Any, Any]:
    match field.transform:
        case "bucket":
            return BucketTransform(field.argument or 0)
        case "truncate":
            return TruncateTransform(field.argument or 0)
        case _:
            return _PLAIN_TRANSFORMS[field.transform]()
