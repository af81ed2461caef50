"""The rules of the replicated log as a model: every order in which requests, answers and processes can meet, explored.

Two or three servers, a store that may carry out a request at any time after it was sent, a root, deletion of epochs
that are over, rotation, and a server that is cloned. The real code is not used here: what is proved is that the rules
suffice, and that each of them is needed. ``docs/formats/replicated-log.md`` has the same rules in words.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

SLOTS_AHEAD = 2


class Rule(Enum):
    """What can be switched off."""

    CHECK_CLAIM = "after its own seal, a server looks which seal the next epoch names"
    CHECK_SEAL = "a reader does so, too"
    WHOLE_EPOCHS = "only epochs that are over are deleted, after a root in a later one"
    KEEP_SEALS = "seals are never deleted"
    KEEP_FIRST = "slot 0 is never deleted"
    IN_ORDER = "a slot is acknowledged after all before it"
    ALL_BYTES = "a doubt is settled by all bytes, not by the nonce"
    LOOK_AHEAD = "beside each slot, a leader looks whether the next epoch has begun"


class Thing(NamedTuple):
    """An object: a seal, the begin of an epoch, or a message."""

    kind: str
    nonce: int
    body: str
    named: int
    """In slot 0: the slot of the seal of the epoch before."""


Key = tuple[int, int]
Put = tuple[Key, Thing]


class Node(NamedTuple):
    """A server. Followers have a position and what they read; leaders have what they wrote in their epoch."""

    role: str
    epoch: int
    slot: int
    log: tuple[str, ...]
    named: int
    nonce: int
    issued: tuple[Thing, ...] = ()
    stored: frozenset[int] = frozenset()
    looked: frozenset[int] = frozenset()
    acknowledged: int = 0
    messages: int = 0
    rotations: int = 0


class Root(NamedTuple):
    epoch: int
    slot: int
    log: tuple[str, ...]
    named: int


class State(NamedTuple):
    store: frozenset[Put]
    first: frozenset[Put]
    """What was ever stored first under each key: the log as it truly is."""
    sent: frozenset[Put]
    root: Root
    nodes: tuple[Node, ...]
    has_cloned: bool


class Violation(Exception):
    """A rule was not enough."""


@dataclass(frozen=True)
class Bounds:
    """How much happens."""

    messages: tuple[int, ...]
    """Of each server."""
    epochs: int = 3
    rotations: int = 1
    has_clones: bool = False
    """Whether a follower may become a copy of the leader."""
    has_claims: bool = True


@dataclass(frozen=True)
class Result:
    states: int
    is_complete: bool
    violation: str = ""
    steps: int = 0


def _true_log(first: dict[Key, Thing], end: Key | None = None) -> list[str] | None:
    """What the log has, up to a position; None if it does not get there."""
    epoch, slot, found = 1, 0, list[str]()
    while (epoch, slot) != end:
        thing = first.get((epoch, slot))
        if thing is None:
            return found if end is None else None
        if thing.kind == "seal":
            epoch, slot = epoch + 1, 0
            continue
        if thing.kind == "message":
            found.append(thing.body)
        slot += 1
    return found


class Model:
    """The steps from a state."""

    def __init__(self, bounds: Bounds, off: frozenset[Rule]) -> None:
        self._bounds = bounds
        self._off = off

    def start(self) -> State:
        followers = [Node("follows", 1, 0, (), 0, number) for number in range(1, len(self._bounds.messages))]
        nothing: frozenset[Put] = frozenset()
        return State(nothing, nothing, nothing, Root(1, 0, (), 0), (Node("leads", 1, 0, (), 0, 0), *followers), False)

    def steps(self, state: State) -> Iterator[State]:
        """All states that can follow. Raises ``Violation``."""
        store, first = dict(state.store), dict(state.first)
        for put in state.sent:
            rest = state._replace(sent=state.sent - {put})
            if put[0] in store:
                yield rest
            else:
                known = state.first if put[0] in first else state.first | {put}
                yield rest._replace(store=state.store | {put}, first=known)
        for number, node in enumerate(state.nodes):
            match node.role:
                case "leads":
                    yield from self._lead(state, number, node, store, first)
                case "follows" | "claims" | "sealed":
                    yield from self._follow(state, number, node, store, first)
                case _:
                    pass

    # --- a leader ---

    def _lead(
        self, state: State, number: int, node: Node, store: dict[Key, Thing], first: dict[Key, Thing]
    ) -> Iterator[State]:
        for thing, changed in self._things(number, node):
            put = ((node.epoch, len(node.issued)), thing)
            yield _with(state, number, changed)._replace(sent=state.sent | {put})
        for slot in range(node.acknowledged, len(node.issued)):
            yield from self._settle(state, number, node, slot, store)
        yield from self._acknowledge(state, number, node, first)
        if not node.acknowledged:
            return
        if (node.epoch, node.acknowledged) > state.root[:2]:
            yield state._replace(root=Root(node.epoch, node.acknowledged, node.log, node.named))
        for key, thing in state.store:
            if self._may_delete(state, node, key, thing):
                yield state._replace(store=state.store - {(key, thing)})
        if self._bounds.has_clones and not state.has_cloned:
            for other, one in enumerate(state.nodes):
                if one.role == "follows":
                    yield _with(state, other, node)._replace(has_cloned=True)

    def _settle(self, state: State, number: int, node: Node, slot: int, store: dict[Key, Thing]) -> Iterator[State]:
        """What becomes of a slot that was sent."""
        key, thing = (node.epoch, slot), node.issued[slot]
        deposed = _with(state, number, node._replace(role="deposed"))
        if slot not in node.looked and Rule.LOOK_AHEAD not in self._off:
            looked = _with(state, number, node._replace(looked=node.looked | {slot}))
            yield deposed if (node.epoch + 1, 0) in store else looked
        if slot in node.stored:
            return
        there = store.get(key)
        if there is None:
            if (key, thing) not in state.sent:
                # The look must follow the request that stores it.
                again = _with(state, number, node._replace(looked=node.looked - {slot}))
                yield again._replace(sent=state.sent | {(key, thing)})
        elif there == thing or (Rule.ALL_BYTES in self._off and there[:2] == thing[:2]):
            yield _with(state, number, node._replace(stored=node.stored | {slot}))
        else:
            yield deposed

    def _things(self, number: int, node: Node) -> Iterator[tuple[Thing, Node]]:
        """What a leader may write next, and the leader after that."""
        next_slot, bounds = len(node.issued), self._bounds
        is_sealed = next_slot > 0 and node.issued[-1].kind == "seal"
        if is_sealed or next_slot - node.acknowledged >= SLOTS_AHEAD:
            return
        if not next_slot:
            begin = Thing("begin", node.nonce, "", node.named)
            yield begin, node._replace(issued=(begin,))
            return
        if node.messages < bounds.messages[number]:
            message = Thing("message", node.nonce, f"{number}.{node.epoch}.{next_slot}", 0)
            yield message, node._replace(issued=(*node.issued, message), messages=node.messages + 1)
        if node.rotations < bounds.rotations and node.epoch < bounds.epochs:
            seal = Thing("seal", node.nonce, "", 0)
            yield seal, node._replace(issued=(*node.issued, seal), rotations=node.rotations + 1)

    def _acknowledge(self, state: State, number: int, node: Node, first: dict[Key, Thing]) -> Iterator[State]:
        waiting = range(node.acknowledged, len(node.issued))
        for slot in waiting if Rule.IN_ORDER in self._off else waiting[:1]:
            has_looked = slot in node.looked or Rule.LOOK_AHEAD in self._off
            if slot not in node.stored or not has_looked:
                continue
            thing = node.issued[slot]
            if thing.kind == "message" and thing.body not in (_true_log(first) or []):
                raise Violation(f"{number} acknowledges {thing.body}, which is not in the log")
            if slot != node.acknowledged:
                continue
            if thing.kind == "seal":
                after = Node("leads", node.epoch + 1, 0, node.log, slot, node.nonce)
                yield _with(state, number, after._replace(messages=node.messages, rotations=node.rotations))
                continue
            log = (*node.log, thing.body) if thing.kind == "message" else node.log
            yield _with(state, number, node._replace(acknowledged=slot + 1, log=log))

    def _may_delete(self, state: State, node: Node, key: Key, thing: Thing) -> bool:
        is_over = key[0] < node.epoch <= state.root.epoch or Rule.WHOLE_EPOCHS in self._off
        is_kept = (thing.kind == "seal" and Rule.KEEP_SEALS not in self._off) or (
            key[1] == 0 and Rule.KEEP_FIRST not in self._off
        )
        # Nobody is still between a look and the answer to what it has sent: an hour has passed.
        is_awaited = any(
            one.role == "leads" and one.epoch == key[0] and key[1] in one.looked - one.stored for one in state.nodes
        )
        return key < state.root[:2] and is_over and not is_kept and not is_awaited

    # --- a follower ---

    def _follow(
        self, state: State, number: int, node: Node, store: dict[Key, Thing], first: dict[Key, Thing]
    ) -> Iterator[State]:
        key = (node.epoch, node.slot)
        there = store.get(key)
        seal = Thing("seal", node.nonce, "", node.named if not node.slot else 0)
        root = Node("follows", *state.root, node.nonce)
        match node.role:
            case "follows":
                if (node.epoch, node.slot) < state.root[:2]:
                    yield _with(state, number, root)
                if there is None:
                    if self._bounds.has_claims:
                        claiming = _with(state, number, node._replace(role="claims"))
                        yield claiming._replace(sent=state.sent | {(key, seal)})
                elif there.kind == "seal":
                    is_true = Rule.CHECK_SEAL in self._off or _names(store, node)
                    behind = Node("follows", node.epoch + 1, 0, node.log, node.slot, node.nonce)
                    yield _with(state, number, behind if is_true else root)
                else:
                    log = (*node.log, there.body) if there.kind == "message" else node.log
                    yield _with(state, number, node._replace(slot=node.slot + 1, log=log))
            case "claims":
                if there is None:
                    yield state._replace(sent=state.sent | {(key, seal)})
                else:
                    yield _with(state, number, node._replace(role="sealed" if there == seal else "follows"))
            case _:
                if Rule.CHECK_CLAIM not in self._off and not _names(store, node):
                    yield _with(state, number, root)
                elif node.epoch < self._bounds.epochs:
                    if first[key] != seal or _true_log(first, (node.epoch + 1, 0)) != list(node.log):
                        raise Violation(f"{number} leads epoch {node.epoch + 1} with another log than the true one")
                    yield _with(state, number, Node("leads", node.epoch + 1, 0, node.log, node.slot, node.nonce))


def _names(store: dict[Key, Thing], node: Node) -> bool:
    """Whether the next epoch has not begun, or names the seal at a position."""
    begun = store.get((node.epoch + 1, 0))
    return begun is None or begun.named == node.slot


def _with(state: State, number: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:number], node, *state.nodes[number + 1 :]))


def explore(bounds: Bounds, off: frozenset[Rule] = frozenset(), states_max: int = 10_000_000) -> Result:
    """Go through all states, the nearest ones first. Of those that were seen, only hashes are kept."""
    model = Model(bounds, off)
    seen, queue = {hash(model.start())}, deque([(model.start(), 0)])
    while queue:
        state, depth = queue.popleft()
        try:
            for following in model.steps(state):
                if hash(following) not in seen:
                    seen.add(hash(following))
                    queue.append((following, depth + 1))
        except Violation as violation:
            return Result(len(seen), False, str(violation), depth + 1)
        if len(seen) > states_max:
            return Result(len(seen), False)
    return Result(len(seen), True)
