"""The life of a pipeline, without Spark: what the supervisor survives."""

from pathlib import Path

from courser.errors import ConnectionFailed
from courser.jobs.folders import LocalFolder
from courser.pipelines.checkpoint import lock_of, open_checkpoint
from courser.pipelines.definition_file import parse_definition
from courser.pipelines.locking import this_process
from courser.pipelines.state_folder import StateFolder
from courser.pipelines.supervision import RunnerEnvironment, Supervisor
from tests.fakes.clocks import ManualClock

NOBODY = """
[pipeline]
name = "p"
restarts = 2
restart_delay = "0s"
[server]
url = "iggy://iggy:iggy@127.0.0.1:1"
[source]
stream = "s"
topic = "t"
[sink]
type = "console"
"""


def supervisor(folder: Path, home: Path) -> Supervisor:
    definition = parse_definition(NOBODY, folder / "p.toml")

    def no_spark() -> object:
        raise AssertionError("the server is asked first")

    process = RunnerEnvironment(no_spark, ManualClock(), {}, lambda *_: None, home / "java.txt")  # type: ignore[arg-type]
    root = LocalFolder(folder / "checkpoint")
    lock = lock_of(root, this_process("p"))
    return Supervisor(definition, open_checkpoint(root), lock, StateFolder(home, "p"), process, once=True)


def test_it_gives_up_after_its_restarts(tmp_path: Path) -> None:
    one = supervisor(tmp_path, tmp_path / "state")
    one.run()
    assert isinstance(one.failure, ConnectionFailed)
    assert (one.status.state, one.status.restarts) == ("failed", 2)
    assert "gave up after 3 failures" in (one.status.error or "")
    assert StateFolder(tmp_path / "state", "p").read() == one.status


def test_a_status_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    # Folders are in the way: as with a full disk, neither file can be written.
    for name in ("status.json", "log.txt"):
        (tmp_path / "state" / "p" / name).mkdir(parents=True)
    one = supervisor(tmp_path, tmp_path / "state")
    one.run()
    assert isinstance(one.failure, ConnectionFailed)
    assert (one.status.state, one.status.restarts) == ("failed", 2)
