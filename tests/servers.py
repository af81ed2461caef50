"""A Courser server as a child process: on loopback, on a free port, in a directory of its own.

``RunningServer`` starts ``courser serve``, waits until it takes connections, and ends it by its own process id:
politely, or with SIGKILL. A second ``start`` uses the same port and the same data, as a restarted server would.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 180.0
"""Seconds that a start or a stop may take before the test gives up: less than the timeout of a test. On a machine that
is short of memory, two processes were seen to take more than a minute to start."""

PROCESSES_VARIABLE = "COURSER_TEST_PROCESSES"
"""The environment variable that says how many processes a server has, unless a test says so itself."""
_WORKER_COUNT_MAX = 16

ROOT_NAME = "iggy"
ROOT_PASSWORD = "iggy"


class RunningServer:
    """One ``courser serve`` over one data directory. As a context manager it runs from begin to end of the block."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = ("--with-default-root-credentials",),
        prefix: Sequence[str] = (),
        program: Path | None = None,
    ) -> None:
        """Nothing runs before ``start``.

        Args:
            directory: Where the data and the output go; made if it is missing.
            settings: Configuration by its dotted keys, such as ``system.partition.enforce_fsync``.
            arguments: What follows ``courser serve``.
            prefix: A command that runs the server, such as ``prlimit``.
            program: The ``courser`` to run; None: the one of the environment that the tests run in.
        """
        self.directory = directory
        self.data = directory / "local_data"
        self.output_file = directory / "output.txt"
        self.host, self.port = "127.0.0.1", 0
        self.settings: dict[str, object] = {
            "system.path": self.data,
            "http.enabled": "false",
            "quic.enabled": "false",
            "websocket.enabled": "false",
            "server.processes": os.environ.get(PROCESSES_VARIABLE, "1"),
        } | dict(settings or {})
        """Those of the next start."""
        program = program or Path(sys.executable).parent / "courser"
        self._command = [*prefix, str(program), "serve", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    # --- life ---

    def start(self) -> Self:
        """Start it and wait until it takes connections. The port is chosen once and kept from then on."""
        assert self._process is None or self._process.poll() is not None, "the server is running already"
        self.port = self.port or free_port()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._runtime_file.unlink(missing_ok=True)
        with self.output_file.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            # Nobody else would end it.
            self._process.kill()
            self._process.wait(PATIENCE)
            raise
        return self

    def stop(self) -> int:
        """Ask it to end and wait for it; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End it without notice, as the kernel does when memory runs out."""
        assert self.process.poll() is None, f"the server ended by itself:\n{self.output}"
        self.process.kill()
        self.process.wait(PATIENCE)

    def freeze(self) -> None:
        """Stop it in its tracks, alive but silent, until ``thaw``."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    # --- facts ---

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The child that runs, or ran last."""
        assert self._process is not None, "the server was never started"
        return self._process

    @property
    def address(self) -> str:
        """``host:port`` of the TCP listener."""
        return f"{self.host}:{self.port}"

    def address_of(self, transport: str) -> str:
        """``host:port`` of another listener."""
        found: str = tomllib.loads(self._runtime_file.read_text())[transport]["address"]
        return found

    @property
    def output(self) -> str:
        """All that it has printed since the first start."""
        return self.output_file.read_text(errors="replace")

    @property
    def _runtime_file(self) -> Path:
        return self.data / "runtime" / "current_config.toml"

    # --- how ---

    def _environment(self) -> dict[str, str]:
        # Variables of whoever runs the tests must not reach the server, and its own seed is not a setting.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("IGGY_", "COURSER_"))}
        settings = self.settings | {"tcp.address": self.address}
        return inherited | {f"COURSER_{key.upper().replace('.', '_')}": str(value) for key, value in settings.items()}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            assert time.monotonic() < deadline, f"the server does not get ready:\n{self.output}"
            try:
                code = self.process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the server ended with {code}:\n{self.output}")

    def _is_ready(self) -> bool:
        try:
            configuration = tomllib.loads(self._runtime_file.read_text())
            self.host, _, port = configuration["tcp"]["address"].rpartition(":")
            self.port = int(port)
            socket.create_connection((self.host, self.port), timeout=PATIENCE).close()
        except (FileNotFoundError, tomllib.TOMLDecodeError, KeyError, ConnectionRefusedError):
            return False
        return True


def free_port() -> int:
    """A port of loopback that nobody uses, and that no connection is given by accident.

    The kernel takes the client's end of a connection from a range of its own. Clients that come back to a server which
    is down would now and then be given the server's port: they would talk to themselves, and keep it from starting.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, first_given) if first_given > 20_000 else range(61_000, 65_536)
    # Each worker of a run has ports of its own: the port of a server that is down for a while is not taken by another.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = ports[worker % _WORKER_COUNT_MAX :: _WORKER_COUNT_MAX]
    for port in random.SystemRandom().sample(ports, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
