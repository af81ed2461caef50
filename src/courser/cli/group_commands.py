"""``courser consumer-group``: create, show, reset and delete consumer groups."""

import dataclasses

import click
from msgspec.structs import asdict

from courser.cli.connecting import ask_server
from courser.cli.lag import GROUP_LAG_FIELDS, group_lags
from courser.cli.naming import TopicPath, Word, identifier, sought, topic_argument
from courser.cli.quantity_words import START
from courser.cli.records import Field, Record, Section, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm, say
from courser.client.client import Client
from courser.client.messages import PollingStrategy

_GROUP = Word("group")
_FIELDS = (
    Field("group_id", "id", is_number=True),
    Field("name"),
    Field("member_count", "members", is_number=True),
    Field("partition_count", "partitions", is_number=True),
)
_RESET_FIELDS = (
    Field("group"),
    Field("member_count", "members"),
    Field("reread_count", "read again"),
    Field("skipped_count", "skipped"),
)
_PARTITION_RESET_FIELDS = (
    Field("partition_id", "partition", is_number=True),
    Field("stored_offset", "stored", is_number=True),
    Field("next_offset", "continues at", is_number=True),
    Field("reread_count", "read again", is_number=True),
    Field("skipped_count", "skipped", is_number=True),
)
_MEMBER_FIELDS = (Field("member_id", "member", is_number=True), Field("partition_ids", "partitions"))


@server_command("list", "courser consumer-group list demo/orders", "courser g l demo orders -o json")
@topic_argument()
def list_command(*, place: TopicPath, output: str) -> None:
    """List the consumer groups of a topic."""
    groups = ask_server(lambda client: client.get_consumer_groups(*place.names), place)
    empty = f"no groups yet; create one with courser consumer-group create {place} NAME"
    emit_list(_FIELDS, map(asdict, groups), output, empty=empty)


@server_command("get", "courser consumer-group get demo/orders billing", "courser g g demo orders billing -o json")
@topic_argument(_GROUP)
def get_command(*, place: TopicPath, group: str, output: str) -> None:
    """Show one group: its members with their partitions, and its progress in each partition."""

    async def ask(client: Client) -> Record:
        details = await client.get_consumer_group(*place.names, identifier(group))
        lags = await group_lags(client, place, details.group.group_id)
        members = [asdict(member) for member in details.members]
        return {**asdict(details.group), "members": members, "partitions": lags}

    record = ask_server(ask, place, sought(group=identifier(group)))
    emit_thing(_FIELDS, record, output, [Section("members", _MEMBER_FIELDS), Section("partitions", GROUP_LAG_FIELDS)])


@server_command("create", "courser consumer-group create demo/orders billing")
@topic_argument(Word("name"))
def create_command(*, place: TopicPath, name: str, output: str) -> None:
    """Create a consumer group."""
    details = ask_server(lambda client: client.create_consumer_group(*place.names, name), place)
    sentence = f'created group "{name}" of "{place}" with id {details.group.group_id}'
    emit_deed(sentence, asdict(details.group), output)


@server_command("delete", "courser consumer-group delete demo/orders billing --yes")
@topic_argument(_GROUP)
@yes_option
def delete_command(*, place: TopicPath, group: str, is_confirmed: bool, output: str) -> None:
    """Delete a consumer group and its stored offsets."""
    confirm(f'delete group "{group}" of "{place}" with its stored offsets', is_confirmed=is_confirmed)
    name = identifier(group)
    ask_server(lambda client: client.delete_consumer_group(*place.names, name), place, sought(group=name))
    record = {"stream": place.stream, "topic": place.topic, "group": name, "deleted": True}
    emit_deed(f'deleted group "{group}" of "{place}"', record, output)


@server_command(
    "reset",
    "courser group reset demo/orders billing --to earliest --dry-run",
    "courser group reset demo/orders billing --to -1h",
    "courser group reset demo/orders billing --to 2026-01-31T12:00 --partition 0",
    "courser group reset demo/orders billing --to 41 --force",
)
@topic_argument(_GROUP)
@click.option(
    "--to",
    "start",
    type=START,
    required=True,
    metavar="WHERE",
    help="earliest, latest, the offset of the next message to read, a time (2026-01-31T12:00, 12:00; local unless it "
    "has a zone), or how long ago (-1h, 10m).",
)
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), metavar="NUMBER", help="Only this partition. Default: all."
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only show what would be read again or skipped.")
@click.option(
    "--force", "is_forced", is_flag=True, help="Remove active members from the group. They have to join it again."
)
def reset_command(
    *,
    place: TopicPath,
    group: str,
    start: PollingStrategy | str,
    partition: int | None,
    is_dry_run: bool,
    is_forced: bool,
    output: str,
) -> None:
    """Set where a consumer group continues to read, in all partitions at once.

    The group must not have active members: they would continue from their own position.
    """
    name = identifier(group)
    place = TopicPath(place.stream, place.topic, partition)
    reset = ask_server(
        lambda client: client.reset_consumer_group(
            *place.names, name, to=start, partition_id=partition, dry_run=is_dry_run, force=is_forced
        ),
        place,
        sought(group=name),
    )
    record = {
        "stream": place.stream,
        "topic": place.topic,
        "group": name,
        "is_dry_run": is_dry_run,
        "member_count": reset.member_count,
        "reread_count": reset.reread_count,
        "skipped_count": reset.skipped_count,
        "partitions": [dataclasses.asdict(row) for row in reset.partitions],
    }
    if not is_dry_run:
        counts = f"messages read again: {reset.reread_count}, skipped: {reset.skipped_count}"
        emit_deed(f'reset group "{group}" of "{place}"; {counts}', record, output)
        return
    emit_thing(_RESET_FIELDS, record, output, [Section("partitions", _PARTITION_RESET_FIELDS)])
    if output == "table":
        is_refused = reset.member_count > 0 and not is_forced
        say("dry run: nothing was changed" + ("; while the group has members, a reset requires --force" * is_refused))
