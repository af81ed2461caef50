"""``courser segment``: the files that make up a partition."""

import click
from msgspec.structs import asdict

from courser.cli.connecting import ask_server
from courser.cli.naming import PARTITION, TopicPath, Word, topic_argument
from courser.cli.records import Field, as_size, as_time, emit_deed, emit_list
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm

_FIELDS = (
    Field("first_offset", "first", is_number=True),
    Field("next_offset", "next", is_number=True),
    Field("message_count", "messages", is_number=True),
    Field("size", text=as_size, is_number=True),
    Field("first_timestamp", "from", text=as_time, rank=2),
    Field("last_timestamp", "to", text=as_time, rank=1),
    Field("state"),
    Field("location", rank=3),
    Field("is_sealed", "sealed", rank=4),
)


@server_command("list", "courser segment list demo/orders 0", "courser seg l demo orders 0 -o json")
@topic_argument(PARTITION)
def list_command(*, place: TopicPath, output: str) -> None:
    """List the segments of a partition, oldest first.

    The state is active (takes new messages), rolled, expired (the cleaner deletes it next) or archived (the archive has
    confirmed it).
    """
    partition_id = place.partition_id or 0
    segments = ask_server(lambda client: client.get_segments(*place.names, partition_id), place)
    emit_list(_FIELDS, ({**asdict(entry), "directory": segments.directory} for entry in segments.segments), output)


@server_command("delete", "courser segment delete demo/orders 0 2 --yes")
@topic_argument(PARTITION, Word("count", click.IntRange(min=1)))
@yes_option
def delete_command(*, place: TopicPath, count: int, is_confirmed: bool, output: str) -> None:
    """Delete the oldest sealed segments of a partition that no stored offset needs. This cannot be undone.

    The newest segment is never deleted, nor are segments with messages that a consumer has not read yet. A
    server with an archive deletes only segments that are archived.
    """
    partition_id = place.partition_id or 0
    confirm(f'delete up to {count} segments of partition {partition_id} of "{place}"', is_confirmed=is_confirmed)
    ask_server(lambda client: client.delete_segments(*place.names, partition_id, count), place)
    record = {"stream": place.stream, "topic": place.topic, "partition_id": partition_id, "count": count}
    emit_deed(f'deleted up to {count} segments of partition {partition_id} of "{place}"', record, output)
