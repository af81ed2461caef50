"""``courser login``, ``logout`` and ``pat create``: tokens, for logins without a password."""

import os
import platform
from dataclasses import replace
from zlib import crc32

import click

from courser.cli.connecting import ask_server, find_target
from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import fields
from courser.cli.output import emit_deed, emit_thing
from courser.cli.quantity_words import expiry_of
from courser.cli.server_options import server_choice, server_command
from courser.cli.terminal import say, write
from courser.client.client import Client
from courser.client.contexts import CONTEXT_VARIABLE, URL_VARIABLES, Context, Contexts, load_contexts
from courser.errors import NotFound, TargetRefused
from courser.model.quantities import format_duration, parse_expiry

_USUAL_EXPIRY = "12 hours"
_USUAL_CONTEXT = "default"


@server_command("login", "courser login --user app", "courser login --context prod 30 days")
@click.argument("expiry", metavar="[EXPIRY...]", nargs=-1)
def login_command(*, expiry: tuple[str, ...], output: str) -> None:
    """Log in once: create a token and save it in the context instead of the password.

    The token is valid for 12 hours, or for EXPIRY. The password comes from the context or from COURSER_PASSWORD, or is
    asked for at a terminal. If no context exists, one called "default" is created.
    """
    microseconds = expiry_of(expiry) or parse_expiry(_USUAL_EXPIRY)
    assert microseconds is not None
    contexts, name = _context()
    resolved = find_target(without_saved_token=True)
    token_name = _token_name(name, contexts)

    async def make_token(client: Client) -> str:
        await _drop_token(client, token_name)
        return await client.create_personal_access_token(token_name, microseconds)

    token = ask_server(make_token, resolved=resolved)
    saved = contexts.saved.get(name, Context(f"iggy://{resolved.target.address}"))
    made = replace(saved, username=resolved.target.username, password=None, token=token)
    _save(contexts.with_context(name, made))
    sentence = f'logged in as {resolved.target.username}; context "{name}" holds a token'
    record = {"context": name, "username": resolved.target.username, "token_name": token_name, "expiry": microseconds}
    emit_deed(f"{sentence}, valid for {format_duration(microseconds)}", record, output)


@server_command("logout", "courser logout", "courser logout --context prod")
def logout_command(*, output: str) -> None:
    """Delete the token that login created, on the server and in the saved context."""
    contexts, name = _context()
    saved = contexts.saved.get(name)
    if saved is None or saved.token is None:
        hint = "courser context show prints how commands log in"
        raise Failure(f'context "{name}" has no token', hint, ExitCode.NOT_FOUND)
    token_name = _token_name(name, contexts)
    ask_server(lambda client: _drop_token(client, token_name))
    _save(contexts.with_context(name, replace(saved, token=None)))
    emit_deed(
        f'logged out; removed the token from context "{name}"', {"context": name, "token_name": token_name}, output
    )


def _context() -> tuple[Contexts, str]:
    """The saved contexts, and the name of the one to use."""
    choice = server_choice()
    has_address = any(os.environ.get(variable) for variable in URL_VARIABLES) and choice.context is None
    if choice.url is not None or has_address:
        hint = "save the address with courser context create, then log in with --context"
        raise Failure("a login can be saved only in a context, not for a plain address", hint, ExitCode.USAGE)
    try:
        contexts = load_contexts()
    except TargetRefused as refusal:
        raise Failure(refusal.reason, "repair the file, or delete it to start over") from refusal
    return contexts, choice.context or os.environ.get(CONTEXT_VARIABLE) or contexts.current or _USUAL_CONTEXT


def _token_name(context: str, contexts: Contexts) -> str:
    """The name is the same for each login with this context on this machine, so a login replaces the old token."""
    origin = crc32(f"{platform.node()} {contexts.path}".encode())
    return f"cli-{origin:08x}-{context[:16]}"


async def _drop_token(client: Client, name: str) -> None:
    try:
        await client.delete_personal_access_token(name)
    except NotFound:
        return


def _save(contexts: Contexts) -> None:
    try:
        contexts.save()
    except TargetRefused as refusal:
        raise Failure(refusal.reason, "check that the directory is writable") from refusal


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
    emit_thing(fields("name, token"), {"name": name, "token": token}, output)
