"""Judges what happened to a log, from records alone: it knows nothing of how the log works."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Written:
    """A message, and its place in the log."""

    epoch: int
    slot: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Somebody was told that a message is stored."""

    what: Written
    node: int
    process: int


@dataclass(slots=True)
class History:
    """What was seen of a run."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    begun: list[tuple[int, bytes]] = field(default_factory=list)
    """What leaders believed to have begun: epoch, checksum of its first object."""
    logs: list[tuple[Written, ...]] = field(default_factory=list)
    """What each follower has applied."""
    refusals: list[str] = field(default_factory=list)
    """Why somebody could not read the log."""
    final: tuple[Written, ...] = ()
    """The log, as whoever leads next has it."""


def faults_of(history: History) -> list[str]:
    """What must not be, in words; empty if all is well."""
    faults = list(history.refusals)
    final = {(written.epoch, written.slot): written for written in history.final}
    if len(final) != len(history.final):
        faults.append("a slot is twice in the log")
    if len({written.payload for written in history.final}) != len(history.final):
        faults.append("a message is twice in the log")
    by_slot: dict[tuple[int, int], Acknowledged] = {}
    for done in history.acknowledged:
        slot = (done.what.epoch, done.what.slot)
        before = by_slot.setdefault(slot, done)
        if before.what != done.what:
            faults.append(f"slot {slot} was acknowledged with {before.what.payload!r} and {done.what.payload!r}")
        if final.get(slot) != done.what:
            faults.append(f"{done.what} was acknowledged by {done.node}, and the log has {final.get(slot)}")
    first_objects: dict[int, bytes] = {}
    for epoch, checksum in history.begun:
        if first_objects.setdefault(epoch, checksum) != checksum:
            faults.append(f"epoch {epoch} has two leaders")
    for number, log in enumerate(history.logs):
        if log != history.final[: len(log)]:
            faults.append(f"what node {number} has applied is not the beginning of the log")
    return faults
