"""Pipelines run by the command itself, in processes of their own that can be killed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.pipelines.scenes import PATIENCE, Scene
from tests.servers import ROOT
from tests.sessions import kill_session
from tests.spark_fixtures import TEST_SETTINGS

COURSER = [str(Path(sys.executable).parent / "courser")]
JAVA = "[spark]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in TEST_SETTINGS.items())


def dying(function: str, call: int) -> list[str]:
    """The command in a process that is killed when a function is called for that time."""
    return [sys.executable, "-m", "tests.pipelines.dying", function, str(call)]


def start(scene: Scene, program: list[str], *arguments: str) -> "subprocess.Popen[str]":
    """A command that runs pipelines, in a session of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COURSER_", "IGGY_"))}
    environment |= {
        "COURSER_STATE_HOME": str(scene.folder / "state"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    with (scene.folder / "out.txt").open("a") as output:
        return subprocess.Popen(
            [*program, "pipeline", "run", *arguments, "--master", "local[2]"],
            cwd=scene.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def end_of(scene: Scene, runner: "subprocess.Popen[str]") -> int:
    """Wait for the end of a run, and of everything that it has started."""
    try:
        return runner.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the run does not end:\n{output_of(scene)}") from None
    finally:
        kill_session(runner)


def output_of(scene: Scene) -> str:
    """What all runs have said."""
    return (scene.folder / "out.txt").read_text()


def batches(scene: Scene, name: str, folder: str) -> set[int]:
    """The batches that Spark has planned (``offsets``) or finished (``commits``)."""
    place = scene.folder / "checkpoints" / name / "generation-1" / "spark" / folder
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    return {int(name) for name in names if name.isdecimal()}
