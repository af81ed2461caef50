"""A request that another process of the server carries out, and whose reply that process sends to the client itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from courser.api.replies import Sent
from courser.broker.waiting import Unanswered


class ReplyElsewhere(Unanswered, ABC):
    """Begun by whoever has the connection.

    Usually nobody is woken when the reply is sent: ``look`` tells. ``on_done`` is called, once, if the request fails,
    if the kernel does not take the whole reply, if the other process ends, and if ``watch`` was called.
    """

    __slots__ = ("on_done", "sent_size")

    def __init__(self) -> None:
        self.on_done: Callable[[], None] | None = None
        self.sent_size = 0
        """Bytes of the reply that the other process has sent, if ``look`` is False. The rest is for the caller."""

    @abstractmethod
    def begin(self, facts: bytes | None) -> None:
        """Have the request carried out. ``facts`` are those of ``Codec.sent_facts``; None: the caller will reply."""

    @abstractmethod
    def look(self) -> bool:
        """Whether the reply is sent. ``result`` gives it then."""

    @abstractmethod
    def result(self) -> Sent:
        """What the reply says, after ``look`` or ``on_done``. Raises what went wrong."""

    @property
    @abstractmethod
    def is_being_sent(self) -> bool:
        """Whether the other process sends the reply right now, or has sent it."""

    @abstractmethod
    def watch(self) -> None:
        """Have ``on_done`` called as soon as the reply is sent. Can be repeated."""

    @abstractmethod
    def receive_into(self, room: Callable[[int], memoryview]) -> None:
        """Have the connection ask this function where to put its next bytes."""
