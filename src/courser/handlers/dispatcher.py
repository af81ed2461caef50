"""The dispatcher: from a command to its handler, past the one gate that every transport shares."""

import inspect
from types import CoroutineType, ModuleType
from typing import Any

from courser.api import commands as c
from courser.api.replies import Reply
from courser.broker.broker import Broker
from courser.broker.sessions import Session
from courser.broker.waiting import Waiting, attempt
from courser.handlers import groups, login, messages, staging, streams, system, topics, users
from courser.handlers.audit import Answer, Handler, audited

_MODULES = (groups, login, messages, staging, streams, system, topics, users)


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
        self._broker = broker
        self._check_login = broker.access.user
        assert HANDLERS.keys() == {row.kind for row in c.COMMANDS}, "every command has one handler"
        self._routes = {
            kind: (audited(handler) if kind.row.is_audited else handler, kind.row.is_public)
            for kind, handler in HANDLERS.items()
        }

    async def dispatch(self, session: Session, command: c.Command) -> Reply | None:
        """Carry out a command, for those who can wait.

        Raises:
            CourserError: the answer that the client gets.
        """
        answer = self.begin(session, command)
        reply: Reply | None = await answer if isinstance(answer, Waiting) else answer
        return reply

    def begin(self, session: Session, command: c.Command) -> Answer:
        """Carry out a command as far as possible without waiting. Gives the reply, or what it waits for.

        Raises:
            CourserError: the answer that the client gets, here or from the ``Waiting``.
        """
        if session.ended is not None:
            # Without the traceback of the last time: each raise would make it longer.
            raise session.ended.with_traceback(None)
        handler, is_public = self._routes[type(command)]
        if not is_public:
            # Cached in a local: Python 3.11 is slow at calling methods that are attributes.
            check_login = self._check_login
            check_login(session)
        begun: Any = handler(self._broker, session, command)
        # Not ``isinstance``: the type of a coroutine is compared with for every request.
        return attempt(begun) if type(begun) is CoroutineType else begun
