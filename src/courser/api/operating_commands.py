"""Commands for whoever operates a server, and for the console. ``commands`` offers them with all others."""

from courser.api import operating_replies as o
from courser.api.fields import U32, U64
from courser.api.table import Command, command
from courser.model.permissions import Action


@command(60030, o.OneTimeToken, is_audited=True, http="POST /personal-access-tokens/one-time")
class CreateOneTimeToken(Command, frozen=True):
    """Create a token that logs in this user once, within five minutes: for links to the console."""


@command(60031, o.SessionList, Action.READ_SERVER, http="GET /sessions")
class GetSessions(Command, frozen=True):
    """All connections, with user, client library and number of requests."""


@command(60032, None, Action.MANAGE_SERVER, is_audited=True, http="DELETE /sessions/{client_id}")
class EndSession(Command, frozen=True):
    """End the session of a connection. The connection is closed; the client may log in again."""

    client_id: U32


@command(60033, o.History, Action.READ_SERVER, http="GET /history")
class GetHistory(Command, frozen=True):
    """The main figures of the server in the last hour, and now."""

    since: U64 = 0
    """Only what is newer than this time, in microseconds since 1970."""


@command(60034, o.LogLines, Action.MANAGE_SERVER, http="GET /logs")
class GetLogLines(Command, frozen=True):
    """The newest lines of the server's log."""

    after: U64 = 0
    """Only lines with a higher number."""


@command(60035, o.SettingList, Action.READ_SERVER, http="GET /configuration")
class GetConfiguration(Command, frozen=True):
    """The effective configuration with the origin of each value. Secrets are masked."""


@command(60036, o.TopicFigureList, Action.LIST_STREAMS, http="GET /topics")
class GetTopicFigures(Command, frozen=True):
    """All topics of all streams, with sizes, counts and lag."""
