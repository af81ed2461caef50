"""Hash passwords in separate threads, in a fair order, and equal requests only once.

There are two lanes; each hashes one password at a time. Every login waits in the ordinary lane. A login whose user has
logged in from this address before also waits in the known lane, which has no unknown clients. If the known lane finds
that the password is right, the login is answered at once. If it is wrong, nothing happens: the reply is sent when the
ordinary lane gets to it, as for all others. So neither the order nor the time of a reply to a wrong password reveals
whether the user exists.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from courser.broker.access.credentials import Passwords
from courser.broker.access.login_queue import BAND_COUNT, Asker, LoginQueue, QueueEntry
from courser.errors import CommandRejected, CourserError, ErrorCode

THREAD_COUNT = 2
"""One for each lane. Each running hash needs 19 MiB."""

_Key: TypeAlias = tuple[str, str, str | None]
"""Name, password, and the user's password hash."""


@dataclass(eq=False, slots=True)
class _Question:
    """A password to hash, and all clients that wait for it: one queue entry for each address."""

    run: Callable[[], Any]
    key: _Key | None = None
    """None for a new password, which no other request shares."""
    waiting_by_address: dict[str, "_Waiting"] = field(default_factory=dict)
    is_under_way: bool = False
    """Whether the ordinary lane is hashing it."""
    lane_count: int = 0
    """How many lanes are hashing it."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """Clients at one address that sent the same name and password."""

    question: _Question
    answer: "asyncio.Future[Any]"
    askers: list[Asker]
    ordinary: "QueueEntry[_Waiting] | None" = None
    known: "QueueEntry[_Waiting] | None" = None

    def is_there(self) -> bool:
        """Whether any client still waits."""
        return any(asker.is_there() for asker in self.askers)


class _Lane:
    """A lane: one hash at a time."""

    __slots__ = ("is_busy", "queue")

    def __init__(self) -> None:
        self.queue: LoginQueue[_Waiting] = LoginQueue()
        self.is_busy = False


class PasswordPool:
    """Hashes passwords outside the event loop. Use it from one loop."""

    def __init__(self, passwords: Passwords, pool: Executor) -> None:
        self._passwords = passwords
        self._pool = pool
        self._ordinary = _Lane()
        self._known = _Lane()
        self._questions: dict[_Key, _Question] = {}

    def __len__(self) -> int:
        return len(self._ordinary.queue) + len(self._known.queue)

    async def hash(self, asker: Asker, password: str) -> str:
        """Like ``Passwords.hash``, for a user who is logged in.

        Raises:
            CommandRejected: 20010 if too many are already waiting.
        """
        waiting = self._wait_for(_Question(partial(self._passwords.hash, password)), asker)
        self._enter(self._known, waiting, asker)
        answer: str = await self._answer_to(waiting)
        return answer

    async def is_right(self, asker: Asker, password: str, password_hash: str | None) -> bool:
        """Like ``Passwords.is_right``. A thousand clients of one user that reconnect at once cost one hash.

        Raises:
            CommandRejected: 20010 if too many are already waiting, 8 if the client disconnected.
        """
        # The key includes the name, although the result does not depend on it: all unknown users have the same hash,
        # None. If two of them shared a result, the time would distinguish them from users that exist.
        key = (asker.name, password, password_hash)
        question = self._questions.get(key)
        if question is None:
            question = _Question(partial(self._passwords.is_right, password, password_hash), key)
            self._questions[key] = question
        waiting = question.waiting_by_address.get(asker.address)
        if waiting is not None:
            waiting.askers.append(asker)
        else:
            waiting = self._wait_for(question, asker)
            if not question.is_under_way:
                self._enter(self._ordinary, waiting, asker)
                if asker.is_known and not question.lane_count:
                    self._enter(self._known, waiting, asker)
        answer: bool = await self._answer_to(waiting)
        return answer

    def is_outdated(self, password_hash: str) -> bool:
        """Like ``Passwords.is_outdated``, which is cheap."""
        return self._passwords.is_outdated(password_hash)

    # --- waiting ---

    def _wait_for(self, question: _Question, asker: Asker) -> _Waiting:
        answer = asyncio.get_running_loop().create_future()
        # Retrieve the exception here, in case no client waits for it any more.
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        waiting = question.waiting_by_address[asker.address] = _Waiting(question, answer, [asker])
        return waiting

    async def _answer_to(self, waiting: _Waiting) -> Any:
        self._go_on(self._ordinary)
        self._go_on(self._known)
        self._refuse_if_nowhere(waiting)
        # The first client may disconnect: the others still get the result.
        return await asyncio.shield(waiting.answer)

    def _enter(self, lane: _Lane, waiting: _Waiting, asker: Asker) -> None:
        band = min(asker.try_count, BAND_COUNT - 1)
        entry = QueueEntry(asker.address, asker.name, band, waiting)
        if lane is self._ordinary:
            waiting.ordinary = entry
        else:
            waiting.known = entry
        loser = lane.queue.add(entry)
        if loser is not None and loser is not entry:
            self._refuse_if_nowhere(loser.work)

    def _refuse_if_nowhere(self, waiting: _Waiting) -> None:
        """Refuse a login that was pushed out of both lanes."""
        question = waiting.question
        in_ordinary = waiting.ordinary is not None and waiting.ordinary in self._ordinary.queue
        in_known = waiting.known is not None and waiting.known in self._known.queue
        if not (in_ordinary or in_known or question.lane_count):
            self._end(waiting, CommandRejected(ErrorCode.SERVER_BUSY, "too many logins at once; try again later"))

    def _end(self, waiting: _Waiting, error: CourserError) -> None:
        question = waiting.question
        address = waiting.askers[0].address
        if question.waiting_by_address.get(address) is waiting:
            del question.waiting_by_address[address]
        self._leave(waiting)
        self._forget_if_unwanted(question)
        if not waiting.answer.done():
            waiting.answer.set_exception(error)

    def _leave(self, waiting: _Waiting) -> None:
        if waiting.ordinary is not None:
            self._ordinary.queue.discard(waiting.ordinary)
        if waiting.known is not None:
            self._known.queue.discard(waiting.known)

    def _forget_if_unwanted(self, question: _Question) -> None:
        if (
            not question.waiting_by_address
            and question.key is not None
            and self._questions.get(question.key) is question
        ):
            del self._questions[question.key]

    # --- hashing ---

    def _go_on(self, lane: _Lane) -> None:
        """Start the next hash of a lane, if one is waiting."""
        while not lane.is_busy and (entry := lane.queue.take()) is not None:
            waiting = entry.work
            if not waiting.is_there():
                self._end(waiting, CommandRejected(ErrorCode.DISCONNECTED, "the connection is closed"))
                continue
            question = waiting.question
            try:
                hashed = asyncio.get_running_loop().run_in_executor(self._pool, question.run)
            except RuntimeError:
                self._end(waiting, CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping"))
                continue
            lane.is_busy = True
            question.lane_count += 1
            if lane is self._ordinary:
                question.is_under_way = True
                for other in question.waiting_by_address.values():
                    # The ordinary lane is already hashing it: the known lane takes the next one.
                    self._leave(other)
            hashed.add_done_callback(partial(self._hashed, lane, question))

    def _hashed(self, lane: _Lane, question: _Question, hashed: "asyncio.Future[Any]") -> None:
        lane.is_busy = False
        question.lane_count -= 1
        if lane is self._ordinary:
            question.is_under_way = False
        all_waiting = list(question.waiting_by_address.values())
        error = (
            CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
            if hashed.cancelled()
            else hashed.exception()
        )
        if error is None and lane is self._known and hashed.result() is False:
            # Wrong: the reply waits for the ordinary lane, so that its time reveals nothing.
            for waiting in all_waiting:
                if waiting.known is not None:
                    lane.queue.discard(waiting.known)
                self._refuse_if_nowhere(waiting)
        else:
            question.waiting_by_address.clear()
            self._forget_if_unwanted(question)
            for waiting in all_waiting:
                self._leave(waiting)
                if waiting.answer.done():
                    continue
                if error is not None:
                    waiting.answer.set_exception(error)
                else:
                    waiting.answer.set_result(hashed.result())
        self._go_on(lane)
