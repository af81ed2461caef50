"""Table rows for journal entries and for the catalog."""

import json

from courser.cli.cells import ABSENT, Column, range_text, time_text
from courser.inspect.catalog_rows import (
    DeletedDirectoryRow,
    GroupRow,
    PartitionRow,
    StreamRow,
    TokenRow,
    TopicRow,
    UsedIdsRow,
    UserRow,
)
from courser.inspect.journal_file import ChangeRow
from courser.inspect.small_files import BadRecordRow
from courser.model.quantities import NEVER
from courser.storage.journal_entries import Fault, FaultKind

JOURNAL_COLUMNS = (
    Column("position", is_number=True, rank=2),
    Column("size", is_number=True, rank=4),
    Column("op"),
    Column("time", rank=3),
    Column("change"),
    Column("chain", rank=1),
    Column("contents"),
)


def journal_cells(row: object) -> tuple[str, ...]:
    """An entry, or a fault between entries."""
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


CATALOG_COLUMNS = (
    Column("kind"),
    Column("id"),
    Column("name"),
    Column("created", rank=2),
    Column("uuid", rank=3),
    Column("details"),
)


def catalog_cells(row: object) -> tuple[str, ...]:
    """A stream, topic, partition, group, user, token or damage. Rows that belong to another row are indented."""
    match row:
        case StreamRow():
            topics = "" if row.topic_count is None else f"{row.topic_count} topics, "
            details = f"{topics}topic ids used: {_ids_text(row.topic_ids)}"
            return ("stream", str(row.stream_id), row.name, time_text(row.created_at), row.uuid, details)
        case TopicRow():
            ids = f"{row.stream_id}/{row.topic_id}"
            return ("  topic", ids, row.name, time_text(row.created_at), row.uuid, _topic_text(row))
        case PartitionRow():
            ids = f"{row.stream_id}/{row.topic_id}/{row.partition_id}"
            created = time_text(row.created_at)
            return ("    partition", ids, ABSENT, created, ABSENT, f"incarnation {row.incarnation}")
        case GroupRow():
            ids = f"{row.stream_id}/{row.topic_id}/{row.group_id}"
            return ("    group", ids, row.name, time_text(row.created_at), ABSENT, "")
        case _:
            return _other_cells(row)


def _other_cells(row: object) -> tuple[str, ...]:
    match row:
        case UserRow():
            state = "active" if row.is_active else "inactive"
            details = f"{state}, password {row.password_hash}, permissions: {permissions_text(row.permissions)}"
            return ("user", str(row.user_id), row.name, time_text(row.created_at), ABSENT, details)
        case TokenRow():
            expiry = f"expires {time_text(row.expires_at)}" if row.expires_at else "never expires"
            return ("  token", str(row.user_id), row.name, time_text(row.created_at), ABSENT, expiry)
        case UsedIdsRow():
            details = _ids_text({"next_id": row.next_id, "holes": row.holes})
            return ("ids used", ABSENT, row.owner, ABSENT, ABSENT, details)
        case DeletedDirectoryRow():
            return ("deleted", ABSENT, row.directory, ABSENT, row.uuid, "its removal may not be durable yet")
        case BadRecordRow():
            place = f"bytes {range_text(row.position, row.end_position)}"
            return ("damage", ABSENT, ABSENT, ABSENT, ABSENT, f"{place}: {row.reason}")
    raise TypeError(row)


def is_alarming(row: object) -> bool:
    """Whether to highlight a row."""
    match row:
        case BadRecordRow():
            return True
        case Fault():
            return row.fault != FaultKind.REPETITION.value
        case ChangeRow():
            return row.chain == "broken"
        case _:
            return False


# --- values ---


def _topic_text(row: TopicRow) -> str:
    options = _fields_text(row.options) or "defaults"
    counts = f"{row.partition_count} partitions, {row.group_count} groups, {row.purge_count} purges"
    return f"{counts}, group ids used: {_ids_text(row.group_ids)}, options: {options}"


def _ids_text(ids: object) -> str:
    assert isinstance(ids, dict)
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
            return f"({permissions_text(value)})"
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


def permissions_text(permissions: object) -> str:
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
