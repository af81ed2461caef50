"""What 0.9 offers for streams, topics, partitions, groups and the server itself."""

import struct
from datetime import timedelta
from typing import Any

from tests.sdk.programs.refusals import refused, send_refused
from tests.sdk.programs.scenarios import Register
from tests.sdk.programs.sdk import Sdk

register = Register()

GIBIBYTE = 1024 * 1024 * 1024
GET_ME, CREATE_TOKEN, GET_CLIENTS = 20, 42, 22
TRANSPORTS = {"iggy": 1, "iggy+quic": 2, "iggy+ws": 4}
UNKNOWN_COMMAND = 9999


@register.scenario(since="0.9")
async def streams_are_listed_renamed_purged_and_deleted(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    await sdk.send(client, stream, topic, ["one"])
    (listed,) = [found for found in await client.get_streams() if found.name == stream]
    details = await client.get_stream(stream)
    for found in (listed, details):
        assert (found.name, found.topics_count, found.messages_count) == (stream, 1, 1)
        assert found.id == details.id
        assert found.size == 256 + 48 + 3, "one batch with one message of three bytes"
        assert found.created_at == details.created_at > 1_700_000_000_000_000
    assert [found.name for found in details.topics] == [topic]

    renamed = sdk.fresh_name("renamed")
    await client.update_stream(stream, renamed)
    await client.update_stream(renamed, renamed)
    assert await client.get_stream(stream) is None
    assert (await client.get_stream(renamed)).id == details.id
    other, _ = await sdk.topic(client)
    await refused(sdk, "stream name taken", client.update_stream(renamed, other))
    await refused(sdk, "option", client.update_stream(renamed, renamed, options={"colour": "red"}))

    if sdk.version < (0, 10):
        await client.purge_stream(renamed)
        await client.purge_stream(renamed)
        assert (await client.get_stream(renamed)).messages_count == 0
        assert await sdk.payloads(client, renamed, topic) == []
    await client.delete_stream(renamed)
    assert await client.get_stream(renamed) is None
    await refused(sdk, "stream missing", client.delete_stream(renamed))
    if sdk.version < (0, 10):
        await refused(sdk, "stream missing", client.purge_stream(renamed))


@register.scenario(since="0.9")
async def topics_are_listed_updated_purged_and_deleted(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    await sdk.send(client, stream, topic, ["one", "two"], index=1)
    (listed,) = await client.get_topics(stream)
    details = await client.get_topic(stream, topic)
    (inside,) = (await client.get_stream(stream)).topics
    for found in (listed, details, inside):
        assert (found.id, found.name, found.partitions_count) == (details.id, topic, 2)
        assert (found.messages_count, found.size) == (2, 256 + 2 * (48 + 3))
        assert found.created_at == details.created_at
        assert found.compression_algorithm == "none"
        assert isinstance(found.message_expiry, sdk.iggy.IggyExpiry.NeverExpire)
        assert isinstance(found.max_topic_size, sdk.iggy.MaxTopicSize.Unlimited)
        assert found.options.to_scalar_dict() == {
            "durability": "replicated",
            "consumer_offset_durability": "replicated",
        }
        assert found.derived_options.to_scalar_dict().items() >= sdk.options({"segment_size": GIBIBYTE}).items()
    empty, full = details.partitions
    assert (empty.id, empty.messages_count, empty.size, empty.current_offset, empty.segments_count) == (0, 0, 0, 0, 1)
    assert (full.id, full.messages_count, full.size) == (1, 2, 256 + 2 * (48 + 3))
    assert (full.current_offset, full.segments_count) == (1, 1)
    assert full.created_at == details.created_at

    renamed = sdk.fresh_name("renamed")
    # From 0.10 on, the compression is chosen when the topic is made.
    compression = {"compression_algorithm": "gzip"} if sdk.version < (0, 10) else {}
    await client.update_topic(
        stream,
        topic,
        renamed,
        **compression,
        message_expiry=sdk.iggy.IggyExpiry.ExpireDuration(timedelta(hours=2)),
        max_topic_size=sdk.iggy.MaxTopicSize.Custom(3 * GIBIBYTE),
    )
    await client.update_topic(stream, renamed, renamed)  # a patch: what is not named stays
    updated = await client.get_topic(stream, renamed)
    assert (updated.id, updated.compression_algorithm) == (details.id, "gzip" if compression else "none")
    assert updated.message_expiry.duration == timedelta(hours=2)
    assert updated.max_topic_size.bytes == 3 * GIBIBYTE
    await client.update_topic(stream, renamed, renamed, options={"message_expiry": "3 h"})
    assert (await client.get_topic(stream, renamed)).message_expiry.duration == timedelta(hours=3)
    await refused(sdk, "option", client.update_topic(stream, renamed, renamed, options={"colour": "red"}))

    if sdk.version < (0, 10):
        await client.purge_topic(stream, renamed)
        assert (await client.get_topic(stream, renamed)).messages_count == 0
        assert await sdk.payloads(client, stream, renamed, 1) == []
    await client.delete_topic(stream, renamed)
    assert await client.get_topics(stream) == []
    await refused(sdk, "topic missing", client.delete_topic(stream, renamed))
    if sdk.version < (0, 10):
        await refused(sdk, "topic missing", client.purge_topic(stream, renamed))


@register.scenario(since="0.9")
async def every_argument_of_create_topic_is_read_back(sdk: Sdk) -> None:
    client = await sdk.client()
    stream = sdk.fresh_name("stream")
    await client.create_stream(stream)
    await sdk.create_topic(
        client,
        stream=stream,
        name="all",
        partitions_count=4,
        compression_algorithm="gzip",
        message_expiry=sdk.iggy.IggyExpiry.ExpireDuration(timedelta(minutes=90)),
        max_topic_size=sdk.iggy.MaxTopicSize.Custom(2 * GIBIBYTE),
        segment_size=64 * 1024 * 1024,
        durability=sdk.iggy.Durability.PERSISTED,
        consumer_offset_durability=sdk.iggy.Durability.PERSISTED,
        messages_required_to_save=10,
        size_of_messages_required_to_save=4096,
        preallocate_segments=True,
        options={"enforce_fsync": "true"},
    )
    topic = await client.get_topic(stream, "all")
    assert (topic.partitions_count, topic.compression_algorithm) == (4, "gzip")
    assert topic.message_expiry.duration == timedelta(minutes=90)
    assert topic.max_topic_size.bytes == 2 * GIBIBYTE
    expected = {
        "compression_algorithm": "gzip",
        "message_expiry": 90 * 60 * 1_000_000,
        "max_topic_size": 2 * GIBIBYTE,
        "segment_size": 64 * 1024 * 1024,
        "durability": "persisted",
        "consumer_offset_durability": "persisted",
        "messages_required_to_save": 10,
        "size_of_messages_required_to_save": 4096,
        "preallocate_segments": True,
    }
    derived = {}
    if sdk.version < (0, 10):
        expected["enforce_fsync"] = True
    else:
        derived["partition_resize_policy"] = "mutable"
    assert topic.options.to_scalar_dict() == sdk.options(expected)
    assert topic.derived_options.to_scalar_dict() == derived
    await sdk.send(client, stream, "all", ["synced"], index=3)
    assert await sdk.payloads(client, stream, "all", 3) == ["synced"]

    default, unlimited = sdk.iggy.IggyExpiry.ServerDefault(), sdk.iggy.MaxTopicSize.ServerDefault()
    await sdk.create_topic(client, stream, "usual", 1, message_expiry=default, max_topic_size=unlimited)
    usual = await client.get_topic(stream, "usual")
    assert isinstance(usual.message_expiry, sdk.iggy.IggyExpiry.NeverExpire)
    assert isinstance(usual.max_topic_size, sdk.iggy.MaxTopicSize.Unlimited)
    await refused(sdk, "option", sdk.create_topic(client, stream, "bad", 1, options={"colour": "red"}))
    await refused(sdk, "option value", sdk.create_topic(client, stream, "bad", 1, options={"message_expiry": "soon"}))
    assert await client.get_topic(stream, "bad") is None


@register.scenario(since="0.9")
async def partitions_are_added_and_taken_away(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 1)
    await client.create_partitions(stream, topic, 3)
    await sdk.send(client, stream, topic, ["in the last"], index=3)
    assert [found.id for found in (await client.get_topic(stream, topic)).partitions] == [0, 1, 2, 3]
    await client.delete_partitions(stream, topic, 2)
    await send_refused(sdk, "partition missing", sdk.send(client, stream, topic, ["lost"], index=3))
    await client.create_partitions(stream, topic, 2)
    assert await sdk.payloads(client, stream, topic, 3) == [], "a new partition is empty"
    await refused(sdk, "partition count", client.delete_partitions(stream, topic, 5))
    assert (await client.get_topic(stream, topic)).partitions_count == 4
    await refused(sdk, "too many partitions", client.create_partitions(stream, topic, 1001))


@register.scenario(since="0.9")
async def groups_are_made_listed_joined_left_and_deleted(sdk: Sdk) -> None:
    client, other = await sdk.client(), await sdk.client()
    stream, topic = await sdk.topic(client, 3)
    group = sdk.fresh_name("group")
    await client.create_consumer_group(stream, topic, group)
    await refused(sdk, "group name taken", client.create_consumer_group(stream, topic, group))
    (listed,) = await client.get_consumer_groups(stream, topic)
    assert (listed.name, listed.partitions_count, listed.members_count) == (group, 3, 0)
    assert await client.get_consumer_group(stream, topic, sdk.fresh_name("missing")) is None

    await client.join_consumer_group(stream, topic, group)
    await client.join_consumer_group(stream, topic, group)
    await other.join_consumer_group(stream, topic, listed.id)
    details = await client.get_consumer_group(stream, topic, group)
    assert (details.id, details.name, details.partitions_count) == (listed.id, group, 3)
    assert details.members_count == 2
    assert sorted(member.partitions_count for member in details.members) == [1, 2]
    assert sorted(number for member in details.members for number in member.partitions) == [0, 1, 2]
    assert len({member.id for member in details.members}) == 2

    await other.leave_consumer_group(stream, topic, group)
    (member,) = (await client.get_consumer_group(stream, topic, group)).members
    assert sorted(member.partitions) == [0, 1, 2]
    await refused(sdk, "not a member", other.leave_consumer_group(stream, topic, group))
    await client.delete_consumer_group(stream, topic, group)
    assert await client.get_consumer_groups(stream, topic) == []
    await refused(sdk, "group missing", client.delete_consumer_group(stream, topic, group))
    await refused(sdk, "group missing", client.join_consumer_group(stream, topic, group))


@register.scenario(since="0.9")
async def a_group_is_polled_without_naming_a_partition(sdk: Sdk) -> None:
    client, other = await sdk.client(), await sdk.client()
    stream, topic = await sdk.topic(client, 2)
    group = sdk.fresh_name("group")
    await client.create_consumer_group(stream, topic, group)
    await client.join_consumer_group(stream, topic, group)
    for index in range(2):
        await sdk.send(client, stream, topic, [f"{index} {number}" for number in range(3)], index=index)

    async def polled(who: Any, times: int) -> list[str]:
        found: list[str] = []
        for _ in range(times):
            found += [
                message.payload().decode()
                for message in await who.poll_messages(
                    stream,
                    topic,
                    consumer=sdk.iggy.Consumer.Group(group),
                    polling_strategy=sdk.iggy.PollingStrategy.Next(),
                    count=2,
                    auto_commit=True,
                )
            ]
        return found

    assert await polled(client, 2) == ["0 0", "0 1", "1 0", "1 1"]
    await other.join_consumer_group(stream, topic, group)
    rest = await polled(client, 3) + await polled(other, 3)
    assert sorted(rest) == ["0 2", "1 2"], "committed messages are not given again after a rebalance"


@register.scenario(since="0.9")
async def statistics_are_real(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client, 3)
    before = await client.get_stats()
    await sdk.send(client, stream, topic, ["x" * 1000] * 10)
    await client.create_consumer_group(stream, topic, sdk.fresh_name("group"))
    stats = await client.get_stats()
    assert stats.process_id > 1
    assert stats.cpu_usage >= 0
    assert 0 <= stats.total_cpu_usage <= 100.5
    assert 10_000_000 < stats.memory_usage < stats.total_memory
    assert 0 < stats.available_memory <= stats.total_memory
    assert timedelta() <= stats.run_time < timedelta(days=1)
    assert stats.start_time > 1_700_000_000
    assert stats.read_bytes >= 0
    assert stats.written_bytes >= before.written_bytes
    assert stats.messages_size_bytes - before.messages_size_bytes >= 256 + 10 * 1048
    assert stats.messages_count - before.messages_count >= 10
    assert stats.streams_count >= 1
    assert stats.topics_count >= 1
    assert stats.partitions_count >= 3
    assert stats.segments_count >= 3
    assert stats.clients_count >= (0 if sdk.is_http else 1), "a request over HTTP is no client"
    assert stats.consumer_groups_count >= 1
    assert stats.hostname
    assert stats.os_name
    assert stats.os_version
    assert stats.kernel_version
    assert stats.iggy_server_version
    assert stats.iggy_server_semver is None or stats.iggy_server_semver > 0
    assert stats.threads_count >= 1
    assert 0 < stats.free_disk_space <= stats.total_disk_space
    assert all(metrics.hits + metrics.misses >= 0 for metrics in stats.cache_metrics.values())
    key = sdk.iggy.CacheMetricsKey(1, 2, 3)
    assert (key.stream_id, key.topic_id, key.partition_id) == (1, 2, 3)


STREAM_OPTIONS = [
    *("name", "encryption_key", "encryption_key_source"),
    *("encryption_key_fingerprint", "encryption_kek_fingerprint"),
]
"""What SDK 0.10 knows of streams."""


@register.scenario(since="0.9")
async def options_describe_themselves(sdk: Sdk) -> None:
    client = await sdk.client()
    described = {spec.key: spec for spec in await client.describe_options("topic")}
    assert {"compression_algorithm", "message_expiry", "max_topic_size", "durability"} <= set(described)
    assert described["segment_size"].default_value.value == GIBIBYTE
    for spec in described.values():
        assert spec.kind
        assert spec.description
    others = [[spec.key for spec in await client.describe_options(scope)] for scope in ("stream", "user")]
    assert others == ([[], []] if sdk.version < (0, 10) else [STREAM_OPTIONS, ["username", "status"]])


@register.scenario(since="0.10")
async def an_update_says_only_what_changes(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = await sdk.topic(client)
    iggy = sdk.iggy
    expiry = iggy.IggyExpiry.ExpireDuration(timedelta(hours=2))
    await client.update_topic(stream, topic, message_expiry=expiry)
    await client.update_topic(stream, topic, max_topic_size=iggy.MaxTopicSize.Custom(3 * GIBIBYTE))
    found = await client.get_topic(stream, topic)
    assert (found.name, found.message_expiry.duration) == (topic, timedelta(hours=2))
    await client.update_topic(stream, topic, reset=[iggy.OptionKey.MessageExpiry])
    found = await client.get_topic(stream, topic)
    assert isinstance(found.message_expiry, iggy.IggyExpiry.NeverExpire)
    assert found.max_topic_size.bytes == 3 * GIBIBYTE
    for key in ("durability", "colour"):
        what = "not updatable" if key == "durability" else "option"
        await refused(sdk, what, client.update_topic(stream, topic, options={key: "persisted"}))
    details = await client.get_stream(stream)
    assert details.encryption_key_source == "none"


@register.scenario(since="0.10")
async def the_number_of_partitions_can_be_fixed(sdk: Sdk) -> None:
    client = await sdk.client()
    stream, topic = sdk.fresh_name("stream"), sdk.fresh_name("topic")
    await client.create_stream(stream)
    policy = sdk.iggy.PartitionResizePolicy
    await sdk.create_topic(client, stream, topic, 2, partition_resize_policy=policy.Fixed)
    options = (await client.get_topic(stream, topic)).options.to_scalar_dict()
    assert options["partition_resize_policy"] == "fixed"
    await refused(sdk, "fixed", client.create_partitions(stream, topic, 1))
    await refused(sdk, "fixed", client.delete_partitions(stream, topic, 1))
    assert (await client.get_topic(stream, topic)).partitions_count == 2


@register.scenario(since="0.10")
async def a_stream_has_no_key_of_its_own(sdk: Sdk) -> None:
    client = await sdk.client()
    stream = sdk.fresh_name("stream")
    options = sdk.iggy.StreamOptions(encryption_key=bytes(range(32)))
    await refused(sdk, "no stream keys", client.create_stream(stream, options))
    assert await client.get_stream(stream) is None


@register.scenario(since="0.10")
async def the_same_name_is_another_topic_when_it_is_made_again(sdk: Sdk) -> None:
    client, other = await sdk.client(), await sdk.client()
    stream, topic = await sdk.topic(client)
    first = sdk.iggy.PollingStrategy.First()
    await sdk.send(client, stream, topic, ["old"])
    (old,) = await sdk.poll(client, stream, topic, first)
    await other.delete_topic(stream, topic)
    await sdk.create_topic(other, stream, topic)
    # The client still means the topic that is gone: a send asks again where to go, a read says so once.
    await sdk.send(client, stream, topic, ["new"])
    (new,) = await sdk.poll(client, stream, topic, first)
    assert new.payload() == b"new"
    assert new.context().incarnation > old.context().incarnation > 0
    partition = (await client.get_topic(stream, topic)).partitions[0]
    assert partition.context == new.context()


@register.scenario(since="0.9")
async def raw_requests_are_answered(sdk: Sdk) -> None:
    client = await sdk.client()
    me = await client.send_binary_request(GET_ME, b"")
    client_id, user_id, transport = struct.unpack_from("<IIB", me)
    assert client_id != 0
    assert (user_id, transport) == (0, TRANSPORTS[sdk.scheme])
    assert struct.pack("<I", client_id) in await client.send_binary_request(GET_CLIENTS, b"")
    await refused(sdk, "invalid command", client.send_binary_request(UNKNOWN_COMMAND, b""))
    await client.ping()


@register.scenario(since="0.10")
async def changes_of_the_metadata_are_read_as_a_feed(sdk: Sdk) -> None:
    client = await sdk.client()
    start, group = sdk.iggy.MetadataChangeStart, sdk.iggy.MetadataChangeGroup
    latest = await client.get_metadata_changes(start.Latest())
    assert (latest.status, latest.records, latest.has_more) == (sdk.iggy.MetadataChangeStatus.Ok, [], False)

    stream, topic = await sdk.topic(client, 2)
    await client.create_consumer_group(stream, topic, "readers")
    groups = [group.Streams, group.Topics, group.ConsumerGroups]
    page = await client.get_metadata_changes(start.After(latest.next), groups=groups, limit=2)
    assert page.has_more
    first, second = [record.change for record in page.records]
    assert (first.name, second.name, second.partitions_count) == (stream, topic, 2)
    assert second.options.to_scalar_dict() == {
        "durability": "replicated",
        "consumer_offset_durability": "replicated",
    }
    page = await client.get_metadata_changes(start.After(page.next), groups=groups)
    (record,) = page.records
    assert (record.kind, record.actor_user_id) == (sdk.iggy.MetadataChangeKind.ConsumerGroupCreated, None)
    assert (record.change.name, record.change.consumer_groups_count) == ("readers", 1)
    details = await client.get_topic(stream, topic)
    assert (record.change.stream_id, record.change.topic_id) == (first.stream_id, details.id)

    names, state = [], await client.get_metadata_changes(start.Current(), groups=groups, limit=1)
    while True:
        names += [item.body.name for item in state.items]
        if not state.has_more:
            break
        following = start.Current(state.current_page_token)
        state = await client.get_metadata_changes(following, groups=groups, limit=1)
    assert {stream, topic, "readers"} <= set(names)
    assert names.index(stream) < names.index(topic) < names.index("readers")

    await client.delete_stream(stream)
    page = await client.get_metadata_changes(start.After(state.next), groups=groups)
    assert [record.change.name for record in page.records[-1:]] == [stream]
    other = sdk.iggy.MetadataChangeCursor(latest.log_id + 1, page.next.op, page.next.checksum, 0)
    reset = await client.get_metadata_changes(start.After(other))
    assert (reset.status, reset.next) == (sdk.iggy.MetadataChangeStatus.Reset, None)
