"""Real processes, threads and files: leaders are killed and paused, and what they acknowledged is in the log."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from courser.archive.disk_store import DiskStore
from courser.archive.objects import Seal
from courser.replication.leading import claim
from courser.replication.log_objects import LogObject, LogPosition, LogWriting
from courser.replication.log_reader import next_object
from courser.storage.local_files import LocalFileSystem
from tests.replication.checker import Acknowledged, History, Written, faults_of
from tests.replication.leaders import do_on
from tests.replication.log_tool import KEYS
from tests.replication.simulation import payloads_of
from tests.torture.process import until

TIME_TO_LIVE = 1_000


class Tool:
    """A process, and what it has told."""

    def __init__(self, place: Path, name: str) -> None:
        self.path = place / f"{name}.txt"
        store = place / "store"
        store.mkdir(exist_ok=True)
        with self.path.open("wb") as output:
            command = [sys.executable, "-m", "tests.replication.log_tool", str(store), name, str(TIME_TO_LIVE), "0.07"]
            self.process = subprocess.Popen(command, stdout=output)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()]

    def acknowledged(self) -> list[Written]:
        return [
            Written(int(words[1]), int(words[2]), words[3].encode()) for words in self.lines() if words[0] == "acked"
        ]

    def has_acknowledged(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.acknowledged()) >= count

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def tools(place: Path) -> Iterator[Callable[[], Tool]]:
    started: list[Tool] = []

    def start() -> Tool:
        started.append(Tool(place, f"p{len(started)}"))
        return started[-1]

    try:
        yield start
    finally:
        for tool in started:
            tool.end()


def whole_log(place: Path) -> tuple[Written, ...]:
    """What whoever leads next has: the log up to our own seal."""
    store = DiskStore(LocalFileSystem(), place / "store", bytes(16))
    position, found = LogPosition(), list[Written]()
    while True:
        one: LogObject | None = do_on(store, next_object(KEYS, position))
        if one is None:
            if do_on(store, claim(LogWriting(KEYS, bytes(16)), position, "the end", lambda: 0)) is not None:
                return tuple(found)
            continue
        assert isinstance(one.content, Seal) or one.after.slot == position.slot + 1
        found += [Written(position.epoch, position.slot, payload) for payload in payloads_of(one)]
        position = one.after


@pytest.mark.parametrize("round_count", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_leaders_that_are_killed_and_paused_lose_nothing(tmp_path: Path, round_count: int) -> None:
    dice, everybody = random.Random(round_count), list[Tool]()
    with tools(tmp_path) as start:
        for number in range(round_count):
            tool = start()
            everybody.append(tool)
            until(tool.has_acknowledged(dice.randint(10, 40)), "a first message")
            if number % 2:
                tool.end()
                continue
            tool.process.send_signal(signal.SIGSTOP)
            successor = start()
            everybody.append(successor)
            until(successor.has_acknowledged(6), "a take-over")
            tool.process.send_signal(signal.SIGCONT)
            until(tool.is_over, "the end of who was replaced")
            assert tool.lines()[-1][0] == "deposed"
            successor.end()
        history = History(
            [
                Acknowledged(written, number, 0)
                for number, tool in enumerate(everybody)
                for written in tool.acknowledged()
            ]
        )
    history.final = whole_log(tmp_path)
    assert len(history.acknowledged) > 10 * round_count
    assert faults_of(history) == []
