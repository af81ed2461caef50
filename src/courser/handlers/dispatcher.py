"""The dispatcher: from a command to its handler, past the one gate that every transport shares."""

import inspect
from types import ModuleType

from courser.api import commands as c
from courser.api.replies import Reply
from courser.broker.broker import Broker
from courser.broker.sessions import Session
from courser.handlers import groups, login, messages, offsets, own, staging, streams, system, tokens, topics, users
from courser.handlers.audit import Answer, Handler, audited

_MODULES = (groups, login, messages, offsets, own, staging, streams, system, tokens, topics, users)


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
        """Carry out a command.

        Raises:
            CourserError: the answer that the client gets.
        """
        begun = self.begin(session, command)
        return begun if isinstance(begun, Reply) else await begun

    def begin(self, session: Session, command: c.Command) -> Answer | Reply:
        """Begin to carry out a command. The reply, if there is one at once; else it comes from the coroutine.

        Raises:
            CourserError: here or in the coroutine, the answer that the client gets.
        """
        if session.ended is not None:
            # Without the traceback of the last time: each raise would make it longer.
            raise session.ended.with_traceback(None)
        handler, is_public = self._routes[type(command)]
        if not is_public:
            # Taken out first, as in the session loop: it is called for every request.
            check_login = self._check_login
            check_login(session)
        return handler(self._broker, session, command)
