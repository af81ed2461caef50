"""What goes wrong, and when: drawn from one seed, without looking at anything else, so that the seed brings it back."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


MEASURED_SHARE = 0.5
"""How many of the episodes end with a measurement."""
RESTORED_SHARE = 0.15
"""How many of the episodes end with a restore, besides those in which the archive was in trouble."""


class Trouble(Enum):
    """What can be wrong while clients are at work."""

    FULL_DISK = "full disk"
    DESCRIPTORS = "no descriptors"
    WRITE_ERRORS = "write errors"
    SYNC_ERRORS = "sync errors"
    READ_ERRORS = "read errors"
    DIRECTORY_ERRORS = "directory errors"
    CLOCK_AHEAD = "clock ahead"
    CLOCK_BEHIND = "clock behind"
    FREEZE = "freeze"
    STRANGERS = "strangers"
    ARCHIVE_GONE = "archive gone"
    ARCHIVE_FULL = "archive full"
    STOPPED = "stopped in the midst of it"
    KILLED_PROCESS = "a process killed"
    FROZEN_PROCESS = "a process frozen"
    KILLED_ON_FULL_DISK = "a process killed on a full disk"


ARCHIVE_TROUBLES = frozenset({Trouble.ARCHIVE_GONE, Trouble.ARCHIVE_FULL})
PROCESS_TROUBLES = frozenset({Trouble.KILLED_PROCESS, Trouble.FROZEN_PROCESS, Trouble.KILLED_ON_FULL_DISK})
"""They need several processes."""
HARMLESS = frozenset({Trouble.STRANGERS, Trouble.STOPPED, Trouble.KILLED_PROCESS})
"""With these, and without kills of the whole server, each stop is a clean one."""


class Attack(Enum):
    """What strangers, and users without any rights, do."""

    PINGS = "pipelined pings"
    HALF_FRAMES = "half frames"
    GARBAGE = "garbage"
    LOGINS = "login flood"
    SLOTS = "connection slots"
    SLOW_FRAMES = "slow large frames"
    NO_READING = "answers that nobody reads"


class End(Enum):
    """How the server's process ends, again and again."""

    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of work with its trouble, a new start, a judgement, perhaps a measurement."""

    number: int
    seed: int
    seconds: float
    troubles: tuple[Trouble, ...]
    kill_count: int
    """Kills in the middle of the work; clients go on with what comes up again."""
    end: End
    heals_first: bool
    """Whether the trouble is over before the end; otherwise the next start meets it too."""
    attack: Attack | None
    """Strangers during the trouble called so, and during the measurement."""
    is_measured: bool
    """Whether the latency of a healthy client is measured, with and without the attack."""
    process_count: int = 1
    is_restored: bool = False
    """Whether the archive is restored after it, and compared."""

    @property
    def is_well(self) -> bool:
        """Whether nothing in it excuses a stop that is not clean."""
        return not self.kill_count and HARMLESS.issuperset(self.troubles)

    def __str__(self) -> str:
        troubles = ", ".join(trouble.value for trouble in self.troubles) or "no trouble"
        parts = [f"{troubles} for {self.seconds:.1f} s"]
        if self.attack is not None:
            parts.append(f"strangers: {self.attack.value}{' (measured)' if self.is_measured else ''}")
        parts.append(f"{self.kill_count} kills, {self.end.value}{'' if self.heals_first else ' in the midst of it'}")
        parts.append(f"{self.process_count} processes{', restored' if self.is_restored else ''}")
        return "; ".join(parts)


def draw(
    seed: int,
    *,
    troubles: Sequence[Trouble] = tuple(Trouble),
    attacks: Sequence[Attack] = tuple(Attack),
    measured_share: float = MEASURED_SHARE,
) -> Iterator[Episode]:
    """Episodes without end. Every trouble and every attack comes once before any comes twice as a first choice."""
    source = random.Random(f"plan {seed}")
    first_troubles, next_attacks = _in_turn(source, troubles), _in_turn(source, attacks)
    number = 0
    while True:
        chosen = [next(first_troubles)] if troubles and source.random() < 0.9 else []
        if troubles and source.random() < 0.35:
            chosen.append(source.choice(troubles))
        is_measured = bool(attacks) and source.random() < measured_share
        needs_attack = is_measured or Trouble.STRANGERS in chosen
        needs_processes = bool(PROCESS_TROUBLES.intersection(chosen))
        needs_restore = bool(ARCHIVE_TROUBLES.intersection(chosen))
        yield Episode(
            number=number,
            seed=source.randrange(1, 2**32),
            seconds=source.uniform(2.0, 6.0),
            troubles=tuple(dict.fromkeys(chosen)),
            kill_count=source.choice((0, 0, 1, 1, 2)),
            end=source.choice(tuple(End)),
            heals_first=source.random() < 0.7,
            attack=next(next_attacks) if attacks and needs_attack else None,
            is_measured=is_measured,
            process_count=source.choice((2, 3)) if needs_processes else source.choice((1, 1, 1, 2)),
            is_restored=needs_restore or source.random() < RESTORED_SHARE,
        )
        number += 1


def _in_turn(source: random.Random, values: Sequence[T]) -> Iterator[T]:
    while values:
        yield from source.sample(values, len(values))
