"""Real power cuts: a child on a disk of its own acknowledges, the power goes, and what it promised must be there.

The figures are printed: run with ``-s``, and with ``COURSER_CUTS=100`` for a hundred cuts per file system and level.
"""

import random
from dataclasses import dataclass, field, replace

import pytest

from courser.model.durability import Durability
from courser.storage.recovery_cases import StopKind
from tests.children.driver import Child
from tests.children.evidence import Evidence, Found, PromiseBroken, Verdict, examine, judge
from tests.children.plan import Fault, Plan
from tests.power.disks import Disk

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

CONTROL_CUTS = 3
BOUND = 64
INTERVAL = 100_000


@dataclass
class Cuts:
    """Rounds of cuts on one directory, judged after each."""

    disk: Disk
    plan: Plan
    evidence: Evidence = field(default_factory=Evidence)
    total: Verdict = field(default_factory=Verdict)
    round_count: int = 0
    void_count: int = 0

    def cut(self, child: Child) -> None:
        """The power goes while the child stands still: nothing that it says afterwards could reach a client."""
        child.freeze()
        self.disk.cut_power()
        child.kill()
        self.disk.restore_power()

    def judge(self, stop: StopKind = StopKind.CRASHED) -> dict[int, Found]:
        """Hold what is left against what was acknowledged."""
        found = examine(self.plan, stop)
        self.total.add(judge(self.evidence, found, after_kill=stop is StopKind.KILLED))
        return found

    def next_life(self, **changes: object) -> Plan:
        """The plan of the next child."""
        self.plan = replace(self.plan, run=self.plan.run + 1, **changes)  # type: ignore[arg-type]
        return self.plan

    def round(self, source: random.Random, ack_count_max: int = 400, seconds_max: float = 0.02) -> Verdict:
        """One life, one cut, one judgement."""
        before, acked_before = replace(self.total), self.evidence.ack_count
        plan = self.next_life(seed=source.randrange(1 << 32))
        with Child(plan, self.evidence) as child:
            child.wait_until_ready()
            child.wait_for_acks(source.randint(1, ack_count_max))
            child.read_for(source.random() * seconds_max)
            self.cut(child)
        self.round_count += 1
        self.void_count += self.evidence.ack_count == acked_before
        self.judge()
        return Verdict(lost_count=self.total.lost_count - before.lost_count)

    def report(self, name: str) -> None:
        print(
            f"\n{self.disk.kind}, {name}: {self.total.lost_count} lost / {self.evidence.message_count} messages acked "
            f"({self.evidence.ack_count} batches) over {self.round_count} cuts, {self.void_count} void; "
            f"largest loss of a partition {self.total.largest_loss}, {self.total.unacked_count} unacked found"
        )
        assert self.void_count == 0, "a round in which nothing was acknowledged proves nothing"


def new_cuts(disk: Disk, level: Durability, **changes: object) -> Cuts:
    return Cuts(disk, replace(Plan(path=str(disk.path / "data"), run=0, level=level.value), **changes))  # type: ignore[arg-type]


# --- the levels ---


def test_synced_loses_nothing(disk: Disk, seed: int, cut_count: int) -> None:
    source = random.Random(seed)
    cuts = new_cuts(disk, Durability.SYNCED)
    for _ in range(cut_count):
        cuts.round(source)
    cuts.report("synced")
    assert cuts.total.lost_count == 0


@pytest.mark.parametrize("bound", [BOUND, 1000])
def test_bounded_loses_no_more_than_its_bound(disk: Disk, seed: int, cut_count: int, bound: int) -> None:
    source = random.Random(seed)
    # Batches smaller than half of the bound, so that syncs run beside the sends.
    cuts = new_cuts(disk, Durability.BOUNDED, message_count_max=bound, interval=60_000_000)
    for _ in range(cut_count):
        cuts.round(source)
    cuts.report(f"bounded to {bound} messages")
    assert cuts.total.largest_loss <= bound


