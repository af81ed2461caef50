"""The columns in which replies are shown: their titles are stated here, the rest follows from the reply's fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args, get_origin, get_type_hints

from courser.api import replies as r
from courser.cli.fields import Fields, fields


def item_of(hint: object) -> type[r.Reply] | None:
    """What a field of this type lists; None if it does not list parts of a reply."""
    (item,) = get_args(hint) if get_origin(hint) is list else (None,)
    return item if isinstance(item, type) and issubclass(item, r.Reply) else None


_COLUMNS: Mapping[type[r.Reply], Fields] = MappingProxyType(
    {
        r.StreamInfo: fields(
            "stream_id=id#, name, topic_count=topics#, message_count=messages#, size#, created_at=created/1"
        ),
        r.SegmentInfo: fields(
            "first_offset=first#, next_offset=next#, message_count=messages#, size#, first_timestamp=from/2, "
            "last_timestamp=to/1, state, location/3, is_sealed=sealed/4"
        ),
        r.GroupInfo: fields("group_id=id#, name, member_count=members#, partition_count=partitions#"),
        r.GroupMember: fields("member_id=member#, partition_ids=partitions"),
        r.TokenInfo: fields("name, expires_at=expires"),
        r.ClientInfo: fields("client_id=id#, user_id=user#, transport, address, group_count=groups#"),
        r.ClientGroup: fields("stream_id=stream#, topic_id=topic#, group_id=group#"),
        r.Node: fields("name, ip=address, tcp_port=tcp#"),
        r.Stats: fields(
            "server_version=version, hostname, os_name=system, kernel_version=kernel, process_id, "
            "start_time=started, run_time=running for, cpu_usage=processor, memory_usage=memory, available_memory, "
            "free_disk_space, total_disk_space, read_bytes=read, written_bytes=written, stream_count=streams, "
            "topic_count=topics, partition_count=partitions, segment_count=segments, message_count=messages, "
            "messages_size=message size, client_count=clients, group_count=consumer groups"
        ),
        r.Deletion: fields(
            "deleted_at=deleted, reason, partition_id=partition#, first_offset=first#, next_offset=next#, "
            "message_count=messages#, size#/1, segment_count=segments#/2"
        ),
        r.Damage: fields(
            "partition_id=damaged partition#, first_offset=first#, next_offset=next#, segment_offset=segment#, "
            "position#, size#"
        ),
    }
)


def columns_of(reply: type[r.Reply]) -> Fields:
    """The columns of a reply: those above, or all its fields."""
    hints = get_type_hints(reply)
    is_number = {name: hints[name] in (int, int | None) and not name.endswith("_at") for name in hints}
    names = (name + "#" * is_number[name] for name in reply.__struct_fields__)
    return _COLUMNS.get(reply) or fields(", ".join(names))
