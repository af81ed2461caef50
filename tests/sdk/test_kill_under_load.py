"""The server is killed again and again while all releases send and two follow. What it acknowledged, it keeps."""

import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.conversations import Conversation
from tests.sdk.environments import RELEASES
from tests.sdk.followers import Follower
from tests.sdk.ledger import Found, PromiseBroken, judge_consumer, judge_producer
from tests.sdk.programs.load import name_of, payload_of
from tests.servers import RunningServer

HEAVY: dict[str, str] = {"stream": "load", "topic": "heavy"}
"""One partition for a producer of each release; together they keep the server busy."""
LIGHT: dict[str, str] = {"stream": "light", "topic": "light"}
"""One partition for a producer of each release that has a follower; they send at a pace that anyone can follow."""
FOLLOWERS = ("0.8.0", "0.9.0", RELEASES[-1])
HEAVY_PAUSE, LIGHT_PAUSE = 0.002, 0.02
AT_ONCE = "?reestablish_after=50ms&reconnection_interval=50ms&heartbeat_interval=500ms"
"""Options of a connection string: connect again without the usual five seconds."""


class Load:
    """Producers, one to a partition, and followers, one to a group."""

    def __init__(self, stack: ExitStack, server: RunningServer) -> None:
        self.operator = stack.enter_context(Conversation("0.9.0", server.address))
        self.operator.ask("connect", client="root", options=AT_ONCE)
        self.operator.ask("create", client="root", partitions=len(RELEASES), **HEAVY)
        self.operator.ask("create", client="root", partitions=len(FOLLOWERS), **LIGHT)
        self.producers = [stack.enter_context(Conversation(release, server.address)) for release in RELEASES]
        self.followers = [
            stack.enter_context(Follower(release, server.address, LIGHT, AT_ONCE)) for release in FOLLOWERS
        ]
        for index, producer in enumerate(self.producers):
            place: dict[str, Any] = {"index": index, "batch": 1 + 2 * index, **HEAVY}
            producer.ask("produce", name=heavy(producer.release), pause=HEAVY_PAUSE, **place)
            if producer.release in FOLLOWERS:
                place = {"index": FOLLOWERS.index(producer.release), "batch": 2, **LIGHT}
                producer.ask("produce", name=light(producer.release), pause=LIGHT_PAUSE, **place)

    def wait_for_acks(self, count: int) -> None:
        """Until every producer has had so many more."""
        for producer in self.producers:
            producer.wait_for_acks(count)

    def follow(self) -> None:
        """Until every follower has been given what was acknowledged by now."""
        latest = {
            payload_of(name, number)
            for producer in self.producers
            for name, number in producer.latest_number.items()
            if name.startswith("light")
        }
        with ThreadPoolExecutor(len(self.followers)) as pool:
            list(pool.map(lambda follower: follower.follow(latest), self.followers))

    def finish(self) -> None:
        """Let all producers come to an end."""
        for producer in self.producers:
            for name in producer.ack_counts:
                producer.ask("stop", name=name)

    def read(self, place: dict[str, str], names: Iterable[str]) -> dict[str, Found]:
        """The partitions of a topic, by their producers."""
        self.operator.ask("connect", client="reader")
        partitions = {}
        for index, name in enumerate(names):
            read = self.operator.ask("poll", client="reader", index=index, **place)
            messages = [name_of(payload) for _, payload, _ in read]
            partitions[name] = Found([offset for offset, _, _ in read], messages)
        return partitions


def heavy(release: str) -> str:
    return f"heavy-{release}"


def light(release: str) -> str:
    return f"light-{release}"


def kill_rounds(path: Path, seed: int, round_count: int) -> None:
    source = random.Random(seed)
    with RunningServer(path / "server") as server, ExitStack() as stack:
        load = Load(stack, server)
        for _ in range(round_count):
            load.wait_for_acks(source.randint(1, 40))
            load.follow()
            load.wait_for_acks(source.randint(0, 5))
            server.kill()
            server.start()
        load.wait_for_acks(1)
        load.finish()
        load.follow()
        partitions = load.read(HEAVY, map(heavy, RELEASES))
        followed = load.read(LIGHT, map(light, FOLLOWERS))
        acknowledged = sum(
            judge_producer(name, producer.events, (partitions | followed)[name])
            for producer in load.producers
            for name in producer.ack_counts
        )
        given = [judge_consumer(follower.events, followed) for follower in load.followers]
        replaced = [follower.replaced_count for follower in load.followers]
    print(f"{acknowledged} messages acknowledged and found over {round_count} kills")
    print(f"the followers were given {given} messages and replaced {replaced} times")


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
