"""What the log says about changes: who, from where, what, with which result, and no secret."""

import logging

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.api.commands import COMMANDS
from tests.handlers.samples import SAMPLES
from tests.handlers.scenes import Scene

AUDITED = {row.kind for row in COMMANDS if row.is_audited}
LOGGER = "courser.handlers.audit"


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


async def test_a_change_leaves_a_line_with_its_result(scene: Scene, logged: pytest.LogCaptureFixture) -> None:
    await scene.add_topic("s", "t")
    await scene.add_user("alice")
    session = scene.connect(1)
    await scene.refusal(session, c.DeleteStream("s"))
    await scene.ask(scene.root, c.DeleteStream("s"))
    who = f"client={session.client_id} address={session.address}"
    root = f"client={scene.root.client_id} address={scene.root.address}"
    assert logged.messages == [
        f"DeleteStream user=1 {who} result=41 UNAUTHORIZED stream='s'",
        f"DeleteStream user=0 {root} result=done stream='s'",
    ]


async def test_logins_are_noted_whoever_was_there_before(scene: Scene, logged: pytest.LogCaptureFixture) -> None:
    session = scene.connect()
    await scene.refusal(session, c.LoginUser("nobody", "wrong"))
    (line,) = logged.messages
    assert line.startswith("LoginUser user=none")
    assert "result=42 INVALID_CREDENTIALS name='nobody'" in line


async def test_a_name_cannot_forge_a_line(scene: Scene, logged: pytest.LogCaptureFixture) -> None:
    await scene.refusal(scene.connect(), c.LoginUser("eve\nLoginUser user=0 result=done", "wrong"))
    assert "\n" not in logged.messages[0]


async def test_what_is_refused_has_a_logger_of_its_own_and_few_words(
    scene: Scene, logged: pytest.LogCaptureFixture
) -> None:
    await scene.refusal(scene.connect(), c.LoginUser("x", "wrong", context="long " * 3000))
    await scene.ask(scene.root, c.CreateStream("s"))
    refused, done = logged.records
    assert (refused.name, done.name) == (f"{LOGGER}.refused", LOGGER)
    assert "INVALID_USERNAME name='x'" in refused.getMessage()
    assert len(refused.getMessage()) < 600


async def test_no_secret_is_logged_whatever_happens(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = await scene.ask(scene.root, c.CreateToken("laptop", 0))
    assert isinstance(made, r.NewToken)
    await scene.ask(scene.root, c.CreateUser("alice", "canary one", True, None))
    session = scene.connect()
    await scene.ask(session, c.LoginUser("alice", "canary one", token="canary two"))
    await scene.refusal(session, c.LoginUser("alice", "canary three"))
    await scene.refusal(session, c.LoginWithToken("canary four"))
    await scene.ask(session, c.ChangePassword("alice", "canary one", "canary five"))
    await scene.ask(session, c.LoginWithToken(made.token))
    await scene.ask(session, c.LoginUser(made.token, "", token=made.token))
    await scene.ask(session, c.DeleteToken("laptop"))
    assert len([record for record in caplog.records if record.name.startswith(LOGGER)]) == 9
    text = "\n".join(f"{record.getMessage()} {record.args}" for record in caplog.records)
    assert "canary" not in text
    assert made.token not in text


def test_everything_that_takes_something_away_is_audited() -> None:
    commands = {entry.kind for entry in COMMANDS}
    assert {kind for kind in commands if kind.__name__.startswith(("Delete", "Purge", "Discard"))} <= AUDITED


def test_sends_and_polls_are_not_audited() -> None:
    assert AUDITED.issubset(type(sample) for sample in SAMPLES)
    assert not AUDITED & {c.SendMessages, c.PollMessages, c.Ping, c.StoreConsumerOffset, c.WaitForMessages}
