"""``courser partition``: list and show the partitions of a topic."""

import click

from courser.cli.connecting import ask_server
from courser.cli.fields import Record
from courser.cli.naming import PARTITION, TopicPath, Word, topic_argument
from courser.cli.output import emit_list, emit_thing
from courser.cli.server_options import server_command
from courser.cli.topic_records import (
    MAINTENANCE_SECTIONS,
    PARTITION_FIELDS,
    bounds_by_partition,
    maintenance_record,
    partition_records,
)
from courser.client.client import Client

_COUNT = Word("count", click.IntRange(min=1))


@server_command("list", "courser partition list demo/orders")
@topic_argument()
def list_command(*, place: TopicPath, output: str) -> None:
    """List the partitions of a topic and their offsets."""

    async def ask(client: Client) -> list[Record]:
        details = await client.get_topic(*place.names)
        bounds = await bounds_by_partition(client, place)
        return partition_records(details.partitions, bounds)

    empty = f"no partitions; add one with courser partition create {place} 1"
    emit_list(PARTITION_FIELDS, ask_server(ask, place), output, empty=empty)


@server_command("get", "courser partition get demo/orders 0")
@topic_argument(PARTITION)
def get_command(*, place: TopicPath, output: str) -> None:
    """Show one partition: its offsets, what was deleted from it and which messages are damaged."""
    partition_id = place.partition_id or 0

    async def ask(client: Client) -> Record:
        # First: it names a partition that does not exist.
        await client.get_segments(*place.names, partition_id)
        details = await client.get_topic(*place.names)
        records = partition_records(details.partitions, await bounds_by_partition(client, place))
        maintenance = await client.get_topic_maintenance(*place.names)
        (record,) = (record for record in records if record["partition_id"] == partition_id)
        return {**record, **maintenance_record(maintenance, partition_id)}

    emit_thing(PARTITION_FIELDS, ask_server(ask, place), output, MAINTENANCE_SECTIONS)


def _record(place: TopicPath, **counts: int) -> Record:
    return {"stream": place.stream, "topic": place.topic, **counts}
