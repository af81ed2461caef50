"""Several processes that follow, claim and lead one log, on a store with faults and a clock that nobody waits for.

The code is the real one, without its threads. Each request is carried out at some moment, and answered at a later one;
processes are killed, paused, cloned and started again in between. What a root of the archive will be is a copy here:
the log up to a slot that its leader has acknowledged.
"""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from courser.archive.errors import ArchiveDamaged, ArchiveFailure
from courser.archive.keys import ArchiveKeys
from courser.records.stored_header import PartitionIdentity
from courser.replication.errors import LogMovedOn, ObjectsMissing
from courser.replication.leading import claim
from courser.replication.log_objects import Entry, EntryKind, LogObject, LogPosition, LogWriting
from courser.replication.log_reader import next_object
from courser.replication.requests import Answer, Pause, Request, perform, run
from courser.replication.slot_window import SlotRequest, SlotWindow, WindowSettings
from courser.testing.object_store import MemoryStore, StoreFault
from tests.fakes.clocks import ManualClock
from tests.replication.checker import Acknowledged, History, Written

CLUSTER = bytes(range(16))
KEYS = ArchiveKeys(CLUSTER)
IDENTITY = PartitionIdentity(bytes(16), 0, 1)
MILLISECOND = 1_000
SECOND = 1_000_000
SLOWEST = 3 * SECOND
"""How long a request takes at most, and how long the store holds one: longer than others are patient."""
DELETION_DELAY = 2 * SLOWEST + SECOND
"""Longer than a request takes or is held here, as the real one is longer than they live."""
SETTINGS = WindowSettings(hedge=300 * MILLISECOND, time_to_live=2 * SECOND)
STORE_FAULTS = tuple(fault for fault in StoreFault if fault is not StoreFault.CHANGED)


def payloads_of(found: LogObject) -> list[bytes]:
    return [bytes(entry.data) for entry in found.content] if isinstance(found.content, tuple) else []


@dataclass(slots=True)
class _Asked:
    """A request that is under way."""

    node: "Node"
    process: int
    """Which of the processes of the node made it."""
    request: Request
    window: SlotWindow | None
    """Which epoch it is for, if its node leads one."""
    slot: SlotRequest | None
    due: int
    answer: Answer = None
    is_done: bool = False


@dataclass(slots=True)
class _Root:
    position: LogPosition = field(default_factory=LogPosition)
    log: tuple[Written, ...] = ()


