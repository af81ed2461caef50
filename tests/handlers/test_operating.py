"""What operators ask for: sessions, the figures of the last hour, the list of all topics, tokens that log in once."""

import itertools

import pytest

from courser.api import commands as c
from courser.api import operating_replies as o
from courser.broker.access.one_time_tokens import LIFE
from courser.broker.access.sessions import Session
from courser.broker.figures.history import INTERVAL
from courser.broker.figures.pipeline_reports import COUNT_MAX, TEXT_SIZE_MAX
from courser.broker.figures.pipeline_reports import LIFE as PIPELINE_LIFE
from courser.catalog import changes
from courser.errors import ErrorCode
from courser.model.permissions import Action, GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from tests.handlers.messaging import add_topic, send
from tests.handlers.permission_table import permissions_of
from tests.handlers.scenes import PASSWORD_HASH, Scene


async def figures_of(scene: Scene, since: int = 0) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    reply = await scene.ask(scene.root, c.GetHistory(since))
    assert isinstance(reply, o.History)
    return reply.times, {series.name: series.values for series in reply.series}


# --- history ---


async def test_the_history_has_a_sample_per_interval_and_one_of_now(scene: Scene) -> None:
    await add_topic(scene)
    for count in (3, 2):
        await send(scene, *["x"] * count)
        await scene.broker.operating.history.take()
        scene.clock.advance(INTERVAL)
    await send(scene, "x")
    times, values = await figures_of(scene)
    assert values["appended_messages"] == (3, 5, 6)
    assert values["stored_messages"] == (3, 5, 6)
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [INTERVAL, INTERVAL]


async def test_only_what_is_newer_than_a_time_is_sent(scene: Scene) -> None:
    for _ in range(3):
        await scene.broker.operating.history.take()
        scene.clock.advance(INTERVAL)
    times, _ = await figures_of(scene)
    newer, values = await figures_of(scene, times[1])
    assert newer == times[2:]
    assert all(len(series) == len(newer) for series in values.values())


async def test_the_history_forgets_what_is_older_than_an_hour(scene: Scene) -> None:
    for _ in range(365):
        await scene.broker.operating.history.take()
        scene.clock.advance(INTERVAL)
    times, _ = await figures_of(scene)
    assert len(times) == 361
    assert times[-1] - times[0] == 360 * INTERVAL


# --- topics ---


async def test_all_topics_are_listed_with_their_figures(scene: Scene) -> None:
    await add_topic(scene)
    await scene.add_topic("s", "quiet", 2)
    await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
    await send(scene, "one", "two")
    reply = await scene.ask(scene.root, c.GetTopicFigures())
    assert isinstance(reply, o.TopicFigureList)
    busy, quiet = reply.topics
    assert (busy.stream, busy.topic, busy.message_count, busy.appended_count, busy.group_count, busy.lag) == (
        *("s", "t", 2, 2),
        *(1, 2),
    )
    assert (quiet.topic, quiet.partition_count, quiet.message_count, quiet.lag) == ("quiet", 2, 0, None)
    assert quiet.durability == "written"


# --- sessions ---


async def test_sessions_say_who_is_connected_and_how_busy_they_are(scene: Scene) -> None:
    user = await scene.add_user("bob")
    session = scene.connect(user.user_id)
    for _ in range(3):
        await scene.ask(session, c.Ping())
    reply = await scene.ask(scene.root, c.GetSessions())
    assert isinstance(reply, o.SessionList)
    row = next(row for row in reply.sessions if row.client_id == session.client_id)
    assert (row.username, row.transport, row.request_count) == ("bob", "tcp", 3)
    assert row.connected_at == scene.clock.now()


async def test_a_session_is_ended_by_those_who_manage_servers_only(scene: Scene) -> None:
    session = scene.connect(0)
    reader = await scene.add_user("reader", Permissions(GlobalPermissions(read_servers=True)))
    command = c.EndSession(session.client_id)
    assert await scene.refusal(scene.connect(reader.user_id), command) is ErrorCode.UNAUTHORIZED
    await scene.ask(scene.root, command)
    assert await scene.refusal(session, c.Ping()) is ErrorCode.DISCONNECTED
    assert await scene.refusal(scene.root, command) is ErrorCode.RESOURCE_NOT_FOUND


