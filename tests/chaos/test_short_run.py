"""Short chaos runs with the seed of the day; ``make chaos`` is the long one."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.director import Director, Options, Report
from tests.chaos.plan import Attack, Trouble
from tests.chaos.sandbox import Sandbox
from tests.servers import RunningServer

pytestmark = pytest.mark.timeout(600)

DISK_TROUBLES = (Trouble.FULL_DISK, Trouble.DESCRIPTORS, Trouble.DIRECTORY_ERRORS, Trouble.WRITE_ERRORS)
OTHER_TROUBLES = (
    Trouble.SYNC_ERRORS,
    Trouble.READ_ERRORS,
    Trouble.CLOCK_AHEAD,
    Trouble.CLOCK_BEHIND,
    Trouble.STRANGERS,
)
ATTACKS = (Attack.GARBAGE, Attack.HALF_FRAMES)
LOGS = "streams/*/topics/*/partitions/*/*.log"


def options(path: Path, seed: int, troubles: tuple[Trouble, ...] = (), episode_count: int = 1) -> Options:
    """Few processes, and nothing that takes root or another machine's peace."""
    return Options(
        seed=seed,
        seconds=60.0,
        directory=path,
        with_disk=False,
        releases=("0.8.0",) if episode_count > 1 else (),
        troubles=troubles,
        attacks=ATTACKS if Trouble.STRANGERS in troubles else (),
        with_measurements=False,
        episode_count=episode_count,
    )


def check(report: Report) -> None:
    assert not report.violations, "\n".join([*map(str, report.violations[:10]), *report.story])
    assert report.message_count
    assert report.restore_count


def test_every_promise_is_kept(tmp_path: Path, seed: int) -> None:
    check(Director(options(tmp_path, seed, DISK_TROUBLES + OTHER_TROUBLES), print).run())


@pytest.mark.slow
@pytest.mark.parametrize("troubles", [DISK_TROUBLES, OTHER_TROUBLES], ids=["disk", "other"])
def test_every_promise_is_kept_for_longer(tmp_path: Path, seed: int, troubles: tuple[Trouble, ...]) -> None:
    check(Director(options(tmp_path, seed, troubles, episode_count=3), print).run())


def test_a_lost_file_is_found_out(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole run, with a thief: somebody takes the messages away while the server is down."""
    start = Sandbox.start

    def steal_and_start(self: Sandbox) -> object:
        steal_from(self.server)
        return start(self)

    monkeypatch.setattr(Sandbox, "start", steal_and_start)
    report = Director(replace(options(tmp_path, seed), with_archive=False), print).run()
    assert "lost" in {violation.kind for violation in report.violations}
    assert report.story
    assert (tmp_path / "evidence" / "data").is_dir()
    assert (tmp_path / "evidence" / "output.txt").is_file()


def test_a_restore_that_leaves_something_out_is_found_out(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Sandbox.restore

    def restore_and_steal(self: Sandbox) -> RunningServer:
        server = restore(self)
        steal_from(server)
        return server

    monkeypatch.setattr(Sandbox, "restore", restore_and_steal)
    report = Director(options(tmp_path, seed), print).run()
    # What is missing may be sends, or parts of publishes.
    assert {"lost", "torn"} & {violation.kind for violation in report.violations}
    assert (tmp_path / "evidence" / "archive").is_dir()
    assert (tmp_path / "evidence" / "restored").is_dir()


def steal_from(server: RunningServer) -> None:
    for log in server.data.glob(LOGS):
        log.unlink()
