"""The dispatcher: from a command to its handler, past the one gate that every transport shares."""

import asyncio
import inspect
from functools import partial
from types import CoroutineType, ModuleType
from typing import Any

from courser.api import commands as c
from courser.api.replies import Reply
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import CourserError, DiskFull
from courser.handlers import groups, messages, operating, staging, streams, system, topics, users
from courser.handlers.audit import Answer, Handler, audited
from courser.model.metrics import PowerHistogram

_MODULES = (groups, messages, operating, staging, streams, system, topics, users)


def _handlers_in(module: ModuleType) -> dict[type[c.Command], Handler]:
    """The public functions of a module: each says with the type of its last parameter which command it carries out."""
    found: dict[type[c.Command], Handler] = {}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            *_, parameter = inspect.signature(function).parameters.values()
            assert parameter.annotation not in found, f"{parameter.annotation.__name__} has two handlers"
            found[parameter.annotation] = function
    return found


HANDLERS: dict[type[c.Command], Handler] = {}
for _module in _MODULES:
    HANDLERS |= _handlers_in(_module)


class Dispatcher:
    """One for all connections of all transports."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._access = broker.access
        self._users = broker.access.users
        self._monotonic = broker.clock.monotonic
        self._metrics = metrics = broker.request_metrics
        rows = (*c.COMMANDS, *c.INTERNAL_COMMANDS)
        assert HANDLERS.keys() == {row.kind for row in rows}, "every command has one handler"
        self._entries = {
            kind: (
                audited(handler) if kind.row.is_audited else handler,
                kind.row.is_public,
                metrics.durations_of(kind),
            )
            for kind, handler in HANDLERS.items()
        }
        """By command: its handler, whether it needs no login, and how long it takes."""

    async def dispatch(self, session: Session, command: c.Command) -> Reply | None:
        """Carry out a command, for those who can wait.

        Raises:
            CourserError: the answer that the client gets.
        """
        answer = self.begin(session, command)
        reply: Reply | None = await answer if isinstance(answer, Waiting) else answer
        return reply

    async def ask(self, session: Session, command: c.Command) -> Any:
        """Carry out a command that begins now, for a subscription or a search. Raises as ``dispatch``."""
        session.last_seen = self._monotonic()
        return await self.dispatch(session, command)

    def begin(self, session: Session, command: c.Command) -> Answer:
        """Carry out a command as far as possible without waiting. Gives the reply, or what it waits for.

        Raises ``CourserError``, the answer that the client gets; or the ``Waiting`` does.
        """
        if session.ended is not None:
            # Without the traceback of the last time: each raise would make it longer.
            raise session.ended.with_traceback(None)
        session.request_count += 1
        handler, is_public, durations = self._entries[type(command)]
        try:
            if not is_public:
                user = None if session.user_id is None else self._users.get(session.user_id)
                if user is None or not user.is_active:
                    self._access.user(session)  # Raises, and says why.
            begun: Any = handler(self.broker, session, command)
            # Not ``isinstance``: the type of a coroutine is compared with for every request.
            answer: Answer = attempt(begun) if type(begun) is CoroutineType else begun
        except CourserError as error:
            self._note_failure(command, error)
            raise
        if type(answer) is Waiting:
            answer.future.add_done_callback(partial(self._note_waited, durations, session.last_seen, command, answer))
            return answer
        monotonic = self._monotonic
        duration = monotonic() - session.last_seen
        durations.counts[duration.bit_length()] += 1
        durations.total += duration
        return answer

    def _note_waited(
        self,
        durations: PowerHistogram,
        began: int,
        command: c.Command,
        waiting: Waiting[Reply | None],
        future: "asyncio.Future[Any]",
    ) -> None:
        """A request that had to wait is done, unless it was cancelled."""
        if future.cancelled():
            return
        if future.exception() is None:
            durations.observe(self._monotonic() - began)
            return
        try:
            waiting.result()
        except CourserError as error:
            self._note_failure(command, error)
        except Exception:  # noqa: BLE001 - a defect: whoever answers the request logs it
            return

    def _note_failure(self, command: c.Command, error: CourserError) -> None:
        self._metrics.note_failure(command, error)
        if isinstance(error, DiskFull):
            self.broker.disk_watch.note_refusal(error.path)