# --- who may do what ---


async def access(scene: Scene, stream_id: int | None = None, topic_id: int | None = None) -> dict[str, o.UserAccess]:
    reply = await scene.ask(scene.root, c.GetAccess(stream_id, topic_id))
    assert isinstance(reply, o.AccessReport)
    return {user.username: user for user in reply.users}


def allowed(user: o.UserAccess) -> dict[str, list[str]]:
    """By action, the permissions that allow it."""
    return {
        verdict.action: [f"{grant.level}.{grant.name}" for grant in verdict.granted_by]
        for verdict in user.verdicts
        if verdict.is_allowed
    }


async def test_the_report_says_by_which_permission_a_user_may_do_something(scene: Scene) -> None:
    await add_topic(scene)
    only_there = StreamPermissions(topics={0: TopicPermissions(send_messages=True)})
    await scene.add_user("bob", Permissions(GlobalPermissions(poll_messages=True), {0: only_there}))
    users = await access(scene, 0, 0)
    assert allowed(users["bob"]) == {
        "poll_messages": ["everywhere.poll_messages"],
        "send_messages": ["topic.send_messages"],
    }
    assert users["iggy"].is_root
    assert all(verdict.is_allowed for verdict in users["iggy"].verdicts)
    for place in ((None, None), (0, None)):
        assert allowed((await access(scene, *place))["bob"]) == {"poll_messages": ["everywhere.poll_messages"]}


async def test_the_report_agrees_with_what_is_enforced(scene: Scene) -> None:
    await add_topic(scene)
    for number, level in enumerate(("everywhere", "stream", "topic")):
        names = {"everywhere": GlobalPermissions, "stream": StreamPermissions, "topic": TopicPermissions}[level]
        for name in names.__struct_fields__:
            if name != "topics":
                await scene.add_user(f"{level}-{name}-{number}", permissions_of(f"{level}.{name}"))
    state = scene.broker.catalog.state
    for user in (await access(scene, 0, 0)).values():
        permissions = state.users[user.user_id].permissions
        for verdict in user.verdicts:
            is_enough = scene.broker.access.allows(permissions, Action[verdict.action.upper()], 0, 0)
            assert verdict.is_allowed == (user.is_root or is_enough), (user.username, verdict)


async def test_the_report_explains_every_permission_and_names_what_is_missing(scene: Scene) -> None:
    await add_topic(scene)
    bob = await scene.add_user("bob")
    reply = await scene.ask(scene.root, c.GetAccess(0, 0))
    assert isinstance(reply, o.AccessReport)
    known = {(permission.level, permission.name) for permission in reply.permissions}
    assert {(grant.level, grant.name) for action in reply.actions for grant in action.sufficient} <= known
    send = next(verdict for verdict in reply.users[-1].verdicts if verdict.action == "send_messages")
    assert send.reason.startswith("it has no permission here; needed: send_messages (topic)")
    await scene.ask(scene.root, c.UpdateUser("bob", None, False))
    assert {verdict.reason for verdict in (await access(scene))["bob"].verdicts} == {"the user is inactive"}
    assert bob.user_id == reply.users[-1].user_id
    assert await scene.refusal(scene.root, c.GetAccess(7)) is ErrorCode.STREAM_NOT_FOUND
    assert await scene.refusal(scene.root, c.GetAccess(0, 7)) is ErrorCode.TOPIC_NOT_FOUND
    assert await scene.refusal(scene.root, c.GetAccess(None, 0)) is ErrorCode.INVALID_COMMAND


# --- tokens that log in once ---


async def one_time_token(scene: Scene, user_id: int = 0) -> str:
    reply = await scene.ask(scene.connect(user_id), c.CreateOneTimeToken())
    assert isinstance(reply, o.OneTimeToken)
    assert reply.expires_at == scene.clock.now() + LIFE
    return reply.token


