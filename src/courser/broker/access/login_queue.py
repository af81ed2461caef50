"""Which password is hashed next: fair by address and by user name, limited in size, and pure.

A hash takes tens of milliseconds, and unknown clients decide how many are needed, so the order matters. Every login is
in two rings. One gives turns to addresses, and within an address to names; the other gives turns to names, and within
a name to addresses. The two rings are served alternately. A flood from some addresses cannot delay other addresses,
and a flood with some names, even from one address, cannot delay other users.

Connections with failed logins come after those without: they get one turn in four. Nothing here depends on whether a
user exists.

The bound (``docs/security.md``): let a login on a connection without failures be the only one with its address and
name. While it waits, let there be at most A addresses and U names among such logins, N names at its own address, and M
addresses under its own name. It is served within 3 * min(A * N, U * M) turns.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Reversible
from dataclasses import dataclass, field
from typing import Generic, TypeVar

WAITING_COUNT_MAX = 500
"""Waiting logins of all addresses. At 25 ms each they take 12 s; clients give up after 30 s."""
ADDRESS_COUNT_MAX = 128
"""Waiting logins of one address: about 3 s, also for users behind a proxy that share it with an attacker."""
PAIR_COUNT_MAX = 16
"""Waiting logins with one name from one address. Equal passwords count once, so only wrong ones reach this limit."""
_REPEATED_PART = 4
"""One turn in four belongs to connections with failed logins, while others wait. Of any three turns in a row, two that
follow each other thus belong to first attempts, one of each ring: the factor 3 of the bound."""
_NETWORK_BITS = 64
"""Prefix of an IPv6 address: a host gets at least such a network, and could use another address for each login."""


def network_of(address: str) -> str:
    """The part of a client's ``ip:port`` that counts as one address: the IPv4 address, or the IPv6 network."""
    host = address.rpartition(":")[0] or address
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found), _NETWORK_BITS), strict=False))
    return str(found)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The client that wants a password to be checked."""

    address: str
    """The client's address, as ``network_of`` returns it."""
    name: str
    """The given user name, whether or not the user exists."""
    has_failed: bool = False
    """Whether a login has failed on this connection."""
    is_known: bool = False
    """Whether this user has logged in from this address before, or is logged in."""
    is_there: Callable[[], bool] = field(default=_always, repr=False)
    """Whether the client still waits."""


Work = TypeVar("Work")
_Key = TypeVar("_Key")


@dataclass(eq=False, slots=True)
class QueueEntry(Generic[Work]):
    """An entry of the queue."""

    address: str
    name: str
    has_failed: bool
    work: Work


class _Ring(Generic[Work]):
    """Turns by an outer key, within it by an inner key, within that first in, first out. All operations are O(1)."""

    def __init__(self) -> None:
        self._outer: dict[str, dict[str, dict[QueueEntry[Work], None]]] = {}

    def __len__(self) -> int:
        return len(self._outer)

    def add(self, outer: str, inner: str, entry: QueueEntry[Work]) -> None:
        self._outer.setdefault(outer, {}).setdefault(inner, {})[entry] = None

    def discard(self, outer: str, inner: str, entry: QueueEntry[Work]) -> None:
        places = self._outer[outer][inner]
        del places[entry]
        if not places:
            del self._outer[outer][inner]
            if not self._outer[outer]:
                del self._outer[outer]

    def next(self) -> QueueEntry[Work]:
        """The next entry. Its keys move to the end of their rings; the entry stays until it is discarded."""
        outer = next(iter(self._outer))
        inners = self._outer[outer] = self._outer.pop(outer)
        inner = next(iter(inners))
        places = inners[inner] = inners.pop(inner)
        return next(iter(places))


