"""``courser stream``: create, show, rename, purge and delete streams."""

import click
from msgspec.structs import asdict

from courser.cli.connecting import ask_server
from courser.cli.failures import ExitCode, Failure
from courser.cli.naming import TopicPath, Word, stream_argument
from courser.cli.records import Field, Section, as_size, as_time, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm
from courser.cli.topic_records import TOPIC_FIELDS, topic_record

STREAM_FIELDS = (
    Field("stream_id", "id", is_number=True),
    Field("name"),
    Field("topic_count", "topics", is_number=True),
    Field("message_count", "messages", is_number=True),
    Field("size", text=as_size, is_number=True),
    Field("created_at", "created", text=as_time, rank=1),
)


@server_command("list", "courser stream list", "courser s l -o json")
def list_command(*, output: str) -> None:
    """List all streams."""
    streams = ask_server(lambda client: client.get_streams())
    empty = "no streams yet; create one with courser stream create NAME"
    emit_list(STREAM_FIELDS, map(asdict, streams), output, empty=empty)


@server_command("get", "courser stream get demo", "courser s g 0 -o json")
@stream_argument()
def get_command(*, place: TopicPath, output: str) -> None:
    """Show one stream and its topics."""
    details = ask_server(lambda client: client.get_stream(place.stream), place)
    record = {**asdict(details.stream), "topics": [topic_record(topic) for topic in details.topics]}
    emit_thing(STREAM_FIELDS, record, output, [Section("topics", TOPIC_FIELDS)])


@server_command("create", "courser stream create demo")
@click.argument("name")
def create_command(*, name: str, output: str) -> None:
    """Create a stream."""
    if "/" in name:
        # The server would accept the name, but no command could refer to it as one word.
        raise Failure(f'"{name}" is the name of a topic', f"courser topic create {name} creates it", ExitCode.USAGE)
    stream = ask_server(lambda client: client.create_stream(name))
    emit_deed(f'created stream "{name}" with id {stream.stream_id}', asdict(stream), output)


@server_command("update", "courser stream update demo production")
@stream_argument(Word("new_name"))
def update_command(*, place: TopicPath, new_name: str, output: str) -> None:
    """Rename a stream."""
    ask_server(lambda client: client.update_stream(place.stream, new_name), place)
    emit_deed(f'renamed stream "{place}" to "{new_name}"', {"stream": place.stream, "name": new_name}, output)


@server_command("delete", "courser stream delete demo --yes")
@stream_argument()
@yes_option
def delete_command(*, place: TopicPath, is_confirmed: bool, output: str) -> None:
    """Delete a stream with all its topics and messages. This cannot be undone."""
    confirm(f'delete stream "{place}" with all its topics and messages', is_confirmed=is_confirmed)
    ask_server(lambda client: client.delete_stream(place.stream), place)
    emit_deed(f'deleted stream "{place}"', {"stream": place.stream, "deleted": True}, output)


@server_command("purge", "courser stream purge demo --yes")
@stream_argument()
@yes_option
def purge_command(*, place: TopicPath, is_confirmed: bool, output: str) -> None:
    """Delete all messages of a stream, but keep its topics. Offsets are not reused."""
    confirm(f'delete all messages of stream "{place}"', is_confirmed=is_confirmed)
    ask_server(lambda client: client.purge_stream(place.stream), place)
    emit_deed(f'purged stream "{place}"', {"stream": place.stream, "purged": True}, output)
