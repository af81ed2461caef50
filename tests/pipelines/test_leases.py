"""Leases: one holder at a time where no kernel watches, and what becomes of one that is late."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from courser.errors import ClientFailure
from courser.jobs.folders import FolderUnreachable, HadoopFolder
from courser.pipelines import leases
from courser.pipelines.failing import is_final
from courser.pipelines.leases import Lease, LeaseLate, LeaseLost, LeaseTimes
from courser.pipelines.locking import LockHolder, LockTaken, process_started, this_process
from tests.torture.process import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 60.0
TIMES = LeaseTimes(renewal=0.05, expiry=1.0, validity=0.5, settling=0.0)


@pytest.fixture
def folder(tmp_path: Path, spark: "SparkSession") -> HadoopFolder:
    return HadoopFolder.at(f"file://{tmp_path}/ck", spark)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says on which machine the next lease is: only the texts of locks know."""

    def move(name: str) -> None:
        monkeypatch.setattr(leases, "_machine", lambda: name)

    return move


def failure_of(lease: Lease) -> type[Exception] | None:
    try:
        lease.check()
    except (LeaseLate, LeaseLost) as error:
        return type(error)
    return None


@dataclass(frozen=True, slots=True)
class Outage(HadoopFolder):
    """A folder whose store can be away for its holder, or writes later than asked."""

    is_away: list[bool] = field(default_factory=lambda: [False])

    @classmethod
    def of(cls, folder: HadoopFolder) -> "Outage":
        return cls(folder.place, folder._paths, folder._files)

    def names(self) -> list[str]:
        if self.is_away[0]:
            raise FolderUnreachable("the store is away")
        return HadoopFolder.names(self)


def test_a_second_runner_on_this_machine_is_told_who_has_it(folder: HadoopFolder) -> None:
    with Lease(folder, this_process("orders"), times=TIMES).acquire() as lease:
        with pytest.raises(LockTaken, match=rf"ck is in use by process {os.getpid()} on .* runs orders; stop it first"):
            Lease(folder, this_process("other"), times=TIMES).acquire()
        lease.check()
    with Lease(folder, this_process("other"), times=TIMES).acquire() as lease:
        lease.check()
        assert folder.names() == ["lock-2"], "a lock that was released is not waited for, and goes away"


def test_the_lock_of_a_killed_runner_is_taken_over_at_once_but_its_java_is_waited_for(folder: HadoopFolder) -> None:
    java = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gone = LockHolder(os.getpid(), 1, "here", "orders", java.pid, process_started(java.pid) or 0)
    left = Lease(folder, gone, times=TIMES).acquire()
    left._ended.set()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if java.poll() is None:
            java.kill()
            java.communicate()

    told: list[str] = []
    with Lease(folder, this_process("orders"), times=TIMES, wait=wait, tell=told.append).acquire() as lease:
        lease.check()
    assert (len(waits), told) == (2, []), "once for Java, once to settle"


def test_a_runner_elsewhere_that_lives_keeps_its_lock(folder: HadoopFolder, elsewhere: Callable[[str], None]) -> None:
    told: list[str] = []
    elsewhere("there")
    with Lease(folder, this_process("orders"), times=TIMES).acquire() as lease:
        # Its renewals go on saying so: ``_machine`` is asked for each.
        renewed = lease._text
        lease._text = lambda *, is_released=False: renewed(is_released=is_released).replace(b'"here"', b'"there"')  # type: ignore[method-assign]
        elsewhere("here")
        begin = time.monotonic()
        with pytest.raises(LockTaken, match=f"process {os.getpid()}"):
            Lease(folder, this_process("other"), times=replace(TIMES, expiry=PATIENCE), tell=told.append).acquire()
        assert time.monotonic() - begin < PATIENCE / 2, "the first sign of life is enough"
        lease.check()
    (sentence,) = told
    assert sentence.startswith(f"{folder.place} was locked by process {os.getpid()} on {os.uname().nodename}; waiting")


def test_a_runner_elsewhere_that_is_silent_loses_its_lock_and_knows_it_before(
    folder: HadoopFolder, elsewhere: Callable[[str], None]
) -> None:
    store = Outage.of(folder)
    elsewhere("there")
    silent = Lease(store, this_process("orders"), times=TIMES).acquire()
    store.is_away[0] = True
    elsewhere("here")
    moments: list[type[Exception] | None] = []

    def wait(seconds: float) -> None:
        threading.Event().wait(seconds)
        moments.append(failure_of(silent))

    with Lease(folder, this_process("orders"), times=TIMES, wait=wait).acquire() as lease:
        assert moments[-1] is LeaseLate, "it stopped before the other one began"
        assert not is_final(LeaseLate(""))
        # Whoever comes back finds the higher number, and changes nothing.
        store.is_away[0] = False
        until(lambda: failure_of(silent) is LeaseLost, "the late one learns of the other")
        assert is_final(LeaseLost(""))
        silent.release()
        lease.check()
        with pytest.raises(LockTaken):
            Lease(folder, this_process("third"), times=TIMES).acquire()


def test_a_store_that_comes_back_in_time_ends_nothing(folder: HadoopFolder) -> None:
    store = Outage.of(folder)
    with Lease(store, this_process("orders"), times=TIMES).acquire() as lease:
        store.is_away[0] = True
        until(lambda: failure_of(lease) is LeaseLate, "the lease is late")
        store.is_away[0] = False
        until(lambda: failure_of(lease) is None, "the lease is held again")


@dataclass(frozen=True, slots=True)
class Careless(HadoopFolder):
    """A folder of a store that lets two create a file: the last one's contents remain."""

    def create(self, name: str, data: bytes) -> bool:
        self.overwrite(name, data)
        return True


def test_of_two_that_create_the_lock_at_the_same_time_the_last_one_has_it(folder: HadoopFolder) -> None:
    store = Careless(folder.place, folder._paths, folder._files)
    second = Lease(store, this_process("second"), times=TIMES)
    number = second._newest()

    def meanwhile(seconds: float) -> None:
        del seconds
        # It looked before the first one had written, too.
        second._newest = lambda: number  # type: ignore[method-assign]
        second._wait = lambda seconds: delattr(second, "_newest")
        second.acquire()

    with pytest.raises(LockTaken, match="runs second"):
        Lease(store, this_process("first"), times=TIMES, wait=meanwhile).acquire()
    second.check()
    second.release()


def test_a_late_creator_does_not_fall_behind_a_higher_number(folder: HadoopFolder) -> None:
    late = Lease(folder, this_process("late"), times=TIMES)
    number = late._newest()
    for _ in range(2):
        Lease(folder, this_process("orders"), times=TIMES).acquire().release()
    assert folder.names() == ["lock-2"], "the number that the late one wants is free again"
    with Lease(folder, this_process("orders"), times=TIMES).acquire():
        late._newest = lambda: number  # type: ignore[method-assign]
        late._wait = lambda seconds: delattr(late, "_newest")
        with pytest.raises(LockTaken, match="runs orders"):
            late.acquire()


def test_java_that_does_not_end_is_named(folder: HadoopFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    me = this_process("orders")
    gone = LockHolder(os.getpid(), 1, "here", "orders", me.pid, me.started)
    Lease(folder, gone, times=TIMES).acquire()._ended.set()
    monkeypatch.setattr("courser.pipelines.locking.time.monotonic", iter(range(0, 10_000, 20)).__next__)
    with pytest.raises(ClientFailure, match=f"the Java process {me.pid} of the dead runner"):
        Lease(folder, me, times=TIMES, wait=lambda seconds: None).acquire()
