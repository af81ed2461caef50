"""For whoever operates the server: sessions, history, log and configuration."""

from typing import TypeVar

from msgspec.structs import replace

from courser.api import commands as c
from courser.api import metadata_changes as f
from courser.api import operating_replies as o
from courser.broker.access import verdicts
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.catalog.finding import find_stream, find_topic
from courser.broker.partition.topic_settings import reported_options
from courser.catalog.rules import ROOT_USER_ID
from courser.errors import CommandRejected, ErrorCode
from courser.model.permissions import Action
from courser.model.topic_options import TopicOptions

Row = TypeVar("Row", f.ChangeRecord, f.ChangeItem)


async def get_sessions(broker: Broker, session: Session, command: c.GetSessions) -> o.SessionList:
    broker.finder.check(session, command)
    users = broker.catalog.state.users
    started_at = broker.clock.now() - broker.clock.monotonic()
    rows = []
    for other in broker.sessions.all():
        user = None if other.user_id is None else users.get(other.user_id)
        known = broker.sessions.in_all_processes(other)
        rows.append(
            o.SessionInfo(
                other.client_id,
                other.user_id,
                "" if user is None else user.name,
                other.transport.name.lower(),
                other.address,
                other.sdk,
                started_at + other.connected_at,
                started_at + known.last_seen,
                known.request_count,
                len(known.groups),
            )
        )
    return o.SessionList(rows)


async def end_session(broker: Broker, session: Session, command: c.EndSession) -> None:
    """The client notices that its connection is closed."""
    broker.finder.check(session, command)
    other = broker.sessions.get(command.client_id)
    if other is None:
        # Not CLIENT_NOT_FOUND: SDKs take that for the end of their own session.
        raise CommandRejected(ErrorCode.RESOURCE_NOT_FOUND, f"client {command.client_id} does not exist")
    broker.sessions.end(other, CommandRejected(ErrorCode.DISCONNECTED, "an operator has ended this session"))


async def get_history(broker: Broker, session: Session, command: c.GetHistory) -> o.History:
    """With a sample of now."""
    broker.finder.check(session, command)
    return await broker.operating.history.since(command.since)


async def get_log_lines(broker: Broker, session: Session, command: c.GetLogLines) -> o.LogLines:
    """Those in memory: the files have more."""
    broker.finder.check(session, command)
    return o.LogLines(broker.operating.diagnosis.list_log_lines(command.after))


async def get_configuration(broker: Broker, session: Session, command: c.GetConfiguration) -> o.SettingList:
    """Masked by the server."""
    broker.finder.check(session, command)
    return o.SettingList(broker.operating.diagnosis.list_settings())


async def get_topic_figures(broker: Broker, session: Session, command: c.GetTopicFigures) -> o.TopicFigureList:
    """For those who may list all streams."""
    broker.finder.check(session, command)
    return await broker.operating.topic_figures.read()


async def get_access(broker: Broker, session: Session, command: c.GetAccess) -> o.AccessReport:
    """For those who may see other users."""
    state = broker.catalog.state
    if command.stream_id is not None:
        stream = find_stream(state, command.stream_id)
        if command.topic_id is not None:
            find_topic(state, stream, command.topic_id)
    elif command.topic_id is not None:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, "topic_id needs a stream_id")
    broker.finder.check(session, command)
    users = [state.users[user_id] for user_id in sorted(state.users)]
    return await verdicts.report(users, command.stream_id, command.topic_id)


async def report_pipeline(broker: Broker, session: Session, command: c.ReportPipeline) -> None:
    """Under the user's own name, so it needs no permission."""
    broker.operating.pipeline_reports.note(broker.access.user(session).user_id, command)


async def get_pipelines(broker: Broker, session: Session, _: c.GetPipelines) -> o.PipelineList:
    """What is in the answer depends on who asks."""
    user, users = broker.access.user(session), broker.catalog.state.users
    sees_all = user.user_id == ROOT_USER_ID or broker.access.allows(user.permissions, Action.READ_SERVER)
    rows = []
    for user_id, time, report in broker.operating.pipeline_reports.all():
        if sees_all or user_id == user.user_id:
            owner = users.get(user_id)
            facts = (getattr(report, name) for name in report.__struct_fields__ if name != "name")
            rows.append(o.PipelineInfo(report.name, "" if owner is None else owner.name, time, *facts))
    return o.PipelineList(rows)


async def get_metadata_changes(broker: Broker, session: Session, command: c.GetMetadataChanges) -> f.MetadataChanges:
    """With the defaults of topics, which the catalog does not know."""
    broker.finder.check(session, command)
    page = broker.catalog.read_changes(command)

    def shown(row: Row) -> Row:
        if not isinstance(row.body.options, TopicOptions):
            return row
        options, effective = reported_options(row.body.options, broker.settings.topic_defaults)
        return replace(row, body=replace(row.body, options=options, effective=effective))

    return replace(page, records=tuple(map(shown, page.records)), items=tuple(map(shown, page.items)))
