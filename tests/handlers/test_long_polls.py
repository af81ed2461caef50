"""A poll that waits is not a way around access control."""

import asyncio

import pytest

from courser.api import commands as c
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import Balanced
from courser.model.permissions import GlobalPermissions, Permissions
from courser.records.batch import NewMessage, build_batch
from tests.handlers.samples import POLL
from tests.handlers.scenes import Scene

WAIT = c.WaitForMessages(POLL, 20_000_000, 1024)
SEND = c.SendMessages("s", "t", Balanced(), [build_batch([NewMessage(b"not for everybody")])])


@pytest.fixture
async def scene(scene: Scene) -> Scene:
    await scene.add_topic("s", "t")
    await scene.add_user("alice", Permissions(GlobalPermissions(poll_messages=True)))
    return scene


async def test_a_permission_taken_away_meanwhile_is_taken_away(scene: Scene) -> None:
    poll = asyncio.ensure_future(scene.ask(scene.connect(1), WAIT))
    await scene.ask(scene.root, c.UpdatePermissions("alice", None))
    await scene.ask(scene.root, SEND)
    with pytest.raises(CommandRejected) as refused:
        await poll
    assert refused.value.code is ErrorCode.UNAUTHORIZED


async def test_a_user_deleted_meanwhile_gets_nothing(scene: Scene) -> None:
    poll = asyncio.ensure_future(scene.ask(scene.connect(1), WAIT))
    await scene.ask(scene.root, c.DeleteUser("alice"))
    with pytest.raises(CommandRejected) as refused:
        await poll
    assert refused.value.code is ErrorCode.DISCONNECTED
