"""The base of all parts of a client: send a command and check the type of its reply."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from courser.api.commands import Command
from courser.client.link import Answer, Link
from courser.client.payload_encryption import Encryptor
from courser.errors import AlreadyExists, TargetRefused, Uncertain
from courser.model.identifiers import Identifier

if TYPE_CHECKING:
    from courser.client.tracing import Tracing


class Asking:
    """Sends commands over one link."""

    def __init__(self, link: Link, encryptor: Encryptor | None = None, tracing: "Tracing | None" = None) -> None:
        self._link = link
        self._encryptor = encryptor
        self._tracing = tracing

    def _ask(self, command: Command, kind: type[Answer]) -> Awaitable[Answer]:
        return self._link.ask(command, kind)

    async def _ensure(self, command: Command, kind: type[Answer], find: Callable[[], Awaitable[Answer]]) -> Answer:
        """Create something, or return what ``find`` finds if it exists already."""
        try:
            try:
                return await self._ask(command, kind)
            except Uncertain:
                # Whether it was created shows when it is created again.
                return await self._ask(command, kind)
        except AlreadyExists:
            return await find()

    async def _tell(self, command: Command) -> None:
        await self._link.request(command)


def place_of(stream: Identifier, topic: Identifier | None) -> tuple[Identifier, Identifier]:
    """Stream and topic, given as two arguments or as ``"stream/topic"``.

    Raises:
        TargetRefused: no topic is given.
    """
    if topic is not None:
        return stream, topic
    if isinstance(stream, str):
        name, slash, rest = stream.partition("/")
        if name and slash and rest:
            return name, rest
    raise TargetRefused(f'a topic must be given as "stream/topic" or as two arguments: {stream!r} has no topic')
