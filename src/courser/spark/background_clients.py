"""What a process keeps between Spark tasks: one connection per server and user, archives, and its loaded modules.

Spark reuses its Python worker processes, so connections are reused too. This is the only module of the package with
module-level state. A forked child opens connections of its own.
"""

import gc
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from courser.archive.errors import ArchiveFailure
from courser.client.blocking import on_new_loop
from courser.client.client import Client
from courser.client.sync import SyncClient
from courser.client.targets import Target
from courser.errors import ConnectionFailed
from courser.spark.open_archive import ArchiveAccess, OpenArchive
from courser.spark.options import RETRY_PAUSE

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_PAUSE_MAX = 5.0


class BackgroundClient(SyncClient):
    """A client for blocking calls, and for requests that run in the background. Can be used from any thread."""

    @property
    def is_closed(self) -> bool:
        """Whether its event loop has ended."""
        return self._thread.loop.is_closed()

    def begin(self, request: Callable[[Client], Coroutine[Any, Any, Result]]) -> "Future[Result]":
        """Start a request on the event loop: ``begin(lambda client: client.ping())``. Its result arrives later."""
        return self._thread.begin(request(self._original))


_connections: dict[tuple[int, Target], BackgroundClient] = {}


def connection_to(target: Target) -> BackgroundClient:
    """The connection of this process. It reconnects by itself if it breaks.

    Raises:
        ConnectionFailed: the server cannot be reached.
        AuthenticationFailed: the login was refused.
    """
    key = (os.getpid(), target)
    connection = _connections.get(key)
    if connection is None or connection.is_closed:
        opened = on_new_loop(lambda: Client(target).__aenter__())
        connection = _connections[key] = BackgroundClient(*opened)
    return connection


_archives: dict[tuple[int, ArchiveAccess], OpenArchive] = {}


def archive_at(access: ArchiveAccess) -> OpenArchive:
    """The archive as this process knows it. Raises ``ArchiveFailure``."""
    key = (os.getpid(), access)
    if key not in _archives:
        _archives[key] = OpenArchive(access)
    return _archives[key]


def with_retries(work: Callable[[], Result], retries: int, pause: Callable[[float], None] = time.sleep) -> Result:
    """Do something that needs the server or the archive. Retry with growing pauses while it cannot be reached.

    A refused login, and everything else that the server refuses, is raised at once. So is what is wrong in the archive.
    """
    attempt = 0
    while True:
        try:
            return work()
        except (ConnectionFailed, ArchiveFailure) as error:
            if attempt >= retries or not is_temporary(error):
                raise
            attempt += 1
            pause(pause_before(attempt, retries, error))


def is_temporary(error: ConnectionFailed | ArchiveFailure) -> bool:
    """Whether a server or store could not be reached. More specific failures of an archive are answers of its store."""
    return isinstance(error, ConnectionFailed) or type(error) is ArchiveFailure


def pause_before(attempt: int, retries: int, error: Exception) -> float:
    """How many seconds to wait before the next attempt; the first repetition is 1. Logs the failure."""
    wait = min(RETRY_PAUSE * 2.0 ** (attempt - 1), _PAUSE_MAX) * random.uniform(0.5, 1.0)
    _log.warning("%s; retrying in %.1f s (attempt %d of %d)", error, wait, attempt + 1, retries + 1)
    return wait


@cache
def freeze_loaded_modules() -> None:
    """Exempt everything that is loaded by now from the full garbage collection that a worker runs after every task.

    With pandas and pyarrow in memory, such a collection takes 70 ms: as long as reading 50 MB, or half a micro-batch.
    Called at the end of a process's first task, when all modules are loaded. Does nothing outside of a worker.
    """
    from pyspark import TaskContext  # noqa: PLC0415 -- optional

    if TaskContext.get() is not None:
        gc.freeze()
