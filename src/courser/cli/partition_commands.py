"""``courser partition``: add, remove and list the partitions of a topic."""

import click

from courser.cli.bounds import bounds_by_partition
from courser.cli.connecting import ask_server
from courser.cli.naming import Place, Word, topic_argument
from courser.cli.records import Record, emit_deed, emit_list
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm
from courser.cli.topic_records import PARTITION_FIELDS, partition_records
from courser.client.client import Client

_COUNT = Word("count", click.IntRange(min=1))


@server_command("list", "courser partition list demo/orders")
@topic_argument()
def list_command(*, place: Place, output: str) -> None:
    """List the partitions of a topic, with the offsets that they hold."""

    async def ask(client: Client) -> list[Record]:
        details = await client.get_topic(*place.names)
        bounds = await bounds_by_partition(client, place)
        return partition_records(details.partitions, bounds)

    empty = f"no partitions: courser partition create {place} 1 makes one"
    emit_list(PARTITION_FIELDS, ask_server(ask, place), output, empty=empty)


@server_command("create", "courser partition create demo/orders 3")
@topic_argument(_COUNT)
def create_command(*, place: Place, count: int, output: str) -> None:
    """Add partitions to a topic. Messages with a key may then go to another partition than before."""
    ask_server(lambda client: client.create_partitions(*place.names, count), place)
    emit_deed(f'added {count} to the partitions of "{place}"', _record(place, created=count), output)


@server_command("delete", "courser partition delete demo/orders 1 --yes")
@topic_argument(_COUNT)
@yes_option
def delete_command(*, place: Place, count: int, is_confirmed: bool, output: str) -> None:
    """Remove the partitions with the highest numbers, with their messages. There is no way back."""
    confirm(f'delete the last {count} partitions of "{place}" with their messages', is_confirmed=is_confirmed)
    ask_server(lambda client: client.delete_partitions(*place.names, count), place)
    emit_deed(f'deleted {count} of the partitions of "{place}"', _record(place, deleted=count), output)


def _record(place: Place, **counts: int) -> Record:
    return {"stream": place.stream, "topic": place.topic, **counts}
