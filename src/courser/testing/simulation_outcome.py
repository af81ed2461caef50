"""What a simulation is told to do wrong, what it has covered, and how it says that a promise was broken."""

from collections import Counter
from dataclasses import dataclass, field

REPEAT_COMMAND = "python -m tests.crash.rounds --rounds 1 --seed {seed}"
_TRACE_LENGTH_MAX = 400
_FAILING = ("sync",) * 4 + (
    "write_at",
    "write_at",
    "sync_directory",
    "truncate",
    "rename",
    "unlink",
    "allocate",
    "open",
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong, and how often: odds per life of a server, or per stop."""

    failing: tuple[str, ...] = _FAILING
    failure_odds: float = 0.2
    misplacement_odds: float = 0.05
    """That a partition's directory is opened in the place of another one."""
    rot_odds: float = 0.08
    index_odds: float = 0.1


class SimulationFailure(AssertionError):
    """A promise was broken, or the code under test raised something it should not."""

    def __init__(self, seed: int, reason: str, trace: list[str]) -> None:
        super().__init__(seed, reason)
        self.seed = seed
        self.reason = reason
        self.trace = trace

    def __str__(self) -> str:
        steps = "\n".join(f"  {line}" for line in self.trace[-_TRACE_LENGTH_MAX:])
        command = REPEAT_COMMAND.format(seed=self.seed)
        return f"seed {self.seed}: {self.reason}\nrun again with: {command}\nwhat happened:\n{steps}\n  {self.reason}"


@dataclass(slots=True)
class Statistics:
    """What was covered."""

    rounds: int = 0
    acknowledged_count: int = 0
    operations: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Statistics") -> None:
        """Take the numbers of another run in."""
        self.rounds += other.rounds
        self.acknowledged_count += other.acknowledged_count
        self.operations.update(other.operations)
