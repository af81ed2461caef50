"""Pipelines run by the command through a Spark server."""

import os
import subprocess
import sys
from pathlib import Path

from tests.pipelines.runs import output_of
from tests.pipelines.scenes import Scene

__all__ = ["output_of", "start"]


def start(
    scene: Scene, url: str, *arguments: str, verb: str = "run", program: Path = Path(sys.executable).parent / "courser"
) -> "subprocess.Popen[str]":
    """A command for pipelines that has no Java: whoever looks for one fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COURSER_", "IGGY_"))}
    environment |= {"COURSER_STATE_HOME": str(scene.home), "JAVA_HOME": "/nowhere"}
    with (scene.folder / "out.txt").open("w") as output:
        return subprocess.Popen(
            [program, "pipeline", verb, *arguments, "--remote", url],
            cwd=scene.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
