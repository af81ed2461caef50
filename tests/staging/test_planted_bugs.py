"""Would the crash tests notice? Each of these mistakes is planted, and has to be found."""

from unittest import mock

import pytest

from courser.broker import publishing, staging
from courser.broker.publishing import Publishing
from courser.errors import CourserError
from courser.storage import staged_file
from tests.staging.test_crashes import test_a_crash_at_every_call as crash_everywhere

NOTICED = (AssertionError, CourserError)
"""The batch is there in part, or twice, or it cannot be published any more."""


async def nothing(*_: object) -> None:
    return


async def test_parts_that_are_not_synced_are_missed() -> None:
    with mock.patch.object(staged_file, "sync_file", return_value=None), pytest.raises(NOTICED):
        await crash_everywhere("persisted", True, 1)


async def test_a_start_that_does_not_look_into_the_logs_publishes_twice() -> None:
    with mock.patch.object(publishing, "last_sequence", return_value=None), pytest.raises(NOTICED):
        await crash_everywhere("replicated", False, 1)


async def test_a_publish_that_is_not_synced_is_lost() -> None:
    with mock.patch.object(Publishing, "_sync", nothing), pytest.raises(NOTICED):
        await crash_everywhere("replicated", True, 1)


async def test_parts_of_an_open_publish_that_are_removed_are_missed() -> None:
    with mock.patch.object(staging, "is_in_open_publish", return_value=False), pytest.raises(NOTICED):
        await crash_everywhere("replicated", False, 1)
