"""All five releases at one server at the same time: what one of them sends, every other reads, whole and unchanged."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.sdk.classic_frames import ClassicConnection, Layout, Message
from tests.sdk.conversations import Conversation
from tests.sdk.environments import RELEASES
from tests.servers import RunningServer

Children = dict[str, Conversation]
PARTITION_COUNT = 3
PLACE: dict[str, str] = {"stream": "together", "topic": "shared"}


@pytest.fixture
def children(server: RunningServer) -> Iterator[Children]:
    with ExitStack() as stack:
        children = {release: stack.enter_context(Conversation(release, server.address)) for release in RELEASES}
        at_the_same_time(children, "connect", client="own")
        children["0.9.0"].ask("create", client="own", partitions=PARTITION_COUNT, **PLACE)
        yield children


def at_the_same_time(children: Children, what: str, **arguments: Any) -> dict[str, Any]:
    """Have all do the same at once; the result of each."""
    begun = {release: child.begin(what, **arguments) for release, child in children.items()}
    return {release: children[release].answer(number) for release, number in begun.items()}


def test_every_release_reads_what_all_of_them_sent(children: Children) -> None:
    begun = []
    for turn in range(10):
        for release, child in children.items():
            payloads = [f"{release} {turn} {number} " + "x" * (100 * number) for number in range(5)]
            begun.append((child, child.begin("send", client="own", payloads=payloads, index=turn % 3, **PLACE)))
    for child, number in begun:
        child.answer(number)

    for index in range(PARTITION_COUNT):
        read = at_the_same_time(children, "poll", client="own", index=index, **PLACE)
        reference = read["0.9.0"]
        assert [offset for offset, _, _ in reference] == list(range(len(reference)))
        assert len({number for _, _, number in reference}) == len(reference), "every message has an id of its own"
        assert all(number != "0" for _, _, number in reference)
        for release in RELEASES:
            assert read[release] == reference, f"{release} reads the same offsets, payloads and ids as 0.9.0"
        turns = [turn for turn in range(10) if turn % 3 == index]
        for release in RELEASES:
            own = [payload.split()[1:3] for _, payload, _ in reference if payload.startswith(release)]
            assert sorted(own) == sorted([str(turn), str(number)] for turn in turns for number in range(5))


def test_a_release_that_only_reads_reads_what_was_sent(children: Children) -> None:
    payloads = ["one", "two", "three"]
    children["0.9.0"].ask("send", client="own", payloads=payloads, index=0, **PLACE)
    for release, read in at_the_same_time(children, "poll", client="own", index=0, **PLACE).items():
        assert [payload for _, payload, _ in read] == payloads, release


def test_ids_and_headers_of_0_9_reach_every_release(children: Children, server: RunningServer) -> None:
    sent: list[tuple[str, int, dict[str, str]]] = [
        ("plain", 7, {}),
        ("with a header", (1 << 128) - 1, {"key": "value"}),
        ("with two", 1 << 64, {"first": "ü", "second": "2" * 255}),
    ]
    messages = [[payload, str(number), headers] for payload, number, headers in sent]
    children["0.9.0"].ask("send_rich", client="own", messages=messages, **PLACE)
    expected = [[offset, payload, str(number)] for offset, (payload, number, _) in enumerate(sent)]
    for release, read in at_the_same_time(children, "poll", client="own", **PLACE).items():
        assert read == expected, release
    assert children["0.9.0"].ask("headers", client="own", **PLACE) == [headers for _, _, headers in sent]
    for layout in Layout:
        with ClassicConnection(server.address, layout) as connection:
            read = connection.poll(PLACE["stream"], PLACE["topic"], 0)
            assert read == [Message(payload.encode(), number, headers) for payload, number, headers in sent]


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.name.lower())
def test_ids_and_headers_of_older_releases_reach_every_release(
    children: Children, server: RunningServer, layout: Layout
) -> None:
    sent = [
        Message(b"plain", 7),
        Message(b"with a header", (1 << 128) - 1, {"key": "value"}),
        Message(b"with two", 1 << 64, {"first": "ü", "second": "2" * 255}),
    ]
    with ClassicConnection(server.address, layout) as connection:
        connection.send(PLACE["stream"], PLACE["topic"], 1, sent)
    expected = [[offset, message.payload.decode(), str(message.id)] for offset, message in enumerate(sent)]
    for release, read in at_the_same_time(children, "poll", client="own", index=1, **PLACE).items():
        assert read == expected, release
    headers = children["0.9.0"].ask("headers", client="own", index=1, **PLACE)
    assert headers == [message.headers for message in sent]
    for other in Layout:
        with ClassicConnection(server.address, other) as connection:
            assert connection.poll(PLACE["stream"], PLACE["topic"], 1) == sent, other
