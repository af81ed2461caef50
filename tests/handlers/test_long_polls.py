"""A poll that waits is not a way around access control."""

import asyncio

import pytest
from msgspec.structs import replace

from courser.api import commands as c
from courser.errors import CommandRejected, ConsumerOffsetNotFound, ErrorCode
from courser.model.messaging import Balanced
from courser.model.permissions import GlobalPermissions, Permissions
from courser.records.batch import NewMessage, build_batch
from tests.handlers.samples import POLL
from tests.handlers.scenes import Scene

WAIT = c.WaitForMessages(POLL, 20_000_000, 1024)
ARRIVALS = c.WaitForArrivals(POLL.consumer, "s", "t", ((0, 0),), 0, 20_000_000)
SEND = c.SendMessages("s", "t", Balanced(), [build_batch([NewMessage(b"not for everybody")])])


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    await scene.add_topic("s", "t")
    await scene.add_user("alice", Permissions(GlobalPermissions(poll_messages=True)))
    return scene


@pytest.mark.parametrize("command", [WAIT, ARRIVALS])
async def test_a_permission_taken_away_meanwhile_is_taken_away(scene: Scene, command: c.Command) -> None:
    poll = asyncio.ensure_future(scene.ask(scene.connect(1), command))
    await scene.ask(scene.root, c.UpdatePermissions("alice", None))
    await scene.ask(scene.root, SEND)
    with pytest.raises(CommandRejected) as refused:
        await poll
    assert refused.value.code is ErrorCode.UNAUTHORIZED


async def test_nothing_is_committed_for_one_whose_permission_was_taken_away_meanwhile(scene: Scene) -> None:
    committing = c.WaitForMessages(replace(POLL, auto_commit=True), WAIT.wait, WAIT.size_max)
    poll = asyncio.ensure_future(scene.ask(scene.connect(1), committing))
    await scene.ask(scene.root, c.UpdatePermissions("alice", None))
    await scene.ask(scene.root, SEND)
    await asyncio.wait((poll,))
    assert isinstance(poll.exception(), CommandRejected)
    with pytest.raises(ConsumerOffsetNotFound):
        await scene.ask(scene.root, c.GetConsumerOffset(POLL.consumer, "s", "t", 0))


async def test_an_inactive_user_is_told_so_when_nothing_came(scene: Scene) -> None:
    poll = asyncio.ensure_future(scene.ask(scene.connect(1), c.WaitForMessages(POLL, 100_000, 1024)))
    await scene.ask(scene.root, c.UpdateUser("alice", None, False))
    with pytest.raises(CommandRejected) as refused:
        await poll
    assert refused.value.code is ErrorCode.USER_INACTIVE


async def test_a_user_deleted_meanwhile_gets_nothing(scene: Scene) -> None:
    poll = asyncio.ensure_future(scene.ask(scene.connect(1), WAIT))
    await scene.ask(scene.root, c.DeleteUser("alice"))
    with pytest.raises(CommandRejected) as refused:
        await poll
    assert refused.value.code is ErrorCode.DISCONNECTED
