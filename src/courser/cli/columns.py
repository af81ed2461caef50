"""The columns in which replies are shown: their titles are stated here, the rest follows from the reply's fields."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import get_args, get_origin, get_type_hints

from courser.api import replies as r
from courser.cli.cells import ABSENT, local_time_text
from courser.cli.records import Field, Fields, as_size, as_time, plain
from courser.model.quantities import format_duration


def _as_expiry(value: object) -> str:
    return local_time_text(value) if isinstance(value, int) and value else "never"


def _as_percent(value: object) -> str:
    return f"{value:.1f} %" if isinstance(value, float) else ABSENT


def _as_run_time(value: object) -> str:
    seconds = value // 1_000_000 if isinstance(value, int) else 0
    return format_duration(seconds * 1_000_000)


_TEXTS: Mapping[str, Callable[[object], str]] = MappingProxyType(
    {
        "expires_at": _as_expiry,
        "run_time": _as_run_time,
        "cpu_usage": _as_percent,
        **dict.fromkeys(("_at", "_time", "_timestamp"), as_time),
        **dict.fromkeys(("size", "_usage", "_memory", "_space", "_bytes"), as_size),
    }
)
"""How values are shown, by how the names of their fields end."""


def item_of(hint: object) -> type[r.Reply] | None:
    """What a field of this type lists; None if it does not list parts of a reply."""
    (item,) = get_args(hint) if get_origin(hint) is list else (None,)
    return item if isinstance(item, type) and issubclass(item, r.Reply) else None


def columns(reply: type[r.Reply], *names: str) -> Fields:
    """Columns of fields, each ``name``, ``name=title`` or ``name=title/rank``. Without names: of all fields."""
    hints = get_type_hints(reply)
    return tuple(_column(hints, text) for text in names or reply.__struct_fields__)


def _column(hints: Mapping[str, object], text: str) -> Field:
    text, _, rank = text.partition("/")
    name, _, title = text.partition("=")
    shown = next((_TEXTS[end] for end in _TEXTS if name.endswith(end)), plain)
    is_number = hints[name] in (int, int | None) and shown in (plain, as_size)
    return Field(name, title, shown, is_number, int(rank or 0))


_COLUMNS: Mapping[type[r.Reply], Fields] = MappingProxyType(
    {
        r.StreamInfo: columns(
            r.StreamInfo,
            *("stream_id=id", "name", "topic_count=topics", "message_count=messages", "size", "created_at=created/1"),
        ),
        r.SegmentInfo: columns(
            r.SegmentInfo,
            *("first_offset=first", "next_offset=next", "message_count=messages", "size", "first_timestamp=from/2"),
            *("last_timestamp=to/1", "state", "location/3", "is_sealed=sealed/4"),
        ),
        r.GroupInfo: columns(r.GroupInfo, "group_id=id", "name", "member_count=members", "partition_count=partitions"),
        r.GroupMember: columns(r.GroupMember, "member_id=member", "partition_ids=partitions"),
        r.TokenInfo: columns(r.TokenInfo, "name", "expires_at=expires"),
        r.ClientInfo: columns(
            r.ClientInfo, "client_id=id", "user_id=user", "transport", "address", "group_count=groups"
        ),
        r.ClientGroup: columns(r.ClientGroup, "stream_id=stream", "topic_id=topic", "group_id=group"),
        r.Node: columns(r.Node, "name", "ip=address", "tcp_port=tcp"),
        r.Stats: columns(
            r.Stats,
            *("server_version=version", "hostname", "os_name=system", "kernel_version=kernel", "process_id"),
            *("start_time=started", "run_time=running for", "cpu_usage=processor", "memory_usage=memory"),
            *("available_memory", "free_disk_space", "total_disk_space", "read_bytes=read", "written_bytes=written"),
            *("stream_count=streams", "topic_count=topics", "partition_count=partitions", "segment_count=segments"),
            *("message_count=messages", "messages_size=message size", "client_count=clients"),
            "group_count=consumer groups",
        ),
        r.Deletion: columns(
            r.Deletion,
            *("deleted_at=deleted", "reason", "partition_id=partition", "first_offset=first", "next_offset=next"),
            *("message_count=messages", "size/1", "segment_count=segments/2"),
        ),
        r.Damage: columns(
            r.Damage,
            *("partition_id=damaged partition", "first_offset=first", "next_offset=next", "segment_offset=segment"),
            *("position", "size"),
        ),
    }
)


def columns_of(reply: type[r.Reply]) -> Fields:
    """The columns of a reply: those above, or all its fields."""
    return _COLUMNS.get(reply) or columns(reply)