async def test_a_one_time_token_logs_in_once(scene: Scene) -> None:
    user = await scene.add_user("bob")
    token, session = await one_time_token(scene, user.user_id), scene.connect()
    await scene.ask(session, c.LoginWithToken(token))
    assert session.user_id == user.user_id
    assert await scene.refusal(scene.connect(), c.LoginWithToken(token)) is ErrorCode.INVALID_TOKEN


async def test_a_one_time_token_expires(scene: Scene) -> None:
    token = await one_time_token(scene)
    scene.clock.advance(LIFE)
    assert await scene.refusal(scene.connect(), c.LoginWithToken(token)) is ErrorCode.TOKEN_EXPIRED


@pytest.mark.parametrize("change", ["password", "deletion"])
async def test_a_one_time_token_ends_with_the_login_that_it_stands_for(scene: Scene, change: str) -> None:
    user = await scene.add_user("bob")
    token = await one_time_token(scene, user.user_id)
    if change == "password":
        await scene.broker.catalog.submit(changes.PasswordChange(user.user_id, PASSWORD_HASH + "x"))
    else:
        await scene.ask(scene.root, c.DeleteUser("bob"))
    assert await scene.refusal(scene.connect(), c.LoginWithToken(token)) is ErrorCode.TOKEN_EXPIRED


async def test_unused_tokens_do_not_pile_up(scene: Scene) -> None:
    first = await one_time_token(scene)
    tokens = scene.broker.authentication.one_time_tokens
    user = scene.broker.catalog.state.users[0]
    last = [tokens.create(user, None)[0] for _ in range(1_000)][-1]
    assert await scene.refusal(scene.connect(), c.LoginWithToken(first)) is ErrorCode.INVALID_TOKEN
    await scene.ask(scene.connect(), c.LoginWithToken(last))


# --- pipelines ---


def report(name: str, state: str = "running", definition: str = "", consumer: str = "") -> c.ReportPipeline:
    return c.ReportPipeline(name, state, consumer, "host", 1, 2, 3, 4, 5, 6, 7, 8, "source", "sink", "", definition)


async def names_seen_by(scene: Scene, session: Session) -> list[tuple[str, str]]:
    reply = await scene.ask(session, c.GetPipelines())
    assert isinstance(reply, o.PipelineList)
    return [(row.name, row.state) for row in reply.pipelines]


async def test_pipelines_report_and_each_user_sees_their_own(scene: Scene) -> None:
    user = await scene.add_user("bob")
    bob = scene.connect(user.user_id)
    await scene.ask(bob, report("of bob", "starting"))
    await scene.ask(bob, report("of bob", "failed"))
    await scene.ask(scene.root, report("of root"))
    assert await names_seen_by(scene, bob) == [("of bob", "failed")]
    assert await names_seen_by(scene, scene.root) == [("of bob", "failed"), ("of root", "running")]


async def test_the_query_of_a_pipeline_is_not_listed_beside_it(scene: Scene) -> None:
    await scene.ask(scene.root, report("loader", definition="[source]", consumer="loader-offsets"))
    await scene.ask(scene.root, report("loader-offsets"))
    await scene.ask(scene.root, report("loader"))
    assert await names_seen_by(scene, scene.root) == [("loader", "running")]
    await scene.ask(scene.root, report("another"))
    assert len(await names_seen_by(scene, scene.root)) == 2


async def test_reports_are_bounded_in_size_number_and_time(scene: Scene) -> None:
    too_large = report("large", definition="x" * (TEXT_SIZE_MAX + 1))
    assert await scene.refusal(scene.root, too_large) is ErrorCode.INVALID_COMMAND
    for number in range(COUNT_MAX + 1):
        await scene.ask(scene.root, report(f"p{number}"))
    names = [name for name, _ in await names_seen_by(scene, scene.root)]
    assert len(names) == COUNT_MAX
    assert "p0" not in names
    scene.clock.advance(PIPELINE_LIFE)
    assert await names_seen_by(scene, scene.root) == []
