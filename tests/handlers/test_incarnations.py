"""Requests that say which incarnation of a partition they are for, as SDK 0.10 does."""

import msgspec
import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode
from courser.model.messaging import Balanced
from tests.handlers.messaging import ME, add_topic, poll_command, send, send_command
from tests.handlers.scenes import Scene


async def route(scene: Scene, partition_id: int = 0) -> r.PartitionRoute:
    reply = await scene.ask(scene.root, c.GetPartitionRoute("s", "t", partition_id))
    assert isinstance(reply, r.PartitionRoute)
    return reply


async def test_a_route_says_which_partition_it_is_and_how_many_there_are(scene: Scene) -> None:
    details = await add_topic(scene, partition_count=2)
    found = await route(scene)
    assert found == r.PartitionRoute(details.partitions[0].incarnation, 2)
    assert found.incarnation
    await scene.ask(scene.root, c.CreatePartitions("s", "t", 1))
    assert (await route(scene, 2)).incarnation > found.incarnation
    assert await route(scene) == r.PartitionRoute(found.incarnation, 3)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (c.GetPartitionRoute("s", "t", 1), ErrorCode.PARTITION_NOT_FOUND),
        (c.GetPartitionRoute("s", "other", 0), ErrorCode.TOPIC_NOT_FOUND),
        (c.GetPartitionRoute("other", "t", 0), ErrorCode.STREAM_NOT_FOUND),
    ],
)
async def test_there_is_no_route_to_what_is_missing(scene: Scene, command: c.Command, code: ErrorCode) -> None:
    await add_topic(scene)
    assert await scene.refusal(scene.root, command) is code


async def test_a_topic_that_is_created_again_is_another_one(scene: Scene) -> None:
    await add_topic(scene)
    old = (await route(scene)).incarnation
    await scene.ask(scene.root, c.DeleteTopic("s", "t"))
    await add_topic(scene)
    new = (await route(scene)).incarnation
    assert new > old
    await send(scene, "one")
    polled = await scene.ask(scene.root, poll_command())
    assert isinstance(polled, r.Polled)
    assert polled.incarnation == new


REQUESTS = [
    send_command("two"),
    send_command("two", to=Balanced()),
    poll_command(),
    poll_command(commit=True),
    c.StoreConsumerOffset(ME, "s", "t", 0, 0),
    c.GetConsumerOffset(ME, "s", "t", 0),
    c.DeleteConsumerOffset(ME, "s", "t", 0),
]


@pytest.mark.parametrize("command", REQUESTS, ids=lambda command: type(command).__name__)
async def test_only_the_current_incarnation_is_served(scene: Scene, command: c.Command) -> None:
    await add_topic(scene)
    await send(scene, "one")
    await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 0))
    incarnation = (await route(scene)).incarnation
    for other in (incarnation - 1, incarnation + 1, 2**64 - 1):
        stale = msgspec.structs.replace(command, incarnation=other)
        assert await scene.refusal(scene.root, stale) is ErrorCode.HISTORY_UNAVAILABLE
    # SDKs before 0.10 never say it.
    for current in (incarnation, 0):
        await scene.ask(scene.root, c.StoreConsumerOffset(ME, "s", "t", 0, 0))
        await scene.ask(scene.root, msgspec.structs.replace(command, incarnation=current))
