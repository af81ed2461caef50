"""Lines on their way from whoever logs to stream and file: in order, without holding anybody up."""

import io
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from courser.server.configuration.log_levels import parse_log_levels
from courser.server.configuration.settings import LoggingSettings
from courser.server.log_format import TextFormatter
from courser.server.log_writer import NEWEST, LogFile, LogWriter
from courser.server.logs import Logs
from tests.fakes.clocks import ManualClock

USUAL = LoggingSettings(
    directory=None,
    levels=parse_log_levels("info,courser.loud=debug,courser.quiet=off"),
    is_json=False,
    file_size_max=0,
    total_size_max=0,
    retention=0,
    check_interval=1,
    sysinfo_interval=0,
)


class GatedStream(io.StringIO):
    """A terminal that takes nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_waited_for = threading.Event()

    def write(self, text: str) -> int:
        self.is_waited_for.set()
        assert self.gate.wait(60)
        return super().write(text)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def writers() -> Iterator[list[LogWriter]]:
    made: list[LogWriter] = []
    yield made
    for writer in made:
        writer.stop()


def make_writer(stream: io.StringIO, writers: list[LogWriter], *, awaits_file: bool = False) -> LogWriter:
    writer = LogWriter(stream, awaits_file=awaits_file)
    writer.setFormatter(TextFormatter())
    writers.append(writer)
    return writer


def say(writer: LogWriter, text: str) -> None:
    writer.handle(logging.LogRecord("test", logging.INFO, "", 0, text, None, None))


def log_file(directory: Path, clock: ManualClock) -> LogFile:
    return LogFile(directory, clock, file_size_max=0, total_size_max=0, retention=0)


def messages(text: str) -> list[str]:
    return [line.partition(": ")[2] for line in text.splitlines()]


def test_levels_by_module_and_everything_undone_at_the_end(clock: ManualClock) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before = (root.level, list(root.handlers), logging.getLogger("courser.loud").level)
    logs = Logs(USUAL, stream, clock)
    logging.getLogger("courser.other").debug("no")
    logging.getLogger("courser.other").info("yes")
    logging.getLogger("courser.loud.child").debug("loud")
    logging.getLogger("courser.quiet.child").critical("quiet")
    logs.stop()
    assert messages(stream.getvalue()) == ["yes", "loud"]
    assert (root.level, list(root.handlers), logging.getLogger("courser.loud").level) == before


def test_json_if_wanted(clock: ManualClock) -> None:
    stream = io.StringIO()
    logs = Logs(replace(USUAL, is_json=True), stream, clock)
    logging.getLogger("courser.other").info("yes")
    logs.stop()
    assert stream.getvalue().startswith('{"time": ')


def test_the_file_has_what_was_logged_before_it_was_known(tmp_path: Path, clock: ManualClock) -> None:
    stream = io.StringIO()
    logs = Logs(replace(USUAL, directory=tmp_path / "logs"), stream, clock)
    log = logging.getLogger("courser.other")
    log.info("one")
    assert not (tmp_path / "logs").exists()
    logs.open_file()
    log.info("two")
    logs.check()
    logs.stop()
    assert messages((tmp_path / "logs" / NEWEST).read_text()) == messages(stream.getvalue()) == ["one", "two"]
    assert messages(logs.newest().decode()) == ["one", "two"]


def test_a_server_without_log_files_makes_none(tmp_path: Path, clock: ManualClock) -> None:
    logs = Logs(USUAL, io.StringIO(), clock)
    logs.open_file()
    logs.stop()
    assert b"does not write log files" in logs.newest()


def test_a_slow_terminal_holds_nobody_up_and_what_is_lost_is_counted(writers: list[LogWriter]) -> None:
    stream = GatedStream()
    writer = make_writer(stream, writers)
    say(writer, "first")
    assert stream.is_waited_for.wait(60)
    for number in range(20_000):
        say(writer, f"line {number}")
    stream.gate.set()
    writer.stop()
    lines = messages(stream.getvalue())
    assert lines[:2] == ["first", "line 0"]
    (complaint,) = [line for line in lines if "dropped" in line]
    assert complaint.startswith("dropped 10000 log lines")
    assert len(lines) == 10_002


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    tmp_path: Path, clock: ManualClock, writers: list[LogWriter]
) -> None:
    directory = tmp_path / "logs"
    directory.write_text("in the way")
    stream = GatedStream()
    stream.gate.set()
    writer = make_writer(stream, writers, awaits_file=True)
    writer.attach(log_file(directory, clock))
    for number in range(3):
        stream.is_waited_for.clear()
        say(writer, f"lost {number}")
        assert stream.is_waited_for.wait(60)
    writer.attach(log_file(tmp_path / "elsewhere", clock))
    say(writer, "kept")
    writer.stop()
    lines = messages(stream.getvalue())
    (complaint,) = [line for line in lines if line.startswith("cannot write the log file; logging to stderr only: ")]
    assert str(directory) in complaint
    assert messages((tmp_path / "elsewhere" / NEWEST).read_text()) == ["kept"]


def test_a_closed_terminal_is_no_reason_to_stop(tmp_path: Path, clock: ManualClock, writers: list[LogWriter]) -> None:
    stream = io.StringIO()
    writer = make_writer(stream, writers, awaits_file=True)
    writer.attach(log_file(tmp_path, clock))
    stream.close()
    say(writer, "still here")
    writer.stop()
    assert messages((tmp_path / NEWEST).read_text()) == ["still here"]


def test_stopping_twice_is_harmless(writers: list[LogWriter]) -> None:
    writer = make_writer(io.StringIO(), writers)
    writer.stop()
    writer.stop()
