"""Locks: one holder at a time, named to the others, gone with its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from courser.errors import ClientFailure
from courser.pipelines.locking import Lock, LockHolder, LockTaken, process_started, this_process

_HOLD = """
import sys
from pathlib import Path
from courser.pipelines.locking import Lock, this_process
lock = Lock(Path(sys.argv[1]), this_process("orders")).acquire()
lock.note_java(int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def hold(path: Path, java_pid: int) -> subprocess.Popen[str]:
    """Another process that holds the lock until it is killed."""
    command = [sys.executable, "-c", _HOLD, str(path), str(java_pid)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def sleeper() -> subprocess.Popen[bytes]:
    """Stands in for the Java process of a runner."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(child: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_a_second_runner_is_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint" / "lock"
    child = hold(path, os.getpid())
    try:
        with pytest.raises(LockTaken, match=f"checkpoint is in use by process {child.pid} on .* runs orders") as taken:
            Lock(path, this_process("mine")).acquire()
        assert taken.value.holder is not None
        assert taken.value.holder.is_alive
    finally:
        end(child)


def test_a_killed_runner_leaves_no_lock_but_its_java_is_waited_for(tmp_path: Path) -> None:
    path, java = tmp_path / "lock", sleeper()
    child = hold(path, java.pid)
    end(child)
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            end(java)

    with Lock(path, this_process("mine"), wait).acquire() as lock:
        assert lock.abandoned_by is not None
        assert lock.abandoned_by.pid == child.pid
        assert not lock.abandoned_by.is_alive
    assert waits == 3


def test_java_that_does_not_end_is_named(tmp_path: Path) -> None:
    path, java = tmp_path / "lock", sleeper()
    end(hold(path, java.pid))
    try:
        with pytest.raises(ClientFailure, match=f"Java process {java.pid} .* does not exit; end it"):
            Lock(path, this_process("mine"), lambda seconds: None, orphan_patience=0.0).acquire()
    finally:
        end(java)
    Lock(path, this_process("mine")).acquire().release()


def test_released_locks_can_be_taken_again(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock", this_process("mine")).acquire() as first:
        assert first.abandoned_by is None
    with Lock(tmp_path / "lock", this_process("mine")).acquire() as second:
        assert second.abandoned_by is None
    first.release()


def test_a_number_that_is_used_again_is_another_process() -> None:
    me = this_process("mine")
    assert me.is_alive
    assert not LockHolder(me.pid, me.started + 1, me.host, "mine").is_alive
    child = sleeper()
    assert process_started(child.pid) is not None
    end(child)
    assert process_started(child.pid) is None
