"""``courser pat``: personal access tokens, for logins without a password."""

import click
from msgspec.structs import asdict

from courser.cli.cells import local_time_text
from courser.cli.connecting import ask_server
from courser.cli.naming import sought
from courser.cli.quantity_words import expiry_of
from courser.cli.records import Field, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm, say, write


def _as_expiry(value: object) -> str:
    return local_time_text(value) if isinstance(value, int) and value else "never"


_FIELDS = (Field("name"), Field("expires_at", "expires", text=_as_expiry))


@server_command("list", "courser pat list", "courser pat l -o json")
def list_command(*, output: str) -> None:
    """List your tokens, without their secrets."""
    tokens = ask_server(lambda client: client.get_personal_access_tokens())
    emit_list(_FIELDS, map(asdict, tokens), output, empty="no tokens yet; create one with courser pat create NAME")


@server_command("create", "courser pat create backup 30 days", "TOKEN=$(courser pat create ci 1day)")
@click.argument("name")
@click.argument("expiry", metavar="[EXPIRY...]", nargs=-1)
def create_command(*, name: str, expiry: tuple[str, ...], output: str) -> None:
    """Create a token and print it. It is not shown again. Without EXPIRY it never expires."""
    microseconds = expiry_of(expiry)
    token = ask_server(lambda client: client.create_personal_access_token(name, microseconds))
    if output == "table":
        write(f"{token}\n")
        say(f'created token "{name}"; it is not shown again')
        return
    emit_thing((Field("name"), Field("token")), {"name": name, "token": token}, output)


@server_command("delete", "courser pat delete backup --yes")
@click.argument("name")
@yes_option
def delete_command(*, name: str, is_confirmed: bool, output: str) -> None:
    """Delete a token. Connections that logged in with it are closed."""
    confirm(f'delete token "{name}"', is_confirmed=is_confirmed)
    ask_server(lambda client: client.delete_personal_access_token(name), names=sought(token=name))
    emit_deed(f'deleted token "{name}"', {"name": name, "deleted": True}, output)
