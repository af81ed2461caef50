"""``courser stream``: create and show streams."""

import click
from msgspec.structs import asdict

from courser.api.replies import StreamInfo
from courser.cli.columns import columns_of
from courser.cli.connecting import ask_server
from courser.cli.failures import ExitCode, Failure
from courser.cli.naming import TopicPath, stream_argument
from courser.cli.output import Section, emit_deed, emit_thing
from courser.cli.server_options import server_command
from courser.cli.topic_records import TOPIC_FIELDS, topic_record


@server_command("get", "courser stream get demo", "courser s g 0 -o json")
@stream_argument()
def get_command(*, place: TopicPath, output: str) -> None:
    """Show one stream and its topics."""
    details = ask_server(lambda client: client.get_stream(place.stream), place)
    record = {**asdict(details.stream), "topics": [topic_record(topic) for topic in details.topics]}
    emit_thing(columns_of(StreamInfo), record, output, [Section("topics", TOPIC_FIELDS)])


@server_command("create", "courser stream create demo")
@click.argument("name")
def create_command(*, name: str, output: str) -> None:
    """Create a stream."""
    if "/" in name:
        # The server would accept the name, but no command could refer to it as one word.
        raise Failure(f'"{name}" is the name of a topic', f"courser topic create {name} creates it", ExitCode.USAGE)
    stream = ask_server(lambda client: client.create_stream(name))
    emit_deed(f'created stream "{name}" with id {stream.stream_id}', asdict(stream), output)
