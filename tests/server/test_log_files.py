"""Log files that are closed when full, and deleted when old or too many. Time is turned by hand."""

import stat
from pathlib import Path

import pytest

from courser.server.log_writer import NEWEST, LogFile, newest_bytes
from tests.fakes.clocks import ManualClock

DAY = 86_400 * 1_000_000
LINE = "x" * 99 + "\n"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make(
    directory: Path, clock: ManualClock, *, file_size_max: int = 250, total_size_max: int = 0, retention: int = 0
) -> LogFile:
    return LogFile(directory, clock, file_size_max=file_size_max, total_size_max=total_size_max, retention=retention)


def sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir())}


def test_the_directory_is_made_and_nobody_else_may_read_it(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path / "a" / "logs", clock)
    log.write(LINE)
    assert stat.S_IMODE((tmp_path / "a" / "logs").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "logs" / NEWEST).stat().st_mode) == 0o600


def test_a_full_file_is_closed_and_named_after_the_time(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock)
    for _ in range(5):
        log.write(LINE)
        clock.advance(1_500_000)
    assert sizes(tmp_path) == {
        "courser-20231114T221323.000000Z.log": 200,
        "courser-20231114T221326.000000Z.log": 200,
        NEWEST: 100,
    }


def test_two_files_that_are_closed_at_the_same_time(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock, file_size_max=100)
    for number in range(4):
        log.write(f"{number}\n" * 50)
    names = ["courser-20231114T221320.000000Z-2.log", "courser-20231114T221320.000000Z-3.log"]
    assert sorted(sizes(tmp_path)) == [*names, "courser-20231114T221320.000000Z.log", NEWEST]


def test_lines_larger_than_a_file_get_one_of_their_own(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock)
    log.write(LINE * 10)
    clock.advance(1)
    log.write(LINE)
    assert sorted(sizes(tmp_path).values()) == [100, 1000]


def test_what_a_former_process_wrote_counts(tmp_path: Path, clock: ManualClock) -> None:
    make(tmp_path, clock).write(LINE + LINE)
    make(tmp_path, clock).write(LINE)
    assert sorted(sizes(tmp_path).values()) == [100, 200]


def test_without_a_limit_there_is_one_file(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock, file_size_max=0)
    for _ in range(100):
        log.write(LINE)
    assert sizes(tmp_path) == {NEWEST: 10_000}


def test_old_files_are_deleted_by_age(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock, file_size_max=100, retention=7 * DAY)
    for _ in range(3):
        log.write(LINE)
        clock.advance(DAY)
    assert len(sizes(tmp_path)) == 3
    clock.advance(5 * DAY)
    log.check()
    assert len(sizes(tmp_path)) == 3
    clock.advance(1)
    log.check()
    assert len(sizes(tmp_path)) == 2
    clock.advance(365 * DAY)
    log.check()
    assert list(sizes(tmp_path)) == [NEWEST]


def test_the_oldest_are_deleted_if_all_are_too_large(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock, file_size_max=100, total_size_max=350)
    for number in range(10):
        log.write(f"{number}" * 99 + "\n")
        clock.advance(1_000_000)
    log.check()
    kept = [path.read_text()[0] for path in sorted(tmp_path.iterdir())]
    assert kept == ["7", "8", "9"]


def test_files_of_others_stay(tmp_path: Path, clock: ManualClock) -> None:
    others = ["courser-notes.log", "courser-20231399T000000.000000Z.log", "other.log", "courser.log.txt"]
    for name in others:
        (tmp_path / name).write_text("x")
    log = make(tmp_path, clock, file_size_max=100, total_size_max=1, retention=1)
    log.write(LINE)
    clock.advance(DAY)
    log.write(LINE)
    log.check()
    assert set(sizes(tmp_path)) == {*others, NEWEST}


def test_a_link_is_not_followed(tmp_path: Path, clock: ManualClock) -> None:
    target = tmp_path / "target"
    (tmp_path / NEWEST).symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        make(tmp_path, clock).write(LINE)
    assert not target.exists()


def test_after_a_close_writing_goes_on(tmp_path: Path, clock: ManualClock) -> None:
    log = make(tmp_path, clock)
    log.write(LINE)
    log.close()
    log.close()
    log.write(LINE)
    assert sizes(tmp_path) == {NEWEST: 200}


def test_the_end_of_the_newest_file(tmp_path: Path, clock: ManualClock) -> None:
    assert newest_bytes(tmp_path) == b""
    make(tmp_path, clock, file_size_max=0).write("one\ntwo\nthree\n")
    assert newest_bytes(tmp_path) == b"one\ntwo\nthree\n"
    assert newest_bytes(tmp_path, 8) == b"three\n"
