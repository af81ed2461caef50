"""Disks that run full, below the file system and above it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from courser.model.durability import Durability
from courser.storage.recovery_cases import StopKind
from tests.children.driver import Child
from tests.children.evidence import Evidence, examine, judge
from tests.children.plan import Fault, Plan
from tests.power.conftest import NewDisk
from tests.power.disks import Disk, run

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

MIB = 1024 * 1024


# --- the disk below the file system: syncs fail, and the next one lies ---


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that has less room than the image in it claims."""
    path = tmp_path / "memory"
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path))
    yield path
    run("umount", "--lazy", str(path))


def make_room(memory: Path) -> None:
    run("mount", "-o", "remount,size=80m", str(memory))


def fill(child: Child) -> None:
    """Append until something is refused."""
    child.wait_until_ready()
    child.wait_for(lambda: any(line[0] == "failed" for line in child.lines))


def thin_disk(new_disk: NewDisk, memory: Path) -> Disk:
    return new_disk("ext4", "thin", size=64 * MIB, below=memory, backed_size=12 * MIB)


def thin_plan(disk: Disk, run_number: int, fault: Fault = Fault.NONE) -> Plan:
    return Plan(
        path=str(disk.path / "data"),
        run=run_number,
        level=Durability.SYNCED.value,
        partition_count=1,
        payload_size_max=20_000,
        segment_size=4 * MIB,
        allocation_min=1 * MIB,
        trims=False,
        stores=False,
        fault=fault.value,
    )


def test_no_acknowledgement_follows_a_failed_sync(new_disk: NewDisk, small_memory: Path) -> None:
    disk, evidence = thin_disk(new_disk, small_memory), Evidence()
    plan = thin_plan(disk, 1)
    with Child(plan, evidence) as child:
        fill(child)
        child.wait_for(lambda: ["all", "failed"] in child.lines)
        words = [line[0] for line in child.lines]
        assert "ack" in words, "nothing was acknowledged: this proves nothing"
        assert "ack" not in words[words.index("failed") :]
        kinds = {line[2] for line in child.lines if line[0] == "failed"}
        assert kinds == {"PartitionReadOnly"}, kinds
        child.kill()
    # The disk below has room again and the mount is the same one: the kernel shows bytes that never reached the disk.
    make_room(small_memory)
    believed = examine(plan, StopKind.KILLED)[0]
    disk.restore_power()
    really_there = examine(plan, StopKind.CRASHED)
    ghosts = believed.messages.keys() - really_there[0].messages.keys()
    print(f"\n{len(believed.messages)} messages believed after a restart, {len(ghosts)} of them not on the disk")
    assert not ghosts
    verdict = judge(evidence, really_there, after_kill=False)
    print(f"{verdict.lost_count} lost / {evidence.message_count} messages acked; {evidence.failures[0]}")
    assert verdict.lost_count == 0
    # With room again it goes on, above every offset that was ever given out.
    with Child(thin_plan(disk, 2), evidence) as child:
        child.wait_until_ready()
        child.wait_for_acks(20)
        child.kill()
    assert judge(evidence, examine(plan, StopKind.KILLED), after_kill=True).lost_count == 0


def test_the_full_disk_catches_a_server_that_ignores_failed_syncs(new_disk: NewDisk, small_memory: Path) -> None:
    disk, evidence = thin_disk(new_disk, small_memory), Evidence()
    plan = thin_plan(disk, 1, Fault.IGNORED_SYNC_ERRORS)
    with Child(plan, evidence) as child:
        child.wait_until_ready()
        # Far more than the disk below can hold.
        child.wait_for(lambda: child.has_ended or evidence.message_count > 3000 or bool(evidence.failures))
        child.freeze()
        disk.cut_power()
        child.kill()
    make_room(small_memory)
    disk.restore_power()
    found = examine(plan, StopKind.CRASHED)
    lost = [base for base in evidence.partitions[0].batches if base not in found[0].messages]
    print(f"\n{len(lost)} of {evidence.ack_count} acknowledged batches are lost by ignoring failed syncs")
    assert lost


def test_the_full_disk_catches_a_start_that_believes_the_kernel(new_disk: NewDisk, small_memory: Path) -> None:
    disk, evidence = thin_disk(new_disk, small_memory), Evidence()
    plan = thin_plan(disk, 1)
    with Child(plan, evidence) as child:
        fill(child)
        child.kill()
    make_room(small_memory)
    believed = examine(plan, StopKind.KILLED, Fault.IGNORED_SYNC_ERRORS)[0]
    disk.restore_power()
    really_there = examine(plan, StopKind.CRASHED)[0]
    ghosts = believed.messages.keys() - really_there.messages.keys()
    print(f"\n{len(believed.messages)} messages believed after a restart, {len(ghosts)} of them not on the disk")
    assert ghosts


# --- the file system itself ---


@pytest.mark.parametrize("level", Durability, ids=lambda level: level.value)
@pytest.mark.parametrize("kind", ["ext4"])
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(new_disk: NewDisk, kind: str, level: Durability) -> None:
    disk, evidence = new_disk(kind, "small", size=24 * MIB), Evidence()
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(8 * MIB))
    plan = Plan(
        path=str(disk.path / "data"),
        run=1,
        level=level.value,
        partition_count=1,
        appender_count=0,
        payload_size_max=20_000,
        segment_size=1 * MIB,
        allocation_min=64 * 1024,
    )
    with Child(plan, evidence) as child:
        child.wait_until_ready()
        while not evidence.failures:
            child.tell("append", 0, 20)
        assert {words[2] for words in evidence.failures} == {"DiskFull"}, evidence.failures
        # Refused as long as it is full; reading and storing is another matter.
        acked = evidence.ack_count
        child.tell("append", 0, 5)
        assert {words[2] for words in evidence.failures} == {"DiskFull"}, evidence.failures
        ballast.unlink()
        os.sync()
        child.tell("append", 0, 50)
        assert evidence.ack_count >= acked + 50, evidence.failures[-1]
        assert child.tell("state", 0)[0][-1] == "0"
        child.kill()
    verdict = judge(evidence, examine(plan, StopKind.KILLED), after_kill=True)
    print(f"\n{kind}, {level.value}: {verdict.lost_count} lost / {evidence.message_count} acked around a full disk")
    assert verdict.lost_count == 0


def test_a_full_disk_can_be_stopped_and_started(new_disk: NewDisk) -> None:
    disk, evidence = new_disk("ext4", "small", size=24 * MIB), Evidence()
    plan = Plan(
        path=str(disk.path / "data"), run=1, partition_count=1, appender_count=0, payload_size_max=20_000, trims=False
    )
    with Child(plan, evidence) as child:
        child.wait_until_ready()
        while not evidence.failures:
            child.tell("append", 0, 20)
        # Fill what little a refused batch has left.
        with (disk.path / "rest").open("wb", buffering=0) as rest:
            while True:
                try:
                    rest.write(bytes(4096))
                except OSError:
                    break
        child.tell()
        child.wait_for_end()
    (disk.path / "rest").unlink()
    found = examine(plan, None)
    assert judge(evidence, found, after_kill=True).lost_count == 0
