"""``courser serve`` and ``courser dev``: run the server in this process."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import click

from courser.cli.configuration_options import config_option, refused, set_option
from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import Field, fields
from courser.cli.options import local_command, option
from courser.cli.output import RecordWriter
from courser.cli.ports import answers_ping, listens
from courser.cli.terminal import flush, harmless, say, write
from courser.client.contexts import CONTEXT_VARIABLE, URL_VARIABLES, Context, load_contexts
from courser.errors import (
    AddressRefused,
    ConfigurationRefused,
    CourserError,
    DiskFull,
    StartRefused,
    TargetRefused,
)
from courser.server.entry_point import Wishes, serve
from courser.server.root_user import DEVELOPMENT_PASSWORD
from courser.server.server import Listening

_EXITS = "Exit codes: 0 stopped as asked, 1 could not start or stop cleanly, 2 wrong usage or configuration."
_LEFT_PATIENCE = 1.0
"""Seconds for what has no more to do than to notice the stop."""
_DEV_CONTEXT = "dev"
"""The context that ``courser dev`` saves. Of several such servers, only the first has this name."""
_USUAL_PORT = 8090
_USUAL_WEBSOCKET_PORT = 8092
_USUAL_HTTP_PORT = 3000
_DEV_LOG_LEVELS = "warn,courser.server.entry_point=error"
"""Hides the warning about the well-known password, which is intended for ``dev``."""


@local_command(
    "serve",
    "courser serve",
    "courser serve --config server.toml",
    "courser serve --set tcp.address=127.0.0.1:0 --set system.path=data",
    exits=_EXITS,
)
@config_option
@set_option
@option(
    "--with-default-root-credentials",
    "At the first start, create the root user iggy with the password iggy. For development only.",
    "use_default_root",
)
def serve_command(*, path: Path | None, settings: tuple[str, ...], use_default_root: bool, output: str) -> int:
    """Run the server until SIGTERM or Ctrl-C.

    At the first start it creates the root user "iggy" with the password of COURSER_ROOT_PASSWORD, or with a generated
    one, which is printed once. COURSER_ROOT_USERNAME sets another name. Logs go to stderr.
    """
    wishes = Wishes(environment=os.environ, path=path, settings=settings, use_default_root=use_default_root)
    code = _run(wishes, _announcer(output))
    _end_if_held_up(code)
    return code


@local_command("dev", "courser dev", "courser dev --data /tmp/try --port 0", exits=_EXITS)
@option(
    "--data DIRECTORY",
    "The data directory. It is kept for the next start.",
    type=click.Path(path_type=Path),
    default=Path("local_data"),
)
@option("--port NUMBER", "The TCP port; 0 picks a free port.", type=click.IntRange(0, 65535), default=_USUAL_PORT)
@option("--verbose", "Show all log messages, not only warnings.")
def dev_command(*, data: Path, port: int, verbose: bool, output: str) -> int:
    """Run a server for development: local connections only, user iggy with password iggy, no configuration.

    Saves the address and login as the context "dev" and selects it, so that other commands and courser.connect() use
    this server. While another server of that name is running, the context is "dev-2", and is not selected. An existing
    data directory keeps its data and its root user. Stop the server with Ctrl-C.
    """
    # Only the usual server takes the other usual ports, so that a second one can run beside it.
    websocket_port = _USUAL_WEBSOCKET_PORT if port == _USUAL_PORT else 0
    # Many programs for development use the same port: the console is then on another one.
    is_http_free = port == _USUAL_PORT and not listens("127.0.0.1", _USUAL_HTTP_PORT)
    http_port = _USUAL_HTTP_PORT if is_http_free else 0
    settings = [
        f"tcp.address=127.0.0.1:{port}",
        f"http.address=127.0.0.1:{http_port}",
        f"websocket.address=127.0.0.1:{websocket_port}",
        f"system.path={data}",
    ]
    if not verbose:
        settings.append(f"system.logging.level={_DEV_LOG_LEVELS}")
    wishes = Wishes(environment=os.environ, settings=settings, use_default_root=True)

    contexts: list[str] = []

    def on_ready(server: Listening) -> None:
        name = save_dev_context(server)
        contexts.extend([name] if name is not None else [])
        greet(server, data, name, output)

    try:
        return _run(wishes, _announcer(output), on_ready, busy_port_hint="courser dev --port 0 picks a free port")
    finally:
        for name in contexts:
            forget_dev_context(name)


def save_dev_context(server: Listening) -> str | None:
    """Save a context for the server, and select it unless another server has the usual name. The server works without.

    A root user of an earlier start may have another password: commands then ask for it.
    """
    context = Context(server.url, server.username, server.password)
    try:
        contexts = load_contexts()
        names = (_DEV_CONTEXT if number == 1 else f"{_DEV_CONTEXT}-{number}" for number in count(1))
        name = next(name for name in names if not _is_of_another(contexts.saved.get(name), server))
        contexts.with_context(name, context, select=name == _DEV_CONTEXT).save()
    except TargetRefused as refusal:
        say(f'warning: cannot save the context "{_DEV_CONTEXT}": {refusal}')
        return None
    return name


def _is_of_another(saved: Context | None, server: Listening) -> bool:
    """Whether a saved context belongs to a server that is running, or on another machine."""
    if saved is None:
        return False
    target = saved.target()
    if target.address == server.address:
        return False
    answers = listens if target.tls else answers_ping
    return not target.is_local or answers(target.host, target.port)


def forget_dev_context(name: str) -> None:
    """Delete the context of a second server, which has stopped. The usual one stays for the next start."""
    if name == _DEV_CONTEXT:
        return
    with contextlib.suppress(TargetRefused):
        load_contexts().without(name).save()


def greet(server: Listening, data: Path, context: str | None, output: str) -> None:
    """Print how to use a server for development."""
    if output != "table":
        facts = {
            "address": server.address,
            "data": str(data),
            "is_new": server.is_first_start,
            "context": context,
            "username": server.username,
            "is_password_known": server.password is not None,
            "url": server.url,
            "console": server.console_url,
        }
        writer = RecordWriter([Field(key) for key in facts], output)
        writer.put(facts)
        writer.close()
        return
    is_usual = context == _DEV_CONTEXT
    saved = f'context "{context}" saved' + (" and selected" if is_usual else "") if context else "no context saved"
    command = "courser" if is_usual or context is None else f"courser --context {context}"
    lines = (
        ("server", f"tcp {server.address}, local connections only"),
        ("login", f"{server.username}{_password_text(server)}"),
        *([("", f"if it is lost: Ctrl-C, courser user reset-root --data {data}")] if server.password is None else []),
        ("data", f"{data}{'' if server.is_first_start else ' (existing data)'}    {saved}"),
        ("next", f"""echo '{{"n":1}}' | {command} send demo/orders --create"""),
        ("", f"{command} tail demo/orders --from earliest --follow"),
        ("", f"{command} ls"),
        *(
            [("console", f"{server.console_url} (logs in once; {command} ui opens another)")]
            if server.console_url
            else []
        ),
        ("end", "Ctrl-C"),
    )
    for name, text in lines:
        write(f"{name:<8} {harmless(text)}\n")
    flush()
    if not is_usual:
        return
    for variable in (*URL_VARIABLES, CONTEXT_VARIABLE):
        if os.environ.get(variable):
            say(f"warning: {variable} overrides the selected context; unset it to use this server")


def _password_text(server: Listening) -> str:
    if server.password is None:
        return ", with the password of an earlier start"
    # The default password is not a secret. One from the environment is.
    is_default = server.password == DEVELOPMENT_PASSWORD
    return f" / {DEVELOPMENT_PASSWORD if is_default else 'as in COURSER_ROOT_PASSWORD'}"


def _run(
    wishes: Wishes,
    announce: Callable[[str], None],
    on_ready: Callable[[Listening], None] | None = None,
    busy_port_hint: str | None = None,
) -> int:
    """Run the server, and explain every reason why it cannot start."""
    try:
        is_clean = serve(wishes, announce=announce, stream=sys.stderr, on_ready=on_ready)
    except ConfigurationRefused as refusal:
        raise refused(refusal) from refusal
    except StartRefused as refusal:
        raise _cannot_start(f"{refusal.path}: {refusal.reason}", refusal.remedy) from refusal
    except AddressRefused as refusal:
        raise _cannot_start(refusal.reason, busy_port_hint or refusal.remedy) from refusal
    except DiskFull as failure:
        raise _cannot_start(str(failure), "free space on this disk: the start needs a few kilobytes") from failure
    except CourserError as error:
        raise _cannot_start(str(error), "check the log, and the kernel log for disk errors") from error
    except OSError as error:
        # An OSError must not be taken for an error of the output.
        raise Failure(f"the server failed: {harmless(str(error))}", "check the log; a restart may help") from error
    return ExitCode.OK if is_clean else ExitCode.FAILED


def _end_if_held_up(code: int) -> None:
    """The server has stopped. A thread may still wait for an archive that does not answer: the process does not."""
    deadline = time.monotonic() + _LEFT_PATIENCE
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                # The output may be closed already.
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                os._exit(code)


def _cannot_start(reason: str, remedy: str) -> Failure:
    return Failure(f"the server cannot start: {harmless(reason)}", harmless(remedy))


def _announcer(output: str) -> Callable[[str], None]:
    """Prints sentences, or records with one field for programs."""
    if output == "table":
        return _announce
    writer = RecordWriter(fields("message"), "jsonl" if output == "json" else output)

    def announce(text: str) -> None:
        writer.put({"message": text})
        sys.stdout.flush()

    return announce


def _announce(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
