"""Connect a command to its server: find the target, log in, run the action, and explain errors."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from courser.cli.explaining import explain, explain_login, explain_missing
from courser.cli.failures import ExitCode, Failure, closest
from courser.cli.naming import TopicPath
from courser.cli.server_options import ServerChoice, server_choice
from courser.cli.terminal import ask_secret
from courser.client.client import Client, connect
from courser.client.contexts import (
    CONTEXT_VARIABLE,
    URL_VARIABLES,
    Resolved,
    contexts_path,
    load_contexts,
    resolve_target,
)
from courser.client.targets import with_options
from courser.errors import CourserError, NotFound, TargetRefused
from courser.model.identifiers import Identifier

_Answer = TypeVar("_Answer")
Action = Callable[[Client], Awaitable[_Answer]]
_NOTHING: Mapping[str, Identifier] = {}


def ask_server(
    action: Action[_Answer],
    place: TopicPath | None = None,
    names: Mapping[str, Identifier] = _NOTHING,
    *,
    is_patient: bool = False,
    resolved: Resolved | None = None,
) -> _Answer:
    """Connect, log in, and run ``action``.

    Args:
        action: What to do.
        place: The stream, topic or partition that it uses: if it is missing, the error names the closest match.
        names: Other things that it uses, by kind: group, user, token, client, consumer.
        is_patient: Whether to reconnect if the connection breaks.
        resolved: The server, if it is already known.

    Raises:
        Failure: explains any error.
    """
    found = resolved or find_target()
    target = replace(found.target, reconnect=is_patient)
    is_logged_in = False

    async def converse() -> _Answer:
        nonlocal is_logged_in
        async with connect(target) as client:
            is_logged_in = True
            try:
                return await action(client)
            except NotFound as error:
                raise await explain_missing(client, error, place, names) from error

    try:
        return asyncio.run(converse())
    except CourserError as error:
        raise explain(error, found) if is_logged_in else explain_login(error, found) from error
    except UnicodeEncodeError as error:
        raise Failure("a name is not valid UTF-8", "names must be UTF-8 text", ExitCode.USAGE) from error


def find_target(*, needs_login: bool = True, without_saved_token: bool = False) -> Resolved:
    """The server and login to use. Asks for a missing password at a terminal.

    ``without_saved_token`` is for a command that creates a token: one that it logged in with may not be prolonged.
    """
    choice = server_choice()
    try:
        _check_context(choice)
        resolved = resolve_target(choice.url, context=choice.context, options=login_options(choice))
    except TargetRefused as refusal:
        hint = "courser context show prints where the address comes from"
        if refusal.reason.startswith(str(contexts_path())):
            hint = "repair the file, or delete it to start over"
        raise Failure(refusal.reason, hint, ExitCode.USAGE) from refusal
    resolved = _in_words_of_the_command_line(resolved, choice)
    target = resolved.target
    if without_saved_token and resolved.login_source == resolved.source:
        target = replace(target, token=None)
    if needs_login and target.token is None and target.password is None:
        target = with_options(target, _ask_login(target.username))
        resolved = replace(resolved, target=target, login_source="the terminal")
    return resolved


def _in_words_of_the_command_line(resolved: Resolved, choice: ServerChoice) -> Resolved:
    """Name the options of the command line as the sources of the target."""
    source = resolved.source if choice.url is None else "--url"
    if choice.token is not None:
        return replace(resolved, source=source, login_source="--token")
    if choice.password is not None:
        return replace(resolved, source=source, login_source="--password")
    if choice.user is not None:
        # With --user alone, the password of the context belongs to another user.
        return replace(resolved, source=source, login_source="COURSER_PASSWORD")
    is_in_url = resolved.login_source == resolved.source
    return replace(resolved, source=source, login_source=source if is_in_url else resolved.login_source)


def login_options(choice: ServerChoice) -> dict[str, object]:
    """The login given on the command line, as options of a target."""
    if choice.token is not None:
        return {"token": choice.token, "username": None, "password": None}
    if choice.user is not None:
        return {"username": choice.user, "password": choice.password or _password_variable(), "token": None}
    return {} if choice.password is None else {"password": choice.password}


def _password_variable() -> str | None:
    return os.environ.get("COURSER_PASSWORD") or os.environ.get("IGGY_PASSWORD")


def _ask_login(username: str | None) -> dict[str, str]:
    if username is None:
        hint = "set COURSER_USERNAME and COURSER_PASSWORD, or COURSER_TOKEN; or save them: courser context create"
        raise Failure("no user to log in as", hint, ExitCode.NOT_ALLOWED)
    password = _password_variable() or ask_secret(
        f"the password of {username}", "set COURSER_PASSWORD", code=ExitCode.NOT_ALLOWED
    )
    return {"username": username, "password": password}


def _check_context(choice: ServerChoice) -> None:
    """Report an unknown context as not found rather than as wrong usage."""
    if choice.url is not None:
        return
    name = choice.context
    if name is None and not any(os.environ.get(variable) for variable in URL_VARIABLES):
        name = os.environ.get(CONTEXT_VARIABLE)
    if name and name not in (saved := load_contexts().saved):
        raise missing_context(name, saved)


def missing_context(name: str, saved: Mapping[str, object]) -> Failure:
    alike = closest(name, saved)
    hint = f'did you mean "{alike}"?' if alike else "courser context list shows the saved contexts"
    return Failure(f'context "{name}" not found', hint, ExitCode.NOT_FOUND)