def test_bounded_loses_no_more_than_two_intervals(disk: Disk, seed: int, cut_count: int) -> None:
    source = random.Random(seed)
    cuts = new_cuts(disk, Durability.BOUNDED, message_count_max=1 << 40, interval=INTERVAL)
    for _ in range(cut_count):
        cuts.round(source, seconds_max=6 * INTERVAL / 1_000_000)
    cuts.report(f"bounded to {INTERVAL // 1000} ms")
    print(f"between the first and the last lost acknowledgement: {cuts.total.longest_loss / 1000} ms at most")
    assert cuts.total.lost_count > 0, "nothing was lost: these cuts were no cuts"
    assert cuts.total.longest_loss <= 2 * INTERVAL


def test_written_loses_an_end_and_no_offset_is_used_again(disk: Disk, seed: int, cut_count: int) -> None:
    source = random.Random(seed)
    # Lives are short here, and at this level appends outrun seals: larger segments, so that trims find sealed ones.
    cuts = new_cuts(disk, Durability.WRITTEN, segment_size=512 * 1024)
    for _ in range(cut_count):
        # That survivors are a prefix, and that no offset comes twice, is judged in every round.
        cuts.round(source, ack_count_max=2000)
    cuts.report("written")
    assert cuts.total.lost_count > 0, "nothing was lost: these cuts were no cuts"


# --- the cuts themselves are shown to cut ---


def cut_until_noticed(cuts: Cuts, source: random.Random) -> None:
    for _ in range(CONTROL_CUTS):
        if cuts.round(source).lost_count:
            raise PromiseBroken(f"{cuts.total.lost_count} acknowledged messages are lost")


def test_the_cuts_notice_a_server_that_does_not_sync(disk: Disk, seed: int) -> None:
    cuts = new_cuts(disk, Durability.SYNCED, fault=Fault.NO_SYNC.value)
    with pytest.raises(PromiseBroken) as caught:
        cut_until_noticed(cuts, random.Random(seed))
    print(f"\n{disk.kind}, no sync at all: {str(caught.value)[:200]}")


def test_the_cuts_notice_an_acknowledgement_before_the_sync(disk: Disk, seed: int) -> None:
    # A server that says `synced` and acts as at `written` is just that.
    cuts = new_cuts(disk, Durability.WRITTEN)
    with pytest.raises(PromiseBroken) as caught:
        cut_until_noticed(cuts, random.Random(seed))
    print(f"\n{disk.kind}, acknowledged before the sync: {str(caught.value)[:200]}")


def test_the_cuts_notice_a_new_name_that_was_not_synced(disk: Disk) -> None:
    cuts = new_cuts(disk, Durability.SYNCED, fault=Fault.NO_DIRECTORY_SYNC.value, appender_count=0, partition_count=1)
    with Child(cuts.next_life(), cuts.evidence) as child:
        child.wait_until_ready()
        child.tell("open", 1)
        cuts.cut(child)
    cuts.next_life(partition_count=2)
    with pytest.raises(PromiseBroken, match="partition 1 is gone"):
        cuts.judge()


# --- moments of their own ---


def test_a_cut_right_after_a_partition_was_created(disk: Disk) -> None:
    cuts = new_cuts(disk, Durability.SYNCED, appender_count=0, partition_count=1)
    with Child(cuts.next_life(), cuts.evidence) as child:
        child.wait_for_line("partition")
        cuts.cut(child)
    # The first session had not begun, or its file is there: nobody can tell how it ended, or it crashed.
    cuts.judge()
    for count in range(2, 6):
        with Child(cuts.next_life(partition_count=count), cuts.evidence) as child:
            child.wait_until_ready()
            cuts.cut(child)
        found = cuts.judge()
        assert sorted(found) == list(range(count)), "what was created is there"
        assert all(partition.next_offset == 0 for partition in found.values())


def test_a_cut_right_after_the_first_message_of_a_segment(disk: Disk) -> None:
    cuts = new_cuts(disk, Durability.SYNCED, appender_count=0, partition_count=1)
    for _ in range(4):
        with Child(cuts.next_life(), cuts.evidence) as child:
            child.wait_until_ready()
            child.tell("append", 0, 3)
            child.tell("roll", 0)
            child.tell("append", 0, 1)
            cuts.cut(child)
        cuts.judge()
    assert cuts.total.lost_count == 0
    assert cuts.evidence.ack_count == 16


