"""Would the crash tests notice? Each of these mistakes is planted, and has to be found."""

from unittest import mock

import msgspec
import pytest

from courser.api.commands import PublishStaged
from courser.api.replies import Published
from courser.broker.publishing import staging
from courser.broker.publishing.publishing import CheckAccess, Publishing
from courser.broker.publishing.redo import Redo
from courser.catalog import changes as c
from courser.catalog.entities import Publish, Sink
from courser.errors import CourserError
from courser.storage import staged_file
from courser.storage.log_reader import LogReader
from tests.staging.lives import Life
from tests.staging.test_after_the_answer import forget_what_cannot_be_synced, purge_right_behind_the_answer
from tests.staging.test_crashes import check_clients_that_go_on_after_a_kill
from tests.staging.test_crashes import test_a_crash_at_every_call as crash_everywhere

NOTICED = (AssertionError, CourserError)
"""The batch is there in part, or twice, or it cannot be published any more."""


async def nothing(*_: object) -> None:
    return


async def test_parts_that_are_not_synced_are_missed() -> None:
    with mock.patch.object(staged_file, "sync_file", return_value=None), pytest.raises(NOTICED):
        await crash_everywhere("persisted", True, 1)


async def test_a_start_that_takes_an_unsynced_part_for_a_durable_one_is_noticed() -> None:
    with mock.patch.object(staging.Staging, "_sync_found", return_value=None), pytest.raises(NOTICED):
        await check_clients_that_go_on_after_a_kill(1)


async def test_a_start_that_does_not_look_into_the_logs_publishes_twice() -> None:
    with mock.patch.object(LogReader, "last_sequence", return_value=None), pytest.raises(NOTICED):
        await crash_everywhere("replicated", False, 1)


async def test_a_publish_that_is_ended_and_not_synced_is_lost() -> None:
    with mock.patch.object(Redo, "sync", nothing), pytest.raises(NOTICED):
        await crash_everywhere("replicated", True, 1)


async def test_an_answer_that_does_not_wait_for_the_entry_is_noticed() -> None:
    async def answer_early(
        publishing: Publishing, user_id: int, command: PublishStaged, check_access: CheckAccess
    ) -> Published:
        work = publishing._publish(user_id, command, check_access)
        _ = publishing._background.start(publishing._in_turn(command.sink, lambda: work))
        return Published(False, 0, 0)

    with mock.patch.object(Publishing, "publish", answer_early), pytest.raises(NOTICED):
        await crash_everywhere("replicated", True, 1)


async def test_parts_that_are_removed_before_the_logs_are_synced_are_missed() -> None:
    async def remove_first(publishing: Publishing, sink: Sink, publish: Publish) -> None:
        await publishing._redo.append(sink, publish)
        for part in publishing._staging._parts.of_sink(sink.user_id, sink.name):
            await publishing._staging._drop(part)
        await publishing._redo.sync(sink)
        await publishing._catalog.submit(c.PublishEnd(sink.name, publish.op))

    with mock.patch.object(Publishing, "_carry_out", remove_first), pytest.raises(NOTICED):
        await crash_everywhere("replicated", True, 1)


async def test_a_synced_topic_that_does_not_show_what_was_answered_is_noticed() -> None:
    life = Life(1, level="persisted")
    await life.begin()
    with mock.patch.object(Redo, "show", nothing), pytest.raises(NOTICED):
        await life.check_shown()


async def test_a_purge_that_leaves_open_publishes_alone_is_undone_by_a_power_cut() -> None:
    with mock.patch.object(msgspec.structs, "replace", lambda publish, **_: publish), pytest.raises(NOTICED):
        await purge_right_behind_the_answer(Life(1, level="replicated"), is_slow=True)


async def test_a_sink_that_is_forgotten_too_early_takes_its_messages_along() -> None:
    with mock.patch.object(Publishing, "_sync_before_giving_up", nothing), pytest.raises(NOTICED):
        await forget_what_cannot_be_synced(Life(1, level="replicated"))


async def test_parts_of_an_open_publish_that_are_removed_are_missed() -> None:
    with mock.patch.object(staging.Staging, "_is_needed", return_value=False), pytest.raises(NOTICED):
        await crash_everywhere("replicated", False, 1)
