"""Hash passwords in separate threads, in a fair order, and equal requests of an address only once.

There are two lanes; each hashes one password at a time. Every login waits in the ordinary lane. A login whose user has
logged in from this address before also waits in the known lane, which has no unknown clients. If the known lane finds
that the password is right, the login is answered at once. If it is wrong, the reply is sent when the ordinary lane
gets to it, as for all others. So neither the order nor the time of a reply to a wrong password reveals whether the
user exists.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from courser.broker.access.credentials import Passwords
from courser.broker.access.login_queue import Asker, LoginQueue, QueueEntry
from courser.errors import CommandRejected, ErrorCode

THREAD_COUNT = 2
"""One for each lane. Each running hash needs 19 MiB."""


@dataclass(eq=False, slots=True)
class _Job:
    """A hash, and where its result goes. Cancelling the answer ends the wait, but not a hash that has begun."""

    run: Callable[[], Any]
    is_wanted: Callable[[], bool]
    answer: "asyncio.Future[Any]"
    has_begun: bool = False

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Lane:
    """A lane: one hash at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._queue: LoginQueue[_Job] = LoginQueue()
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, asker: Asker, run: Callable[[], Any], is_wanted: Callable[[], bool]) -> _Job:
        """Hash when the turn of this asker comes. The answer is 20010 if there is no place, 8 if nobody waits."""
        job = _Job(run, is_wanted, asyncio.get_running_loop().create_future())
        entry = QueueEntry(asker.address, asker.name, asker.has_failed, job)
        job.answer.add_done_callback(partial(self._leave, entry))
        loser = self._queue.add(entry)
        if loser is not None:
            loser.work.fail(CommandRejected(ErrorCode.SERVER_BUSY, "too many logins at once; try again later"))
        self._go_on()
        return job

    def _leave(self, entry: QueueEntry[_Job], answer: "asyncio.Future[Any]") -> None:
        self._queue.discard(entry)
        if not answer.cancelled():
            # Retrieved here, in case no client waits for it any more.
            answer.exception()

    def _go_on(self) -> None:
        while not self._is_busy and (entry := self._queue.take()) is not None:
            job = entry.work
            if job.answer.done():
                continue
            if not job.is_wanted():
                job.fail(CommandRejected(ErrorCode.DISCONNECTED, "the connection is closed"))
                continue
            try:
                hashed = asyncio.get_running_loop().run_in_executor(self._executor, job.run)
            except RuntimeError:
                job.fail(_stopping())
                continue
            job.has_begun = self._is_busy = True
            hashed.add_done_callback(partial(self._hashed, job))

    def _hashed(self, job: _Job, hashed: "asyncio.Future[Any]") -> None:
        self._is_busy = False
        error = _stopping() if hashed.cancelled() else hashed.exception()
        if error is not None:
            job.fail(error)
        elif not job.answer.done():
            job.answer.set_result(hashed.result())
        self._go_on()


_Question = tuple[str, str, str | None]
"""Name, password, and the user's password hash."""


@dataclass(eq=False, slots=True)
class _Check:
    """Clients at one address that sent the same name and password."""

    question: _Question
    askers: list[Asker]
    ordinary: "asyncio.Future[bool]"
    answer: "asyncio.Future[bool]"


class PasswordPool:
    """Hashes passwords outside the event loop. Use it from one loop."""

    def __init__(self, passwords: Passwords, executor: Executor) -> None:
        self._passwords = passwords
        self._ordinary = _Lane(executor)
        self._known = _Lane(executor)
        self._checks: dict[tuple[str, _Question], _Check] = {}
        """Those that wait, by address and question."""

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._known)

    async def hash(self, asker: Asker, password: str) -> str:
        """Like ``Passwords.hash``, for a user who is logged in.

        Raises:
            CommandRejected: 20010 if too many are already waiting.
        """
        password_hash: str = await self._known.submit(
            asker, partial(self._passwords.hash, password), asker.is_there
        ).answer
        return password_hash

    async def is_right(self, asker: Asker, password: str, password_hash: str | None) -> bool:
        """Like ``Passwords.is_right``. A thousand clients of one user that reconnect at once cost one hash.

        Raises:
            CommandRejected: 20010 if too many are already waiting, 8 if the client disconnected.
        """
        # The question includes the name, although the result does not depend on it: all unknown users have the same
        # hash, None. If two of them shared a result, the time would distinguish them from users that exist.
        question = (asker.name, password, password_hash)
        check = self._checks.get((asker.address, question))
        if check is None:
            check = self._begin(asker, question)
        else:
            check.askers.append(asker)
        # The first client may disconnect: the others still get the result.
        return await asyncio.shield(check.answer)

    def is_outdated(self, password_hash: str) -> bool:
        """Like ``Passwords.is_outdated``, which is cheap."""
        return self._passwords.is_outdated(password_hash)

    def _begin(self, asker: Asker, question: _Question) -> _Check:
        _, password, password_hash = question
        askers = [asker]
        run = partial(self._passwords.is_right, password, password_hash)

        def is_wanted() -> bool:
            return any(each.is_there() for each in askers)

        ordinary = self._ordinary.submit(asker, run, is_wanted)
        answer = ordinary.answer
        if asker.is_known and not ordinary.has_begun:
            known = self._known.submit(asker, run, is_wanted).answer
            answer = asyncio.get_running_loop().create_task(_first_right(ordinary.answer, known))
        check = self._checks[asker.address, question] = _Check(question, askers, ordinary.answer, answer)
        answer.add_done_callback(partial(self._answered, asker.address, check))
        return check

    def _answered(self, address: str, check: _Check, answer: "asyncio.Future[bool]") -> None:
        del self._checks[address, check.question]
        if answer.cancelled() or answer.exception() is not None or not answer.result():
            return
        for other in self._checks.values():
            # A user whose clients reconnect from many addresses at once costs one hash, too.
            if other.question == check.question and not other.ordinary.done():
                other.ordinary.set_result(True)


async def _first_right(ordinary: "asyncio.Future[bool]", known: "asyncio.Future[bool]") -> bool:
    """What the known lane says if the password is right, otherwise what the ordinary lane says."""
    waiting = {ordinary, known}
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if known.done() and known.exception() is None and known.result():
            ordinary.cancel()
            return True
        if ordinary.done() and ordinary.exception() is None:
            known.cancel()
            return ordinary.result()
    # The ordinary lane has refused it, or the hash has failed.
    return await ordinary


def _stopping() -> CommandRejected:
    return CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
