"""``courser ls``: an overview of streams and topics with the lag of their groups, or of one topic."""

import asyncio

import click

from courser.api.replies import StreamInfo, TopicInfo
from courser.cli.connecting import ask_server
from courser.cli.fields import Record, fields
from courser.cli.lag import group_lags, max_lag
from courser.cli.naming import TopicPath, any_place_argument
from courser.cli.options import option
from courser.cli.output import Section, emit_list, emit_thing
from courser.cli.server_options import server_command
from courser.cli.topic_records import PARTITION_FIELDS, bounds_by_partition, partition_records
from courser.client.client import Client

_TOPIC_FIELDS = fields(
    "stream, topic, partition_count=parts#, message_count=messages#, size#, group_count=groups#/1, max_lag#/1"
)
_ONE_TOPIC_FIELDS = fields("stream, topic, message_count=messages, size")
_GROUP_FIELDS = fields("group, members#, partition_id=partition#, stored_offset=stored#, lag#")


@server_command("ls", "courser ls", "courser ls demo", "courser ls demo/orders -o json", "courser ls --names")
@any_place_argument()
@option("--names", "Print only stream/topic, one per line, for scripts.")
def ls_command(*, place: TopicPath | None, names: bool, output: str) -> None:
    """List all topics. With STREAM, list its topics; with STREAM/TOPIC, list its partitions and groups.

    Lag is the number of messages that a group has not committed yet. For several groups, the largest lag is shown.
    """
    if place is not None and place.topic is not None:
        record = ask_server(lambda client: _one_topic(client, place), place)
        emit_thing(
            _ONE_TOPIC_FIELDS,
            record,
            output,
            [Section("partitions", PARTITION_FIELDS), Section("groups", _GROUP_FIELDS)],
        )
        return
    topics = ask_server(lambda client: _topics(client, place, with_lag=not names), place)
    empty = "no topics yet; try: echo hello | courser send demo/orders --create"
    if names:
        found = [f"{record['stream']}/{record['topic']}" for record in topics if record["topic"] is not None]
        if output == "table" and found:
            # No header line: a script would take it for a name.
            click.echo("\n".join(found))
        else:
            emit_list(fields("name"), ({"name": name} for name in found), output, empty=empty)
        return
    emit_list(_TOPIC_FIELDS, topics, output, empty=empty)


async def _topics(client: Client, place: TopicPath | None, *, with_lag: bool) -> list[Record]:
    if place is not None:
        streams = [(await client.get_stream(place.stream)).stream]
    else:
        streams = await client.get_streams()
    records: list[Record] = []
    for stream in streams:
        topics = await client.get_topics(stream.stream_id)
        if not topics and place is None:
            records.append({"stream": stream.name, "topic": None, "partition_count": None})
        records += await asyncio.gather(*(_topic(client, stream, topic, with_lag=with_lag) for topic in topics))
    return records


async def _topic(client: Client, stream: StreamInfo, topic: TopicInfo, *, with_lag: bool) -> Record:
    place = TopicPath(stream.stream_id, topic.topic_id)
    record: dict[str, object] = {
        "stream": stream.name,
        "topic": topic.name,
        "partition_count": topic.partition_count,
        "message_count": topic.message_count,
        "size": topic.size,
    }
    if with_lag:
        groups = await client.get_consumer_groups(*place.names)
        record["group_count"] = len(groups)
        record["max_lag"] = await max_lag(client, place, [group.group_id for group in groups])
    return record


async def _one_topic(client: Client, place: TopicPath) -> Record:
    details = await client.get_topic(*place.names)
    bounds = await bounds_by_partition(client, place)
    rows: list[Record] = []
    for group in await client.get_consumer_groups(*place.names):
        lags = await group_lags(client, place, group.group_id)
        rows += [{"group": group.name, "members": group.member_count, **lag} for lag in lags]
    return {
        "stream": place.stream,
        "topic": details.topic.name,
        "message_count": details.topic.message_count,
        "size": details.topic.size,
        "partitions": partition_records(details.partitions, bounds),
        "groups": rows,
    }
