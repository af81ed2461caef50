"""The metrics that only a server has: connections by kind, and how late the event loop is."""

import pytest

from courser.broker.groups import ConsumerGroups
from courser.broker.sessions import Sessions
from courser.model.messaging import Transport
from courser.model.metrics import Histogram
from courser.server.metrics import ConnectionSurvey, measure_loop_delay
from courser.testing.clocks import ManualClock


class Enough(Exception):
    """The test has seen what it wanted."""


async def test_the_delay_of_the_event_loop_is_what_a_timer_is_late() -> None:
    clock, histogram, late = ManualClock(), Histogram((0.01, 0.1)), [0, 50_000, 2_000_000]

    async def sleep(seconds: float) -> None:
        if not late:
            raise Enough
        clock.advance(int(seconds * 1_000_000) + late.pop(0))

    with pytest.raises(Enough):
        await measure_loop_delay(histogram, clock, sleep)
    assert histogram.counts == [1, 1, 1]
    assert histogram.sum == pytest.approx(2.05)


async def test_connections_are_counted_by_transport_and_library() -> None:
    clock = ManualClock()
    sessions = Sessions(clock, ConsumerGroups(lambda _stream, _topic: 0, clock.monotonic))
    for transport, sdk in ((Transport.TCP, "rust"), (Transport.TCP, "rust"), (Transport.QUIC, "java")):
        sessions.open(transport, "127.0.0.1:1").sdk = sdk
    survey = ConnectionSurvey(sessions, lambda: 3)
    await survey.run()
    found = {tuple(value for _, value in sample.labels): sample.value for sample in survey.samples()}
    assert {key: value for key, value in found.items() if value} == {
        ("tcp", "rust"): 2,
        ("quic", "java"): 1,
        ("http", "unknown"): 3,
    }
    # A transport that nobody uses is 0, not absent: an alert on it would never fire.
    assert found["websocket", "unknown"] == 0
