"""What clients asked of a server and what they were told, held against what is there. Pure: no sockets, no clock.

Time is a counter. An operation lasts from the tick at which it was asked for to the tick at which its answer came; two
operations whose spans overlap may have happened in either order. Three things follow from the operations:

* *registers*: streams, topics, groups, users, sinks, stored offsets. Each holds the value of its last write, or of one
  that may have come last.
* *messages*: an acknowledged one is there, once, at its offset, unless something that may have destroyed it came later.
* *publishes*: all messages of a staged batch are there, or none.

A *judgement* compares a full reading, made while nothing else was asked, with these. It raises nothing: violations are
collected. What was found becomes the new starting point, so what was in doubt once is not in doubt any more: a message
that was not there must never appear, and a topic that was there must stay.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from courser.model.clock import CLOCK_LEAD_MAX
from tests.sdk.programs.load import name_of, payload_of

Path = tuple[str | int, ...]
"""Where something is: stream, topic, partition, or a beginning of that."""
Value = Hashable
"""None: it does not exist."""

HISTORY_SIZE = 200_000
"""Operations that are kept for the report of a violation."""


class Outcome(Enum):
    """What a client knows about its request."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """The server failed, or the answer was lost: done or not done."""


@dataclass(eq=False, slots=True)
class Operation:
    """One request, or a request that is repeated until it is answered."""

    who: str
    what: str
    path: Path
    begin: int
    end: int | None = None
    """None: the server may still carry it out."""
    outcome: Outcome = Outcome.ASKED
    answer: str = ""

    @property
    def may_be_done(self) -> bool:
        return self.outcome is not Outcome.REFUSED

    def ended_before(self, other: "Operation") -> bool:
        return self.end is not None and self.end < other.begin

    def __str__(self) -> str:
        place = "/".join(map(str, self.path))
        return f"{self.begin}-{self.end or ''} {self.who}: {self.what} {place}: {self.outcome.value} {self.answer}"


class DestructionKind(Enum):
    """How much goes."""

    DELETE = "delete"
    """Everything at the path and below."""
    PURGE = "purge"
    """Messages and stored offsets; numbering goes on."""
    TRIM = "trim"
    """Some of the oldest messages, nobody knows how many."""


@dataclass(frozen=True, slots=True)
class Destruction:
    """An operation that takes away what others have made."""

    path: Path
    kind: DestructionKind
    operation: Operation

    def covers(self, path: Path) -> bool:
        return path[: len(self.path)] == self.path


@dataclass(eq=False, slots=True)
class Register:
    """Something that has a value, or does not exist."""

    path: Path
    name: str
    is_position: bool = False
    """A stored offset: goes with a purge."""
    writes: list[tuple[Value, Operation]] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(["/".join(map(str, self.path)), self.name]).strip()


@dataclass(eq=False, slots=True)
class Message:
    """One message, sent once."""

    identity: str
    path: Path
    operation: Operation
    offset: int | None = None
    """None: nobody was told."""
    found_at: int = 0
    """The tick of the last judgement that found it; 0 if none did."""


@dataclass(eq=False, slots=True)
class Publish:
    """The messages of one staged batch."""

    sink: str
    batch: int
    operation: Operation
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Found:
    """A message as it was read."""

    offset: int
    payload: str
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    kind: str
    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {'/'.join(map(str, self.path)) or '/'}: {self.text}"


@dataclass(slots=True)
class _Partition:
    messages: dict[str, Message] = field(default_factory=dict)
    """Those that are there, or may be."""
    owners: dict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """Who was confirmed, or seen, at an offset."""


class History:
    """All of it. Not thread-safe: the caller takes turns."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.operations: deque[Operation] = deque(maxlen=HISTORY_SIZE)
        self._ticks = itertools.count(1)
        self._registers: dict[tuple[Path, str], Register] = {}
        self._destructions: list[Destruction] = []
        """Since the last judgement."""
        self._deletions: list[Destruction] = []
        """Those of before that, as far as numbering began anew with them."""
        self._partitions: dict[Path, _Partition] = defaultdict(_Partition)
        self._publishes: list[Publish] = []
        self._gone: dict[str, str] = {}
        """Messages that must never be seen again, and why."""
        self._unanswered: list[Operation] = []
        self._vanishing: set[Path] = set()
        self._clock_step_count = 0

    # --- what is asked --------------------------------------------------------------------------------

    def begin(self, who: str, what: str, path: Path = ()) -> Operation:
        """A client is about to ask. Say what it may change before it does."""
        operation = Operation(who, what, path, next(self._ticks))
        self.operations.append(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome, answer: str = "", *, is_over: bool = True) -> None:
        """The answer came, or will not come. ``is_over=False``: the server may still carry it out while it lives."""
        operation.outcome, operation.answer = outcome, answer
        operation.end = next(self._ticks) if is_over else None
        if not is_over:
            self._unanswered.append(operation)

    def resume(self, operation: Operation) -> None:
        """The same request is made once more."""
        operation.outcome, operation.end = Outcome.ASKED, None

    def server_ended(self) -> None:
        """The process is gone, and with it all that it was still busy with."""
        for operation in self._unanswered:
            if operation.outcome is Outcome.UNKNOWN:
                operation.end = next(self._ticks)
        self._unanswered.clear()

    def writes(self, operation: Operation, path: Path, name: str, value: Value, *, is_position: bool = False) -> None:
        """The operation gives a register this value."""
        register = self._registers.setdefault((path, name), Register(path, name, is_position))
        register.writes.append((value, operation))

    def destroys(self, operation: Operation, path: Path, kind: DestructionKind) -> None:
        """The operation takes away what is at the path."""
        self._destructions.append(Destruction(path, kind, operation))

    def sends(self, operation: Operation, path: Path, identities: Iterable[str]) -> list[Message]:
        """The operation puts messages into a partition."""
        partition = self._partitions[path]
        made = [Message(identity, path, operation) for identity in identities]
        partition.messages.update({message.identity: message for message in made})
        return made

    def confirms(self, messages: Sequence[Message], offset: int) -> None:
        """The answer to a send names the offset of its first message."""
        for position, message in enumerate(messages, offset):
            self._place(message, position)

    def publishes(self, operation: Operation, sink: str, batch: int, messages: list[Message]) -> Publish:
        """The operation publishes messages that were staged: each was declared with ``sends``."""
        publish = Publish(sink, batch, operation, messages)
        self._publishes.append(publish)
        return publish

    def let_vanish(self, path: Path) -> None:
        """Messages of this topic expire, or give way to newer ones."""
        self._vanishing.add(path)

    def clock_set(self) -> None:
        """The server's clock was set, by more than it would wait for: times of messages follow it."""
        self._clock_step_count += 1

    # --- what is known --------------------------------------------------------------------------------

    def values(self, path: Path, name: str) -> set[Value]:
        """What a register may hold now."""
        register = self._registers.get((path, name))
        return {None} if register is None else self._allowed(register)

    def registers(self, wanted: Callable[[Register], bool]) -> list[Register]:
        return [register for register in self._registers.values() if wanted(register)]

    @property
    def partitions(self) -> list[Path]:
        """Where messages were sent."""
        return list(self._partitions)

    # --- judgements -----------------------------------------------------------------------------------

    def judge_register(self, path: Path, name: str, value: Value) -> None:
        """What a register was found to hold, with nothing under way."""
        register = self._registers.get((path, name))
        if register is None:
            if value is not None:
                self.complain("stranger", path, f"{name} is {value!r}, and nobody made it")
            return
        allowed = self._allowed(register)
        if value not in allowed:
            wanted = " or ".join(sorted(map(repr, allowed)))
            kind = "resurrected" if allowed == {None} else "lost" if value is None else "wrong"
            self.complain(kind, path, f"{name} is {value!r} and should be {wanted}; {self._last_write(register)}")
        register.writes = [(value, self._reading())]

    def judge_publishes(self, published: dict[str, int | None]) -> None:
        """By sink, the highest batch that the server calls published. Before the partitions are judged."""
        for publish in self._publishes:
            if publish.operation.outcome is Outcome.UNKNOWN and publish.sink in published:
                highest = published[publish.sink]
                is_done = highest is not None and highest >= publish.batch
                publish.operation.outcome = Outcome.DONE if is_done else Outcome.REFUSED

    def judge_partition(self, path: Path, found: Sequence[Found]) -> None:
        """All that a partition holds, with nothing under way."""
        reading = self._reading()
        partition = self._partitions[path]
        seen = self._check(path, found, reading)
        self._check_times(path, found)
        may_vanish = path[:2] in self._vanishing
        kept: dict[str, Message] = {}
        for message in partition.messages.values():
            if message.identity in seen:
                message.found_at = reading.begin
                kept[message.identity] = message
                continue
            if not may_vanish and self._is_due(message):
                where = "" if message.offset is None else f" at offset {message.offset}"
                self.complain("lost", path, f"{message.identity}{where} is not there; {message.operation}")
            self._gone[message.identity] = "the last reading did not find it"
        partition.messages = kept

    def finish_judgement(self) -> None:
        """Every register and every partition was judged: destructions and publishes of the past are settled."""
        for publish in self._publishes:
            present = [message for message in publish.messages if message.found_at]
            topics = {message.path[:2] for message in present}
            absent = [
                message
                for message in publish.messages
                if not message.found_at
                and (not self._may_be_destroyed(message) or (message.path[:2] in topics and self._is_purged(message)))
            ]
            if present and absent and not any(message.path[:2] in self._vanishing for message in absent):
                text = f"{len(present)} of {len(publish.messages)} messages are there; {publish.operation}"
                self.complain("torn", (), f"batch {publish.batch} of sink {publish.sink}: {text}")
        self._publishes.clear()
        self._deletions += [d for d in self._destructions if d.kind is DestructionKind.DELETE]
        self._destructions.clear()

    def judge_glimpse(self, path: Path, found: Sequence[Found], reading: Operation) -> None:
        """What a client read while others were at work. ``reading`` is its own operation, not yet ended."""
        self._check(path, found, reading)

    def complain(self, kind: str, path: Path, text: str) -> None:
        """A promise was not kept."""
        self.violations.append(Violation(kind, path, text))

    def story(self, path: Path, count: int = 40) -> list[str]:
        """The last operations that have to do with a path: those that changed something around it, and any others."""
        related = [o for o in self.operations if o.path[: len(path)] == path[: len(o.path)]]
        wide = [o for o in related if len(o.path) < len(path) and o.path and o.outcome is not Outcome.REFUSED]
        kept = set(map(id, wide[-count:] + related[-count:]))
        return [str(operation) for operation in related if id(operation) in kept]

    # --- rules ----------------------------------------------------------------------------------------

    def _reading(self) -> Operation:
        tick = next(self._ticks)
        return Operation("judge", "read", (), tick, tick, Outcome.DONE)

    def _allowed(self, register: Register) -> set[Value]:
        writes = register.writes + [(None, d.operation) for d in self._destructions if _takes_register(d, register)]
        writes = [(value, operation) for value, operation in writes if operation.may_be_done]
        done = [operation for _, operation in writes if operation.outcome is Outcome.DONE]
        allowed = {v for v, operation in writes if not any(operation.ended_before(later) for later in done)}
        is_doubtful = not done or any(
            self._may_come_late(destruction, register, value) for destruction in self._destructions for value in allowed
        )
        return allowed | {None} if is_doubtful else allowed

    def _may_come_late(self, destruction: Destruction, register: Register, value: Value) -> bool:
        """Whether a purge that failed may still take a stored offset.

        When it is carried out at last, offsets that point below its end go, also those that were stored meanwhile:
        what they point at is gone, so that nobody skips a message or reads one twice. Its end is where the partition
        ended when it was journaled. So an offset stays if its message was sent behind the answer to the purge.
        """
        is_in_doubt = destruction.operation.outcome is Outcome.UNKNOWN and destruction.kind is DestructionKind.PURGE
        if not is_in_doubt or not register.is_position or not destruction.covers(register.path):
            return False
        partition = self._partitions.get(register.path)
        owners = partition.owners.get(value, []) if partition is not None and isinstance(value, int) else []
        return not owners or any(not destruction.operation.ended_before(owner.operation) for owner in owners)

    def _last_write(self, register: Register) -> str:
        return f"last write: {register.writes[-1][1]}"

    def _check(self, path: Path, found: Sequence[Found], reading: Operation) -> set[str]:
        """What is wrong with messages that are there. Return who they are."""
        seen: set[str] = set()
        for one in found:
            message = self._recognize(path, one)
            if message is None:
                continue
            if message.identity in seen:
                self.complain("duplicate", path, f"{message.identity} is there twice, again at offset {one.offset}")
            seen.add(message.identity)
            if message.operation.outcome is Outcome.REFUSED:
                self.complain("refused", path, f"{message.identity} is there; {message.operation}")
            if (reason := self._why_gone(message, reading)) is not None:
                self.complain("resurrected", path, f"{message.identity} is there again; {reason}")
            self._place(message, one.offset)
        return seen

    def _recognize(self, path: Path, found: Found) -> Message | None:
        try:
            identity = name_of(found.payload)
            name, number = identity.split()
            is_whole = payload_of(name, int(number)) == found.payload
        except ValueError:
            identity, is_whole = found.payload[:40], False
        if not is_whole:
            self.complain("altered", path, f"offset {found.offset} holds {found.payload[:80]!r}")
            return None
        message = self._partitions[path].messages.get(identity)
        if message is None:
            kind = "resurrected" if identity in self._gone else "stranger"
            reason = self._gone.get(identity, "nobody sent it there")
            self.complain(kind, path, f"{identity} is at offset {found.offset}; {reason}")
        return message

    def _place(self, message: Message, offset: int) -> None:
        """A message is, or is said to be, at this offset."""
        if message.offset is not None and message.offset != offset:
            text = f"{message.identity} was at offset {message.offset}, and is at {offset}"
            self.complain("duplicate", message.path, text)
            return
        if message.offset == offset:
            return
        message.offset = offset
        owners = self._partitions[message.path].owners[offset]
        for owner in owners:
            if not self._is_other_log(owner, message):
                text = f"offset {offset} was {owner.identity}, and is {message.identity}"
                self.complain("reused", message.path, f"{text}; {owner.operation}; {message.operation}")
        owners.append(message)

    def _is_other_log(self, first: Message, second: Message) -> bool:
        """Whether the partition may have been deleted and made anew between the two."""
        return any(
            not d.operation.ended_before(first.operation) and not second.operation.ended_before(d.operation)
            for d in self._deletions + self._destructions
            if d.kind is DestructionKind.DELETE and d.operation.may_be_done and d.covers(first.path)
        )

    def _why_gone(self, message: Message, reading: Operation) -> str | None:
        for destruction in self._covering(message):
            operation = destruction.operation
            is_whole = destruction.kind is not DestructionKind.TRIM and operation.outcome is Outcome.DONE
            if is_whole and message.operation.ended_before(operation) and operation.ended_before(reading):
                return str(operation)
        return None

    def _is_due(self, message: Message) -> bool:
        """Whether it must be there: it was acknowledged, or found, and nothing can have destroyed it."""
        is_promised = message.operation.outcome is Outcome.DONE or message.found_at > 0
        return is_promised and not self._may_be_destroyed(message)

    def _may_be_destroyed(self, message: Message) -> bool:
        return any(not d.operation.ended_before(message.operation) for d in self._covering(message))

    def _is_purged(self, message: Message) -> bool:
        """Whether only purges can have destroyed it: they take all that a publish has for a topic, or nothing."""
        possible = [d for d in self._covering(message) if not d.operation.ended_before(message.operation)]
        return bool(possible) and all(d.kind is DestructionKind.PURGE for d in possible)

    def _covering(self, message: Message) -> list[Destruction]:
        return [d for d in self._destructions if d.operation.may_be_done and d.covers(message.path)]

    def _check_times(self, path: Path, found: Sequence[Found]) -> None:
        """Offsets grow, and so do times: they go back only where the clock was set back, and only that often."""
        step_count = 0
        for before, after in itertools.pairwise(found):
            if after.offset <= before.offset:
                self.complain("order", path, f"offset {after.offset} follows {before.offset}")
            is_step = after.timestamp < before.timestamp - CLOCK_LEAD_MAX
            step_count += is_step
            if after.timestamp < before.timestamp and not (is_step and step_count <= self._clock_step_count):
                times = f"{before.timestamp} at offset {before.offset}, {after.timestamp} at offset {after.offset}"
                self.complain("order", path, f"time goes back within the partition: {times}")


def _takes_register(destruction: Destruction, register: Register) -> bool:
    if not destruction.covers(register.path):
        return False
    if destruction.kind is DestructionKind.DELETE:
        return True
    return destruction.kind is DestructionKind.PURGE and register.is_position