class Node:
    """A server: what it has on its disk, and the process that runs, if one does."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.process = 0
        """Counts its processes."""
        self.nonce = b""
        self.position = LogPosition()
        self.log: tuple[Written, ...] = ()
        self.window: SlotWindow | None = None
        self.pending: list[tuple[LogPosition, bytes]] = []
        self.steps: Any = None
        self.is_claiming = False
        self.is_asking = False
        self.is_alive = False
        self.is_paused = False
        self.is_refused = False
        self.begun_at = 0
        """When the epoch that it leads had begun for certain."""
        self.heard_at = 0
        self.patience = 0
        self.start()

    def start(self) -> None:
        """A new process, on the disk of the last one or on an empty one."""
        dice = self.world.dice
        self.process += 1
        self.nonce = dice.randbytes(16)
        if dice.random() < 0.2:
            self.position, self.log = LogPosition(), ()
        self.window, self.steps, self.pending = None, None, []
        self.is_claiming = self.is_asking = self.is_paused = self.is_refused = False
        self.is_alive = True
        self._listen()

    def stop(self) -> None:
        """The process is gone; its requests may still arrive."""
        self.is_alive = False

    def clone(self, origin: "Node") -> None:
        """Become what a copy of a virtual machine is: another process with the same memory, nonce included."""
        assert origin.window is not None
        self.process += 1
        self.nonce, self.position, self.log = origin.nonce, origin.position, origin.log
        self.window, self.pending = copy.copy(origin.window), list(origin.pending)
        clock, self.window.clock = self.window.clock, None  # type: ignore[assignment]
        self.window = copy.deepcopy(self.window)
        self.window.clock = clock
        # The requests under way were those of the original: the copy asks again.
        for slot in self.window._slots:
            slot.open_count, slot.is_looked_up = 0, False
        self.window._first.is_looked_up = self.window._next_first.is_looked_up = False
        self.is_alive, self.is_paused, self.is_asking, self.steps = True, False, False, None

    def _listen(self) -> None:
        self.heard_at = self.world.clock.monotonic()
        self.patience = int(SETTINGS.time_to_live * (1 + 0.3 * self.world.dice.random()))

    @property
    def writing(self) -> LogWriting:
        return LogWriting(KEYS, self.nonce)

    # --- what it does next ---

    def ask(self) -> None:
        """Make the next request, if there is one."""
        if not self.is_alive or self.is_paused:
            return
        if self.window is not None:
            if asked := self.window.next_request():
                self.world.ask(self, asked.request, asked)
            return
        if not self.is_asking and not self.is_refused:
            if self.steps is None:
                self._begin_steps()
            self._go_on(None)

    def _begin_steps(self) -> None:
        silence = self.world.clock.monotonic() - self.heard_at
        self.is_claiming = silence > self.patience
        if self.is_claiming:
            self.steps = claim(self.writing, self.position, "silence", self.world.clock.now)
        else:
            self.steps = next_object(KEYS, self.position)

    def _go_on(self, answer: Answer) -> None:
        try:
            request = self.steps.send(answer)
        except StopIteration as end:
            self.steps = None
            self._finish(end.value)
        except LogMovedOn:
            self.steps = None
            root = self.world.root
            if root.position.is_behind(self.position):
                self.position, self.log = root.position, root.log
            self._listen()
        except (ArchiveDamaged, ObjectsMissing) as refusal:
            self.steps, self.is_refused = None, True
            self.world.history.refusals.append(str(refusal))
        else:
            self.is_asking = True
            self.world.ask(self, request, None)

    def _finish(self, result: Any) -> None:
        if isinstance(result, LogObject):
            self._take(self.position, payloads_of(result))
            self.position = result.after
            self._listen()
        elif isinstance(result, LogPosition):
            self.position = result
            self.begun_at = 0
            self.window = self.world.make_window(self.writing, self.world.clock, SETTINGS, result, b"")
        elif self.is_claiming:
            self._listen()

    def _take(self, position: LogPosition, payloads: list[bytes]) -> None:
        self.log += tuple(Written(position.epoch, position.slot, payload) for payload in payloads)

    def take(self, asked: _Asked) -> None:
        """An answer has come."""
        if asked.slot is None:
            self.is_asking = False
            self._go_on(asked.answer)
            return
        window = asked.window
        assert window is not None
        window.answer(asked.slot, asked.answer)
        if window is not self.window:
            return
        self._note_acknowledged(window)
        if window.failure:
            self.stop()
        elif window.is_over:
            self.position = window.acknowledged
            self.window = window.next_epoch()
            self.begun_at = 0

    def _note_acknowledged(self, window: SlotWindow) -> None:
        if not self.begun_at and window.acknowledged.slot:
            self.begun_at = self.world.clock.monotonic()
            self.world.history.begun.append((window.begun_at.epoch, window.acknowledged.first))
        while self.pending and window.acknowledged.is_behind(self.pending[0][0]):
            position, payload = self.pending.pop(0)
            self._take(position, [payload])
            self.world.history.acknowledged.append(
                Acknowledged(Written(position.epoch, position.slot, payload), self.number, self.process)
            )
        # Where it would follow from, if it were killed now.
        self.position = window.acknowledged

    # --- what a leader does ---

    def append(self) -> None:
        window = self.window
        if window is not None and self.is_alive and not self.is_paused and not window.failure and window.has_room:
            payload = b"%d.%d.%d" % (self.number, self.process, self.world.next_number())
            position = window.close([Entry(EntryKind.BATCHES, IDENTITY, 0, payload)])
            self.pending.append((position, payload))

    def rotate(self) -> None:
        window = self.window
        if window is not None and self.is_alive and not self.is_paused and not window.failure and window.has_room:
            window.seal("rotation")

    def save_root(self) -> None:
        """Keep a root of what is acknowledged; then whole epochs before it may go, but no seal and no slot 0."""
        window, store = self.window, self.world.store
        if window is None or not self.is_alive or self.is_paused or window.failure:
            return
        if window.acknowledged.epoch != window.begun_at.epoch or not window.acknowledged.slot:
            return
        if window.acknowledged.is_behind(self.world.root.position):
            self.world.root = _Root(window.acknowledged, self.log)
        for key in list(store.objects):
            data = store.objects[key]
            is_over = self.begun_at + DELETION_DELAY < self.world.clock.monotonic()
            is_old = is_over and key < KEYS.log(window.begun_at.epoch) <= KEYS.log(self.world.root.position.epoch)
            if is_old and data[38] == 1 and self.world.dice.random() < 0.8:
                del store.objects[key]


class World:
    """Everything, from one seed."""

    def __init__(
        self,
        seed: int,
        *,
        node_count: int = 3,
        fault_rate: float = 0.14,
        has_clones: bool = True,
        make_window: Callable[..., SlotWindow] = SlotWindow,
    ) -> None:
        self.dice = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(
            random.Random(seed + 1),
            self.clock,
            fault_rate=fault_rate,
            fault_kinds=STORE_FAULTS,
            hold_max=SLOWEST,
            list_delay=self.dice.choice([0, SECOND]),
        )
        self.make_window = make_window
        self.has_clones = has_clones
        self.history = History()
        self.root = _Root()
        self._asked: list[_Asked] = []
        self._number = 0
        self.nodes = [Node(self, number) for number in range(node_count)]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def ask(self, node: Node, request: Request, slot: SlotRequest | None) -> None:
        delay = self.dice.randint(1, 20 * MILLISECOND)
        if self.dice.random() < 0.05:
            delay = self.dice.randint(1, SLOWEST)
        if isinstance(request, Pause):
            delay = request.microseconds
        self._asked.append(_Asked(node, node.process, request, node.window, slot, self.clock.monotonic() + delay))

    def step(self) -> None:  # noqa: C901 (a table)
        """One thing happens."""
        dice = self.dice
        node = dice.choice(self.nodes)
        match dice.randrange(1000):
            case n if n < 4:
                node.stop()
            case n if n < 10:
                node.is_paused = node.is_alive
            case n if n < 40 and node.is_paused:
                node.is_paused = False
            case n if n < 14 and self.has_clones and node.window is None:
                leaders = [one for one in self.nodes if one.window is not None and one.is_alive]
                if leaders:
                    node.clone(dice.choice(leaders))
            case n if n < 40:
                if not node.is_alive:
                    node.start()
            case n if n < 48:
                node.rotate()
            case n if n < 70:
                node.save_root()
            case n if n < 250:
                node.append()
            case n if n < 550:
                node.ask()
            case n if n < 650:
                self.clock.advance(dice.choice([MILLISECOND, 30 * MILLISECOND, 300 * MILLISECOND]))
            case _:
                self._move()

    def _move(self) -> None:
        """Carry a request out, or deliver an answer."""
        now = self.clock.monotonic()
        due = [asked for asked in self._asked if asked.due <= now]
        if not due:
            self.clock.advance(MILLISECOND)
            return
        asked = self.dice.choice(due)
        if not asked.is_done:
            if not isinstance(asked.request, Pause):
                asked.answer = perform(self.store, asked.request)
            asked.is_done = True
            return
        node = asked.node
        if node.is_alive and node.process == asked.process and node.is_paused:
            return
        self._asked.remove(asked)
        if node.is_alive and node.process == asked.process:
            node.take(asked)

    def run(self, step_count: int) -> History:
        """Let things happen. Then the store behaves, and one more process follows the log and claims it."""
        for _ in range(step_count):
            self.step()
        self.store.fault_rate = 0
        self.store.deliver_held()
        self.store.list_delay = 0
        self.clock.advance(60 * SECOND)
        self.history.logs = [node.log for node in self.nodes]
        try:
            self.history.final = tuple(self._read_all())
        except ArchiveFailure as refusal:
            self.history.refusals.append(str(refusal))
        return self.history

    def _read_all(self) -> Iterator[Written]:
        position, log = self.root.position, self.root.log
        yield from log
        for node in self.nodes:
            node.stop()
        while True:
            found = self._do(next_object(KEYS, position))
            if found is None:
                claimed = self._do(claim(LogWriting(KEYS, bytes(16)), position, "the end", self.clock.now))
                if claimed is not None:
                    return
                continue
            for payload in payloads_of(found):
                yield Written(position.epoch, position.slot, payload)
            position = found.after

    def _do(self, steps: Any) -> Any:
        return run(steps, partial(perform, self.store), self.clock.advance)
