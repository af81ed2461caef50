"""When the next request is due, if a rate is given."""

_SECOND = 1_000_000_000


class Pacer:
    """Spreads messages or bytes evenly over time, from a beginning on. Nanoseconds throughout."""

    def __init__(self, *, size_rate: float | None = None, message_rate: float | None = None) -> None:
        """At most one of them; neither means "as fast as it goes"."""
        assert size_rate is None or message_rate is None, "a rate is in bytes or in messages"
        self._counts_messages = message_rate is not None
        rate = message_rate if message_rate is not None else size_rate
        self._interval = None if rate is None else _SECOND / rate
        """Of one message, or of one byte."""
        self._begin = 0
        self._done = 0

    @property
    def is_limited(self) -> bool:
        """Whether there is a rate."""
        return self._interval is not None

    def start(self, begin: int) -> None:
        """From here on."""
        self._begin = begin
        self._done = 0

    def due(self, now: int) -> int:
        """When the next request should go out; now, without a rate."""
        return now if self._interval is None else self._begin + int(self._done * self._interval)

    def count(self, messages: int, size: int) -> None:
        """So much was sent or received."""
        self._done += messages if self._counts_messages else size
