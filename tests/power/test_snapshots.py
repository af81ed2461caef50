"""A reflink copy of the disk of a running server is what a power cut at that instant would have left."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from courser.model.durability import Durability
from courser.storage.recovery_cases import StopKind
from tests.children.driver import Child
from tests.children.evidence import Evidence, Found, Verdict, examine, judge
from tests.children.plan import Plan
from tests.power.conftest import NewDisk
from tests.power.disks import FILE_SYSTEMS, Disk, run

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

SNAPSHOT_COUNT = 5
HOST_SIZE = 2 * 1024**3


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_a_snapshot_of_a_live_directory_keeps_what_was_synced(
    new_disk: NewDisk, tmp_path: Path, seed: int, kind: str
) -> None:
    source = random.Random(seed)
    host = new_disk("xfs", "host", size=HOST_SIZE)
    disk = new_disk(kind, "live", below=host.path)
    plan = Plan(path=str(disk.path / "data"), run=1, seed=seed, level=Durability.SYNCED.value, trims=False)
    # One evidence per snapshot, closed when it is taken; the child itself feeds the first.
    live = Evidence()
    snapshots: list[tuple[Path, list[list[str]]]] = []
    with Child(plan, live) as child:
        child.wait_until_ready()
        for number in range(SNAPSHOT_COUNT):
            child.wait_for_acks(child.ack_count + source.randint(1, 200))
            image = host.path / f"snapshot-{number}.image"
            snapshots.append((image, list(child.lines)))
            run("cp", "--reflink=always", str(disk.image), str(image))
        child.wait_for_acks(child.ack_count + 100)
        child.kill()
    total = Verdict()
    for image, lines in snapshots:
        evidence = Evidence()
        for words in lines:
            evidence.take(words)
        assert evidence.ack_count, "nothing was acknowledged before the snapshot: it proves nothing"
        found = examine_snapshot(kind, image, tmp_path / "snapshot", plan)
        allow_later_stores(evidence, child.lines[len(lines) :])
        verdict = judge(evidence, found, after_kill=False)
        check_against_the_original(found, live)
        assert verdict.lost_count == 0, verdict
        total.add(verdict)
    print(
        f"\n{kind}: {total.lost_count} lost / {total.acked_count} acked before {SNAPSHOT_COUNT} snapshots, "
        f"and {total.unacked_count} messages that were on their way"
    )


def examine_snapshot(kind: str, image: Path, mount_point: Path, plan: Plan) -> dict[int, Found]:
    # Its XFS has the same name as the one that is still mounted.
    disk = Disk(kind, image, mount_point, options="loop,nouuid" if kind == "xfs" else "loop")
    disk.mount()
    try:
        return examine(replace(plan, path=str(mount_point / "data")), StopKind.CRASHED)
    finally:
        disk.remove()


def allow_later_stores(evidence: Evidence, lines: list[list[str]]) -> None:
    """The child went on storing while the copy was made.

    Its lines tell, and not the evidence of its whole life: that forgets an offset as soon as a later one is durable.
    """
    for words in lines:
        if words[0] == "storing":
            evidence.take(words)


def check_against_the_original(found: dict[int, Found], live: Evidence) -> None:
    """Whatever else is in the snapshot is what the original acknowledged later."""
    for number, partition in found.items():
        for batch in live.partitions[number].batches.values():
            identity = partition.messages.get(batch.base_offset)
            assert identity is None or (identity.run, identity.sequence) == (batch.run, batch.sequence)
