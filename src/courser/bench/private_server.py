"""A server for one run: on loopback, on a free port, in a directory of its own. It goes when its starter goes."""

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
"""Seconds that a start or a stop may take."""
_STEP = 0.02
_PROGRAM = """\
import ctypes, signal, sys
# The kernel ends this process when the one that started it is gone, however that went.
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from courser.cli.main import main
main()
"""


class ServerFailed(ClientFailure):
    """The server did not start, or did not stop."""


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """One that runs."""

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
    """Run a server on built-in defaults, as long as the block runs.

    Args:
        directory: Where its data directory is made, and removed afterwards; None: where temporary files are.
        settings: ``KEY=VALUE``, as ``courser serve --set`` takes them.
        keep: Where its data goes instead, and stays.
        password: Of the root user; None: a random one.

    Raises:
        ServerFailed: with what it said last.
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
            _stop(process)


@contextmanager
def _place(directory: Path | None, keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="courser-bench-", dir=directory, ignore_cleanup_errors=True) as place:
        yield Path(place)


def _command(data: Path, settings: Sequence[str]) -> list[str]:
    chosen = (
        "tcp.address=127.0.0.1:0",
        "websocket.enabled=false",
        f"system.path={data}",
        "system.logging.level=warn",
        *settings,
    )
    options = [word for setting in chosen for word in ("--set", setting)]
    return [sys.executable, "-P", "-c", _PROGRAM, "serve", *options]


def _environment(password: str) -> dict[str, str]:
    # Settings of the servers that the user runs otherwise are none of this one's.
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


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
