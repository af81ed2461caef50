"""Table rows of the offline tools: the columns and the cells of each kind of file."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from courser.cli.fields import ABSENT, Fields, fields, optional, range_text, time_text
from courser.inspect.findings import Finding, Severity
from courser.inspect.index_file import BlockRow, EntryRow
from courser.inspect.journal_file import ChangeRow
from courser.inspect.log_file import BatchRow, DamageRow, MessageRow, ZeroTailRow
from courser.inspect.small_files import BadRecordRow, RecordRow, SessionRow, StoredOffsetRow
from courser.model.quantities import NEVER
from courser.storage.journal_entries import Fault, FaultKind
from courser.storage.ledger import (
    DamagedRange,
    Event,
    OffsetGap,
    OffsetsMark,
    Progress,
    Sealed,
    SyncFailure,
    TimeCorrection,
)


@dataclass(frozen=True, slots=True)
class RowTable:
    """How rows of several kinds become one table."""

    columns: Fields
    cells: Callable[[object], tuple[str, ...]]
    """The text of a row in each column."""


def is_alarming(row: object) -> bool:
    """Whether to highlight a row."""
    match row:
        case DamageRow() | BadRecordRow():
            return True
        case BatchRow():
            return row.checksums != "ok"
        case BlockRow():
            return row.checksum not in ("ok", "unchecked")
        case ChangeRow():
            return row.chain == "broken"
        case Fault():
            return row.fault != FaultKind.REPETITION.value
        case Finding():
            return row.severity in (Severity.DAMAGE, Severity.UNREADABLE)
    return False


# --- logs and indexes ---


def _encoding(row: BatchRow) -> str:
    """The codec of a batch, and the key if it is encrypted."""
    return row.codec if row.encryption_key is None else f"{row.codec}, key {row.encryption_key}"


def _log_cells(row: object) -> tuple[str, ...]:
    match row:
        case BatchRow():
            return (
                "batch",
                str(row.position),
                str(row.size),
                range_text(row.base_offset, row.end_offset),
                str(row.message_count),
                time_text(row.timestamp),
                time_text(row.origin_timestamp),
                _encoding(row),
                optional(row.producer),
                optional(row.sequence),
                row.checksums,
            )
        case DamageRow():
            offsets = range_text(row.first_offset, row.end_offset)
            size = str(row.end_position - row.position)
            return ("damage", str(row.position), size, offsets, *[ABSENT] * 6, row.reason)
        case ZeroTailRow():
            size = str(row.end_position - row.position)
            return ("zeros", str(row.position), size, *[ABSENT] * 7, "only zeros up to the end")
    raise TypeError(row)


LOG = RowTable(
    fields("kind, position#, size#, offsets, count#/1, time/2, created/6, codec/5, producer/4, sequence#/3, checksums"),
    _log_cells,
)


def _message_cells(row: object) -> tuple[str, ...]:
    match row:
        case MessageRow():
            payload = row.payload if row.payload_encoding == "text" else f"0x{row.payload}"
            return (
                "message",
                optional(row.position),
                str(row.size),
                str(row.offset),
                time_text(row.origin_timestamp),
                row.id,
                "?" if row.header_count is None else str(row.header_count),
                row.checksum,
                payload + ("..." if row.payload_is_cut else ""),
            )
        case BatchRow():
            created = time_text(row.origin_timestamp)
            offsets = range_text(row.base_offset, row.end_offset)
            text = f"{row.message_count} messages, stored {time_text(row.timestamp)}, codec {_encoding(row)}"
            return ("batch", str(row.position), str(row.size), offsets, created, ABSENT, ABSENT, row.checksums, text)
        case DamageRow() | ZeroTailRow():
            kind, position, size, offsets, *_, text = _log_cells(row)
            return (kind, position, size, offsets, *[ABSENT] * 4, text)
    raise TypeError(row)


MESSAGE = RowTable(
    fields("kind, position#/2, size#/5, offset, created/3, id/6, headers#/4, checksum/1, contents"), _message_cells
)


def _index_cells(row: object) -> tuple[str, ...]:
    match row:
        case BlockRow():
            text = f"{row.checksum} ({row.entry_count} entries, interval {row.interval}"
            text += f", covers {row.covered_size} bytes)" if row.covered_size else ")"
            return ("block", str(row.number), str(row.base_offset), ABSENT, ABSENT, ABSENT, text)
        case EntryRow():
            positions = str(row.frame_position), str(row.batch_position)
            return ("entry", str(row.block), str(row.offset), *positions, time_text(row.timestamp), "")
    raise TypeError(row)


INDEX = RowTable(
    fields("kind, block#, offset#, frame_position=frame at#, batch_position=batch at#, time, checksum"), _index_cells
)


# --- small files ---


def _ledger_cells(row: object) -> tuple[str, ...]:
    match row:
        case RecordRow():
            return (
                str(row.position),
                str(row.sequence),
                row.event,
                str(row.start_offset),
                str(row.reserved_end),
                time_text(row.last_timestamp),
                str(row.epoch),
                _event_text(row.details),
            )
        case BadRecordRow():
            return (str(row.position), ABSENT, "damage", *[ABSENT] * 4, row.reason)
    raise TypeError(row)


LEDGER = RowTable(
    fields("position#, sequence#, event, start#, reserved#/1, last_timestamp=last time/3, epoch#/2, details"),
    _ledger_cells,
)


def _event_text(event: Event | None) -> str:
    match event:
        case Sealed() | Progress():
            facts = event.facts
            offsets = range_text(facts.base_offset, facts.end_offset)
            return f"offsets {offsets}, {facts.size} bytes, {facts.batch_count} batches"
        case OffsetGap():
            kind = "lost" if event.is_loss else "never used"
            return f"offsets {range_text(event.first_offset, event.end_offset)} {kind}"
        case DamagedRange():
            offsets = range_text(event.first_offset, event.end_offset)
            place = f"segment {event.base_offset}, bytes {range_text(event.position, event.end_position)}"
            return f"{place}, offsets {offsets}"
        case SyncFailure():
            return "the page cache may differ from the disk"
        case OffsetsMark():
            return f"{event.size} bytes of consumer offsets synced, file {event.generation} of epoch {event.epoch}"
        case TimeCorrection():
            return f"segment {event.base_offset}, times {event.correction / 1_000_000:+.0f} seconds"
        case _:
            return ""


def _offsets_cells(row: object) -> tuple[str, ...]:
    match row:
        case StoredOffsetRow():
            state = "current" if row.is_current else "history"
            offset = "deleted" if row.offset is None else str(row.offset)
            return (str(row.position), row.consumer, row.identifier, offset, state)
        case BadRecordRow():
            return (str(row.position), ABSENT, ABSENT, ABSENT, f"damage: {row.reason}")
    raise TypeError(row)


OFFSETS = RowTable(fields("position#, consumer, identifier, offset#, state"), _offsets_cells)


def _session_cells(row: object) -> tuple[str, ...]:
    match row:
        case SessionRow():
            state = "stopped cleanly" if row.is_clean else "running, killed, or ended by a power cut"
            place = row.boot_id, str(row.mount_id), str(row.inode)
            return (str(row.directory_format), *place, time_text(row.time) if row.time else ABSENT, state)
        case BadRecordRow():
            return (*[ABSENT] * 5, f"damage: {row.reason}")
    raise TypeError(row)


SESSION = RowTable(fields("format#, boot, mount, inode, time, state"), _session_cells)


# --- findings ---


def _finding_cells(row: object) -> tuple[str, ...]:
    if not isinstance(row, Finding):
        raise TypeError(row)
    return (
        row.severity.value,
        row.check,
        str(row.path),
        range_text(row.position, row.end_position),
        range_text(row.first_offset, row.end_offset),
        row.reason,
    )


FINDINGS = RowTable(fields("severity, check, file, position, offsets, reason"), _finding_cells)


# --- journal, snapshot, descriptors ---


def _journal_cells(row: object) -> tuple[str, ...]:
    match row:
        case ChangeRow():
            contents = _fields_text(row.fields)
            place = str(row.position), str(row.size), str(row.op)
            return (*place, time_text(row.timestamp), row.change, row.chain, contents)
        case Fault():
            ops = range_text(row.first_op, row.end_op)
            size = str(row.end_position - row.position)
            return (str(row.position), size, ops, ABSENT, row.fault, ABSENT, row.reason)
    raise TypeError(row)


JOURNAL = RowTable(fields("position#/2, size#/4, op, time/3, change, chain/1, contents"), _journal_cells)


_DEPTHS = {"topic": 1, "partition": 2, "group": 2, "token": 1}
"""How far rows are indented that belong to the row of another thing."""
_IDS = ("stream_id", "topic_id", "partition_id", "group_id", "user_id")
_TITLES = {"used_ids": "ids used", "deleted_directory": "deleted"}


def _catalog_cells(row: object) -> tuple[str, ...]:
    if isinstance(row, BadRecordRow):
        place = f"bytes {range_text(row.position, row.end_position)}"
        return ("damage", *[ABSENT] * 4, f"{place}: {row.reason}")
    assert isinstance(row, dict)
    kind = row["kind"]
    name = row.get("name") or row.get("owner") or row.get("directory") or ABSENT
    created = time_text(row["created_at"]) if "created_at" in row else ABSENT
    return (
        "  " * _DEPTHS.get(kind, 0) + str(_TITLES.get(kind, kind)),
        "/".join(str(row[key]) for key in _IDS if key in row) or ABSENT,
        name,
        created,
        row.get("uuid", ABSENT),
        _details(kind, row),
    )


def _details(kind: str, row: dict[str, Any]) -> str:
    match kind:
        case "stream":
            topics = "" if row["topic_count"] is None else f"{row['topic_count']} topics, "
            return f"{topics}topic ids used: {_ids_text(row['topic_ids'])}"
        case "topic":
            options = _fields_text(row["options"]) or "defaults"
            counts = f"{row['partition_count']} partitions, {row['group_count']} groups, {row['purge_count']} purges"
            return f"{counts}, group ids used: {_ids_text(row['group_ids'])}, options: {options}"
        case "partition":
            return f"incarnation {row['incarnation']}"
        case "user":
            state = "active" if row["is_active"] else "inactive"
            return f"{state}, password {row['password_hash']}, permissions: {_permissions_text(row['permissions'])}"
        case "token":
            return f"expires {time_text(row['expires_at'])}" if row["expires_at"] else "never expires"
        case "used_ids":
            return _ids_text(row)
        case "deleted_directory":
            return "its removal may not be durable yet"
    return ""


CATALOG = RowTable(fields("kind, id, name, created/2, uuid/3, details"), _catalog_cells)


def _ids_text(ids: dict[str, Any]) -> str:
    if not ids["next_id"]:
        return "none"
    holes = ", ".join(range_text(first, end) for first, end in ids["holes"])
    return f"below {ids['next_id']}" + (f" but {holes}" if holes else "")


def _fields_text(fields: object) -> str:
    """The fields that are set, as ``name=value``."""
    assert isinstance(fields, dict)
    return ", ".join(f"{name}={_value_text(name, value)}" for name, value in fields.items() if value is not None)


def _value_text(name: str, value: object) -> str:
    match value:
        case dict() if name == "permissions":
            return f"({_permissions_text(value)})"
        case dict():
            return f"({_fields_text(value)})"
        case list():
            return f"({', '.join(_value_text(name, item) for item in value)})"
        case str() if name == "uuid":
            return value
        case bool() | str():
            return json.dumps(value, ensure_ascii=False)
    if value == NEVER:
        return "never" if name == "message_expiry" else "unlimited"
    return str(value)


def _permissions_text(permissions: object) -> str:
    """A short text of the granted permissions."""
    if permissions is None:
        return "none"
    assert isinstance(permissions, dict)
    parts = [("everywhere", permissions["everywhere"])]
    for stream_id, stream in permissions["streams"].items():
        parts.append((f"stream {stream_id}", stream))
        parts += [(f"stream {stream_id} topic {topic_id}", topic) for topic_id, topic in stream["topics"].items()]
    texts = [f"{where}: {granted}" for where, rights in parts if (granted := _granted(rights))]
    return "; ".join(texts) or "none"


def _granted(rights: dict[str, object]) -> str:
    flags = {name: value for name, value in rights.items() if isinstance(value, bool)}
    return "all" if all(flags.values()) else " ".join(name for name, value in flags.items() if value)
