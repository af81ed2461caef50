"""``courser sink``: writers that publish numbered batches exactly once, and their staged parts."""

import click
from msgspec.structs import asdict

from courser.api.replies import SinkSummary
from courser.cli.connecting import ask_server
from courser.cli.fields import Record, as_time, fields
from courser.cli.lazy import completed_by
from courser.cli.naming import sought
from courser.cli.options import option, yes_option
from courser.cli.output import Section, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command
from courser.cli.terminal import confirm
from courser.client.client import Client
from courser.errors import ErrorCode, NotFound

_FIELDS = fields(
    "name, user_id=user#/3, batch#, is_open=unfinished/2, published_at=published/1, expires_at=expires/4, "
    "part_count=parts#, staged_size=staged#",
    expires_at=as_time,
)
_PART_FIELDS = fields(
    "batch#, part#, attempt#, message_count=messages#, size#, is_finished=finished, touched_at=touched/1, "
    "user_id=user#/2"
)
_name_argument = click.argument("name", metavar="NAME", shell_complete=completed_by("complete_sink"))


def _record(sink: SinkSummary) -> Record:
    return {**asdict(sink), "published_at": sink.published_at or None, "expires_at": sink.expires_at or None}


async def _find(client: Client, name: str) -> SinkSummary:
    """Find a sink by name. Before the first publish, several users may stage for one name: returns the first."""
    found = [sink for sink in await client.get_sinks() if sink.name == name]
    if not found:
        raise NotFound(ErrorCode.SINK_NOT_FOUND, f'sink "{name}" not found')
    return next((sink for sink in found if sink.batch is not None), found[0])


@server_command("list", "courser sink list", "courser sink list -o json")
def list_command(*, output: str) -> None:
    """List the sinks with their published and staged batches.

    Users with the permission read_servers also see the sinks of other users.
    """
    sinks = ask_server(lambda client: client.get_sinks())
    emit_list(_FIELDS, map(_record, sinks), output, empty="no sinks yet; pipelines and Spark jobs create them")


@server_command("get", "courser sink get nightly-backfill", "courser sink get nightly-backfill -o json")
@_name_argument
def get_command(*, name: str, output: str) -> None:
    """Show one sink and its staged parts.

    A part is kept until its batch is published. It is deleted by the next publish, or if nothing is added for too long.
    """

    async def ask(client: Client) -> Record:
        sink = await _find(client, name)
        return {**_record(sink), "parts": [asdict(part) for part in await client.get_staged_parts(name)]}

    emit_thing(_FIELDS, ask_server(ask, names=sought(sink=name)), output, [Section("parts", _PART_FIELDS)])


@server_command("discard", "courser sink discard nightly-backfill --yes", "courser sink discard NAME --batch 7 --yes")
@_name_argument
@option("--batch NUMBER", "Discard only the parts of this batch.", type=click.IntRange(min=0))
@yes_option
def discard_command(*, name: str, batch: int | None, is_confirmed: bool, output: str) -> None:
    """Delete the staged, unpublished parts of a sink.

    Keeps parts of a batch whose publish has been decided, and the number of the last batch. A running job stages its
    parts again.
    """
    what = "all batches" if batch is None else f"batch {batch}"
    confirm(f'discard the staged parts of {what} of sink "{name}"', is_confirmed=is_confirmed)

    async def ask(client: Client) -> None:
        await _find(client, name)
        await client.discard_staged(name, batch)

    ask_server(ask, names=sought(sink=name))
    record = {"name": name, "batch": batch, "discarded": True}
    emit_deed(f'discarded the staged parts of {what} of sink "{name}"', record, output)


@server_command("delete", "courser sink delete nightly-backfill --yes")
@_name_argument
@yes_option
def delete_command(*, name: str, is_confirmed: bool, output: str) -> None:
    """Delete a sink: its staged parts, and its record of published batches.

    Published messages are kept. A job that continues under this name publishes its last batch again, so delete only
    sinks of jobs that have finished.
    """
    confirm(f'delete sink "{name}" and its record of published batches', is_confirmed=is_confirmed)

    async def ask(client: Client) -> None:
        await _find(client, name)
        await client.discard_staged(name, forget=True)

    ask_server(ask, names=sought(sink=name))
    emit_deed(f'deleted sink "{name}"', {"name": name, "deleted": True}, output)
