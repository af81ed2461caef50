"""Who changed what: one line in the log for every login and every change of metadata, with its result.

Names are written as Python would write them, so that none can forge a line. Secrets are left out.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeAlias

from courser.api import commands as c
from courser.api.replies import Reply
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.partition.waiting import Waiting
from courser.errors import CourserError

_log = logging.getLogger(__name__)
_refusals = logging.getLogger(f"{__name__}.refused")
"""What was refused, and changed nothing. Strangers can make it say something at any rate: a server limits its lines."""

Answer: TypeAlias = Reply | Waiting[Any] | None
"""The reply to a command (None: it was done, and there is nothing to say), or what it waits for."""
# The key of a table of handlers says which command each gets: a relation that a type cannot express.
Handler: TypeAlias = Callable[[Broker, Session, Any], Answer | Coroutine[Any, Any, Reply | None]]

_SECRETS = frozenset({"password", "current_password", "new_password", "token"})
_REFUSED_FACT_LENGTH_MAX = 300
"""Letters of one fact about what was refused: a name with its quotes and some escapes, and no more of a stranger's."""


def audited(handler: Handler) -> Handler:
    """A handler that leaves a line in the log."""

    @wraps(handler)
    async def handle(broker: Broker, session: Session, command: c.Command) -> Reply | None:
        # Looked at before: afterwards it may be another user, or none.
        user_id = session.user_id
        try:
            begun = handler(broker, session, command)
            reply = await begun if isinstance(begun, Coroutine | Waiting) else begun
        except CourserError as error:
            _note(_refusals, session, user_id, command, f"{error.code.value} {error.code.name}")
            raise
        _note(_log, session, user_id, command, "done")
        return reply

    return handle


def _note(log: logging.Logger, session: Session, user_id: int | None, command: c.Command, result: str) -> None:
    hidden = _SECRETS
    if isinstance(command, c.LoginUser) and command.token is not None:
        # The same bytes may be a token: the name is then its secret.
        hidden = _SECRETS | {"name"}
    facts = [f"{name}={getattr(command, name)!r}" for name in command.__struct_fields__ if name not in hidden]
    if log is _refusals:
        facts = [_shortened(fact) for fact in facts]
    log.info(
        "%s user=%s client=%d address=%s%s result=%s %s",
        type(command).__name__,
        "none" if user_id is None else user_id,
        session.client_id,
        session.address,
        "" if session.request_id is None else f" request={session.request_id}",
        result,
        " ".join(facts),
    )


def _shortened(fact: str) -> str:
    return fact if len(fact) <= _REFUSED_FACT_LENGTH_MAX else f"{fact[:_REFUSED_FACT_LENGTH_MAX]}..."
