"""Hashing passwords without stopping anybody else: in a pool, a few at a time, equal questions answered once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from courser.broker.credentials import Passwords
from courser.errors import CommandRejected, ErrorCode

_QUEUE_COUNT_MAX = 1000
"""Hashes that may wait for their turn, about 30 ms each: who comes later would not get an answer in time."""

Result = TypeVar("Result")
_Question = tuple[str, str, str | None]
"""Name, password, and the hash that the user has."""


class PasswordPool:
    """Passwords off the event loop. Use from one loop."""

    def __init__(self, passwords: Passwords, pool: Executor, *, concurrency: int = 1) -> None:
        self._passwords = passwords
        self._pool = pool
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting_count = 0
        self._under_way: dict[_Question, asyncio.Future[bool]] = {}

    async def hash(self, password: str) -> str:
        """As ``Passwords.hash``. Raises ``CommandRejected`` (20010) if too many wait already."""
        return await self._run(partial(self._passwords.hash, password))

    async def is_right(self, name: str, password: str, password_hash: str | None) -> bool:
        """As ``Passwords.is_right``. A thousand clients of one user that come back at once cost one hash.

        Raises:
            CommandRejected: 20010 if too many wait already.
        """
        # Asked with the name, though the answer does not depend on it: unknown users all have the same hash, none. If
        # two of them shared an answer, its time would tell them from users that there are.
        question = (name, password, password_hash)
        answer = self._under_way.get(question)
        if answer is None:
            answer = asyncio.ensure_future(self._run(partial(self._passwords.is_right, password, password_hash)))
            self._under_way[question] = answer
            answer.add_done_callback(partial(self._answered, question))
        # Whoever asked first may go away: the answer comes for the others all the same.
        return await asyncio.shield(answer)

    def _answered(self, question: _Question, answer: "asyncio.Future[bool]") -> None:
        del self._under_way[question]
        if not answer.cancelled():
            # Seen here, in case that nobody waits for it any more.
            answer.exception()

    def is_outdated(self, password_hash: str) -> bool:
        """As ``Passwords.is_outdated``: cheap."""
        return self._passwords.is_outdated(password_hash)

    async def _run(self, work: Callable[[], Result]) -> Result:
        if self._waiting_count >= _QUEUE_COUNT_MAX:
            raise CommandRejected(ErrorCode.SERVER_BUSY, "too many logins at once: try again in a while")
        self._waiting_count += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting_count -= 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._slots.release()
