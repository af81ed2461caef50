"""``courser context``: servers and logins, saved by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import click

from courser.cli.connecting import find_target, login_options, missing_context
from courser.cli.failures import ExitCode, Failure
from courser.cli.lazy import completed_by
from courser.cli.output import output_option
from courser.cli.records import Field, Record, emit_deed, emit_list, emit_thing
from courser.cli.server_options import examples, server_choice, server_parameters, yes_option
from courser.cli.terminal import confirm
from courser.client.contexts import Context, Contexts, load_contexts, resolve_target
from courser.client.targets import DEFAULT_NAME, DEFAULT_PASSWORD, Target
from courser.errors import TargetRefused

_EXITS = "Exit codes: 0 done, 1 failed, 2 wrong usage, 5 not found."

_LIST_FIELDS = (Field("selected"), Field("name"), Field("url"), Field("login"))
_SHOW_FIELDS = (
    Field("context"),
    Field("address"),
    Field("login"),
    Field("username", "user"),
    Field("tls"),
    Field("source", "because of"),
    Field("file"),
)
PRECEDENCE = (
    "--url",
    "--context",
    "COURSER_URL, IGGY_CONNECTION_STRING, IGGY_URL",
    "COURSER_CONTEXT",
    "the selected context",
    "iggy://127.0.0.1:8090",
)
"""Who is asked for the address, the first one that knows wins."""


_name_argument = click.argument("name", shell_complete=completed_by("complete_context"))


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except TargetRefused as refusal:
        raise Failure(refusal.reason, "mend the file, or delete it to begin anew") from refusal


def _saved() -> Contexts:
    with _file_errors():
        return load_contexts()


def _login(target: Target) -> str:
    """How it logs in; never the secret itself."""
    if target.token is not None:
        return "token"
    if target.username is None:
        return "none saved"
    return "password" if target.password is not None else "password is asked for"


def _record(name: str, context: Context, contexts: Contexts) -> Record:
    with _file_errors():
        return {
            "selected": name == contexts.current,
            "name": name,
            "url": context.target().url,
            "login": _login(context.target()),
        }


@click.command("list", epilog=examples("courser context list", "courser ctx l -o json", exits=_EXITS))
@output_option
def list_command(*, output: str) -> None:
    """List the saved contexts. Secrets are not shown."""
    contexts = _saved()
    records = [_record(name, context, contexts) for name, context in sorted(contexts.saved.items())]
    empty = "no contexts yet: courser dev saves one, and so does courser context create"
    emit_list(_LIST_FIELDS, records, output, empty=empty)


@click.command("show", epilog=examples("courser context show", "courser context show dev -o json", exits=_EXITS))
@click.argument("name", required=False, shell_complete=completed_by("complete_context"))
@output_option
def show_command(*, name: str | None, output: str) -> None:
    """Show which server the other commands talk to, as whom, and who said so. With NAME: that context.

    Who is asked, in this order: --url, --context, COURSER_URL (or IGGY_CONNECTION_STRING, IGGY_URL), COURSER_CONTEXT,
    the selected context, the default 127.0.0.1:8090. Options such as --user come on top; COURSER_USERNAME,
    COURSER_PASSWORD and COURSER_TOKEN (or IGGY_...) count if nothing before them names a login.
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


@click.command(
    "create",
    epilog=examples(
        "courser context create prod iggy://app:secret@10.0.0.5:8090",
        "courser context create prod 10.0.0.5:8090 --user app",
        "COURSER_TOKEN=... courser context create ci 10.0.0.5:8090 --use",
        exits=_EXITS,
    ),
)
@_name_argument
@click.argument("address", metavar="URL")
@click.option("--use", "is_selected", is_flag=True, help="Select it.")
@click.option("--force", is_flag=True, help="Replace the one of that name.")
@output_option
def create_command(*, name: str, address: str, is_selected: bool, force: bool, output: str) -> None:
    """Save a server and a login. Secrets are kept in a file that only you can read.

    The login is that of the URL, else of --user, --password and --token, else of COURSER_USERNAME, COURSER_PASSWORD and
    COURSER_TOKEN. A password that is missing is asked for whenever it is needed.
    """
    contexts = _saved()
    if name in contexts.saved and not force:
        raise Failure(f'there is a context "{name}" already', "--force replaces it")
    context = _made(address)
    select = is_selected or not contexts.saved
    with _file_errors():
        changed = contexts.with_context(name, context, select=select)
        changed.save()
    sentence = f'saved context "{name}"' + (" and selected it" if changed.current == name else "")
    emit_deed(sentence, _record(name, context, changed), output)


create_command.params += server_parameters(hidden=True)


def _made(address: str) -> Context:
    """The address without its login, and the login beside it."""
    choice = server_choice()
    try:
        target = resolve_target(address, options=login_options(choice)).target
    except TargetRefused as refusal:
        raise Failure(refusal.reason, "an address is iggy://HOST:PORT, or HOST:PORT", ExitCode.USAGE) from refusal
    parts = urlsplit(address if "://" in address else f"iggy://{address}")
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if target.token is not None:
        return Context(url, token=target.token)
    is_named = "@" in address or choice.user is not None
    if not is_named and (target.username, target.password) == (DEFAULT_NAME, DEFAULT_PASSWORD):
        # What is tried on this machine anyway: saved, it would come before the environment.
        return Context(url)
    return Context(url, target.username, target.password)


@click.command("use", epilog=examples("courser context use prod", exits=_EXITS))
@_name_argument
@output_option
def use_command(*, name: str, output: str) -> None:
    """Select a context: other commands, and courser.connect(), then use it."""
    contexts = _saved()
    if name not in contexts.saved:
        raise missing_context(name, contexts.saved)
    with _file_errors():
        changed = contexts.selecting(name)
        changed.save()
    emit_deed(f'context "{name}" is selected now', _record(name, changed.saved[name], changed), output)


@click.command("delete", epilog=examples("courser context delete prod --yes", exits=_EXITS))
@_name_argument
@yes_option
@output_option
def delete_command(*, name: str, is_confirmed: bool, output: str) -> None:
    """Forget a context and its secrets. The server notices nothing."""
    contexts = _saved()
    if name not in contexts.saved:
        raise missing_context(name, contexts.saved)
    confirm(f'forget context "{name}"', is_confirmed=is_confirmed)
    with _file_errors():
        contexts.without(name).save()
    emit_deed(f'deleted context "{name}"', {"name": name, "deleted": True}, output)
