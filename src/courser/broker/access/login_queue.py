"""Which password is hashed next: fair by address and by user name, limited in size, and pure.

A hash takes tens of milliseconds, and unknown clients decide how many are needed, so the order matters. Every login is
in two rings at the same time. One gives turns to addresses, and within an address to names; the other gives turns to
names, and within a name to addresses. The two rings are served alternately. A flood from some addresses cannot delay
other addresses, and a flood with some names, even from one address, cannot delay other users.

Connections with failed logins come after those without: they get two turns in eight. Nothing here depends on whether a
user exists.

The bound (``docs/security.md``): let a login on a connection without failures be the only one with its address and
name. While it waits, let there be at most A addresses and U names among such logins, N names at its own address, and M
addresses under its own name. It is served within 3 * min(A * N, U * M) turns.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Generic, TypeAlias, TypeVar

WAITING_COUNT_MAX = 500
"""Waiting logins of all addresses. At 25 ms each they take 12 s; clients give up after 30 s."""
ADDRESS_COUNT_MAX = 128
"""Waiting logins of one address: about 3 s, also for users behind a proxy that share it with an attacker."""
PAIR_COUNT_MAX = 16
"""Waiting logins with one name from one address. Equal passwords count once, so only wrong ones reach this limit."""
BAND_COUNT = 3
"""Bands of connections: no failed login yet, one, more."""
_PATTERN = (0, 0, 0, 1, 0, 0, 0, 2)
"""The band of each turn. If no login waits in it, the turn goes to the lowest band with a waiting login. There are
never two turns of other bands between two turns of the first: the factor 3 of the bound follows from it."""
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
    try_count: int = 0
    """How many logins have failed on this connection."""
    is_known: bool = False
    """Whether this user has logged in from this address before, or is logged in."""
    is_there: Callable[[], bool] = field(default=_always, repr=False)
    """Whether the client still waits."""


Work = TypeVar("Work")


@dataclass(eq=False, slots=True)
class QueueEntry(Generic[Work]):
    """An entry of the queue."""

    address: str
    name: str
    band: int
    work: Work


_Inner: TypeAlias = dict[str, dict[QueueEntry[Work], None]]


class _Ring(Generic[Work]):
    """Turns by an outer key, within it by an inner key, within that first in, first out. All operations are O(1)."""

    def __init__(self) -> None:
        self._outer: dict[str, _Inner[Work]] = {}

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

    def newest(self, outer: str, inner: str | None = None) -> QueueEntry[Work] | None:
        """The newest entry under both keys; without an inner key, under the last inner key."""
        inners = self._outer.get(outer)
        if inners is None:
            return None
        places = inners.get(inner) if inner is not None else next(reversed(inners.values()))
        return next(reversed(places)) if places else None


class _Tally:
    """How many entries each key has, and which key has most. All operations are O(1): counts change by one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._keys: dict[int, dict[str, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, key: str) -> int:
        return self._counts.get(key, 0)

    def largest(self) -> tuple[str, int]:
        """A key with the most entries, and their number. There must be an entry."""
        return next(iter(self._keys[self._largest])), self._largest

    def change(self, key: str, by: int) -> None:
        """Change the count of a key by one."""
        old = self._counts.pop(key, 0)
        new = old + by
        if old:
            del self._keys[old][key]
        if new:
            self._counts[key] = new
            self._keys.setdefault(new, {})[key] = None
        if old and not self._keys[old]:
            del self._keys[old]
            if self._largest == old:
                self._largest = new
        self._largest = max(self._largest, new)


class _Band(Generic[Work]):
    """Logins of connections with the same number of failures."""

    def __init__(self) -> None:
        self.by_address: _Ring[Work] = _Ring()
        self.by_name: _Ring[Work] = _Ring()
        self._is_turn_of_address = False

    def __len__(self) -> int:
        return len(self.by_address)

    def add(self, entry: QueueEntry[Work]) -> None:
        self.by_address.add(entry.address, entry.name, entry)
        self.by_name.add(entry.name, entry.address, entry)

    def discard(self, entry: QueueEntry[Work]) -> None:
        self.by_address.discard(entry.address, entry.name, entry)
        self.by_name.discard(entry.name, entry.address, entry)

    def take(self) -> QueueEntry[Work]:
        self._is_turn_of_address = not self._is_turn_of_address
        entry = (self.by_address if self._is_turn_of_address else self.by_name).next()
        self.discard(entry)
        return entry


class LoginQueue(Generic[Work]):
    """Waiting logins. Every operation is O(1), however many logins wait."""

    def __init__(self) -> None:
        self._bands: list[_Band[Work]] = [_Band() for _ in range(BAND_COUNT)]
        self._pattern = cycle(_PATTERN)
        self._entries: set[QueueEntry[Work]] = set()
        self._addresses = _Tally()
        self._names = _Tally()
        self._names_at: dict[str, _Tally] = {}
        """By address."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: QueueEntry[Work]) -> bool:
        return entry in self._entries

    def add(self, entry: QueueEntry[Work]) -> QueueEntry[Work] | None:
        """Add a login. Return the entry that was dropped to make room, or the new one if there is no room."""
        loser = self._loser(entry)
        if loser is not entry:
            if loser is not None:
                self.discard(loser)
            self._bands[entry.band].add(entry)
            self._entries.add(entry)
            self._count(entry, 1)
        return loser

    def discard(self, entry: QueueEntry[Work]) -> None:
        """Remove a login, if it is in the queue."""
        if entry in self._entries:
            self._bands[entry.band].discard(entry)
            self._forget(entry)

    def take(self) -> QueueEntry[Work] | None:
        """The next login; None if none waits."""
        if not self._entries:
            return None
        band = self._bands[next(self._pattern)]
        if not band:
            band = next(band for band in self._bands if band)
        entry = band.take()
        self._forget(entry)
        return entry

    def _forget(self, entry: QueueEntry[Work]) -> None:
        self._entries.discard(entry)
        self._count(entry, -1)

    def _count(self, entry: QueueEntry[Work], by: int) -> None:
        self._addresses.change(entry.address, by)
        self._names.change(entry.name, by)
        names = self._names_at.setdefault(entry.address, _Tally())
        names.change(entry.name, by)
        if not names:
            del self._names_at[entry.address]

    # --- making room ---

    def _loser(self, entry: QueueEntry[Work]) -> QueueEntry[Work] | None:
        """Which entry to drop if there are too many.

        An entry of a connection with failures first, then the newest entry of a key with more than its fair share.
        """
        names = self._names_at.get(entry.address)
        if names is not None and names[entry.name] >= PAIR_COUNT_MAX:
            return self._newest(entry.address, entry.name, later_than=entry.band) or entry
        if names is not None and self._addresses[entry.address] >= ADDRESS_COUNT_MAX:
            later = self._newest(entry.address, later_than=entry.band)
            name, count = names.largest()
            if later is None and count > names[entry.name] + 1:
                later = self._newest(entry.address, name)
            return later or entry
        if len(self._entries) >= WAITING_COUNT_MAX:
            return self._loser_of_all(entry)
        return None

    def _loser_of_all(self, entry: QueueEntry[Work]) -> QueueEntry[Work]:
        address, count = self._addresses.largest()
        if count > self._addresses[entry.address] + 1:
            return self._newest(address, self._names_at[address].largest()[0]) or entry
        name, count = self._names.largest()
        if count > self._names[entry.name] + 1:
            found = (band.by_name.newest(name) for band in reversed(self._bands))
            return next((other for other in found if other is not None), entry)
        later = next((band for band in reversed(self._bands[entry.band + 1 :]) if band), None)
        return entry if later is None else later.by_address.next()

    def _newest(self, address: str, name: str | None = None, *, later_than: int = -1) -> QueueEntry[Work] | None:
        """The newest entry of the last band that has one."""
        found = (band.by_address.newest(address, name) for band in reversed(self._bands[later_than + 1 :]))
        return next((entry for entry in found if entry is not None), None)
