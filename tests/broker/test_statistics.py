"""Figures about process and machine: real ones."""

import os
import threading
from pathlib import Path

import pytest

from courser.broker.figures.statistics import Machine, semver_number
from tests.fakes.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_the_figures_of_this_process_are_plausible(clock: ManualClock, tmp_path: Path) -> None:
    figures = Machine(clock, tmp_path).measure()
    assert 1_000_000 < figures.memory_usage < figures.total_memory
    assert 0 < figures.available_memory <= figures.total_memory
    assert 0 < figures.free_disk_space <= figures.total_disk_space
    assert figures.thread_count >= threading.active_count()


def test_machine_and_system_have_names(clock: ManualClock, tmp_path: Path) -> None:
    machine = Machine(clock, tmp_path)
    assert machine.hostname == os.uname().nodename
    assert machine.kernel_version == os.uname().release
    assert machine.os_name
    assert machine.started_at == clock.now()


def write_counters(proc: Path, *, busy: int, idle: int) -> None:
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")


def test_percentages_are_those_since_the_last_look(clock: ManualClock, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    write_counters(proc, busy=100, idle=1000)
    machine = Machine(clock, tmp_path, proc=proc)
    assert machine.measure().total_cpu_usage == 0
    clock.advance(1_000_000)
    write_counters(proc, busy=150, idle=1150)
    assert machine.measure().total_cpu_usage == 25
    clock.advance(1000)
    write_counters(proc, busy=1150, idle=1150)
    assert machine.measure().total_cpu_usage == 25, "too soon to tell"
    clock.advance(1_000_000)
    assert machine.measure().total_cpu_usage == 100


def test_the_cpu_of_this_process_is_measured(clock: ManualClock, tmp_path: Path) -> None:
    machine = Machine(clock, tmp_path)
    before = os.times()
    # More than is asserted: these times are sums of ticks, and as floats a hair below what they mean.
    while os.times().user + os.times().system - before.user - before.system < 0.08:
        sum(range(1000))
    clock.advance(500_000)
    assert machine.measure().cpu_usage >= 10


def test_what_the_system_does_not_tell_is_0(clock: ManualClock, tmp_path: Path) -> None:
    machine = Machine(clock, tmp_path / "missing", proc=tmp_path / "missing")
    clock.advance(1_000_000)
    figures = machine.measure()
    assert figures.memory_usage == figures.total_memory == figures.read_bytes == figures.total_disk_space == 0
    assert figures.total_cpu_usage == 0
    assert figures.thread_count >= 1


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("0.1.0", 1000),
        ("0.8.0", 8000),
        ("1.2.3", 1_002_003),
        ("0.9.0-edge.5", 9000),
        ("1.0.0+7", 1_000_000),
        ("", 0),
        ("1.2", 0),
        ("1.2.x", 0),
    ],
)
def test_a_version_is_also_a_number(version: str, number: int) -> None:
    assert semver_number(version) == number


def write_process(proc: Path, process_id: int, *, ticks: int) -> None:
    (proc / str(process_id)).mkdir(parents=True, exist_ok=True)
    fields = ["S", *["0"] * 10, str(ticks), str(ticks), *["0"] * 5]
    (proc / str(process_id) / "stat").write_text(f"{process_id} (a (strange) name) {' '.join(fields)}")
    (proc / str(process_id) / "statm").write_text("900 50 20 1 0 30 0")
    (proc / str(process_id) / "io").write_text("read_bytes: 7\nwrite_bytes: 9\n")
    (proc / str(process_id) / "status").write_text("Threads:\t3\n")


def test_other_processes_of_the_server_are_added(clock: ManualClock, tmp_path: Path) -> None:
    proc, second = tmp_path / "proc", os.sysconf("SC_CLK_TCK")
    write_counters(proc, busy=100, idle=1000)
    write_process(proc, 71, ticks=0)
    machine = Machine(clock, tmp_path, proc=proc)
    alone = machine.measure_all()
    machine.other_processes = lambda: [71, 72]
    clock.advance(1_000_000)
    both = machine.measure_all()
    assert both.memory_usage - alone.memory_usage == 50 * os.sysconf("SC_PAGE_SIZE"), "one is not there yet"
    assert (both.read_bytes, both.written_bytes, both.thread_count - alone.thread_count) == (7, 9, 3)
    # Half a second in user mode and half in the kernel, and one that has just come.
    write_process(proc, 71, ticks=second // 2)
    write_process(proc, 72, ticks=0)
    clock.advance(2_000_000)
    before = machine.measure().cpu_usage
    assert machine.measure_all().cpu_usage - before == pytest.approx(50)
    # A process with the same number that was started again.
    write_process(proc, 71, ticks=0)
    clock.advance(2_000_000)
    assert machine.measure_all().cpu_usage - machine.measure().cpu_usage == 0
