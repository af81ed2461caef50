"""One connection per server and user in a process: Spark uses its worker processes again, and so are connections.

The one place of the package with module-level state. A forked child makes connections of its own.
"""

import logging
import os
import random
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from courser.client.blocking import LoopThread
from courser.client.client import Client
from courser.client.sync import SyncClient
from courser.client.targets import Target
from courser.errors import ConnectionFailed
from courser.spark.options import RETRY_PAUSE

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_PAUSE_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A client on an event loop of its own, to be called from any thread."""

    client: Client
    """For work that goes on while the caller does something else: ``begin(connection.client.poll_batches(...))``."""
    sync: SyncClient
    """For calls that wait."""
    thread: LoopThread

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Have the event loop do something. The result comes with the future."""
        return self.thread.begin(work)


_connections: dict[tuple[int, Target], Connection] = {}


def connection_to(target: Target) -> Connection:
    """The connection of this process. It comes back by itself if it breaks.

    Raises:
        ConnectionFailed: nobody listens there.
        AuthenticationFailed: the login was refused.
    """
    key = (os.getpid(), target)
    connection = _connections.get(key)
    if connection is None or connection.thread.loop.is_closed():
        connection = _connections[key] = _connect(target)
    return connection


def _connect(target: Target) -> Connection:
    thread = LoopThread()

    async def make() -> Client:
        return await Client(target).__aenter__()

    try:
        client = thread.call(make())
    except BaseException:
        thread.stop()
        raise
    return Connection(client, SyncClient(client, thread), thread)


def patiently(work: Callable[[], Result], retries: int, pause: Callable[[float], None] = time.sleep) -> Result:
    """Do something that needs the server; again, with growing pauses, while the server is away.

    A refused login and everything that the server refuses is raised at once.
    """
    attempt = 0
    while True:
        try:
            return work()
        except ConnectionFailed as error:
            if attempt >= retries:
                raise
            wait = min(RETRY_PAUSE * 2**attempt, _PAUSE_MAX) * random.uniform(0.5, 1.0)
            attempt += 1
            _log.warning("%s: attempt %d of %d in %.1f s", error, attempt + 1, retries + 1, wait)
            pause(wait)