def test_a_cut_right_after_a_trim_does_not_bring_the_start_back(disk: Disk) -> None:
    cuts = new_cuts(disk, Durability.SYNCED, appender_count=0, partition_count=1, segment_size=8 * 1024)
    for _ in range(4):
        with Child(cuts.next_life(), cuts.evidence) as child:
            child.wait_until_ready()
            child.tell("append", 0, 60)
            child.tell("sync", 0)
            start = cuts.evidence.partitions[0].start
            child.tell("trim", 0, cuts.evidence.partitions[0].confirmed_end - 100)
            assert cuts.evidence.partitions[0].start > start, "nothing was trimmed"
            cuts.cut(child)
        cuts.judge()
    assert cuts.total.lost_count == 0


def test_a_deleted_segment_that_comes_back_is_deleted_again(disk: Disk) -> None:
    """Without directory syncs the unlinks of a trim come undone; the start, which the ledger keeps, does not.

    Now and then the file system has written the unlinks before the cut, together with something else.
    """
    cuts = new_cuts(disk, Durability.SYNCED, appender_count=0, partition_count=1, segment_size=8 * 1024)
    for _ in range(20):
        with Child(cuts.next_life(), cuts.evidence) as child:
            child.wait_until_ready()
            child.tell("append", 0, 60)
            cuts.cut(child)
        cuts.judge()
        with Child(cuts.next_life(fault=Fault.NO_DIRECTORY_SYNC.value), cuts.evidence) as child:
            child.wait_until_ready()
            child.tell("trim", 0, cuts.evidence.partitions[0].confirmed_end)
            cuts.cut(child)
        found = cuts.judge()[0]
        if "J" in {finding.letter for finding in found.findings}:
            break
    else:
        pytest.fail("no deleted segment came back")
    again = cuts.judge()[0]
    assert "J" not in {finding.letter for finding in again.findings}
    assert again.start == found.start


def test_a_cut_right_after_recovery_cut_a_tail(disk: Disk) -> None:
    cuts = new_cuts(disk, Durability.SYNCED, appender_count=0, partition_count=1)
    for moment in ("finding", "partition", "ready"):
        with Child(cuts.next_life(), cuts.evidence) as child:
            child.wait_until_ready()
            child.tell("append", 0, 5)
            cuts.cut(child)
        cuts.judge()
        plant_torn_tail(cuts)
        with Child(cuts.next_life(), cuts.evidence) as child:
            child.wait_for_line(moment)
            assert any(line[0] == "finding" and line[2] in "EF" for line in child.lines), child.lines
            cuts.cut(child)
        letters = {finding.letter for finding in cuts.judge()[0].findings}
        assert not letters & set("EF"), f"the bad bytes are back after recovery had cut them: {letters}"
        kept = list((cuts.plan.directory_of(0) / "quarantine").iterdir())
        assert any(b"half a batch" in path.read_bytes() for path in kept), "what was cut is gone"
    assert cuts.total.lost_count == 0


def plant_torn_tail(cuts: Cuts) -> None:
    """Bytes behind the last batch, as a torn write leaves them, and safely on the disk."""
    last = max(cuts.plan.directory_of(0).glob("*.log"))
    with last.open("r+b") as file:
        file.seek(0, 2)
        file.write(b"half a batch" * 100)
    cuts.disk.restore_power()


def test_cuts_and_kills_in_any_order(disk: Disk, seed: int, cut_count: int) -> None:
    source = random.Random(seed)
    cuts = new_cuts(disk, Durability.SYNCED)
    cuts.round(source)
    for _ in range(cut_count):
        if source.random() < 0.5:
            with Child(cuts.next_life(seed=source.randrange(1 << 32)), cuts.evidence) as child:
                child.wait_until_ready()
                child.wait_for_acks(source.randint(1, 200))
                child.kill()
            cuts.judge(StopKind.KILLED)
        with Child(cuts.next_life(), cuts.evidence) as child:
            # In the middle of a recovery, too.
            child.wait_for_line(source.choice(("stopped", "partition", "ready", "ack")))
            cuts.cut(child)
        cuts.round_count += 1
        cuts.judge()
    cuts.report("synced, with kills between the cuts")
    assert cuts.total.lost_count == 0
