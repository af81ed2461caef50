"""Commands that only look leave nothing behind: neither at home, nor in the state, nor where they are called."""

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from courser.errors import AlreadyExists
from courser.pipelines.state_folder import StateFolder, Status
from tests.pipelines.runs import COURSER
from tests.pipelines.scenes import STREAM, Scene
from tests.servers import RunningServer
from tests.spark_fixtures import TEST_SETTINGS

PIPELINE = (
    f'[source]\nstream = "{STREAM}"\ntopic = "{{topic}}"\n[transform]\nsql = "SELECT _topic_offset FROM source"\n'
)


@pytest.fixture
def place(tmp_path: Path, server: RunningServer) -> Path:
    """A home, a state and a working directory. Everything else is as in the user's environment."""
    scene = Scene(tmp_path / "work", server)
    for name in ("home", "state", "work"):
        (tmp_path / name).mkdir()
    with suppress(AlreadyExists):
        # Other tests share the server.
        scene.make_topic("seen")
    path = scene.define("seen", f'{PIPELINE.format(topic="seen")}[sink]\ntype = "delta"\npath = "lake"\n')
    settings = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in TEST_SETTINGS.items())
    path.write_text(f"{path.read_text()}[spark]\n{settings}")
    return tmp_path


def ran(place: Path) -> None:
    status = Status(
        name="seen",
        file=str(place / "work" / "seen.toml"),
        checkpoint="c",
        state="finished",
        mode="once",
        source="shop/seen",
        sink="delta lake",
        pid=1,
        process_started=1,
        host="here",
        started_at=1,
        updated_at=2,
    )
    StateFolder(place / "state" / "pipelines", "seen").write(status)


def tree(place: Path) -> dict[str, object]:
    """Every file with its contents, and every folder with its time."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else path.stat().st_mtime_ns
        for path in place.rglob("*")
    }


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["pipeline", "check", "seen.toml"], marks=pytest.mark.slow),
        ["pipeline", "check", "seen.toml", "--without-spark"],
        ["pipeline", "list"],
        ["pipeline", "status", "seen"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_what_only_looks_writes_nothing(arguments: list[str], place: Path) -> None:
    ran(place)
    before = tree(place)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("COURSER_", "IGGY_", "XDG_"))
    }
    environment |= {"HOME": str(place / "home"), "COURSER_STATE_HOME": str(place / "state")}
    done = subprocess.run(
        [*COURSER, *arguments], cwd=place / "work", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or arguments == ["doctor"], done.stderr
    assert tree(place) == before
