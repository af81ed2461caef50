"""The server is killed again and again while five releases send and two follow. What it acknowledged, it keeps."""

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.conversations import Conversation
from tests.sdk.environments import RELEASES
from tests.sdk.ledger import Found, PromiseBroken, judge_consumer, judge_producer, name_of
from tests.servers import RunningServer

PLACE: dict[str, str] = {"stream": "load", "topic": "load"}
FOLLOWERS = ("0.8.0", "0.9.0")
AT_ONCE = "?reestablish_after=50ms&reconnection_interval=50ms&heartbeat_interval=500ms"
"""Options of a connection string: connect again without the usual five seconds."""


def producer_of(release: str) -> str:
    return f"producer-{release}"


class Load:
    """Producers, one to a partition, and followers, one to a group."""

    def __init__(self, stack: ExitStack, server: RunningServer) -> None:
        self.operator = stack.enter_context(Conversation("0.9.0", server.address))
        self.operator.ask("connect", client="root", options=AT_ONCE)
        self.operator.ask("create", client="root", partitions=len(RELEASES), **PLACE)
        self.producers = {release: stack.enter_context(Conversation(release, server.address)) for release in RELEASES}
        self.followers = {release: stack.enter_context(Conversation(release, server.address)) for release in FOLLOWERS}
        for release, follower in self.followers.items():
            follower.ask("connect", client="own", options=AT_ONCE)
            follower.ask("consume", client="own", name="follower", group=f"group-{release}", **PLACE)
        for index, (release, producer) in enumerate(self.producers.items()):
            producer.ask("produce", name=producer_of(release), index=index, batch=1 + 3 * index, **PLACE)

    def wait_for_acks(self, count: int) -> None:
        """Until every producer has had so many more."""
        for producer in self.producers.values():
            producer.wait_for_acks(producer.ack_count + count)

    def finish(self) -> dict[str, Found]:
        """Let everybody come to the end; return the partitions, by producer."""
        for release, producer in self.producers.items():
            producer.ask("stop", name=producer_of(release))
        partitions, last = {}, set()
        for index, release in enumerate(RELEASES):
            read = self.operator.ask("poll", client="root", index=index, **PLACE)
            messages = [name_of(payload) for _, payload, _ in read]
            last.add(read[-1][1])
            partitions[producer_of(release)] = Found([offset for offset, _, _ in read], messages)
        for follower in self.followers.values():
            follower.wait_until_given(last)
        return partitions


def kill_rounds(path: Path, seed: int, round_count: int) -> None:
    source = random.Random(seed)
    with RunningServer(path / "server") as server, ExitStack() as stack:
        load = Load(stack, server)
        for _ in range(round_count):
            load.wait_for_acks(source.randint(1, 60))
            server.kill()
            server.start()
        load.wait_for_acks(1)
        partitions = load.finish()
        acknowledged = sum(
            judge_producer(producer_of(release), producer.events, partitions[producer_of(release)])
            for release, producer in load.producers.items()
        )
        given = [judge_consumer(follower.events, partitions) for follower in load.followers.values()]
    print(f"{acknowledged} messages acknowledged and found over {round_count} kills; followers were given {given}")


def test_kills_under_load_lose_nothing(tmp_path: Path, seed: int) -> None:
    kill_rounds(tmp_path, seed, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_50_kills_under_load_lose_nothing(tmp_path: Path, seed: int) -> None:
    kill_rounds(tmp_path, seed, 50)


# --- the judge itself ---

ATTEMPTS: list[dict[str, Any]] = [
    {"event": "attempt", "by": "p", "numbers": [0, 1]},
    {"event": "ack", "by": "p", "numbers": [0, 1], "offset": 0},
    {"event": "attempt", "by": "p", "numbers": [2, 3]},
    {"event": "failure", "by": "p", "numbers": [2, 3], "error": ""},
]


def found(*names: str) -> Found:
    return Found(range(len(names)), names)


def test_the_judge_accepts_what_was_promised_and_no_more_than_was_tried() -> None:
    assert judge_producer("p", ATTEMPTS, found("p 0", "p 1")) == 2
    assert judge_producer("p", ATTEMPTS, found("p 0", "p 1", "p 2", "p 3")) == 2


@pytest.mark.parametrize(
    "partition",
    [
        found("p 0"),
        found("p 1", "p 0"),
        found("p 0", "p 1", "p 9"),
        found("p 0", "p 1", "p 2", "p 2"),
        Found([0, 2], ["p 0", "p 1"]),
    ],
    ids=["lost", "moved", "invented", "doubled", "gap"],
)
def test_the_judge_notices_a_broken_promise_to_a_producer(partition: Found) -> None:
    with pytest.raises(PromiseBroken):
        judge_producer("p", ATTEMPTS, partition)


def given(*pairs: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"event": "message", "offset": offset, "payload": payload} for offset, payload in pairs]


def test_the_judge_accepts_messages_that_a_consumer_is_given_again() -> None:
    partitions = {"p": found("p 0", "p 1", "p 2")}
    assert judge_consumer(given((0, "p 0"), (1, "p 1"), (1, "p 1"), (2, "p 2")), partitions) == 4


@pytest.mark.parametrize(
    "events",
    [
        given((0, "p 0"), (2, "p 2")),
        given((0, "p 1"), (1, "p 1"), (2, "p 2")),
        given((0, "p 0"), (1, "p 1")),
    ],
    ids=["gap", "another message", "stopped"],
)
def test_the_judge_notices_a_broken_promise_to_a_consumer(events: list[dict[str, Any]]) -> None:
    with pytest.raises(PromiseBroken):
        judge_consumer(events, {"p": found("p 0", "p 1", "p 2")})
