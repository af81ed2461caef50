"""The metrics that only a server has: connections by kind."""

from courser.broker.access.sessions import Sessions
from courser.broker.groups.groups import ConsumerGroups
from courser.model.messaging import Transport
from courser.server.metrics import ConnectionSurvey
from tests.fakes.clocks import ManualClock


async def test_connections_are_counted_by_transport_and_library() -> None:
    clock = ManualClock()
    sessions = Sessions(clock, ConsumerGroups(lambda _stream, _topic: 0, clock))
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
