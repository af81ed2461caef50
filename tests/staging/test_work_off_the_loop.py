"""What takes long for large or many staged messages is done by the pool, and requests that overlap meanwhile agree."""

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.messages import producing
from courser.broker.publishing import staging
from courser.broker.publishing.staged_parts import PartTable
from courser.broker.settings import BrokerSettings
from courser.errors import CourserError, ErrorCode
from courser.model.messaging import ByKey, Partitioning, ToPartition
from courser.records.batch import NewMessage, build_batch
from courser.storage import durable_files
from courser.storage.files import FileSystem
from courser.storage.settings import EngineLimits
from courser.storage.staged_file import StagedFileWriter
from tests.broker.open_partitions import until
from tests.fakes.files import FaultPlan
from tests.staging.lives import SINK, Life

SMALL, LARGE = "small", "large " * 1000
NAME = c.StagedPartName(SINK, 0, 0, 1)


def chunk(
    number: int,
    *texts: str,
    name: c.StagedPartName = NAME,
    to: Partitioning = ToPartition(0),  # noqa: B008 - frozen
) -> c.StageMessages:
    return c.StageMessages(name, number, "s", "t", to, build_batch([NewMessage(text.encode()) for text in texts]))


async def begun(seed: int) -> Life:
    settings = BrokerSettings(disk_thread_count=2, engine_limits=EngineLimits(inline_size=2000))
    life = Life(seed, level="replicated", settings=settings)
    await life.begin()
    return life


