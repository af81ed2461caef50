"""A server for one run, on a free loopback port and in its own directory. It ends with the process that started it."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from courser.client.targets import Target
from courser.errors import ClientFailure

_PATIENCE = 60.0
"""Maximum duration of a start or stop in seconds."""
_STEP = 0.02
_PROGRAM = """\
import ctypes, signal, sys
# The kernel terminates this process when its parent ends for any reason.
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from courser.cli.main import main
main()
"""


class ServerFailed(ClientFailure):
    """The server did not start, or did not stop."""


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """A running private server."""

    target: Target
    process_id: int
    data: Path
    """Its data directory."""


@contextmanager
def private_server(
    directory: Path | None = None,
    settings: Sequence[str] = (),
    *,
    keep: Path | None = None,
    password: str | None = None,
) -> Iterator[PrivateServer]:
    """Run a server with default settings until the end of the block.

    Args:
        directory: Where to create its temporary data directory; None for the system's temporary directory.
        settings: ``KEY=VALUE``, as for ``courser serve --set``.
        keep: A directory for its data that is kept.
        password: The root user's password; None for a random one.

    Raises:
        ServerFailed: the server did not start. The message contains its error.
    """
    with _place(directory, keep) as place:
        data, log = place / "data", place / "output"
        password = password or secrets.token_urlsafe(16)
        with log.open("wb") as output:
            process = subprocess.Popen(
                _command(data, settings),
                env=_environment(password),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            host, port = _wait_until_ready(process, data, log)
            target = Target(host=host, port=port, username="iggy", password=password)
            yield PrivateServer(target, process.pid, data)
        finally:
            stop(process)


@contextmanager
def _place(directory: Path | None, keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="courser-bench-", dir=directory, ignore_cleanup_errors=True) as place:
        yield Path(place)


def _command(data: Path, settings: Sequence[str]) -> list[str]:
    usual = (
        "tcp.address=127.0.0.1:0",
        "http.enabled=false",
        "websocket.enabled=false",
        f"system.path={data}",
        "system.logging.level=warn",
    )
    given = {setting.partition("=")[0] for setting in settings}
    chosen = [*(setting for setting in usual if setting.partition("=")[0] not in given), *settings]
    options = [word for setting in chosen for word in ("--set", setting)]
    return [sys.executable, "-P", "-c", _PROGRAM, "serve", *options]


def _environment(password: str) -> dict[str, str]:
    # Do not inherit settings that are meant for the user's other servers.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("COURSER_", "IGGY_"))}
    return inherited | {"COURSER_ROOT_USERNAME": "iggy", "COURSER_ROOT_PASSWORD": password}


def _wait_until_ready(process: "subprocess.Popen[bytes]", data: Path, log: Path) -> tuple[str, int]:
    path = data / "runtime" / "current_config.toml"
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            host, _, port = tomllib.loads(path.read_text())["tcp"]["address"].rpartition(":")
        except (FileNotFoundError, tomllib.TOMLDecodeError, KeyError):
            pass
        else:
            return host, int(port)
        if process.poll() is not None:
            break
        time.sleep(_STEP)
    said = log.read_text(errors="replace").strip().splitlines()
    raise ServerFailed("the private server did not start" + (f": {_first_error(said)}" if said else ""))


def _first_error(lines: list[str]) -> str:
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a server to end, wait for it, and kill it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
