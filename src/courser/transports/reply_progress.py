"""What connections of all binary transports have in common: an end, and how fast the client reads its reply."""

from abc import ABC, abstractmethod

from courser.errors import CourserError
from courser.transports.connections import Conversation
from courser.transports.minimum_rate import MinimumRate
from courser.transports.settings import ConnectionSettings


class ReplyProgress(ABC):
    """A connection that knows how much of its reply is unsent. TCP, TLS and QUIC connections inherit from it."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.loop: Conversation | None = None
        """None if the connection was not admitted, or not yet."""
        self._left_size = 0
        """Bytes of the last reply that were not sent at once."""
        self._looked_at_size = 0
        """Unsent bytes at the last call of ``shows_life``."""
        self._reply_pace = MinimumRate(settings.send_deadline, settings.frame_rate_min)

    @property
    @abstractmethod
    def unsent_size(self) -> int:
        """Bytes of the reply that were not sent yet."""

    @property
    def is_stranger(self) -> bool:
        """Whether nobody is logged in."""
        return self.loop is None or self.loop.session.user_id is None

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""
        return self.loop is not None and self.loop.is_answering

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a large request arrives, and its reserved memory."""
        return None if self.loop is None else self.loop.reserved_by_sender(now)

    @abstractmethod
    def abort(self) -> None:
        """Close now, without sending the rest."""

    def end(self, goodbye: CourserError) -> None:
        """Close now if no request is in progress, otherwise after the reply."""
        if self.loop is None:
            self.abort()
        else:
            self.loop.end(goodbye)

    def note_left_size(self) -> None:
        """Note that a reply was not sent at once."""
        self._left_size = self._looked_at_size = self.unsent_size

    @property
    def taken_size(self) -> int:
        """Bytes that the client has read of a reply that was not sent at once."""
        return self._left_size - self.unsent_size

    def is_reply_overdue(self, now: int) -> bool:
        """Whether the client reads its reply too slowly. As with frames, every byte that it reads earns time."""
        since = None if self.loop is None else self.loop.unsent_since
        return since is not None and self._reply_pace.is_late(now, since, self.taken_size)

    def shows_life(self) -> bool:
        """Whether a request is in progress, or the client has read part of its reply since the last call."""
        loop = self.loop
        if loop is None or loop.unsent_since is None:
            return loop is not None and not loop.is_idle and loop.frame_since is None
        before, self._looked_at_size = self._looked_at_size, self.unsent_size
        return self._looked_at_size < before
