"""A kill at exactly the n-th call: every write, sync, rename, unlink and cut of one short life, one after another.

The child runs on a single thread here, so that the n-th call is the same one every time. ``strace`` counts and kills.
"""

import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from courser.model.durability import Durability
from courser.storage.recovery_cases import StopKind
from tests.children.driver import Child
from tests.children.evidence import Evidence, examine, judge
from tests.children.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CALLS = {
    "write": "pwritev,pwritev2,pwrite64",
    "sync": "fdatasync,fsync",
    "rename": "rename,renameat,renameat2",
    "unlink": "unlink,unlinkat",
    "truncate": "ftruncate",
    "allocate": "fallocate",
    "make directory": "mkdir,mkdirat",
}
SCRIPT = (
    ("append", 0, 5),
    ("store", 0, "reader", 2),
    ("append", 0, 25),
    ("store", 0, "reader", 1),
    ("roll", 0),
    ("append", 0, 3),
    ("trim", 0, 60),
    ("open", 1),
    ("append", 1, 3),
    ("purge", 0),
    ("append", 0, 2),
)


def plan_for(path: Path, run: int, level: Durability) -> Plan:
    return Plan(
        path=str(path / "data"),
        run=run,
        level=level.value,
        partition_count=1,
        appender_count=0,
        pool_size=0,
        batch_count_max=5,
        payload_size_max=300,
        segment_size=8 * 1024,
        allocation_min=4 * 1024,
    )


def strace(*arguments: str) -> list[str]:
    tool = shutil.which("strace")
    if tool is None:
        pytest.fail("strace is missing: apt-get install strace")
    return [tool, "--follow-forks", "--quiet=all", *arguments]


def live(child: Child, run: int) -> None:
    """All of the script, or as much of it as there is time for."""
    child.wait_for(lambda: child.has_ended or ["ready"] in child.lines)
    for command in SCRIPT if run == 1 else SCRIPT[:1]:
        if not child.has_ended:
            child.attempt(*command)
    if not child.has_ended:
        child.attempt()


def count_calls(path: Path, level: Durability, names: str) -> Counter[str]:
    """How often each call comes in a life that nobody ends."""
    path.mkdir()
    log = path / "calls"
    with Child(plan_for(path, 1, level), Evidence(), prefix=strace(f"--output={log}", f"--trace={names}")) as child:
        live(child, 1)
        assert child.wait_for_end() == 0, child.errors
        assert child.lines[-1] == ["closed", "1"]
    return Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))


def kill_at(path: Path, level: Durability, name: str, number: int) -> None:
    """One life that ends at that call, and one that begins after it."""
    evidence = Evidence()
    plan = plan_for(path, 1, level)
    inject = strace("--output=/dev/null", f"--trace={name}", f"--inject={name}:signal=KILL:when={number}")
    with Child(plan, evidence, prefix=inject) as child:
        live(child, 1)
        code = child.wait_for_end()
        assert code == -signal.SIGKILL, f"{name} number {number} was not reached: {code} {child.errors}"
        has_begun = ["ready"] in child.lines
        has_closed = ["closed", "1"] in child.lines
    assert not has_closed
    # In the very last calls the session may already be marked as clean, and in the first ones there is none.
    stop = StopKind.KILLED if has_begun and not is_at_the_end(child) else None
    found = examine(all_partitions(plan), stop)
    assert judge(evidence, found, after_kill=True).lost_count == 0, f"{name} number {number}"
    # It starts, and goes on as if nothing had been.
    with Child(plan_for(path, 2, level), evidence) as child:
        child.wait_until_ready()
        child.tell("append", 0, 2)
        child.kill()
    assert judge(evidence, examine(all_partitions(plan), StopKind.KILLED), after_kill=True).lost_count == 0


def is_at_the_end(child: Child) -> bool:
    return sum(line == ["done"] for line in child.lines) == len(SCRIPT)


def all_partitions(plan: Plan) -> Plan:
    return Plan.from_json(plan.to_json().replace('"partition_count": 1', '"partition_count": 2'))


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("level", [Durability.SYNCED, Durability.WRITTEN], ids=lambda level: level.value)
def test_a_kill_at_every_call_loses_nothing(tmp_path: Path, kind: str, level: Durability) -> None:
    called = count_calls(tmp_path / "counting", level, CALLS[kind])
    for name, count in called.items():
        for number in range(1, count + 1):
            kill_at(tmp_path / f"{name}-{number}", level, name, number)
    print(f"\n{level.value}: killed at {called.total()} of {called.total()} calls: {dict(called)}")
    assert called.total()
