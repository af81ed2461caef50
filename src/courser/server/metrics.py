"""The metrics of a server that the broker does not have: connections."""

from collections import Counter
from collections.abc import Callable, Iterator

from courser.broker.access.sessions import NO_SDK, Sessions
from courser.broker.partition.waiting import Pause, let_others_run
from courser.model import metric_table as m
from courser.model.messaging import Transport
from courser.model.metrics import Registry, Sample
from courser.transports.connections import Connections

_STEP_COUNT = 1000
"""Connections that are looked at without a pause: less than 1 us each."""


class ConnectionSurvey:
    """Counts connections by transport and client library before each scrape."""

    def __init__(
        self, sessions: Sessions, http_connection_count: Callable[[], int], *, pause: Pause = let_others_run
    ) -> None:
        self._sessions = sessions
        self._http_connection_count = http_connection_count
        self._pause = pause
        self._counts: Counter[tuple[Transport, str]] = Counter()

    async def run(self) -> None:
        """Look at all connections."""
        counts: Counter[tuple[Transport, str]] = Counter()
        for number, session in enumerate(self._sessions, 1):
            counts[session.transport, session.sdk] += 1
            if number % _STEP_COUNT == 0:
                await self._pause()
        # Over HTTP, each request has a session of its own, and none outlives it.
        counts[Transport.HTTP, NO_SDK] += self._http_connection_count()
        self._counts = counts

    def samples(self) -> Iterator[Sample]:
        """The number of connections of each kind."""
        metric = m.CONNECTIONS
        for transport in Transport:
            self._counts.setdefault((transport, NO_SDK), 0)
        return (
            Sample(metric.labeled(transport.name.lower(), sdk), count)
            for (transport, sdk), count in sorted(self._counts.items())
        )


def register_connection_metrics(
    registry: Registry, connections: Connections, sessions: Sessions, http_connection_count: Callable[[], int]
) -> None:
    """Name the figures of connections."""
    survey = ConnectionSurvey(sessions, http_connection_count)
    registry.surveys.append(survey.run)
    registry.collected(m.CONNECTIONS, survey.samples)
    registry.value_of(m.CONNECTIONS_REFUSED, lambda: connections.turned_away_count)
    registry.value_of(m.CONNECTIONS_CUT_OFF, lambda: connections.cut_off_count)
