"""The server itself: figures, connections, a diagnosis, the options it knows."""

import asyncio

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.api import replies as r
from courser.broker.access.sessions import Session
from courser.broker.broker import Broker
from courser.broker.figures.statistics import describe_server
from courser.broker.partition.topic_settings import describe_options as options_of
from courser.errors import CommandRejected, ErrorCode

CLUSTER_NAME = "single-node"
"""As Iggy calls a server that stands alone."""


def ping(_broker: Broker, _session: Session, _: c.Ping) -> None:
    """Any request counts as a sign of life; this one does nothing else."""


async def get_stats(broker: Broker, session: Session, command: c.GetStats) -> r.Stats:
    """Measured in the pool: a disk that hangs must not stop the event loop."""
    broker.finder.check(session, command)
    machine = broker.operating.machine
    figures = await asyncio.get_running_loop().run_in_executor(broker.pool, machine.measure_all)
    return describe_server(
        machine,
        figures,
        clock=broker.clock,
        state=broker.catalog.state,
        found={**broker.figures.remote, **await broker.figures.sums()},
        sessions=broker.sessions,
    )


async def get_metrics(broker: Broker, session: Session, command: c.GetMetrics) -> r.MetricsText:
    """Return the text that HTTP serves at ``/metrics``."""
    broker.finder.check(session, command)
    return r.MetricsText(await broker.operating.scrapes.text())


async def get_start_report(broker: Broker, session: Session, command: c.GetStartReport) -> o.StartReport:
    """What the log says about the start, as long as the server runs."""
    broker.finder.check(session, command)
    return broker.operating.start_findings.report()


async def get_snapshot(broker: Broker, session: Session, command: c.GetSnapshot) -> r.SnapshotArchive:
    """For those who may read the server: logs and configuration are not for everybody."""
    broker.finder.check(session, command)
    return r.SnapshotArchive(await broker.operating.diagnosis.make_archive(command.compression, command.kinds))


async def get_cluster_metadata(broker: Broker, _session: Session, _: c.GetClusterMetadata) -> r.ClusterMetadata:
    """One node: clients that see two would look for a leader."""
    return r.ClusterMetadata(CLUSTER_NAME, [broker.node])


async def describe_options(broker: Broker, _session: Session, command: c.DescribeOptions) -> r.OptionList:
    """For everybody who is logged in."""
    return options_of(command.scope, broker.settings.topic_defaults)


async def get_me(broker: Broker, session: Session, _: c.GetMe) -> r.ClientDetails:
    return _details(broker, session)


async def get_client(broker: Broker, session: Session, command: c.GetClient) -> r.ClientDetails:
    """Another connection. Who may not look does not learn whether it is there."""
    if command.client_id == 0:
        raise CommandRejected(ErrorCode.INVALID_CLIENT_ID, "a client id cannot be 0")
    broker.finder.check(session, command)
    other = broker.sessions.get(command.client_id)
    if other is None:
        raise CommandRejected(ErrorCode.CLIENT_NOT_FOUND, f"client {command.client_id} does not exist")
    return _details(broker, other)


async def get_clients(broker: Broker, session: Session, command: c.GetClients) -> r.ClientList:
    broker.finder.check(session, command)
    return r.ClientList([_info(broker, other) for other in broker.sessions.all()])


def _info(broker: Broker, session: Session) -> r.ClientInfo:
    group_count = len(broker.sessions.in_all_processes(session).groups)
    return r.ClientInfo(session.client_id, session.user_id, session.transport, session.address, group_count)


def _details(broker: Broker, session: Session) -> r.ClientDetails:
    groups = [r.ClientGroup(*key) for key in broker.sessions.in_all_processes(session).groups]
    return r.ClientDetails(_info(broker, session), groups)
