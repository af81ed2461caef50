"""A real Prometheus, from Debian's package: on the path, or unpacked in ``build``, which needs no root.

Two workers of pytest may want it at once: a file lock makes one of them wait.
"""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sdk.environments import locked
from tests.servers import PATIENCE, ROOT

_UNPACKED = ROOT / "build" / "prometheus"
_READY = "Server is ready to receive web requests"
_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')


def find_program(name: str) -> str | None:
    """``prometheus`` or ``promtool``. None if it is not installed and cannot be had from Debian."""
    if (found := shutil.which(name)) is not None:
        return found
    program = _UNPACKED / "usr" / "bin" / name
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    with locked(_UNPACKED / "lock"):
        if not program.exists() and not _unpack():
            return None
    return str(program)


def _unpack() -> bool:
    """Fetch the package and unpack it. Returns False if this is no Debian, or has no network."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    fetched = subprocess.run(
        ["apt-get", "download", "prometheus"], cwd=_UNPACKED, capture_output=True, check=False, timeout=PATIENCE
    )
    if fetched.returncode:
        return False
    (package,) = _UNPACKED.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "-x", package, _UNPACKED], check=True, timeout=PATIENCE)
    package.unlink()
    return True


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    address: str

    def ask(self, path: str, **query: str) -> Any:
        """The data of a reply of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            document = json.load(reply)
        assert document["status"] == "success", document
        return document["data"]

    def firing(self) -> dict[str, dict[str, str]]:
        """The labels of the alerts that fire, by name."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    def values(self, query: str) -> list[float]:
        """What an expression gives."""
        return [float(row["value"][1]) for row in self.ask("query", query=query)["result"]]


@contextmanager
def running(program: str, directory: Path, configuration: dict[str, object]) -> Iterator[Prometheus]:
    """Start it on a free port of loopback, with everything in a directory, and stop it by its process id."""
    # JSON is YAML.
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'series'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    process = subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        lines = ""
        for line in process.stderr:
            lines += line
            if _READY in line:
                break
        found = _LISTENING.search(lines)
        assert found is not None, f"Prometheus does not listen: {lines}"
        # What follows fits into the pipe.
        yield Prometheus(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
