"""Every command with every single permission at every level, on the right stream and topic and on others."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from courser.api import commands as c
from courser.api.commands import COMMANDS
from courser.broker.sessions import Session
from courser.catalog import changes
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.permissions import Permissions
from tests.handlers.permission_table import ANYBODY, GRANTS, SUFFICIENT, is_sufficient, permissions_of
from tests.handlers.samples import SAMPLES
from tests.handlers.scenes import Scene, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Reached(CourserError):
    """The command got past access control, to the point where it would change something."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Streams s and other, each with topics t and other, group g; nothing in them is changed from here on."""
    path: Path = tmp_path_factory.mktemp("server")
    async with opened(path / "data") as scene:
        for stream in ("s", "other"):
            for topic in ("t", "other"):
                await scene.add_topic(stream, topic)
                await scene.ask(scene.root, c.CreateConsumerGroup(stream, topic, "g"))
        await scene.add_user("target")
        await scene.add_user("subject")
        yield scene


async def no_sleep(_seconds: float) -> None:
    return


async def is_allowed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, sample: c.Command, held: Permissions | None
) -> bool:
    """Whether the user ``subject`` with these permissions gets past access control."""
    state = scene.broker.catalog.state
    subject = state.users[state.user_by_name["subject"]]
    session = scene.connect(subject.user_id)
    if isinstance(sample, c.GetClient):
        sample = msgspec.structs.replace(sample, client_id=session.client_id)

    async def submit(_command: changes.AnyChange) -> None:
        raise Reached

    with monkeypatch.context() as patch:
        patch.setattr(subject, "permissions", held)
        # As a command that changes them would.
        scene.broker.catalog.version += 1
        patch.setattr(scene.broker.catalog, "submit", submit)
        patch.setattr(scene.broker.authentication, "_sleep", no_sleep)
        try:
            return await _passes(scene, session, sample)
        finally:
            scene.broker.sessions.close(session)


async def _passes(scene: Scene, session: Session, sample: c.Command) -> bool:
    try:
        await scene.ask(session, sample)
    except CommandRejected as refusal:
        return refusal.code not in (ErrorCode.UNAUTHORIZED, ErrorCode.UNAUTHENTICATED)
    except CourserError:
        return True
    return True


async def test_the_table_knows_every_command() -> None:
    assert set(SUFFICIENT) == {entry.kind for entry in COMMANDS}


def name_of(sample: c.Command) -> str:
    return type(sample).__name__


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
async def test_each_permission_allows_what_the_table_says(
    server: Scene, monkeypatch: pytest.MonkeyPatch, sample: c.Command
) -> None:
    found = {grant: await is_allowed(server, monkeypatch, sample, permissions_of(grant)) for grant in GRANTS}
    assert found == {grant: is_sufficient(type(sample), grant) for grant in GRANTS}


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
async def test_permissions_for_other_streams_and_topics_allow_nothing(
    server: Scene, monkeypatch: pytest.MonkeyPatch, sample: c.Command
) -> None:
    is_free = SUFFICIENT[type(sample)] == ANYBODY
    elsewhere = [permissions_of(grant, stream_id=1) for grant in GRANTS if not grant.startswith("everywhere")]
    elsewhere += [permissions_of(grant, topic_id=1) for grant in GRANTS if grant.startswith("topic")]
    for held in (None, Permissions(), *elsewhere):
        assert await is_allowed(server, monkeypatch, sample, held) is is_free, held


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
async def test_all_other_permissions_together_are_not_enough(
    server: Scene, monkeypatch: pytest.MonkeyPatch, sample: c.Command
) -> None:
    if SUFFICIENT[type(sample)] == ANYBODY:
        return
    useless = [grant for grant in GRANTS if not is_sufficient(type(sample), grant)]
    assert not await is_allowed(server, monkeypatch, sample, permissions_of(*useless))


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
async def test_root_may_do_everything(server: Scene, monkeypatch: pytest.MonkeyPatch, sample: c.Command) -> None:
    session = server.connect(0)
    if isinstance(sample, c.GetClient):
        sample = msgspec.structs.replace(sample, client_id=session.client_id)

    async def submit(_command: changes.AnyChange) -> None:
        raise Reached

    monkeypatch.setattr(server.broker.catalog, "submit", submit)
    monkeypatch.setattr(server.broker.authentication, "_sleep", no_sleep)
    assert await _passes(server, session, sample)
