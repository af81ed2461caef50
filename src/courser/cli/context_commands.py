"""``courser context``: servers and logins, saved by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import click

from courser.cli.connecting import find_target, login_options, missing_context
from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import Record, fields
from courser.cli.lazy import completed_by
from courser.cli.options import local_command, option, yes_option
from courser.cli.output import emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_choice, server_parameters
from courser.cli.terminal import confirm
from courser.client.contexts import Context, Contexts, load_contexts, resolve_target
from courser.client.targets import DEFAULT_NAME, DEFAULT_PASSWORD, Target, is_certificate_option
from courser.errors import TargetRefused

_EXITS = "Exit codes: 0 done, 1 failed, 2 wrong usage, 5 not found."

_LIST_FIELDS = fields("selected, name, url, login")
_SHOW_FIELDS = fields("context, address, login, username=user, tls, source, file")
PRECEDENCE = (
    "--url",
    "--context",
    "COURSER_URL, IGGY_CONNECTION_STRING, IGGY_URL",
    "COURSER_CONTEXT",
    "the selected context",
    "iggy://127.0.0.1:8090",
)
"""Sources of the address; the first one that is set wins."""


_name_argument = click.argument("name", shell_complete=completed_by("complete_context"))


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except TargetRefused as refusal:
        raise Failure(refusal.reason, "repair the file, or delete it to start over") from refusal


def _saved() -> Contexts:
    with _file_errors():
        return load_contexts()


def _login(target: Target) -> str:
    """The kind of login; never the secret itself."""
    if target.token is not None:
        return "token"
    if target.username is None:
        return "none saved"
    return "password" if target.password is not None else "password (asked for)"


def _record(name: str, context: Context, contexts: Contexts) -> Record:
    with _file_errors():
        return {
            "selected": name == contexts.current,
            "name": name,
            "url": context.target().url,
            "login": _login(context.target()),
        }


@local_command("list", "courser context list", "courser ctx l -o json", exits=_EXITS)
def list_command(*, output: str) -> None:
    """List the saved contexts. Secrets are not shown."""
    contexts = _saved()
    records = [_record(name, context, contexts) for name, context in sorted(contexts.saved.items())]
    empty = "no contexts yet; courser dev and courser context create save one"
    emit_list(_LIST_FIELDS, records, output, empty=empty)


@local_command("show", "courser context show", "courser context show dev -o json", exits=_EXITS)
@click.argument("name", required=False, shell_complete=completed_by("complete_context"))
def show_command(*, name: str | None, output: str) -> None:
    """Show the server and login that other commands use, and where they are configured. With NAME, show that context.

    The address comes from the first of: --url, --context, COURSER_URL (or IGGY_CONNECTION_STRING, IGGY_URL),
    COURSER_CONTEXT, the selected context, the default 127.0.0.1:8090. Options such as --user override its login.
    COURSER_USERNAME, COURSER_PASSWORD and COURSER_TOKEN (or IGGY_...) are used if none of these gives a login.
    """
    contexts = _saved()
    if name is not None:
        if name not in contexts.saved:
            raise missing_context(name, contexts.saved)
        with _file_errors():
            target = contexts.saved[name].target()
        source = f'context "{name}"'
    else:
        resolved = find_target(needs_login=False)
        target, source = resolved.target, resolved.source
    record: Record = {
        "context": name or contexts.current,
        "address": target.address,
        "url": target.url,
        "login": _login(target),
        "username": target.username,
        "tls": target.tls,
        "source": source,
        "file": str(contexts.path),
        "precedence": list(PRECEDENCE),
    }
    emit_thing(_SHOW_FIELDS, record, output)


show_command.params += server_parameters(hidden=True)


@local_command(
    "create",
    "courser context create prod iggy://app:secret@10.0.0.5:8090",
    "courser context create prod 10.0.0.5:8090 --user app",
    "COURSER_TOKEN=... courser context create ci 10.0.0.5:8090 --use",
    exits=_EXITS,
)
@_name_argument
@click.argument("address", metavar="URL")
@option("--use", "Select the new context.", "is_selected")
@option("--force", "Replace an existing context of that name.")
def create_command(*, name: str, address: str, is_selected: bool, force: bool, output: str) -> None:
    """Save a server and a login. Secrets are stored in a file that only you can read.

    The login comes from the URL, else from --user, --password and --token, else from COURSER_USERNAME,
    COURSER_PASSWORD and COURSER_TOKEN. If no password is saved, commands ask for it.
    """
    contexts = _saved()
    if name in contexts.saved and not force:
        raise Failure(f'context "{name}" already exists', "pass --force to replace it")
    context = _made(address)
    select = is_selected or not contexts.saved
    with _file_errors():
        changed = contexts.with_context(name, context, select=select)
        changed.save()
    sentence = f'saved context "{name}"' + (" and selected it" if changed.current == name else "")
    emit_deed(sentence, _record(name, context, changed), output)


create_command.params += server_parameters(hidden=True)


def _made(address: str) -> Context:
    """A context with the login separated from the address."""
    choice = server_choice()
    try:
        target = resolve_target(address, options=login_options(choice)).target
    except TargetRefused as refusal:
        raise Failure(refusal.reason, "an address is iggy://HOST:PORT, or HOST:PORT", ExitCode.USAGE) from refusal
    parts = urlsplit(address if "://" in address else f"iggy://{address}")
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=_with_absolute_path(parts.query)))
    if target.token is not None:
        return Context(url, token=target.token)
    is_named = "@" in address or choice.user is not None
    if not is_named and (target.username, target.password) == (DEFAULT_NAME, DEFAULT_PASSWORD):
        # The default login is tried on this machine anyway. If saved, it would override the environment.
        return Context(url)
    return Context(url, target.username, target.password)


def _with_absolute_path(query: str) -> str:
    """The options of an address, with the path of a certificate that is valid in every directory."""
    options = parse_qsl(query, keep_blank_values=True)
    if not any(is_certificate_option(name) for name, _ in options):
        return query
    return urlencode(
        [(name, str(Path(value).absolute()) if is_certificate_option(name) else value) for name, value in options],
        safe="/",
    )


@local_command("use", "courser context use prod", exits=_EXITS)
@_name_argument
def use_command(*, name: str, output: str) -> None:
    """Select a context: other commands and courser.connect() then use it."""
    contexts = _saved()
    if name not in contexts.saved:
        raise missing_context(name, contexts.saved)
    with _file_errors():
        changed = contexts.selecting(name)
        changed.save()
    emit_deed(f'selected context "{name}"', _record(name, changed.saved[name], changed), output)


@local_command("delete", "courser context delete prod --yes", exits=_EXITS)
@_name_argument
@yes_option
def delete_command(*, name: str, is_confirmed: bool, output: str) -> None:
    """Delete a context and its secrets. This does not affect the server."""
    contexts = _saved()
    if name not in contexts.saved:
        raise missing_context(name, contexts.saved)
    confirm(f'delete context "{name}"', is_confirmed=is_confirmed)
    with _file_errors():
        contexts.without(name).save()
    emit_deed(f'deleted context "{name}"', {"name": name, "deleted": True}, output)
