"""What SDK 0.10 does when it is refused: every request is answered, and it neither loops nor hangs nor gives up."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.sdk.conversations import Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.sdk.proxies import Proxy
from tests.servers import RunningServer

NEWEST = RELEASES[-1]
PASSWORD = "a password"
REGISTER, READ, SEND = 1, 2, 160
CLUSTER, ROUTE = 12, 105
TRY_COUNT_MAX = 5
"""Requests of one kind that a refusal may cost: a loop would send thousands."""


class Line:
    """A program behind a proxy that counts, and an operator."""

    def __init__(self, stack: ExitStack, server: RunningServer, name: str) -> None:
        self.proxy = stack.enter_context(Proxy(server.address))
        self.child = stack.enter_context(Conversation(NEWEST, self.proxy.address))
        self.operator = stack.enter_context(Conversation("0.9.0", server.address))
        self.place: dict[str, Any] = {"stream": name, "topic": "topic"}
        self.operator.ask("connect", client="root")
        self.operator.ask("create", client="root", partitions=1, **self.place)

    def refusal(self, what: str, **arguments: Any) -> str:
        with pytest.raises(Refused) as caught:
            self.child.ask(what, client="own", **arguments)
        return caught.value.text

    def count(self, operation: int, code: int = 0) -> int:
        return self.proxy.requests[operation, code]

    def check_few(self) -> None:
        """No request was sent over and over, and the connection has stayed."""
        pings = self.proxy.requests.pop((READ, 1), 0)
        assert pings >= 0
        assert max(self.proxy.requests.values()) <= TRY_COUNT_MAX, self.proxy.requests
        assert self.proxy.connection_count == 1


@pytest.fixture
def line(shared_server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Line]:
    with ExitStack() as stack:
        yield Line(stack, shared_server, request.node.name)


def test_a_login_that_is_refused_is_not_tried_again(line: Line) -> None:
    line.child.ask("login", client="own")
    assert "Invalid credentials" in line.refusal("login", user="iggy", password="not the password")
    assert line.count(REGISTER) == 2


# As the reference lists them: gone, or never there.
@pytest.mark.parametrize("code", [14, 35, 102, 103, 104, 123, 205, 305, 999])
def test_an_unknown_request_costs_nothing_else(line: Line, code: int) -> None:
    line.child.ask("connect", client="own")
    assert "Invalid command" in line.refusal("raw", code=code, body="00" * 20)
    line.child.ask("send", client="own", payloads=["still connected"], **line.place)
    line.check_few()


def test_a_topic_that_is_gone(line: Line) -> None:
    line.child.ask("connect", client="own")
    line.child.ask("send", client="own", payloads=["one"], **line.place)
    line.operator.ask("delete_topic", client="root", **line.place)
    for what, arguments in (("send", {"payloads": ["lost"]}), ("poll", {}), ("poll_next", {}), ("poll_next", {})):
        assert "not found" in line.refusal(what, **arguments, **line.place)
    line.child.ask("ping", client="own")
    line.check_few()


def test_a_topic_that_is_made_again(line: Line) -> None:
    line.child.ask("connect", client="own")
    line.child.ask("send", client="own", payloads=["old"], **line.place)
    assert line.child.ask("poll_next", client="own", **line.place) == ["old"]
    line.operator.ask("remake_topic", client="root", **line.place)
    # A send looks for the topic again; the one before is not read any more.
    line.child.ask("send", client="own", payloads=["new"], **line.place)
    assert line.child.ask("poll_next", client="own", **line.place) == ["new"]
    line.check_few()


def test_a_poll_that_may_not_commit_leaves_the_partition_usable(line: Line) -> None:
    user = "limited-in-0.10"
    line.operator.ask("create_user", client="root", user=user, password=PASSWORD)
    grant = {"client": "root", "user": user, "stream": line.place["stream"]}
    line.operator.ask("grant", flags=["read_topics", "send_messages"], **grant)
    line.child.ask("login", client="own", user=user, password=PASSWORD)
    line.child.ask("send", client="own", payloads=["one"], **line.place)
    line.operator.ask("grant", flags=["send_messages"], **grant)
    for _ in range(2):
        line.refusal("poll_next", **line.place)
    line.operator.ask("grant", flags=["read_topics", "send_messages"], **grant)
    assert line.child.ask("poll_next", client="own", **line.place) == ["one"]
    line.child.ask("send", client="own", payloads=["two"], **line.place)
    assert line.child.ask("poll_next", client="own", **line.place) == ["two"]
    line.check_few()
