"""Hashing passwords without stopping anybody else: in threads of its own, in a fair order, equal questions once.

Two lanes hash one password at a time each. Every login waits in the ordinary lane. One whose user has logged in from
its address before waits in the known lane as well, where no stranger is. If that lane finds the password right, the
login is answered at once. If it finds it wrong, nothing happens: the answer comes when the ordinary lane gives it, as
for everybody else. So a wrong password never shows, by its place or its time, whether there is such a user.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from courser.broker.credentials import Passwords
from courser.broker.login_queue import BAND_COUNT, Asker, LoginQueue, Place
from courser.errors import CommandRejected, CourserError, ErrorCode

THREAD_COUNT = 2
"""One for each lane. Each hash takes 19 MiB while it runs."""

_Key: TypeAlias = tuple[str, str, str | None]
"""Name, password, and the hash that the user has."""


@dataclass(eq=False, slots=True)
class _Question:
    """Something to be hashed, and everybody who waits for it: one place for each address."""

    run: Callable[[], Any]
    key: _Key | None = None
    """None for a new password: nobody else asks for the same."""
    places: dict[str, "_Waiting"] = field(default_factory=dict)
    is_under_way: bool = False
    """Whether the ordinary lane is at it."""
    lane_count: int = 0
    """Lanes that are at it."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """Clients at one address that ask the same question."""

    question: _Question
    answer: "asyncio.Future[Any]"
    askers: list[Asker]
    ordinary: "Place[_Waiting] | None" = None
    known: "Place[_Waiting] | None" = None

    def is_there(self) -> bool:
        """Whether anybody still waits."""
        return any(asker.is_there() for asker in self.askers)


class _Lane:
    """One hash at a time."""

    __slots__ = ("is_busy", "queue")

    def __init__(self) -> None:
        self.queue: LoginQueue[_Waiting] = LoginQueue()
        self.is_busy = False


class PasswordPool:
    """Passwords off the event loop. Use from one loop."""

    def __init__(self, passwords: Passwords, pool: Executor) -> None:
        self._passwords = passwords
        self._pool = pool
        self._ordinary = _Lane()
        self._known = _Lane()
        self._questions: dict[_Key, _Question] = {}

    def __len__(self) -> int:
        return len(self._ordinary.queue) + len(self._known.queue)

    async def hash(self, asker: Asker, password: str) -> str:
        """As ``Passwords.hash``, for somebody who is logged in.

        Raises:
            CommandRejected: 20010 if too many wait already.
        """
        waiting = self._wait_for(_Question(partial(self._passwords.hash, password)), asker)
        self._enter(self._known, waiting, asker)
        answer: str = await self._answer_to(waiting)
        return answer

    async def is_right(self, asker: Asker, password: str, password_hash: str | None) -> bool:
        """As ``Passwords.is_right``. A thousand clients of one user that come back at once cost one hash.

        Raises:
            CommandRejected: 20010 if too many wait already, 8 if the client is gone.
        """
        # Asked with the name, though the answer does not depend on it: unknown users all have the same hash, none. If
        # two of them shared an answer, its time would tell them from users that there are.
        key = (asker.name, password, password_hash)
        question = self._questions.get(key)
        if question is None:
            question = _Question(partial(self._passwords.is_right, password, password_hash), key)
            self._questions[key] = question
        waiting = question.places.get(asker.address)
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
        """As ``Passwords.is_outdated``: cheap."""
        return self._passwords.is_outdated(password_hash)

    # --- waiting ---

    def _wait_for(self, question: _Question, asker: Asker) -> _Waiting:
        answer = asyncio.get_running_loop().create_future()
        # Seen here, in case that nobody waits for it any more.
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        waiting = question.places[asker.address] = _Waiting(question, answer, [asker])
        return waiting

    async def _answer_to(self, waiting: _Waiting) -> Any:
        self._go_on(self._ordinary)
        self._go_on(self._known)
        self._refuse_if_nowhere(waiting)
        # Whoever asked first may go away: the answer comes for the others all the same.
        return await asyncio.shield(waiting.answer)

    def _enter(self, lane: _Lane, waiting: _Waiting, asker: Asker) -> None:
        band = min(asker.try_count, BAND_COUNT - 1)
        place = Place(asker.address, asker.name, band, waiting)
        if lane is self._ordinary:
            waiting.ordinary = place
        else:
            waiting.known = place
        loser = lane.queue.add(place)
        if loser is not None and loser is not place:
            self._refuse_if_nowhere(loser.work)

    def _refuse_if_nowhere(self, waiting: _Waiting) -> None:
        """A login that lost its place in both lanes is told so."""
        question = waiting.question
        in_ordinary = waiting.ordinary is not None and waiting.ordinary in self._ordinary.queue
        in_known = waiting.known is not None and waiting.known in self._known.queue
        if not (in_ordinary or in_known or question.lane_count):
            self._end(waiting, CommandRejected(ErrorCode.SERVER_BUSY, "too many logins at once: try again in a while"))

    def _end(self, waiting: _Waiting, error: CourserError) -> None:
        question = waiting.question
        address = waiting.askers[0].address
        if question.places.get(address) is waiting:
            del question.places[address]
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
        if not question.places and question.key is not None and self._questions.get(question.key) is question:
            del self._questions[question.key]

    # --- hashing ---

    def _go_on(self, lane: _Lane) -> None:
        """Begin the next hash of a lane, if there is one to begin."""
        while not lane.is_busy and (place := lane.queue.take()) is not None:
            waiting = place.work
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
                for other in question.places.values():
                    # Its answer is on the way: the known lane has better to do.
                    self._leave(other)
            hashed.add_done_callback(partial(self._hashed, lane, question))

    def _hashed(self, lane: _Lane, question: _Question, hashed: "asyncio.Future[Any]") -> None:
        lane.is_busy = False
        question.lane_count -= 1
        if lane is self._ordinary:
            question.is_under_way = False
        places = list(question.places.values())
        error = (
            CommandRejected(ErrorCode.SERVER_BUSY, "the server is stopping")
            if hashed.cancelled()
            else hashed.exception()
        )
        if error is None and lane is self._known and hashed.result() is False:
            # Wrong: the answer waits for the ordinary lane, so that its time tells nothing.
            for waiting in places:
                if waiting.known is not None:
                    lane.queue.discard(waiting.known)
                self._refuse_if_nowhere(waiting)
        else:
            question.places.clear()
            self._forget_if_unwanted(question)
            for waiting in places:
                self._leave(waiting)
                if waiting.answer.done():
                    continue
                if error is not None:
                    waiting.answer.set_exception(error)
                else:
                    waiting.answer.set_result(hashed.result())
        self._go_on(lane)
