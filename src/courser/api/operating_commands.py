"""Commands for whoever operates a server, and for the console. ``commands`` offers them with all others."""

from courser.api import operating_replies as o
from courser.api.fields import U32, U64, Name, OptionalU64, Text8, Text32
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


@command(60037, None, http="PUT /pipelines/{name}")
class ReportPipeline(Command, frozen=True):
    """Tell the server how a pipeline is doing, for those who look at the server. It is kept in memory only."""

    name: Name
    state: Text8
    """``starting``, ``running``, ``restarting``, ``stopping``, ``stopped``, ``finished`` or ``failed``."""
    consumer: Text8
    """The name under which it stores its offsets; empty: none."""
    host: Text8
    started_at: U64
    """Microseconds since 1970."""
    batch_count: U64
    """Finished batches."""
    rows: U64
    """Read since the start."""
    rows_per_second: U64
    lag: U64
    """Messages that are not read yet."""
    lost: U64
    """Messages that were gone before they were read."""
    bad_rows: U64
    restarts: U32
    source: Text32
    sink: Text32
    error: Text32
    """The last error; empty: none."""
    definition: Text32
    """The TOML in effect, without secrets."""


@command(60039, o.AccessReport, Action.READ_USERS, http="GET /permissions")
class GetAccess(Command, frozen=True):
    """Who may do what, and why: for a topic, for a stream, or everywhere."""

    stream_id: OptionalU64 = None
    """None: everywhere."""
    topic_id: OptionalU64 = None
    """None: everywhere in the stream."""


@command(60038, o.PipelineList, http="GET /pipelines")
class GetPipelines(Command, frozen=True):
    """Pipelines that have reported: the user's own, or all users' with the permission to read the server."""
