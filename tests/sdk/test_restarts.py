"""A server that dies and comes back, as the programs that use it see it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.sdk.conversations import Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.sdk.followers import Follower
from tests.servers import RunningServer

Children = dict[str, tuple[Conversation, Follower]]

STOPS: dict[str, Callable[[RunningServer], object]] = {"kill": RunningServer.kill, "stop": RunningServer.stop}


@pytest.fixture
def children(server: RunningServer) -> Iterator[Children]:
    """A child of each release with a topic of its own, and a follower of it."""
    children = {}
    with ExitStack() as stack:
        for release in RELEASES:
            child = stack.enter_context(Conversation(release, server.address))
            child.ask("connect", client="producer", lasting=True)
            child.ask("create", client="producer", partitions=1, **place(release))
            follower = stack.enter_context(Follower(release, server.address, place(release)))
            children[release] = (child, follower)
        yield children


def place(release: str) -> dict[str, str]:
    return {"stream": f"stream-{release}", "topic": "topic"}


def begin_send(child: Conversation, payload: str) -> int:
    arguments: dict[str, Any] = {"client": "producer", "payloads": [payload], **place(child.release)}
    return child.begin("send", **arguments)


def finish_send(child: Conversation, number: int, payload: str) -> None:
    """Some releases send again by themselves, others tell the program, which then does it."""
    try:
        child.answer(number)
    except Refused as refusal:
        if "Unauthenticated" in refusal.text or "0.5" in child.release:
            child.ask("login", client="producer")  # 0.5 has no credentials to log in with by itself
        child.answer(begin_send(child, payload))


@pytest.mark.parametrize("how", STOPS)
def test_every_release_goes_on_after_a_restart(server: RunningServer, children: Children, how: str) -> None:
    for child, follower in children.values():
        child.answer(begin_send(child, "before"))
        follower.follow({"before"})
    STOPS[how](server)
    server.start()
    begun = {release: begin_send(child, "after") for release, (child, _) in children.items()}
    for release, number in begun.items():
        finish_send(children[release][0], number, "after")
    for release, (child, follower) in children.items():
        found = child.ask("poll", client="producer", **place(release))
        assert found[0][1] == "before"
        assert {payload for _, payload, _ in found[1:]} == {"after"}
        assert [offset for offset, _, _ in found] == list(range(len(found))), "numbering goes on"
        follower.follow({"after"})
        assert follower.given[:2] == ["before", "after"], "what was committed is not given again"