class _Turns(Generic[Work]):
    """The two rings, in turn."""

    def __init__(self) -> None:
        self._by_address: _Ring[Work] = _Ring()
        self._by_name: _Ring[Work] = _Ring()
        self._is_turn_of_name = False

    def __len__(self) -> int:
        return len(self._by_address)

    def add(self, entry: QueueEntry[Work]) -> None:
        self._by_address.add(entry.address, entry.name, entry)
        self._by_name.add(entry.name, entry.address, entry)

    def discard(self, entry: QueueEntry[Work]) -> None:
        self._by_address.discard(entry.address, entry.name, entry)
        self._by_name.discard(entry.name, entry.address, entry)

    def next(self) -> QueueEntry[Work]:
        ring = self._by_name if self._is_turn_of_name else self._by_address
        self._is_turn_of_name = not self._is_turn_of_name
        return ring.next()


class LoginQueue(Generic[Work]):
    """Keeps logins that wait, and chooses the next one."""

    def __init__(self) -> None:
        self._entries: dict[QueueEntry[Work], None] = {}
        """The oldest first."""
        self._addresses: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        """How many logins wait of each address, of each name, and of each address and name."""
        self._first: _Turns[Work] = _Turns()
        self._repeated: _Turns[Work] = _Turns()
        """Logins of connections on which one has failed."""
        self._turn_number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: QueueEntry[Work]) -> bool:
        return entry in self._entries

    def add(self, entry: QueueEntry[Work]) -> QueueEntry[Work] | None:
        """Add a login. Return the entry that was dropped to make room, or the new one if there is no room."""
        self._entries[entry] = None
        self._addresses[entry.address] += 1
        self._names[entry.name] += 1
        self._pairs[entry.address, entry.name] += 1
        self._turns_of(entry).add(entry)
        loser = self._loser(entry)
        if loser is not None:
            self.discard(loser)
        return loser

    def discard(self, entry: QueueEntry[Work]) -> None:
        """Remove a login, if it is in the queue."""
        if entry not in self._entries:
            return
        del self._entries[entry]
        _count_down(self._addresses, entry.address)
        _count_down(self._names, entry.name)
        _count_down(self._pairs, (entry.address, entry.name))
        self._turns_of(entry).discard(entry)

    def take(self) -> QueueEntry[Work] | None:
        """The next login; None if none waits."""
        if not self._entries:
            return None
        self._turn_number += 1
        is_for_repeated = not self._first or (self._repeated and self._turn_number % _REPEATED_PART == 0)
        entry = (self._repeated if is_for_repeated else self._first).next()
        self.discard(entry)
        return entry

    def _turns_of(self, entry: QueueEntry[Work]) -> _Turns[Work]:
        return self._repeated if entry.has_failed else self._first

    def _loser(self, new: QueueEntry[Work]) -> QueueEntry[Work] | None:
        """Which login must go if the new one has exceeded a limit: one of those that share the limit.

        The newest on a connection with failures; otherwise the newest of the address or name that has most.
        """
        address, name = new.address, new.name
        if self._pairs[address, name] > PAIR_COUNT_MAX:
            crowd = [entry for entry in self._entries if entry.address == address and entry.name == name]
            return self._newest_repeated(crowd) or new
        if self._addresses[address] > ADDRESS_COUNT_MAX:
            crowd = [entry for entry in self._entries if entry.address == address]
            most = max(self._pairs[address, entry.name] for entry in crowd)
            return self._newest_repeated(crowd) or next(
                entry for entry in reversed(crowd) if self._pairs[address, entry.name] == most
            )
        if len(self._entries) > WAITING_COUNT_MAX:
            most = max(*self._addresses.values(), *self._names.values())
            return self._newest_repeated(self._entries) or next(
                entry
                for entry in reversed(self._entries)
                if most in (self._addresses[entry.address], self._names[entry.name])
            )
        return None

    def _newest_repeated(self, crowd: Reversible[QueueEntry[Work]]) -> QueueEntry[Work] | None:
        if not self._repeated:
            return None
        return next((entry for entry in reversed(crowd) if entry.has_failed), None)


def _count_down(counts: "Counter[_Key]", key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