def where(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> list[bool]:
    """For each call of a function: whether it ran on the thread of the event loop."""
    found: list[bool] = []
    work: Callable[..., Any] = getattr(place, name)

    def noted(*args: Any, **options: Any) -> Any:
        found.append(threading.current_thread() is threading.main_thread())
        return work(*args, **options)

    monkeypatch.setattr(place, name, noted)
    return found


async def code_of(life: Life, command: c.Command) -> ErrorCode:
    with pytest.raises(CourserError) as raised:
        await life.server.ask(command)
    return raised.value.code


async def test_large_chunks_are_hashed_and_written_by_the_pool(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = await begun(seed)
    await life.server.ask(chunk(0, SMALL))
    is_on_loop = where(monkeypatch, StagedFileWriter, "append")
    await life.server.ask(chunk(1, SMALL))
    await life.server.ask(chunk(2, LARGE))
    assert is_on_loop == [True, False]


async def test_a_part_of_an_earlier_session_is_opened_by_the_pool(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = await begun(seed)
    await life.server.ask(chunk(0, SMALL))
    await life.server.restart(with_power_cut=False)
    is_on_loop = where(monkeypatch, StagedFileWriter, "reopen")
    await life.server.ask(chunk(1, SMALL))
    await life.server.restart(with_power_cut=False)
    await life.server.ask(c.FinishStage(NAME, 2))
    assert is_on_loop == [False, False]


async def test_files_are_removed_by_the_pool(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = await begun(seed)
    await life.server.ask(chunk(0, LARGE))
    is_on_loop = where(monkeypatch, staging, "unlink_if_there")
    await life.server.ask(c.DiscardStaged(SINK, 0, forget=False))
    assert is_on_loop == [False]
    assert (life.staged_files(), life.server.broker.staging.size) == ([], 0)


@pytest.mark.parametrize("texts", [[SMALL] * 1001, ["large " * 400_000]], ids=["many", "large"])
async def test_keys_of_many_or_large_messages_are_added_by_the_pool(
    texts: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await begun(seed)
    is_on_loop = where(monkeypatch, producing, "with_key")
    await life.server.ask(chunk(0, SMALL, to=ByKey(b"key")))
    await life.server.ask(chunk(1, *texts, to=ByKey(b"key")))
    batch = build_batch([NewMessage(text.encode()) for text in texts])
    await life.server.ask(c.SendMessages("s", "t", ByKey(b"key"), [batch]))
    assert is_on_loop == [True, False, False]


async def test_the_first_chunk_sent_twice_at_the_same_time_begins_one_part(seed: int) -> None:
    life = await begun(seed)
    await asyncio.gather(*(life.server.ask(chunk(0, LARGE)) for _ in range(3)))
    await life.server.ask(chunk(1, SMALL))
    await life.server.ask(c.FinishStage(NAME, 2))
    found = life.server.broker.staging
    (path,) = life.staged_files()
    assert (found.part_count, found.size) == (1, life.server.disk.open(path).size())
    published = await life.publish({0: 1})
    assert published.message_count == 2


async def test_a_first_chunk_whose_file_cannot_be_created_leaves_no_part(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests at the same time, the one that comes second tries again by itself."""
    life = await begun(seed)
    create, tries = StagedFileWriter.create, list[Path]()

    def refused_once(file_system: FileSystem, path: Path, *rest: Any) -> StagedFileWriter:
        tries.append(path)
        if len(tries) == 1:
            raise CourserError("no more inodes")
        return create(file_system, path, *rest)

    monkeypatch.setattr(StagedFileWriter, "create", refused_once)
    failed, good = await asyncio.gather(*(life.server.ask(chunk(0, SMALL)) for _ in range(2)), return_exceptions=True)
    assert isinstance(failed, CourserError)
    assert good is None
    await life.server.ask(c.FinishStage(NAME, 1))
    assert len(life.staged_files()) == 1


class HeldRemoval:
    """The disk takes its time to remove a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        unlink = durable_files.unlink_if_there

        def held(file_system: FileSystem, path: Path) -> None:
            self.has_begun.set()
            assert self.may_go_on.wait(30)
            unlink(file_system, path)

        monkeypatch.setattr(staging, "unlink_if_there", held)


async def test_a_part_that_begins_while_one_of_its_name_is_removed_is_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await begun(seed)
    await life.server.ask(chunk(0, "first"))
    await life.server.ask(c.FinishStage(NAME, 1))
    removal = HeldRemoval(monkeypatch)
    discarding = asyncio.ensure_future(life.server.ask(c.DiscardStaged(SINK, 0, forget=False)))
    await asyncio.to_thread(removal.has_begun.wait)
    # It cannot be published any more, although its file is there.
    assert await code_of(life, c.PublishStaged(SINK, 0, ((0, 1),), 0)) is ErrorCode.STAGED_PART_NOT_FOUND
    again = asyncio.ensure_future(life.server.ask(chunk(0, "second")))
    await asyncio.sleep(0)
    removal.may_go_on.set()
    await asyncio.gather(discarding, again)
    await life.server.ask(c.FinishStage(NAME, 1))
    await life.publish({0: 1})
    assert "second" in (await life.server.read("t", 0)).values()


async def test_a_chunk_that_waits_while_its_part_is_discarded_is_refused(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = await begun(seed)
    await life.server.ask(chunk(0, SMALL))
    has_begun, may_go_on = threading.Event(), threading.Event()
    append = StagedFileWriter.append

    def slowly(writer: StagedFileWriter, *args: Any) -> None:
        has_begun.set()
        assert may_go_on.wait(30)
        append(writer, *args)

    monkeypatch.setattr(StagedFileWriter, "append", slowly)
    writing = asyncio.ensure_future(life.server.ask(chunk(1, LARGE)))
    await asyncio.to_thread(has_begun.wait)
    discarding = asyncio.ensure_future(life.server.ask(c.DiscardStaged(SINK, 0, forget=False)))
    (part,) = life.server.broker.staging.parts()
    await until(lambda: part.lock._waiters is not None and len(part.lock._waiters) == 1)
    late = [asyncio.ensure_future(life.server.ask(command)) for command in (chunk(2, SMALL), c.FinishStage(NAME, 3))]
    await until(lambda: part.lock._waiters is not None and len(part.lock._waiters) == 3)
    may_go_on.set()
    found = await asyncio.gather(writing, discarding, *late, return_exceptions=True)
    assert found[:2] == [None, None]
    assert [getattr(error, "code", error) for error in found[2:]] == [ErrorCode.STAGED_PART_NOT_FOUND] * 2
    assert (life.staged_files(), life.server.broker.staging.size) == ([], 0)


async def test_a_new_part_does_not_look_at_all_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = await begun(seed)
    for attempt in range(3):
        await life.server.ask(chunk(0, SMALL, name=c.StagedPartName(SINK, 0, 0, attempt)))
    sink = await life.server.ask(c.GetSink(SINK))
    assert isinstance(sink, r.SinkInfo)
    monkeypatch.setattr(PartTable, "all", lambda _: pytest.fail("a walk over all parts"))
    await life.server.ask(chunk(0, SMALL, name=c.StagedPartName("another", 0, 0, 1)))
    assert sink == await life.server.ask(c.GetSink(SINK))
    await life.server.ask(c.DiscardStaged(SINK, 0, forget=False))
    assert life.server.broker.staging.part_count == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_memory_of_a_large_part_is_given_back_while_it_is_published(seed: int, fails: bool) -> None:
    life = await begun(seed)
    for number in range(9):
        await life.server.ask(chunk(number, str(number) * 1024 * 1024))
    await life.server.ask(c.FinishStage(NAME, 9))
    if fails:
        life.server.disk.plan = FaultPlan().fail("discard_cache", errno.EIO, onwards=True)
    before = life.server.disk.calls["discard_cache"]
    published = await life.publish({0: 1})
    await life.server.broker.publishing.idle()
    # Once for 8 MiB. The rest is not worth a call: the file is removed at once.
    assert (published.message_count, life.server.disk.calls["discard_cache"] - before) == (9, 1)
