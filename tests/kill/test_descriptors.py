"""Few file descriptors and many partitions: refusals that say what they are, and a process that lives on."""

from pathlib import Path

from courser.model.durability import Durability
from courser.storage.recovery_cases import StopKind
from tests.children.driver import Child
from tests.children.evidence import Evidence, examine, judge
from tests.children.plan import Plan

PARTITION_COUNT = 40


def test_64_descriptors_for_40_partitions(tmp_path: Path) -> None:
    evidence = Evidence()
    plan = Plan(
        path=str(tmp_path / "data"),
        run=1,
        level=Durability.WRITTEN.value,
        partition_count=PARTITION_COUNT,
        appender_count=0,
        batch_count_max=3,
        payload_size_max=100,
        descriptor_limit=64,
    )
    with Child(plan, evidence) as child:
        child.wait_until_ready()
        for number in range(PARTITION_COUNT):
            child.tell("append", number, 2)
            # A second file for each.
            if evidence.partitions[number].batches:
                child.tell("store", number, "reader", 0)
        kinds = {words[2] for words in evidence.failures}
        assert kinds, "the descriptors were enough: this proves nothing"
        assert kinds == {"StorageFailure"}, evidence.failures
        assert all("Too many open files" in " ".join(words) for words in evidence.failures)
        refused = {int(words[1]) for words in evidence.failures}
        served = sorted(evidence.partitions.keys() - refused)
        acked = evidence.ack_count
        for number in served:
            child.tell("append", number, 1)
        assert evidence.ack_count == acked + len(served), "those that have their files go on"
        read_only = [number for number in refused if child.tell("state", number)[0][-1] == "1"]
        child.kill()
    print(f"\n{len(served)} of {PARTITION_COUNT} partitions were served, {len(refused)} refused")
    assert not read_only, "a lack of descriptors says nothing about the disk"
    verdict = judge(evidence, examine(plan, StopKind.KILLED), after_kill=True)
    assert verdict.lost_count == 0
