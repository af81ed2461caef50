"""For whoever operates a server: connections, figures, log, configuration, and the pipelines that report to it."""

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.client.asking import Asking


class Operating(Asking):
    """What the web console shows, for programs."""

    async def get_sessions(self) -> list[o.SessionInfo]:
        """All connections with user, client library and number of requests, by client id."""
        return (await self._ask(c.GetSessions(), o.SessionList)).sessions

    async def end_session(self, client_id: int) -> None:
        """Close another connection. Its client may connect and log in again."""
        await self._tell(c.EndSession(client_id))

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
