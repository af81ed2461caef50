"""Connections that break under a program of SDK 0.10: it logs in again, and nothing is stored twice."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sdk.conversations import PATIENCE, Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.sdk.proxies import Proxy
from tests.servers import RunningServer
from tests.torture.process import until

NEWEST = RELEASES[-1]
AT_ONCE = "?reestablish_after=50ms&reconnection_interval=50ms&heartbeat_interval=500ms"
"""Connect again without the usual five seconds."""


class Line:
    """A program behind a proxy, an operator that is not, and a topic of their own."""

    def __init__(self, proxy: Proxy, child: Conversation, operator: Conversation, name: str) -> None:
        self.proxy, self.child, self._operator = proxy, child, operator
        self.place: dict[str, Any] = {"stream": name, "topic": "topic"}
        operator.ask("connect", client="root")
        operator.ask("create", client="root", partitions=1, **self.place)
        child.ask("connect", client="own", options=AT_ONCE)

    def begin_send(self, *payloads: str) -> int:
        return self.child.begin("send", client="own", payloads=list(payloads), **self.place)

    def send(self, *payloads: str) -> None:
        self.child.answer(self.begin_send(*payloads))

    def stored(self) -> list[str]:
        """What the partition holds."""
        return [payload for _, payload, _ in self._operator.ask("poll", client="root", **self.place)]

    def tell(self, *payloads: str) -> None:
        """Send past the proxy."""
        self._operator.ask("send", client="root", payloads=list(payloads), **self.place)


@pytest.fixture
def line(shared_server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Line]:
    with (
        Proxy(shared_server.address) as proxy,
        Conversation(NEWEST, proxy.address) as child,
        Conversation("0.9.0", shared_server.address) as operator,
    ):
        yield Line(proxy, child, operator, request.node.name)


def test_an_idle_connection_breaks(line: Line) -> None:
    line.send("one")
    for number in range(5):
        line.proxy.break_connections()
        # A send before the SDK has logged in again would be one whose outcome it does not know.
        until(lambda count=number + 2: line.proxy.connection_count == count, "a new connection", PATIENCE)  # type: ignore[misc]
        line.child.ask("ping", client="own")
        line.send(f"{number}")
    assert line.stored() == ["one", "0", "1", "2", "3", "4"]
    assert line.proxy.connection_count == 6, "one new connection for each that broke"


def test_a_connection_breaks_before_the_reply_to_a_send(line: Line) -> None:
    line.send("before")
    for number in range(3):
        line.proxy.hold_replies()
        begun = line.begin_send(f"{number}")
        until(lambda number=number: f"{number}" in line.stored(), "the message", PATIENCE)  # type: ignore[misc]
        line.proxy.break_connections()
        # The SDK cannot know whether it was stored. It says so, and sends it no second time.
        with pytest.raises(Refused):
            line.child.answer(begun)
        line.send(f"after {number}")
    assert line.stored() == ["before", *(text for number in range(3) for text in (f"{number}", f"after {number}"))]


def test_a_connection_breaks_while_a_consumer_waits(line: Line) -> None:
    line.child.ask("consume", client="own", name="waiting", group="group", **line.place)
    line.tell("one")
    line.child.wait_until_given({"one"})
    expected = {"one"}
    for number in range(3):
        line.proxy.break_connections()
        line.tell(f"{number}")
        expected.add(f"{number}")
        line.child.wait_until_given(expected)
    line.send("the same client sends")
    line.child.wait_until_given({"the same client sends"})
    assert set(line.child.given) == {*expected, "the same client sends"}
