"""``courser client`` and ``courser me``: the connections of a server."""

import click
from msgspec.structs import asdict

from courser.api.replies import ClientDetails, ClientInfo
from courser.cli.connecting import ask_server
from courser.cli.naming import sought
from courser.cli.records import Field, Record, Section, emit_list, emit_thing
from courser.cli.server_options import server_command

_FIELDS = (
    Field("client_id", "id", is_number=True),
    Field("user_id", "user", is_number=True),
    Field("transport"),
    Field("address"),
    Field("group_count", "groups", is_number=True),
)
_GROUP_FIELDS = (
    Field("stream_id", "stream", is_number=True),
    Field("topic_id", "topic", is_number=True),
    Field("group_id", "group", is_number=True),
)


def _record(client: ClientInfo) -> Record:
    return {**asdict(client), "transport": client.transport.name.lower()}


def _show(details: ClientDetails, output: str) -> None:
    record = {**_record(details.client), "groups": [asdict(group) for group in details.groups]}
    emit_thing(_FIELDS, record, output, [Section("groups", _GROUP_FIELDS)])


@server_command("list", "courser client list", "courser c l -o json")
def list_command(*, output: str) -> None:
    """List all connections."""
    emit_list(_FIELDS, map(_record, ask_server(lambda client: client.get_clients())), output)


@server_command("get", "courser client get 7")
@click.argument("client_id", metavar="ID", type=click.IntRange(min=0))
def get_command(*, client_id: int, output: str) -> None:
    """Show one connection and the consumer groups that it is a member of."""
    _show(ask_server(lambda client: client.get_client(client_id), names=sought(client=client_id)), output)


@server_command("me", "courser me", "courser me -o json")
def me_command(*, output: str) -> None:
    """Show the connection of this command: the user and the address."""
    _show(ask_server(lambda client: client.get_me()), output)
