"""Iggy's own load generator, ``iggy-bench``, against any server that speaks its protocol."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.loads import Load, Measure
from benchmarks.peers.servers import PASSWORD, USERNAME, PeerFailed, Running, clean_environment

_PATIENCE = 300.0
"""Maximum duration of one run in seconds."""
_RESULT = re.compile(r"Results: Total throughput: ([\d.]+) MB/s, ([\d.]+) messages/s")


@dataclass(frozen=True, slots=True)
class Speed:
    """What the generator reports: the sum over its actors."""

    megabytes: float
    messages: float


def parse(output: str) -> Speed:
    """Read the summary.

    Raises:
        PeerFailed: there is none.
    """
    found = _RESULT.findall(output)
    if len(found) != 1:
        lines = output.strip().splitlines()
        raise PeerFailed("the load generator reported no result" + (f": {lines[-1].strip()}" if lines else ""))
    return Speed(*map(float, found[0]))


@dataclass(frozen=True, slots=True)
class IggyGenerator:
    """The program of one release."""

    program: Path

    def measure(self, load: Load, server: Running) -> dict[Measure, float]:
        """Send, and read again if the load says so, on a server without data."""
        found: dict[Measure, float] = {}
        setup = 0.0
        if load.cpu is not None:
            # The streams exist then, and only the work for connections is left, which is measured on its own.
            self._run(load, server, "pinned-producer", request_count=1)
            before = server.cpu_seconds()
            self._run(load, server, "pinned-producer", request_count=1, options=["--reuse-streams"])
            setup = server.cpu_seconds() - before
        before = server.cpu_seconds()
        options = ["--reuse-streams"] if load.cpu is not None else []
        sent = self._run(load, server, "pinned-producer", request_count=load.request_count, options=options)
        cpu = server.cpu_seconds() - before - setup
        found[load.sent] = _figure(load, sent)
        if load.cpu is not None:
            found[load.cpu] = cpu * 1e6 / (load.request_count * load.connection_count)
        if load.polled is not None:
            polled = self._run(load, server, "pinned-consumer", request_count=load.request_count)
            found[load.polled] = _figure(load, polled)
        return found

    def _run(self, load: Load, server: Running, kind: str, *, request_count: int, options: Sequence[str] = ()) -> Speed:
        low, high = load.message_sizes
        command = [
            str(self.program),
            *("--message-size", str(low) if low == high else f"{low}..{high}"),
            *("--messages-per-batch", str(load.message_count)),
            *("--message-batches", str(request_count)),
            *("--username", USERNAME),
            *("--password", PASSWORD),
            *options,
            kind,
            *("-c" if kind == "pinned-consumer" else "-p", str(load.connection_count)),
            *("tcp", "--server-address", server.address),
        ]
        try:
            run = subprocess.run(
                command,
                env=clean_environment(NO_COLOR="1"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as timeout:
            raise PeerFailed(f"the load generator did not end within {timeout.timeout:.0f} s") from None
        if run.returncode != 0:
            lines = run.stdout.strip().splitlines()
            raise PeerFailed(f"the load generator failed with code {run.returncode}: {lines[-1] if lines else ''}")
        return parse(run.stdout)


def _figure(load: Load, speed: Speed) -> float:
    return speed.messages if load.is_single else speed.megabytes
