"""Users, permissions and tokens, with 0.9: no other release offers them."""

from typing import Any

from tests.sdk.programs.refusals import refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import ROOT_NAME, Sdk

register = Register()

PASSWORD = "a good password"


@register.scenario(since="0.9")
async def users_are_made_found_changed_and_deleted(sdk: Sdk) -> None:
    root = await sdk.client()
    name = sdk.fresh_name("user")
    made = await root.create_user(name, PASSWORD)
    assert (made.username, made.status, made.permissions) == (name, sdk.iggy.UserStatus.Active, None)
    assert made.created_at > 1_700_000_000_000_000
    for key in (name, made.id):
        found = await root.get_user(key)
        assert (found.id, found.username, found.created_at) == (made.id, name, made.created_at)
    (listed,) = [user for user in await root.get_users() if user.username == name]
    assert (listed.id, listed.status, listed.created_at) == (made.id, made.status, made.created_at)
    assert await root.get_user(sdk.fresh_name("missing")) is None
    await refused(sdk, "user name taken", root.create_user(name, PASSWORD))

    renamed = sdk.fresh_name("renamed")
    await root.update_user(name, username=renamed)
    await sdk.client(renamed, PASSWORD)
    await root.update_user(renamed, status=sdk.iggy.UserStatus.Inactive)
    assert (await root.get_user(renamed)).status == sdk.iggy.UserStatus.Inactive
    await refused(sdk, "user inactive" if sdk.is_http else "wrong credentials", sdk.client(renamed, PASSWORD))
    await root.update_user(renamed, status=sdk.iggy.UserStatus.Active)
    await refused(sdk, "option", root.update_user(renamed, options={"colour": "red"}))

    await root.change_password(renamed, PASSWORD, "another password")
    await sdk.client(renamed, "another password")
    await refused(sdk, "wrong credentials", root.change_password(renamed, "wrong", "third password"))
    await root.delete_user(renamed)
    assert await root.get_user(renamed) is None
    await refused(sdk, "wrong credentials", sdk.client(renamed, "another password"))
    await refused(sdk, "not found", root.delete_user(renamed))


@register.scenario(since="0.9")
async def root_stays_root(sdk: Sdk) -> None:
    root = await sdk.client()
    await refused(sdk, "root cannot be deleted", root.delete_user(ROOT_NAME))
    await refused(sdk, "root keeps its permissions", root.update_permissions(ROOT_NAME, None))
    permissions = (await root.get_user(ROOT_NAME)).permissions.global_permissions
    assert all(getattr(permissions, name) for name in GLOBAL_FLAGS)


GLOBAL_FLAGS = (
    "manage_servers",
    "read_servers",
    "manage_users",
    "read_users",
    "manage_streams",
    "read_streams",
    "manage_topics",
    "read_topics",
    "poll_messages",
    "send_messages",
)
STREAM_FLAGS = ("manage_stream", "read_stream", "manage_topics", "read_topics", "poll_messages", "send_messages")
TOPIC_FLAGS = ("manage_topic", "read_topic", "poll_messages", "send_messages")


@register.scenario(since="0.9")
async def permissions_come_back_as_they_were_given(sdk: Sdk) -> None:
    root = await sdk.client()
    stream, topic = await sdk.topic(root)
    stream_number = (await root.get_stream(stream)).id
    topic_number = (await root.get_topic(stream, topic)).id
    iggy = sdk.iggy
    for kind, flags in (
        (iggy.GlobalPermissions, GLOBAL_FLAGS),
        (iggy.StreamPermissions, STREAM_FLAGS),
        (iggy.TopicPermissions, TOPIC_FLAGS),
    ):
        for flag in flags:
            only = kind(**{flag: True})
            assert [name for name in flags if getattr(only, name)] == [flag]
    topics = {topic_number: iggy.TopicPermissions(poll_messages=True)}
    streams = {stream_number: iggy.StreamPermissions(read_stream=True, topics=topics)}
    granted = iggy.Permissions(iggy.GlobalPermissions(read_servers=True), streams)
    name = sdk.fresh_name("user")
    await root.create_user(name, PASSWORD, iggy.UserStatus.Active, granted)
    found = (await root.get_user(name)).permissions
    assert found == granted
    assert found.global_permissions.read_servers
    assert found.streams[stream_number].read_stream
    assert found.streams[stream_number].topics[topic_number].poll_messages
    await root.update_permissions(name, None)
    assert (await root.get_user(name)).permissions is None


@register.scenario(since="0.9")
async def what_is_not_allowed_is_refused_and_changes_act_at_once(sdk: Sdk) -> None:
    root = await sdk.client()
    stream, topic = await sdk.topic(root)
    stream_number = (await root.get_stream(stream)).id
    name = sdk.fresh_name("user")
    await root.create_user(name, PASSWORD)
    user = await sdk.client(name, PASSWORD)
    first = sdk.iggy.PollingStrategy.First()

    async def grant(**flags: bool) -> None:
        streams = {stream_number: sdk.iggy.StreamPermissions(**flags)}
        await root.update_permissions(name, sdk.iggy.Permissions(streams=streams))

    async def poll() -> list[Any]:
        return await sdk.poll(user, stream, topic, first)

    await refused(sdk, "unauthorized", user.get_streams())
    await refused(sdk, "unauthorized", user.get_stream(stream))
    await refused(sdk, "unauthorized", user.create_stream(sdk.fresh_name("stream")))
    await refused(sdk, "unauthorized", poll())
    await refused(sdk, "unauthorized", user.get_users())
    await refused(sdk, "unauthorized", user.get_stats())
    assert (await user.get_user(name)).username == name, "everybody may look at oneself"

    await grant(read_topics=True)
    assert await poll() == []
    await refused(sdk, "unauthorized", sdk.send(user, stream, topic, ["no"]))
    await grant(read_topics=True, send_messages=True)
    await sdk.send(user, stream, topic, ["yes"])
    assert [message.payload() for message in await poll()] == [b"yes"]
    await root.update_permissions(name, None)
    await refused(sdk, "unauthorized", poll())
