"""Resets of consumer groups, through both clients."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from courser.client.group_reset import PartitionReset
from courser.errors import ErrorCode, InvalidRequest, NotFound
from tests.client.twins import Twins

TOPIC = "demo/orders"
APP = {"consumer_group": "app"}


@pytest.fixture
async def client(client: Any) -> Any:
    """Four messages in partition 0, two in partition 1, and a group that has read three and none of them."""
    await client.send_messages(TOPIC, partitioning=0, messages=["a", "b", "c", "d"])
    await client.send_messages(TOPIC, partitioning=1, messages=["e", "f"])
    await client.create_consumer_group(TOPIC, name="app")
    await client.join_consumer_group(TOPIC, **APP)
    await client.store_consumer_offset(TOPIC, partition_id=0, offset=2, group="app")
    await client.leave_consumer_group(TOPIC, **APP)
    return client


async def stored(client: Any) -> list[int | None]:
    found: list[int | None] = []
    for partition_id in range(3):
        try:
            found.append(
                (await client.get_consumer_offset(TOPIC, partition_id=partition_id, group="app")).stored_offset
            )
        except NotFound:
            found.append(None)
    return found


async def test_all_partitions_are_reset_at_once(client: Any) -> None:
    reset = await client.reset_consumer_group(TOPIC, **APP, to="latest")
    assert reset.partitions == (
        PartitionReset(0, 2, 4, reread_count=0, skipped_count=1),
        PartitionReset(1, None, 2, reread_count=0, skipped_count=2),
        PartitionReset(2, None, 0, reread_count=0, skipped_count=0),
    )
    assert (reset.reread_count, reset.skipped_count, reset.member_count, reset.is_dry_run) == (0, 3, 0, False)
    assert await stored(client) == [3, 1, None]
    reset = await client.reset_consumer_group(TOPIC, **APP, to="earliest")
    assert (reset.reread_count, reset.skipped_count) == (6, 0)
    assert await stored(client) == [None, None, None]


async def test_a_dry_run_changes_nothing(client: Any) -> None:
    reset = await client.reset_consumer_group(TOPIC, **APP, to="earliest", dry_run=True)
    assert reset.partitions[0] == PartitionReset(0, 2, 0, reread_count=3, skipped_count=0)
    assert reset.is_dry_run
    assert await stored(client) == [2, None, None]


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (1, [0, 0, None]),
        (100, [3, 1, None]),
        ({1: 1}, [2, 0, None]),
        (datetime(2020, 1, 1, tzinfo=UTC), [None, None, None]),
        (datetime(9999, 1, 1, tzinfo=UTC), [3, 1, None]),
        (timedelta(days=1000), [None, None, None]),
        (timedelta(0), [3, 1, None]),
    ],
)
async def test_a_group_is_reset_to_an_offset_or_a_time(client: Any, to: Any, expected: list[int | None]) -> None:
    await client.reset_consumer_group(TOPIC, **APP, to=to)
    assert await stored(client) == expected


async def test_one_partition_is_reset_alone(client: Any) -> None:
    reset = await client.reset_consumer_group(TOPIC, **APP, to="latest", partition_id=1)
    assert [partition.partition_id for partition in reset.partitions] == [1]
    assert await stored(client) == [2, 1, None]
    with pytest.raises(NotFound, match="the topic has no partition 3"):
        await client.reset_consumer_group(TOPIC, **APP, to="latest", partition_id=3)


async def test_a_group_with_members_is_refused_unless_forced(client: Any, scene: Twins) -> None:
    member = await scene.connect()
    await member.join_consumer_group(TOPIC, **APP)
    with pytest.raises(InvalidRequest, match="has 1 active member") as refused:
        await client.reset_consumer_group(TOPIC, **APP, to="earliest")
    assert refused.value.code is ErrorCode.GROUP_HAS_MEMBERS
    assert await stored(client) == [2, None, None]
    assert (await client.reset_consumer_group(TOPIC, **APP, to="earliest", dry_run=True)).member_count == 1
    await client.reset_consumer_group(TOPIC, **APP, to="earliest", force=True)
    assert await stored(client) == [None, None, None]
    assert (await client.get_consumer_group(TOPIC, **APP)).members == []


async def test_starts_that_mean_nothing_for_a_reset_are_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="cannot be reset to"):
        await client.reset_consumer_group(TOPIC, **APP, to="next")
    with pytest.raises(TypeError, match=r"a timedelta or offsets by partition, not 3\.5"):
        await client.reset_consumer_group(TOPIC, **APP, to=3.5)
    with pytest.raises(ValueError, match="must not be negative: -1"):
        await client.reset_consumer_group(TOPIC, **APP, to=-1)
    with pytest.raises(NotFound):
        await client.reset_consumer_group(TOPIC, consumer_group="nobody", to="earliest")
