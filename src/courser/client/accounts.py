"""Users, tokens, logins, connections, and what the server and the pipelines are doing: also for operators."""

from courser import __version__
from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.client.asking import Asking
from courser.model.identifiers import Identifier
from courser.model.permissions import Permissions
from courser.model.quantities import NEVER, parse_expiry

_SCOPES = {"topic": 1, "stream": 2, "user": 3}
_COMPRESSIONS = {"stored": 1, "deflated": 2, "bzip2": 3, "zstd": 4, "lzma": 5, "xz": 6}
_SNAPSHOT_KINDS = {
    "filesystem": 1,
    "processes": 2,
    "resources": 3,
    "test": 4,
    "logs": 5,
    "configuration": 6,
    "all": 100,
}


class Accounts(Asking):
    """Users, permissions, connections, and the state of the server."""

    # --- logins ---------------------------------------------------------------------------------------

    async def login_user(self, username: str, password: str) -> r.LoggedIn:
        """Log in as another user. Later connections of this client do the same.

        Raises:
            AuthenticationFailed: the user is unknown or inactive, or the password is wrong.
        """
        return await self._ask(c.LoginUser(username, password, __version__), r.LoggedIn)

    async def login_with_personal_access_token(self, token: str) -> r.LoggedIn:
        """Log in with a token. Later connections of this client do the same.

        Raises:
            AuthenticationFailed: the token does not exist, or has expired.
        """
        return await self._ask(c.LoginWithToken(token, __version__), r.LoggedIn)

    async def logout_user(self) -> None:
        """Log out. The connection stays open."""
        await self._tell(c.LogoutUser())

    # --- users ----------------------------------------------------------------------------------------

    async def create_user(
        self,
        username: str,
        password: str,
        *,
        permissions: Permissions | None = None,
        is_active: bool = True,
        if_not_exists: bool = False,
    ) -> r.UserDetails:
        """Create a user.

        Args:
            username: 3 to 50 bytes.
            password: 3 to 100 bytes.
            permissions: What the user may do; None is nothing.
            is_active: Whether the user may log in.
            if_not_exists: Return an existing user of this name, with password and permissions unchanged, instead of
                raising.

        Raises:
            AlreadyExists: there is a user of this name, and ``if_not_exists`` is not set.
            InvalidRequest: the name or the password is too short or too long.

        Example:
            from courser.model.permissions import GlobalPermissions, Permissions

            readers = Permissions(GlobalPermissions(read_streams=True, poll_messages=True))
            await client.create_user("reader", "secret-of-the-reader", permissions=readers)
        """
        command = c.CreateUser(username, password, is_active, permissions)
        if not if_not_exists:
            return await self._ask(command, r.UserDetails)
        return await self._ensure(command, r.UserDetails, lambda: self.get_user(username))

    async def get_user(self, user: Identifier) -> r.UserDetails:
        """One user with permissions."""
        return await self._ask(c.GetUser(user), r.UserDetails)

    async def get_users(self) -> list[r.UserInfo]:
        """All users, by id."""
        return (await self._ask(c.GetUsers(), r.UserList)).users

    async def update_user(
        self, user: Identifier, *, username: str | None = None, is_active: bool | None = None
    ) -> None:
        """Rename, activate or deactivate a user. Values that are not given stay unchanged.

        Raises:
            AlreadyExists: another user has the new name.
        """
        await self._tell(c.UpdateUser(user, username, is_active))

    async def update_permissions(self, user: Identifier, permissions: Permissions | None) -> None:
        """Replace all permissions of a user.

        Raises:
            NotAllowed: the permissions of the root user cannot be changed.

        Example:
            from courser.model.permissions import GlobalPermissions, Permissions

            await client.create_user("clerk", "secret-of-the-clerk")
            await client.update_permissions("clerk", Permissions(GlobalPermissions(send_messages=True)))
        """
        await self._tell(c.UpdatePermissions(user, permissions))

    async def change_password(self, user: Identifier, current_password: str, new_password: str) -> None:
        """Change a password. Requires the current one.

        Raises:
            AuthenticationFailed: the current password is wrong.
        """
        await self._tell(c.ChangePassword(user, current_password, new_password))

    async def delete_user(self, user: Identifier) -> None:
        """Delete a user.

        Raises:
            NotAllowed: the root user cannot be deleted.
        """
        await self._tell(c.DeleteUser(user))

    # --- tokens ---------------------------------------------------------------------------------------

    async def create_personal_access_token(self, name: str, expiry: int | str | None = None) -> str:
        """Create a token for the current user and return its secret, which cannot be read again.

        Args:
            name: The name of the token.
            expiry: Microseconds, or a text such as ``"30 days"``; None means never.

        Raises:
            AlreadyExists: a token of the user has this name.
            ValueError: the text is not a duration.

        Example:
            token = await client.create_personal_access_token("nightly-job", "30 days")
        """
        microseconds = parse_expiry(expiry) if isinstance(expiry, str) else expiry
        reply = await self._ask(c.CreateToken(name, NEVER if microseconds is None else microseconds), r.NewToken)
        return reply.token

    async def create_one_time_token(self) -> o.OneTimeToken:
        """Create a token that logs in the current user once, within five minutes: for a link to the web console.

        Example:
            token = (await client.create_one_time_token()).token
            print(f"http://127.0.0.1:3000/ui/#login={token}")
        """
        return await self._ask(c.CreateOneTimeToken(), o.OneTimeToken)

    async def get_personal_access_tokens(self) -> list[r.TokenInfo]:
        """The tokens of the current user, without their secrets."""
        return (await self._ask(c.GetTokens(), r.TokenList)).tokens

    async def delete_personal_access_token(self, name: str) -> None:
        """Delete a token of the current user."""
        await self._tell(c.DeleteToken(name))

    # --- connections ----------------------------------------------------------------------------------

    async def get_me(self) -> r.ClientDetails:
        """This connection, as the server sees it."""
        return await self._ask(c.GetMe(), r.ClientDetails)

    async def get_client(self, client_id: int) -> r.ClientDetails:
        """One connection, as the server sees it, by its id."""
        return await self._ask(c.GetClient(client_id), r.ClientDetails)

    async def get_clients(self) -> list[r.ClientInfo]:
        """All connections, by id."""
        return (await self._ask(c.GetClients(), r.ClientList)).clients

    async def get_sessions(self) -> list[o.SessionInfo]:
        """All connections with user, client library and number of requests, by client id."""
        return (await self._ask(c.GetSessions(), o.SessionList)).sessions

    async def end_session(self, client_id: int) -> None:
        """Close another connection. Its client may connect and log in again."""
        await self._tell(c.EndSession(client_id))

    # --- the server -----------------------------------------------------------------------------------

    async def ping(self) -> None:
        """Return when the server has replied."""
        await self._tell(c.Ping())

    async def get_metrics(self) -> str:
        """All metrics of the server, in the text format of Prometheus."""
        return (await self._ask(c.GetMetrics(), r.MetricsText)).text

    async def get_start_report(self) -> o.StartReport:
        """How the last session of the server ended, and what its start found and repaired."""
        return await self._ask(c.GetStartReport(), o.StartReport)

    async def get_stats(self) -> r.Stats:
        """Statistics about the server."""
        return await self._ask(c.GetStats(), r.Stats)

    async def get_cluster_metadata(self) -> r.ClusterMetadata:
        """The nodes: always one."""
        return await self._ask(c.GetClusterMetadata(), r.ClusterMetadata)

    async def describe_options(self, scope: str = "topic") -> list[r.OptionDescription]:
        """The options of a ``"topic"``, a ``"stream"`` or a ``"user"``, with their defaults.

        Raises:
            ValueError: the scope is none of these words.
        """
        return (await self._ask(c.DescribeOptions(_number(scope, _SCOPES)), r.OptionList)).options

    async def get_snapshot(self, *kinds: str, compression: str = "deflated") -> bytes:
        """A ZIP file for troubleshooting.

        Args:
            kinds: What it contains: ``filesystem``, ``processes``, ``resources``, ``test``, ``logs``,
                ``configuration``; by default everything.
            compression: ``stored``, ``deflated``, ``bzip2``, ``zstd``, ``lzma`` or ``xz``.

        Raises:
            ValueError: a word is unknown.
            InvalidRequest: the server does not support the compression.

        Example:
            archive = await client.get_snapshot("configuration", "resources")
            print(len(archive))
        """
        numbers = tuple(_number(kind, _SNAPSHOT_KINDS) for kind in kinds or ("all",))
        command = c.GetSnapshot(_number(compression, _COMPRESSIONS), numbers)
        return (await self._ask(command, r.SnapshotArchive)).data

    async def get_history(self, since: int = 0) -> o.History:
        """The main figures of the server in the last hour, and now.

        Args:
            since: Only samples that are newer than this time, in microseconds since 1970. The last one is always sent.

        Example:
            history = await client.get_history()
            for series in history.series:
                print(series.name, series.values[-1])
        """
        return await self._ask(c.GetHistory(since), o.History)

    async def get_log_lines(self, after: int = 0) -> list[o.LogLine]:
        """The newest lines of the server's log, oldest first. The server's files have more.

        Args:
            after: Only lines with a higher number.

        Example:
            for line in await client.get_log_lines():
                print(line.level, line.logger, line.message)
        """
        return (await self._ask(c.GetLogLines(after), o.LogLines)).lines

    async def get_configuration(self) -> list[o.Setting]:
        """The server's configuration in effect, with the origin of each value. Secrets are masked.

        Example:
            for setting in await client.get_configuration():
                if setting.source != "default":
                    print(setting.key, setting.value, setting.source)
        """
        return (await self._ask(c.GetConfiguration(), o.SettingList)).settings

    async def get_topic_figures(self) -> list[o.TopicFigures]:
        """All topics of all streams with sizes, counts and lag, by the ids of streams and topics."""
        return (await self._ask(c.GetTopicFigures(), o.TopicFigureList)).topics

    async def get_access(self, stream_id: int | None = None, topic_id: int | None = None) -> o.AccessReport:
        """Who may do what and why: with a topic, with a stream, or everywhere.

        Args:
            stream_id: The number of a stream; permissions are stored by number.
            topic_id: The number of a topic in that stream.

        Example:
            report = await client.get_access(stream_id=0, topic_id=0)
            for user in report.users:
                for verdict in user.verdicts:
                    if verdict.action == "send_messages":
                        print(user.username, verdict.is_allowed, verdict.reason)
        """
        return await self._ask(c.GetAccess(stream_id, topic_id), o.AccessReport)

    # --- pipelines ------------------------------------------------------------------------------------

    async def get_pipelines(self) -> list[o.PipelineInfo]:
        """Pipelines that have reported: this user's, or all of them if the user may view the server."""
        return (await self._ask(c.GetPipelines(), o.PipelineList)).pipelines

    async def report_pipeline(
        self,
        name: str,
        state: str,
        *,
        consumer: str = "",
        host: str = "",
        started_at: int = 0,
        batch_count: int = 0,
        rows: int = 0,
        rows_per_second: int = 0,
        lag: int = 0,
        lost: int = 0,
        bad_rows: int = 0,
        restarts: int = 0,
        source: str = "",
        sink: str = "",
        error: str = "",
        definition: str = "",
    ) -> None:
        """Tell the server how a pipeline is doing: the web console shows it. It is kept in memory only.

        Args:
            name: Of the pipeline.
            state: ``starting``, ``running``, ``restarting``, ``stopping``, ``stopped``, ``finished`` or ``failed``.
            consumer: The name under which it stores its offsets.
            host: Where it runs.
            started_at: Microseconds since 1970.
            batch_count: Finished batches.
            rows: Read since the start.
            rows_per_second: In the last batch.
            lag: Messages that are not read yet.
            lost: Messages that were gone before they were read.
            bad_rows: Rows that could not be decoded.
            restarts: Since the start.
            source: What it reads.
            sink: What it writes.
            error: The last error.
            definition: The TOML in effect, without secrets.

        Raises:
            InvalidRequest: a text is too long.

        Example:
            await client.report_pipeline("loader", "running", source="shop/orders", rows=1_000)
        """
        numbers = (started_at, batch_count, rows, rows_per_second, lag, lost, bad_rows, restarts)
        texts = (source, sink, error, definition)
        await self._tell(c.ReportPipeline(name, state, consumer, host, *numbers, *texts))


def _number(word: str, numbers: dict[str, int]) -> int:
    # A tuple: a value that cannot be hashed is not found either.
    if word not in tuple(numbers):
        raise ValueError(f'expected one of {", ".join(numbers)}, not "{word}"')
    return numbers[word]
