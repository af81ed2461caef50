"""How fast a client reads its reply, whatever carries it."""

from abc import ABC, abstractmethod

from courser.transports.pace import Pace
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import ConnectionSettings


class ReplyProgress(ABC):
    """A connection of which it is known how much of its reply is still here."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.loop: SessionLoop | None = None
        """None if the connection was not let in, or not yet."""
        self._left_size = 0
        """Bytes of the last reply that did not go out at once."""
        self._looked_at_size = 0
        """Bytes that were left at the last look."""
        self._reply_pace = Pace(settings.send_deadline, settings.frame_rate_min)

    @property
    @abstractmethod
    def unsent_size(self) -> int:
        """Bytes of the reply that are still here."""

    def note_left_size(self) -> None:
        """A reply did not go out at once."""
        self._left_size = self._looked_at_size = self.unsent_size

    @property
    def taken_size(self) -> int:
        """Bytes that the client made room for, of a reply that did not go out at once."""
        return self._left_size - self.unsent_size

    def is_reply_overdue(self, now: int) -> bool:
        """Whether the client takes too long to read its reply. As for frames, every byte that it reads earns time."""
        since = None if self.loop is None else self.loop.unsent_since
        return since is not None and self._reply_pace.is_late(now, since, self.taken_size)

    def shows_life(self) -> bool:
        """Whether a request is being answered, or the client has read on in its reply since this was last asked."""
        loop = self.loop
        if loop is None or loop.unsent_since is None:
            return loop is not None and not loop.is_idle and loop.frame_since is None
        before, self._looked_at_size = self._looked_at_size, self.unsent_size
        return self._looked_at_size < before
