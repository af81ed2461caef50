"""A server that dies and comes back, as the programs that use it see it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tests.sdk.conversations import PATIENCE, Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.sdk.followers import Follower
from tests.servers import RunningServer
from tests.torture.process import until

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
    """Some releases send again by themselves, others tell the program, which then tries again as often as it takes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            child.answer(number)
        except Refused:
            assert time.monotonic() < deadline, "the client does not come back"
        else:
            return
        if child.release == "0.5.0":  # it has no credentials to log in with by itself
            with contextlib.suppress(Refused):
                child.ask("login", client="producer")
        number = begin_send(child, payload)


def wait_until_stored(operator: Conversation, follower: Follower, release: str) -> None:
    """The SDK stores offsets in the background."""
    ask = partial(operator.ask, "stored_offset", client="producer", group=follower.group, **place(release))
    until(lambda: ask() == 0, "the storing of the offset", PATIENCE)


@pytest.mark.parametrize("how", STOPS)
def test_every_release_goes_on_after_a_restart(server: RunningServer, children: Children, how: str) -> None:
    for release, (child, follower) in children.items():
        child.answer(begin_send(child, "before"))
        follower.follow({"before"})
        wait_until_stored(children["0.9.0"][0], follower, release)
    STOPS[how](server)
    server.start()
    begun = {release: begin_send(child, "after") for release, (child, _) in children.items()}
    for release, number in begun.items():
        finish_send(children[release][0], number, "after")
    # At the same time: each may have to be replaced, and nobody knows that before it has been silent for a while.
    with ThreadPoolExecutor(len(children)) as pool:
        list(pool.map(lambda follower: follower.follow({"after"}), (follower for _, follower in children.values())))
    for release, (child, follower) in children.items():
        found = child.ask("poll", client="producer", **place(release))
        assert found[0][1] == "before"
        assert {payload for _, payload, _ in found[1:]} == {"after"}
        assert [offset for offset, _, _ in found] == list(range(len(found))), "numbering goes on"
        assert follower.given[:2] == ["before", "after"], "what was committed is not given again"
