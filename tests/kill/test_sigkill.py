"""Real SIGKILL rounds: a child appends and acknowledges through a pipe, is killed, and nothing of it may be missing."""

import random
from pathlib import Path

import pytest

from courser.model.durability import Durability
from courser.storage.recovery_cases import StopKind
from tests.children.driver import Child
from tests.children.evidence import Evidence, PromiseBroken, Verdict, examine, judge
from tests.children.plan import Fault, Plan

ACK_COUNT_MAX = 400


def kill_rounds(
    path: Path, level: Durability, seed: int, round_count: int, fault: Fault = Fault.NONE
) -> tuple[Verdict, Evidence]:
    source = random.Random(seed)
    evidence, total, void_count = Evidence(), Verdict(), 0
    for run in range(1, round_count + 1):
        plan = Plan(
            path=str(path / "data"),
            run=run,
            seed=source.randrange(1 << 32),
            level=level.value,
            partition_count=3,
            batch_count_max=100,
            # Large enough for the seals to keep up: each takes some syncs, at `written` the appends take none.
            segment_size=1024 * 1024,
            fault=fault.value,
        )
        acked_before = evidence.ack_count
        with Child(plan, evidence) as child:
            # Some die while they recover, some before the first acknowledgement.
            if source.random() < 0.9:
                child.wait_until_ready()
                child.wait_for_acks(source.randint(0, ACK_COUNT_MAX))
            else:
                child.wait_for(lambda child=child: bool(child.lines))  # type: ignore[misc]
            child.read_for(source.random() * 0.02)
            child.kill()
            has_begun = ["ready"] in child.lines
        void_count += evidence.ack_count == acked_before
        stop = StopKind.KILLED if has_begun or run > 1 else None
        verdict = judge(evidence, examine(plan, stop), after_kill=True)
        total.add(verdict)
    report = f"{evidence.message_count} messages acked in {evidence.ack_count} batches"
    print(f"{level.value}: {total.lost_count} lost / {report} over {round_count} kills, {void_count} without an ack")
    assert evidence.ack_count, "nothing was acknowledged: this run proves nothing"
    return total, evidence


@pytest.mark.parametrize("level", Durability, ids=lambda level: level.value)
def test_a_kill_loses_nothing(tmp_path: Path, seed: int, level: Durability) -> None:
    verdict, _ = kill_rounds(tmp_path, level, seed, 5)
    assert verdict.lost_count == 0


def test_the_rounds_notice_writes_that_stay_in_the_process(tmp_path: Path, seed: int) -> None:
    with pytest.raises(PromiseBroken):
        kill_rounds(tmp_path, Durability.WRITTEN, seed, 5, Fault.BUFFERED_WRITES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", Durability, ids=lambda level: level.value)
def test_200_kills_lose_nothing(tmp_path: Path, seed: int, level: Durability) -> None:
    verdict, _ = kill_rounds(tmp_path, level, seed, 200)
    assert verdict.lost_count == 0
