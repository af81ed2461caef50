"""``courser consumer-group``: show and reset consumer groups."""

import dataclasses

import click
from msgspec.structs import asdict

from courser.api.replies import GroupInfo, GroupMember
from courser.cli.columns import columns_of
from courser.cli.connecting import ask_server
from courser.cli.fields import Record, fields
from courser.cli.lag import GROUP_LAG_FIELDS, group_lags
from courser.cli.naming import TopicPath, Word, identifier, sought, topic_argument
from courser.cli.options import option, yes_option
from courser.cli.output import Section, emit_deed, emit_thing
from courser.cli.quantity_words import START
from courser.cli.server_options import server_command
from courser.cli.terminal import confirm, say
from courser.client.client import Client
from courser.client.messages import PollingStrategy

_GROUP = Word("group")
_RESET_FIELDS = fields("group, member_count=members, reread_count=read again, skipped_count=skipped")
_PARTITION_RESET_FIELDS = fields(
    "partition_id=partition#, stored_offset=stored#, next_offset=continues at#, reread_count=read again#, "
    "skipped_count=skipped#"
)


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
    parts = [Section("members", columns_of(GroupMember)), Section("partitions", GROUP_LAG_FIELDS)]
    emit_thing(columns_of(GroupInfo), record, output, parts)


@server_command(
    "reset",
    "courser group reset demo/orders billing --to earliest --dry-run",
    "courser group reset demo/orders billing --to -1h",
    "courser group reset demo/orders billing --to 2026-01-31T12:00 -p 0 --yes",
    "courser group reset demo/orders billing --to 41 --force --yes",
)
@topic_argument(_GROUP)
@option(
    "--to WHERE",
    "earliest, latest, the offset of the next message to read, a time (2026-01-31T12:00, 12:00; local unless it "
    "has a zone), or how long ago (-1h, 10m).",
    "start",
    type=START,
    required=True,
)
@option("-p, --partition NUMBER", "Only this partition. Default: all.", type=click.IntRange(min=0))
@option("--dry-run", "Only show what would be read again or skipped.", "is_dry_run")
@option("--force", "Remove active members from the group. They have to join it again.", "is_forced")
@yes_option
def reset_command(
    *,
    place: TopicPath,
    group: str,
    start: PollingStrategy | str,
    partition: int | None,
    is_dry_run: bool,
    is_forced: bool,
    is_confirmed: bool,
    output: str,
) -> None:
    """Set where a consumer group continues to read, in all partitions at once.

    The group must not have active members: they would continue from their own position.
    """
    name = identifier(group)
    place = TopicPath(place.stream, place.topic, partition)
    confirm(f'reset group "{group}" of "{place}"', is_confirmed=is_confirmed or is_dry_run)
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
