"""How long a login has to wait after failed ones: enough to make guessing slow, too little to lock anybody out."""

from collections import OrderedDict
from dataclasses import dataclass

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


class LoginDelays:
    """Remembers failed logins by user name, whether there is such a user or not, and by the client's address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names = _Table(_FREE_COUNT_OF_NAME)
        self._addresses = _Table(_FREE_COUNT_OF_ADDRESS)

    def __len__(self) -> int:
        return len(self._names) + len(self._addresses)

    def owed(self, name: str | None, address: str) -> int:
        """Microseconds that a login has to wait before it is looked at. Without a name for tokens."""
        now = self._clock.monotonic()
        by_address = self._addresses.delay(_host(address), now)
        return by_address if name is None else max(by_address, self._names.delay(name, now))

    def failed(self, name: str | None, address: str) -> None:
        """A login was refused."""
        now = self._clock.monotonic()
        self._addresses.note(_host(address), now)
        if name is not None:
            self._names.note(name, now)

    def succeeded(self, name: str) -> None:
        """The right password: the name starts afresh. The address does not: one account must not free guesses."""
        self._names.forget(name)


def _host(address: str) -> str:
    """An address without its port: each connection has another one."""
    return address.rpartition(":")[0] or address
