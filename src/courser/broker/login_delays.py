"""How long a login has to wait after failed ones: enough to make guessing slow, too little to lock anybody out."""

from collections import OrderedDict
from dataclasses import dataclass

from courser.broker.login_queue import network_of
from courser.model.clock import Clock

_SECOND = 1_000_000

_FREE_COUNT_OF_NAME = 5
"""Failures that cost nothing: everybody mistypes."""
_FREE_COUNT_OF_ADDRESS = 20
"""The same for an address, which many users may share."""
_DELAY_FIRST = _SECOND // 4
_DELAY_MAX = 4 * _SECOND
"""Microseconds. Short of every SDK's patience, which is 30 seconds: the right password still gets in."""
_MEMORY = 300 * _SECOND
"""Microseconds after the last failure at which it is forgotten."""
_ENTRY_COUNT_MAX = 10_000
"""Names, and addresses, that are remembered: those that failed last."""
_KNOWN_NAME_COUNT_MAX = 10_000
"""Users whose addresses are remembered: those that logged in last."""
_KNOWN_ADDRESS_COUNT_MAX = 64
"""Addresses of a user that are remembered: nobody can push out the addresses of others by changing his own."""


@dataclass(slots=True)
class _Failures:
    count: int
    last: int


class _Table:
    """Failures by name or by address, bounded: the one that failed longest ago makes room."""

    def __init__(self, free_count: int) -> None:
        self._free_count = free_count
        self._entries: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def delay(self, key: str, now: int) -> int:
        entry = self._entries.get(key)
        if entry is None:
            return 0
        if now - entry.last > _MEMORY:
            del self._entries[key]
            return 0
        # The exponent is bounded: a million failures must not make a number of a million bits.
        excess = min(entry.count - self._free_count, 10)
        return min(_DELAY_FIRST << excess, _DELAY_MAX) if excess >= 0 else 0

    def note(self, key: str, now: int) -> None:
        entry = self._entries.pop(key, None)
        count = 1 if entry is None or now - entry.last > _MEMORY else entry.count + 1
        self._entries[key] = _Failures(count, now)
        if len(self._entries) > _ENTRY_COUNT_MAX:
            self._entries.popitem(last=False)

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)


class KnownAddresses:
    """From where users have logged in, since the server started. Nobody gets in here without a right password."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def has(self, name: str, network: str) -> bool:
        """Whether this user has logged in from there."""
        return network in self._names.get(name, ())

    def note(self, name: str, network: str) -> None:
        """A user has logged in."""
        networks = self._names.setdefault(name, OrderedDict())
        self._names.move_to_end(name)
        networks[network] = None
        networks.move_to_end(network)
        if len(networks) > _KNOWN_ADDRESS_COUNT_MAX:
            networks.popitem(last=False)
        if len(self._names) > _KNOWN_NAME_COUNT_MAX:
            self._names.popitem(last=False)


class LoginDelays:
    """Remembers failed logins by user name, whether there is such a user or not, and by the client's address.

    A user at an address from which it has logged in before waits only for failures with the same name from the same
    address: what others do under its name elsewhere, or from its address under other names, does not slow it down.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names = _Table(_FREE_COUNT_OF_NAME)
        self._addresses = _Table(_FREE_COUNT_OF_ADDRESS)
        self._pairs = _Table(_FREE_COUNT_OF_NAME)
        """Failures at known addresses, by both."""
        self.known = KnownAddresses()

    def __len__(self) -> int:
        return len(self._names) + len(self._addresses)

    def owed(self, name: str | None, address: str) -> int:
        """Microseconds that a login has to wait before it is looked at. Without a name for tokens."""
        now, network = self._clock.monotonic(), network_of(address)
        if name is not None and self.known.has(name, network):
            return self._pairs.delay(_pair(name, network), now)
        by_address = self._addresses.delay(network, now)
        return by_address if name is None else max(by_address, self._names.delay(name, now))

    def failed(self, name: str | None, address: str) -> None:
        """A login was refused."""
        now, network = self._clock.monotonic(), network_of(address)
        self._addresses.note(network, now)
        if name is not None:
            self._names.note(name, now)
            if self.known.has(name, network):
                self._pairs.note(_pair(name, network), now)

    def succeeded(self, name: str, address: str) -> None:
        """The right password: the name starts afresh. The address does not: one account must not free guesses."""
        self._names.forget(name)
        self._pairs.forget(_pair(name, network_of(address)))


def _pair(name: str, network: str) -> str:
    # A network has no blank in it.
    return f"{network} {name}"
