"""Updates that say only what changes, as SDK 0.10 sends them, and topics whose partitions cannot be changed."""

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.topic_options import FIXED, TopicOptions
from tests.handlers.messaging import add_topic
from tests.handlers.scenes import Scene

DAY = 86_400_000_000


async def options_of(scene: Scene, name: str) -> TopicOptions:
    state = scene.broker.catalog.state
    stream_id = state.stream_by_name["s"]
    return state.streams[stream_id].topics[state.topic_by_name[stream_id, name]].options


async def test_what_an_update_does_not_name_stays(scene: Scene) -> None:
    await add_topic(scene, message_expiry=DAY, max_topic_size=2**30)
    await scene.ask(scene.root, c.UpdateTopic("s", "t", "renamed", TopicOptions(), is_patch=True))
    assert await options_of(scene, "renamed") == TopicOptions(message_expiry=DAY, max_topic_size=2**30)
    update = c.UpdateTopic(
        "s", "renamed", "", TopicOptions(message_expiry=2 * DAY), is_patch=True, reset=frozenset({"max_topic_size"})
    )
    await scene.ask(scene.root, update)
    assert await options_of(scene, "renamed") == TopicOptions(message_expiry=2 * DAY)


@pytest.mark.parametrize("command", [c.CreatePartitions("s", "t", 1), c.DeletePartitions("s", "t", 1)])
async def test_a_topic_can_have_a_fixed_number_of_partitions(scene: Scene, command: c.Command) -> None:
    await add_topic(scene, partition_count=2, partition_resize_policy=FIXED)
    assert await scene.refusal(scene.root, command) is ErrorCode.PARTITION_RESIZE_DISABLED


async def test_sdk_0_10_cannot_change_the_root_user(scene: Scene) -> None:
    for update in (c.UpdateUser(0, "admin", None, protects_root=True), c.UpdateUser(0, None, True, protects_root=True)):
        assert await scene.refusal(scene.root, update) is ErrorCode.CANNOT_MODIFY_ROOT_USER
    await scene.ask(scene.root, c.UpdateUser(0, "admin", None))
