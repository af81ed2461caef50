"""How long a login is delayed after failed ones: long enough to slow down guessing, too short to lock a user out."""

from collections import OrderedDict
from dataclasses import dataclass

from courser.broker.access.login_queue import network_of
from courser.model.clock import Clock

_SECOND = 1_000_000

_FREE_COUNT_OF_NAME = 5
"""Failures without a delay: users mistype."""
_FREE_COUNT_OF_ADDRESS = 20
"""The same for an address, which many users may share."""
_DELAY_FIRST = _SECOND // 4
_DELAY_MAX = 4 * _SECOND
"""Microseconds. Shorter than the timeout of every SDK (30 seconds), so that the right password still succeeds."""
_MEMORY = 300 * _SECOND
"""Microseconds after the last failure at which the failures are forgotten."""
_ENTRY_COUNT_MAX = 10_000
"""How many names, and addresses, are remembered: those with the latest failures."""
_KNOWN_NAME_COUNT_MAX = 10_000
"""How many users' addresses are remembered: those of the latest logins."""
_KNOWN_ADDRESS_COUNT_MAX = 64
"""How many addresses of a user are remembered: a user who changes addresses cannot push out those of others."""


@dataclass(slots=True)
class _Failures:
    count: int
    last: int


class _Table:
    """Failures by key. The number is limited: the oldest failure is dropped."""

    def __init__(self, free_count: int) -> None:
        self._free_count = free_count
        self._entries: OrderedDict[tuple[str, ...], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def delay(self, key: tuple[str, ...], now: int) -> int:
        entry = self._entries.get(key)
        if entry is None:
            return 0
        if now - entry.last > _MEMORY:
            del self._entries[key]
            return 0
        # Limit the exponent: a million failures must not produce a number of a million bits.
        excess = min(entry.count - self._free_count, 10)
        return min(_DELAY_FIRST << excess, _DELAY_MAX) if excess >= 0 else 0

    def note(self, key: tuple[str, ...], now: int) -> None:
        entry = self._entries.pop(key, None)
        count = 1 if entry is None or now - entry.last > _MEMORY else entry.count + 1
        self._entries[key] = _Failures(count, now)
        if len(self._entries) > _ENTRY_COUNT_MAX:
            self._entries.popitem(last=False)

    def forget(self, key: tuple[str, ...]) -> None:
        self._entries.pop(key, None)


class KnownAddresses:
    """The addresses from which users have logged in since the server started. Only successful logins count."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def has(self, name: str, network: str) -> bool:
        """Whether this user has logged in from this address."""
        return network in self._names.get(name, ())

    def note(self, name: str, network: str) -> None:
        """Remember a successful login."""
        networks = self._names.setdefault(name, OrderedDict())
        self._names.move_to_end(name)
        networks[network] = None
        networks.move_to_end(network)
        if len(networks) > _KNOWN_ADDRESS_COUNT_MAX:
            networks.popitem(last=False)
        if len(self._names) > _KNOWN_NAME_COUNT_MAX:
            self._names.popitem(last=False)


class LoginDelays:
    """Remembers failed logins by user name, whether or not the user exists, and by the client's address.

    A user at an address from which they have logged in before is delayed only by failures with the same name from the
    same address. Failures with their name from elsewhere, or with other names from their address, do not delay them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names = _Table(_FREE_COUNT_OF_NAME)
        """By name; those at known addresses also by name and address."""
        self._addresses = _Table(_FREE_COUNT_OF_ADDRESS)
        self.known = KnownAddresses()

    def __len__(self) -> int:
        return len(self._names) + len(self._addresses)

    def owed(self, name: str | None, address: str) -> int:
        """Microseconds that a login has to wait before it is checked. Pass no name for tokens."""
        now, network = self._clock.monotonic(), network_of(address)
        if name is None:
            return self._addresses.delay((network,), now)
        if self.known.has(name, network):
            return self._names.delay((name, network), now)
        return max(self._addresses.delay((network,), now), self._names.delay((name,), now))

    def failed(self, name: str | None, address: str) -> None:
        """Count a failed login."""
        now, network = self._clock.monotonic(), network_of(address)
        self._addresses.note((network,), now)
        if name is not None:
            self._names.note((name,), now)
            if self.known.has(name, network):
                self._names.note((name, network), now)

    def succeeded(self, name: str, address: str) -> None:
        """Forget the failures of a name after a successful login.

        Those of the address stay: a login with one account must not allow more guesses at others.
        """
        self._names.forget((name,))
        self._names.forget((name, network_of(address)))
