"""``courser pat create``: personal access tokens, for logins without a password."""

import click

from courser.cli.connecting import ask_server
from courser.cli.quantity_words import expiry_of
from courser.cli.records import Field, emit_thing
from courser.cli.server_options import server_command
from courser.cli.terminal import say, write


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
