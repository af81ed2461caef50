"""Short chaos runs with the seed of the day; ``make chaos`` is the long one."""

from pathlib import Path

import pytest

from tests.chaos.director import Director, Options
from tests.chaos.plan import Attack, Trouble
from tests.chaos.sandbox import Sandbox

pytestmark = pytest.mark.timeout(300)

DISK_TROUBLES = (Trouble.FULL_DISK, Trouble.DESCRIPTORS, Trouble.DIRECTORY_ERRORS, Trouble.WRITE_ERRORS)
OTHER_TROUBLES = (
    Trouble.SYNC_ERRORS,
    Trouble.READ_ERRORS,
    Trouble.CLOCK_AHEAD,
    Trouble.CLOCK_BEHIND,
    Trouble.STRANGERS,
)
ATTACKS = (Attack.GARBAGE, Attack.HALF_FRAMES)


def options(path: Path, seed: int, troubles: tuple[Trouble, ...] = (), episode_count: int = 2) -> Options:
    """Few processes, and nothing that takes root or another machine's peace."""
    return Options(
        seed=seed,
        seconds=60.0,
        directory=path,
        with_disk=False,
        releases=("0.8.0",) if troubles else (),
        troubles=troubles,
        attacks=ATTACKS if Trouble.STRANGERS in troubles else (),
        with_measurements=False,
        episode_count=episode_count,
    )


@pytest.mark.parametrize("troubles", [DISK_TROUBLES, OTHER_TROUBLES], ids=["disk", "other"])
def test_every_promise_is_kept(tmp_path: Path, seed: int, troubles: tuple[Trouble, ...]) -> None:
    report = Director(options(tmp_path, seed, troubles), print).run()
    assert not report.violations, "\n".join([*map(str, report.violations[:10]), *report.story])
    assert report.message_count
    assert report.answer_counts["send done"]


def test_a_lost_file_is_found_out(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole run, with a thief: somebody takes the messages away while the server is down."""
    start = Sandbox.start

    def steal_and_start(self: Sandbox) -> object:
        for log in self.server.data.glob("streams/*/topics/*/partitions/*/*.log"):
            log.unlink()
        return start(self)

    monkeypatch.setattr(Sandbox, "start", steal_and_start)
    number, place, report = 0, tmp_path, Director(options(tmp_path, seed, episode_count=1), print).run()
    while not report.violations and number < 5:
        # On a busy machine, an episode may end before anything is acknowledged: then there was nothing to steal.
        number, place = number + 1, tmp_path / str(number)
        place.mkdir()
        report = Director(options(place, seed, episode_count=1), print).run()
    assert "lost" in {violation.kind for violation in report.violations}
    assert report.story
    assert (place / "evidence" / "data").is_dir()
    assert (place / "evidence" / "output.txt").is_file()
