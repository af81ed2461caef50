"""The client: one login, every command of the server as a method, producers and consumers."""

from collections.abc import Generator
from types import TracebackType
from typing import Self

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.client.accounts import Accounts
from courser.client.administration import Administration
from courser.client.connection import open_connection
from courser.client.contexts import resolve_target
from courser.client.link import Dial, Link
from courser.client.messaging import Messaging
from courser.client.targets import Target


class Client(Administration, Accounts, Messaging):
    """A connection to a server that comes back by itself. ``connect`` makes it.

    Methods may be called from several tasks at once; requests are carried out in the order in which they were made.
    """

    @property
    def target(self) -> Target:
        """Where it connects to."""
        return self._link.target

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now. Requests make one if there is none."""
        return self._link.is_connected

    @property
    def user_id(self) -> int | None:
        """Who is logged in."""
        return self._link.user_id

    async def request(self, command: Command) -> Reply | None:
        """Send any command of ``courser.api.commands`` and return its reply as it is."""
        return await self._link.request(command)

    async def close(self) -> None:
        """Close the connection. May be repeated."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        if not self._link.is_connected:
            await self._link.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Connecting:
    """A client that is not connected yet: ``async with connect() as client``, or ``client = await connect()``."""

    def __init__(self, target: Target, dial: Dial) -> None:
        self._client = Client(Link(target, dial))

    def __await__(self) -> Generator[object, None, Client]:
        return self._client.__aenter__().__await__()

    async def __aenter__(self) -> Client:
        return await self._client.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()


def connect(
    target: str | Target | None = None, *, context: str | None = None, dial: Dial = open_connection, **options: object
) -> Connecting:
    """Make a client of a server. Use it in ``async with``, or await it.

    Where to: the argument, else the environment (``COURSER_URL``, ``COURSER_CONTEXT``), else the saved context that is
    selected, else the server on this machine.

    Args:
        target: ``iggy://user:password@host:port``, ``iggy://token@host:port``, ``host:port``, or a ``Target``.
        context: The name of a saved context.
        dial: What makes connections; for tests.
        options: Fields of ``Target``, such as ``username``, ``password``, ``token``, ``tls``, ``request_timeout``.

    Raises:
        TargetRefused: the target makes no sense, or the context is not there.
    """
    return Connecting(resolve_target(target, context=context, options=options).target, dial)
