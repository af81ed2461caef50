"""The dispatcher: one gate for all commands, one handler for each."""

import traceback

import pytest

from courser.api import commands as c
from courser.api.commands import COMMANDS, INTERNAL_COMMANDS, ROW_BY_CODE
from courser.catalog import changes
from courser.errors import CommandRejected, ErrorCode
from courser.handlers.dispatcher import HANDLERS
from tests.handlers.samples import SAMPLES
from tests.handlers.scenes import Scene

PUBLIC = {c.Ping, c.LoginUser, c.LoginWithToken}


def test_every_command_has_exactly_one_handler() -> None:
    assert set(HANDLERS) == {entry.kind for entry in (*COMMANDS, *INTERNAL_COMMANDS)}
    assert len(set(HANDLERS.values())) == len(HANDLERS)


def test_no_client_can_send_a_command_of_the_server_itself() -> None:
    assert INTERNAL_COMMANDS
    assert not {entry.kind for entry in INTERNAL_COMMANDS} & {entry.kind for entry in ROW_BY_CODE.values()}
    assert all(entry.route is None and entry.actions for entry in INTERNAL_COMMANDS)


def test_every_command_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == {entry.kind for entry in COMMANDS}


async def test_all_but_ping_and_login_need_a_login(scene: Scene) -> None:
    stranger = scene.connect()
    for sample in SAMPLES:
        if type(sample) not in PUBLIC:
            assert await scene.refusal(stranger, sample) is ErrorCode.UNAUTHENTICATED, sample
    assert await scene.ask(stranger, c.Ping()) is None


async def test_an_inactive_user_can_do_nothing_but_ping_and_log_in(scene: Scene) -> None:
    await scene.add_user("alice")
    session = scene.connect(1)
    await scene.broker.catalog.submit(changes.UserUpdate(1, is_active=False))
    for sample in SAMPLES:
        if type(sample) not in PUBLIC:
            assert await scene.refusal(session, sample) is ErrorCode.USER_INACTIVE, sample
    assert await scene.ask(session, c.Ping()) is None
    await scene.broker.catalog.submit(changes.UserUpdate(1, is_active=True))
    assert await scene.ask(session, c.GetMe()) is not None


async def test_an_ended_session_gets_the_reason_for_everything(scene: Scene) -> None:
    session = scene.connect(0)
    scene.broker.sessions.end(session, CommandRejected(ErrorCode.STALE_CLIENT, "silent"))
    for sample in SAMPLES:
        assert await scene.refusal(session, sample) is ErrorCode.STALE_CLIENT, sample
    assert session.ended is not None
    assert len(traceback.extract_tb(session.ended.__traceback__)) < 10, "it does not grow with every request"


async def test_a_ping_ends_without_waiting(scene: Scene) -> None:
    with pytest.raises(StopIteration) as stop:
        scene.dispatcher.dispatch(scene.root, c.Ping()).send(None)
    assert stop.value.value is None
