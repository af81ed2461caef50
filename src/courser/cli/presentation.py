"""Table rows of the offline tools: one set of columns and one function per kind of file."""

from courser.cli.cells import ABSENT, Column, optional, range_text, time_text
from courser.inspect.findings import Finding, Severity
from courser.inspect.index_file import BlockRow, EntryRow
from courser.inspect.log_file import BatchRow, DamageRow, MessageRow, ZeroTailRow
from courser.inspect.small_files import BadRecordRow, RecordRow, SessionRow, StoredOffsetRow
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

LOG_COLUMNS = (
    Column("kind"),
    Column("position", is_number=True),
    Column("size", is_number=True),
    Column("offsets"),
    Column("count", is_number=True, rank=1),
    Column("time", rank=2),
    Column("created", rank=6),
    Column("codec", rank=5),
    Column("producer", rank=4),
    Column("sequence", is_number=True, rank=3),
    Column("checksums"),
)


def _encoding(row: BatchRow) -> str:
    """The codec of a batch, and the key if it is encrypted."""
    return row.codec if row.encryption_key is None else f"{row.codec}, key {row.encryption_key}"


def log_cells(row: object) -> tuple[str, ...]:
    """A batch, damage, or zeros."""
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


MESSAGE_COLUMNS = (
    Column("kind"),
    Column("position", is_number=True, rank=2),
    Column("size", is_number=True, rank=5),
    Column("offset"),
    Column("created", rank=3),
    Column("id", rank=6),
    Column("headers", is_number=True, rank=4),
    Column("checksum", rank=1),
    Column("contents"),
)


def message_cells(row: object) -> tuple[str, ...]:
    """A message, or a row between messages."""
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
            kind, position, size, offsets, *_, text = log_cells(row)
            return (kind, position, size, offsets, *[ABSENT] * 4, text)
    raise TypeError(row)


INDEX_COLUMNS = (
    Column("kind"),
    Column("block", is_number=True),
    Column("offset", is_number=True),
    Column("frame at", is_number=True),
    Column("batch at", is_number=True),
    Column("time"),
    Column("checksum"),
)


def index_cells(row: object) -> tuple[str, ...]:
    """A block or an entry."""
    match row:
        case BlockRow():
            text = f"{row.checksum} ({row.entry_count} entries, interval {row.interval}"
            text += f", covers {row.covered_size} bytes)" if row.covered_size else ")"
            return ("block", str(row.number), str(row.base_offset), ABSENT, ABSENT, ABSENT, text)
        case EntryRow():
            positions = str(row.frame_position), str(row.batch_position)
            return ("entry", str(row.block), str(row.offset), *positions, time_text(row.timestamp), "")
    raise TypeError(row)


LEDGER_COLUMNS = (
    Column("position", is_number=True),
    Column("sequence", is_number=True),
    Column("event"),
    Column("start", is_number=True),
    Column("reserved", is_number=True, rank=1),
    Column("last time", rank=3),
    Column("epoch", is_number=True, rank=2),
    Column("details"),
)


def ledger_cells(row: object) -> tuple[str, ...]:
    """A record."""
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


OFFSETS_COLUMNS = (
    Column("position", is_number=True),
    Column("consumer"),
    Column("identifier"),
    Column("offset", is_number=True),
    Column("state"),
)


def offsets_cells(row: object) -> tuple[str, ...]:
    """A stored offset."""
    match row:
        case StoredOffsetRow():
            state = "current" if row.is_current else "history"
            offset = "deleted" if row.offset is None else str(row.offset)
            return (str(row.position), row.consumer, row.identifier, offset, state)
        case BadRecordRow():
            return (str(row.position), ABSENT, ABSENT, ABSENT, f"damage: {row.reason}")
    raise TypeError(row)


SESSION_COLUMNS = (
    Column("format", is_number=True),
    Column("boot"),
    Column("mount"),
    Column("inode"),
    Column("time"),
    Column("state"),
)


def session_cells(row: object) -> tuple[str, ...]:
    """The session."""
    match row:
        case SessionRow():
            state = "stopped cleanly" if row.is_clean else "running, killed, or ended by a power cut"
            place = row.boot_id, str(row.mount_id), str(row.inode)
            return (str(row.directory_format), *place, time_text(row.time) if row.time else ABSENT, state)
        case BadRecordRow():
            return (*[ABSENT] * 5, f"damage: {row.reason}")
    raise TypeError(row)


FINDING_COLUMNS = (
    Column("severity"),
    Column("check"),
    Column("file"),
    Column("position"),
    Column("offsets"),
    Column("reason"),
)


def finding_cells(row: object) -> tuple[str, ...]:
    """A finding of ``verify``."""
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


def is_alarming(row: object) -> bool:
    """Whether to highlight a row."""
    match row:
        case DamageRow() | BadRecordRow():
            return True
        case BatchRow():
            return row.checksums != "ok"
        case BlockRow():
            return row.checksum not in ("ok", "unchecked")
        case Finding():
            return row.severity in (Severity.DAMAGE, Severity.UNREADABLE)
        case _:
            return False
