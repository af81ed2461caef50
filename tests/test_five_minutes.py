"""The five-minute script of the README, as it stands there, in a clean environment made from the wheel."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.stage import steady
from tests.servers import free_port
from tests.wheels import Environment, clean_variables

_SCRIPT_TIMEOUT = 120


@pytest.mark.timeout(600)
def test_the_script_of_the_readme_runs_from_the_wheel(installed: Environment, tmp_path: Path) -> None:
    binaries = installed.directory / "bin"
    directory = tmp_path / "empty"
    directory.mkdir()
    (script,) = (block.text for block in blocks_of("README.md") if "kill -9" in block.text and block.kind == "sh")
    port = free_port()
    # The port is the only thing that is changed: somebody may be using 8090.
    script, count = re.subn(r"^courser dev &$", f"courser dev --port {port} &", script, flags=re.MULTILINE)
    assert count == 2
    environment = clean_variables() | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "configuration"),
    }
    # Until the first server has saved its context, the script must not find another one at 8090.
    context = [str(binaries / "courser"), "context", "create", "dev", f"iggy://iggy:iggy@127.0.0.1:{port}", "--use"]
    subprocess.run(context, env=environment, check=True, capture_output=True)
    with shell(script, directory, environment) as child:
        out, err = child.communicate(timeout=_SCRIPT_TIMEOUT)
    assert child.returncode == 0, out + err
    assert shown_by(out) == [
        '0  <time>  {"n":1}',
        "STREAM  TOPIC   PARTS  MESSAGES   SIZE  GROUPS  MAX LAG",
        "demo    orders      1         1  311 B       0        -",
        "0 {'n': 1}",
        "1 {'n': 2}",
        '0  <time>  {"n":1}',
        '1  <time>  {"n":2}',
        "STREAM  TOPIC   PARTS  MESSAGES   SIZE  GROUPS  MAX LAG",
        "demo    orders      1         2  622 B       1        0",
    ]
    assert "sent 1 message to demo/orders, partition 0, offset 0" in err


@contextmanager
def shell(script: str, directory: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run it with ``sh -eu``; whatever happens, nothing that it has started is left behind."""
    child = subprocess.Popen(
        ["/bin/sh", "-eu", "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        # The group of this one shell: it is gone already, unless something went wrong.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def shown_by(out: str) -> list[str]:
    """What the commands printed, without what the servers say of themselves."""
    greeting = ("server ", "login ", "data ", "next ", "console ", "end ", "  ")
    return [line for line in steady(out) if not line.startswith(greeting)]
