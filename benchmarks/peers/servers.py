"""Servers for one case each: on a free loopback port, in an empty directory, stopped by their process id."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import cpu_seconds
from courser.bench.private_server import stop

_PATIENCE = 60.0
"""Maximum duration of a start in seconds."""
_STEP = 0.02
_LAUNCHER = """\
import ctypes, os, resource, signal, sys
# The kernel terminates this process when its parent ends for any reason.
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
try:
    # Iggy's servers lock the memory of their rings.
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except (OSError, ValueError):
    pass
os.execvp(sys.argv[1], sys.argv[1:])
"""

USERNAME = PASSWORD = "iggy"


class PeerFailed(Exception):
    """A server or a load generator did not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server, and all processes that it consists of."""

    port: int
    process_id: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """CPU time of all processes."""
        return cpu_seconds(family(self.process_id))


def family(process_id: int) -> list[int]:
    """A process and its descendants."""
    found = [process_id]
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += family(int(child))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def clean_environment(**added: str) -> dict[str, str]:
    """The environment without settings that are meant for other servers."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COURSER_", "IGGY_", "KAFKA_"))}
    return kept | added


@contextmanager
def serving(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    directory: Path,
    port: int,
    is_ready: Callable[[], bool] | None = None,
) -> Iterator[Running]:
    """Run a server until the end of the block. It ends with this process in any case."""
    log = directory / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LAUNCHER, *map(str, command)],
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, log, is_ready or (lambda: _accepts(port)))
        yield Running(port, process.pid)
    finally:
        stop(process)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait_until_ready(process: "subprocess.Popen[bytes]", log: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if is_ready():
            return
        time.sleep(_STEP)
    said = log.read_text(errors="replace").strip().splitlines()
    raise PeerFailed("the server did not start: " + (said[-1] if said else "it said nothing"))


# --- servers that speak Iggy's protocols --------------------------------------------------------------


@contextmanager
def courser(python: Path, directory: Path, process_count: int) -> Iterator[Running]:
    """Courser from the checkout that the interpreter belongs to, with default settings."""
    port, data = free_port(), directory / "data"
    settings = (
        f"tcp.address=127.0.0.1:{port}",
        "http.enabled=false",
        "websocket.enabled=false",
        f"system.path={data}",
        "system.logging.level=warn",
        f"server.processes={process_count}",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    command = [str(python), "-P", "-c", "from courser.cli.main import main; main()", "serve", *options]
    environment = clean_environment(COURSER_ROOT_USERNAME=USERNAME, COURSER_ROOT_PASSWORD=PASSWORD)
    # It accepts connections before every process has opened its topics.
    is_ready = (data / "runtime" / "current_config.toml").exists
    with serving(command, environment, directory, port, is_ready) as server:
        yield server


@contextmanager
def iggy(program: Path, directory: Path) -> Iterator[Running]:
    """A server of Iggy with default settings."""
    port = free_port()
    environment = clean_environment(
        IGGY_ROOT_USERNAME=USERNAME,
        IGGY_ROOT_PASSWORD=PASSWORD,
        IGGY_SYSTEM_PATH=str(directory / "data"),
        IGGY_SYSTEM_LOGGING_LEVEL="warn",
        IGGY_TCP_ENABLED="true",
        IGGY_TCP_ADDRESS=f"127.0.0.1:{port}",
        IGGY_HTTP_ENABLED="false",
        IGGY_QUIC_ENABLED="false",
        IGGY_WEBSOCKET_ENABLED="false",
    )
    with serving([program], environment, directory, port) as server:
        yield server
