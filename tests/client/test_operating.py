"""What operators ask a server for, through both clients."""

import pytest

from courser.errors import NotAllowed, NotFound
from tests.client.twins import Twins


async def test_sessions_are_listed_and_another_one_is_ended(scene: Twins) -> None:
    client, other = await scene.connect(), await scene.connect()
    ids = [(await each.get_me()).client.client_id for each in (client, other)]
    sessions = {session.client_id: session for session in await client.get_sessions()}
    assert [sessions[client_id].username for client_id in ids] == ["iggy", "iggy"]
    await client.end_session(ids[1])
    assert ids[1] not in {session.client_id for session in await client.get_sessions()}
    with pytest.raises(NotFound):
        await client.end_session(ids[1])


async def test_the_history_ends_with_the_figures_of_now(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_stream("shop")
    await client.create_topic("shop/orders")
    await client.send_messages("shop/orders", messages=["a", "b"])
    history = await client.get_history()
    assert {series.name: series.values[-1] for series in history.series}["stored_messages"] == 2
    newer = await client.get_history(since=history.times[-1])
    assert newer.times
    assert all(time >= history.times[-1] for time in newer.times)


async def test_topics_are_listed_with_their_figures(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_stream("shop")
    await client.create_topic("shop/orders", partitions_count=2)
    await client.send_messages("shop/orders", partitioning=1, messages=["a", "b"])
    (topic,) = await client.get_topic_figures()
    assert (topic.stream, topic.topic, topic.partition_count, topic.message_count) == ("shop", "orders", 2, 2)


async def test_the_access_of_users_is_reported(scene: Twins) -> None:
    client = await scene.connect()
    await client.create_user("guest", "a-password")
    root, guest = (await client.get_access()).users
    assert (root.is_root, guest.username) == (True, "guest")
    assert not any(verdict.is_allowed for verdict in guest.verdicts)
    with pytest.raises(NotFound):
        await client.get_access(stream_id=7)


async def test_a_pipeline_that_has_reported_is_listed(scene: Twins) -> None:
    client = await scene.connect()
    assert await client.get_pipelines() == []
    await client.report_pipeline("loader", "running", source="shop/orders", rows=7, lag=3)
    (pipeline,) = await client.get_pipelines()
    assert (pipeline.name, pipeline.username, pipeline.state) == ("loader", "iggy", "running")
    assert (pipeline.source, pipeline.rows, pipeline.lag) == ("shop/orders", 7, 3)


async def test_a_user_without_permissions_sees_only_own_pipelines(scene: Twins) -> None:
    client = await scene.connect()
    await client.report_pipeline("loader", "running")
    await client.create_user("guest", "a-password")
    await client.login_user("guest", "a-password")
    assert await client.get_pipelines() == []
    for method in (
        "get_sessions",
        "get_history",
        "get_access",
        "get_log_lines",
        "get_configuration",
        "get_topic_figures",
    ):
        with pytest.raises(NotAllowed):
            await getattr(client, method)()
