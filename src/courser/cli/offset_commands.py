"""``courser consumer-offset``: the stored offsets of consumers and groups."""

import click

from courser.cli.connecting import ask_server
from courser.cli.failures import Failure
from courser.cli.fields import Record, fields
from courser.cli.lag import lag_of
from courser.cli.naming import PARTITION, TopicPath, Word, identifier, sought, topic_argument
from courser.cli.options import option, yes_option
from courser.cli.output import emit_deed, emit_thing
from courser.cli.server_options import server_command
from courser.cli.terminal import confirm
from courser.cli.topic_records import bounds_by_partition
from courser.client.client import Client
from courser.model.identifiers import Consumer, ConsumerKind

_KINDS = {"consumer": ConsumerKind.CONSUMER, "consumer-group": ConsumerKind.GROUP}
_FIELDS = fields("consumer, kind, partition_id=partition, stored_offset, current_offset, lag")

_consumer_argument = click.argument("consumer", metavar="CONSUMER")
_kind_option = option(
    "-k, --kind",
    "Whether CONSUMER is a single consumer or a group.",
    type=click.Choice(tuple(_KINDS)),
    default="consumer",
)


def _consumer(name: str, kind: str) -> Consumer:
    return Consumer(_KINDS[kind], identifier(name))


@server_command(
    "get",
    "courser consumer-offset get my-app demo/orders 0",
    "courser o g billing demo orders 0 --kind consumer-group -o json",
)
@_consumer_argument
@topic_argument(PARTITION)
@_kind_option
def get_command(*, consumer: str, place: TopicPath, kind: str, output: str) -> None:
    """Show the stored offset of a consumer or a group."""

    async def ask(client: Client) -> Record:
        who = _consumer(consumer, kind)
        found = await client.get_consumer_offset(*place.names, place.partition_id or 0, consumer=who)
        bounds = (await bounds_by_partition(client, place))[found.partition_id]
        return {
            "consumer": consumer,
            "kind": kind,
            "partition_id": found.partition_id,
            "stored_offset": found.stored_offset,
            "current_offset": found.current_offset,
            "lag": await lag_of(client, place, bounds, found.stored_offset) if bounds is not None else None,
        }

    emit_thing(_FIELDS, ask_server(ask, place, _sought(consumer, kind)), output)


@server_command(
    "set",
    "courser consumer-offset set my-app demo/orders 0 41",
    "courser o s billing demo orders 0 41 -k consumer-group",
)
@_consumer_argument
@topic_argument(PARTITION, Word("offset", click.IntRange(min=0)))
@_kind_option
def set_command(*, consumer: str, place: TopicPath, offset: int, kind: str, output: str) -> None:
    """Store an offset: that of the last message that the consumer or group has processed.

    The offset of a group can be changed only while the group has no members.
    """
    who, partition_id = _consumer(consumer, kind), place.partition_id or 0

    async def store(client: Client) -> None:
        await _speak_for(client, place, who)
        await client.store_consumer_offset(*place.names, partition_id, offset, consumer=who)

    ask_server(store, place, _sought(consumer, kind))
    sentence = f'stored offset {offset} for {kind} "{consumer}" in partition {partition_id} of "{place}"'
    emit_deed(sentence, {"consumer": consumer, "kind": kind, "partition_id": partition_id, "offset": offset}, output)


@server_command("delete", "courser consumer-offset delete my-app demo/orders 0 --yes")
@_consumer_argument
@topic_argument(PARTITION)
@_kind_option
@yes_option
def delete_command(*, consumer: str, place: TopicPath, kind: str, is_confirmed: bool, output: str) -> None:
    """Delete the stored offset: the consumer or group starts over in this partition.

    The offset of a group can be deleted only while the group has no members.
    """
    who, partition_id = _consumer(consumer, kind), place.partition_id or 0
    confirm(
        f'delete the offset of {kind} "{consumer}" in partition {partition_id} of "{place}"', is_confirmed=is_confirmed
    )

    async def forget(client: Client) -> None:
        await _speak_for(client, place, who)
        await client.delete_consumer_offset(*place.names, partition_id, consumer=who)

    ask_server(forget, place, _sought(consumer, kind))
    sentence = f'deleted the offset of {kind} "{consumer}" in partition {partition_id} of "{place}"'
    emit_deed(sentence, {"consumer": consumer, "kind": kind, "partition_id": partition_id, "deleted": True}, output)


async def _speak_for(client: Client, place: TopicPath, who: Consumer) -> None:
    """Become the only member of a group: the server lets only members change its offsets."""
    if who.kind is not ConsumerKind.GROUP:
        return
    members = (await client.get_consumer_group(*place.names, who.identifier)).members
    if members:
        ids = ", ".join(str(member.member_id) for member in members)
        hint = f"stop its members first (clients {ids}): they would continue from their own position"
        raise Failure(f'group "{who.identifier}" of "{place}" has members', hint)
    await client.join_consumer_group(*place.names, who.identifier)


def _sought(consumer: str, kind: str) -> dict[str, int | str]:
    name = identifier(consumer)
    return dict(sought(group=name if kind == "consumer-group" else None, consumer=name))
