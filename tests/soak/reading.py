"""What members of a group have read, held against the rules. Pure: no clock, no sockets.

Members report when they got a partition, what they read of it, and which of their commits were acknowledged. Times are
those of the machine's monotonic clock, which all processes share. The rules:

* *Nothing is skipped*: every acknowledged message was read.
* *Nothing is read twice* that was committed before: whoever gets a partition begins after the last commit that had been
  acknowledged by then. What was read but not committed may be read again; that is how a group survives a kill.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

Partition = tuple[str, int]
"""Topic and number."""


@dataclass(slots=True)
class Assignment:
    """A partition in the hands of one member: it reads it in one go."""

    who: str
    began: float
    first: int | None = None
    """The first offset that was read."""
    end: int = 0
    """One more than the last."""


@dataclass(slots=True)
class _Partition:
    assignments: list[Assignment] = field(default_factory=list)
    current: dict[str, Assignment] = field(default_factory=dict)
    commit_times: list[float] = field(default_factory=list)
    commit_offsets: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Readings:
    """Everything that all members have reported. Not thread-safe: the caller takes turns."""

    violations: list[str] = field(default_factory=list)
    _partitions: dict[Partition, _Partition] = field(default_factory=lambda: defaultdict(_Partition))

    def assigned(self, who: str, partition: Partition, moment: float) -> None:
        """A member got a partition, and has not read anything of it yet."""
        assignment = Assignment(who, moment)
        self._partitions[partition].assignments.append(assignment)
        self._partitions[partition].current[who] = assignment

    def read(self, who: str, partition: Partition, first: int, end: int) -> None:
        """A member was given the messages from ``first`` to before ``end``."""
        assignment = self._partitions[partition].current.get(who)
        if assignment is None:
            self.violations.append(f"{who} read {partition} from {first}, which it was never given")
            return
        if assignment.first is None:
            assignment.first = first
        elif first != assignment.end:
            self.violations.append(f"{who} read {partition} from {first} after {assignment.end - 1}")
        assignment.end = end

    def committed(self, partition: Partition, offset: int, moment: float) -> None:
        """The server acknowledged a commit, at this moment or before."""
        found = self._partitions[partition]
        position = bisect_left(found.commit_times, moment)
        found.commit_times.insert(position, moment)
        found.commit_offsets.insert(position, offset)

    def read_count(self, partition: Partition) -> int:
        """One more than the highest offset that was read."""
        return max((assignment.end for assignment in self._partitions[partition].assignments), default=0)

    def repeated_count(self) -> int:
        """How often messages were read again."""
        count = 0
        for used in map(_used, self._partitions.values()):
            count += sum(end - first for first, end in used) - _covered(used)
        return count

    def judge(self, partition: Partition, acknowledged_count: int) -> None:
        """Compare with the number of acknowledged messages, once all members have come to an end."""
        found = self._partitions[partition]
        expected = 0
        for first, end in sorted(_used(found)):
            if first > expected:
                self.violations.append(f"nobody read {expected} to {first - 1} of {partition}")
            expected = max(expected, end)
        if expected < acknowledged_count:
            self.violations.append(f"nobody read {expected} to {acknowledged_count - 1} of {partition}")
        for assignment in found.assignments:
            self._judge_begin(partition, found, assignment)

    def _judge_begin(self, partition: Partition, found: _Partition, assignment: Assignment) -> None:
        known = found.commit_offsets[: bisect_left(found.commit_times, assignment.began)]
        if known and assignment.first is not None and assignment.first <= max(known):
            text = f"{assignment.who} read {partition} from {assignment.first}, although {max(known)} was committed"
            self.violations.append(text)


def _used(partition: _Partition) -> list[tuple[int, int]]:
    """What was read: first offset, and one more than the last."""
    return [(found.first, found.end) for found in partition.assignments if found.first is not None]


def _covered(spans: list[tuple[int, int]]) -> int:
    """How many different offsets were read."""
    count = covered_end = 0
    for first, end in sorted(spans):
        count += max(end - max(first, covered_end), 0)
        covered_end = max(covered_end, end)
    return count
