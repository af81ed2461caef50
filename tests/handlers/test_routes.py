"""Producers and consumers name the same topic over and over: it is looked up once, until metadata changes."""

from pathlib import Path

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.permissions import GlobalPermissions, Permissions
from courser.records.batch import NewMessage, build_batch
from tests.handlers.scenes import opened

SEND = c.SendMessages("shop", "orders", ToPartition(0), [build_batch([NewMessage(b"hello")])])
POLL = c.PollMessages(Consumer(ConsumerKind.CONSUMER, 1), "shop", "orders", 0, PollingKind.FIRST, 0, 10, False)
BOTH = Permissions(GlobalPermissions(poll_messages=True, send_messages=True))


@pytest.mark.parametrize(
    ("change", "refused_with"),
    [
        (c.UpdatePermissions("alice", None), ErrorCode.UNAUTHORIZED),
        (c.UpdateUser("alice", None, is_active=False), ErrorCode.USER_INACTIVE),
        (c.DeleteTopic("shop", "orders"), ErrorCode.TOPIC_NOT_FOUND),
        (c.DeleteStream("shop"), ErrorCode.STREAM_NOT_FOUND),
        (c.UpdateStream("shop", "market"), ErrorCode.STREAM_NOT_FOUND),
        (c.DeletePartitions("shop", "orders", 1), ErrorCode.PARTITION_NOT_FOUND),
    ],
)
@pytest.mark.parametrize("command", [SEND, POLL])
async def test_a_change_acts_on_the_next_request(
    tmp_path: Path, change: c.Command, refused_with: ErrorCode, command: c.Command
) -> None:
    async with opened(tmp_path) as scene:
        await scene.add_topic("shop", "orders")
        alice = scene.connect((await scene.add_user("alice", BOTH)).user_id)
        for _ in range(3):
            await scene.ask(alice, command)
        await scene.ask(scene.root, change)
        assert await scene.refusal(alice, command) is refused_with


async def test_one_users_way_is_not_anothers(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await scene.add_topic("shop", "orders")
        alice = scene.connect((await scene.add_user("alice", BOTH)).user_id)
        bob = scene.connect((await scene.add_user("bob")).user_id)
        for command in (SEND, POLL):
            await scene.ask(alice, command)
            assert await scene.refusal(bob, command) is ErrorCode.UNAUTHORIZED


async def test_who_may_send_may_not_therefore_poll(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await scene.add_topic("shop", "orders")
        sender = Permissions(GlobalPermissions(send_messages=True))
        alice = scene.connect((await scene.add_user("alice", sender)).user_id)
        await scene.ask(alice, SEND)
        assert await scene.refusal(alice, POLL) is ErrorCode.UNAUTHORIZED


async def test_a_name_that_moves_to_another_topic_leads_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await scene.add_topic("shop", "orders")
        await scene.ask(scene.root, SEND)
        await scene.ask(scene.root, c.DeleteTopic("shop", "orders"))
        await scene.add_topic("shop", "orders")
        sent = await scene.ask(scene.root, SEND)
        assert sent is not None
        assert (sent.topic_id, sent.base_offset) == (1, 0)  # type: ignore[attr-defined]
