"""The simulator is worth what it catches: known mistakes of logs, planted by substitution, must break a promise soon.

Each test prints how many seeds it took. A seed counts only if something was acknowledged in it before.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from courser.storage import (
    batch_loader,
    index_file,
    offset_table,
    partition_log,
    recovery,
    scan,
    upkeep,
    watched_clock,
)
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.durable_files import SyncGuard
from courser.storage.ledger import Ledger, LedgerDraft, LedgerFile
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.quarantine import Quarantine
from courser.storage.recovery_cases import Case, StopKind, Tail, case_for
from courser.storage.recovery_scan import ScannedSegment, scan_open_segment
from tests.fakes.files import FakeFile, FakeFileSystem
from tests.simulator import partition_simulation
from tests.simulator.partition_simulation import SimulationFailure, Trouble, simulate

SEED_COUNT_MAX = 2_000
"""Seeds until a mistake counts as not noticed: the rarest one takes a hundred on average, and now and then 500."""

Plant = Callable[[], AbstractContextManager[object]]

_sync = FakeFile.sync
_truncate = FakeFile.truncate
_draft = Ledger.draft
_append_to_ledger = LedgerFile.append


def nothing(*_arguments: object, **_options: object) -> None:
    return None


def acknowledge_before_the_sync() -> AbstractContextManager[object]:
    return mock.patch.object(Acknowledgements, "_may_release", return_value=True)


def no_directory_sync_at_all() -> AbstractContextManager[object]:
    return mock.patch.object(FakeFileSystem, "sync_directory", nothing)


def no_directory_sync_for_new_segments() -> AbstractContextManager[object]:
    return mock.patch.object(SyncGuard, "sync_names", nothing)


def an_ignored_sync_error() -> AbstractContextManager[object]:
    def sync(file: FakeFile) -> None:
        try:
            _sync(file)
        except OSError:
            return

    return mock.patch.object(FakeFile, "sync", sync)


def a_retried_sync_that_is_believed() -> AbstractContextManager[object]:
    def sync(file: FakeFile) -> None:
        try:
            _sync(file)
        except OSError:
            _sync(file)

    return mock.patch.object(FakeFile, "sync", sync)


def a_sync_believed_after_another_job_failed() -> AbstractContextManager[object]:
    def forget(_guard: SyncGuard, _has_failed: bool) -> None:
        """Learn of no failure."""

    never = property(lambda _guard: False, forget)
    return mock.patch.object(SyncGuard, "has_failed", never, create=True)


@contextmanager
def an_index_that_is_trusted() -> Iterator[None]:
    with ExitStack() as stack:
        # Every checksum and every claim to be complete is believed.
        blind = SimpleNamespace(xxh3_64_intdigest=mock.Mock(return_value=0))
        stack.enter_context(mock.patch.object(index_file, "xxhash", blind))
        stack.enter_context(mock.patch.object(index_file.IndexFile, "check_complete", nothing))
        yield


@contextmanager
def offsets_that_are_not_reserved() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(PartitionLog, "needs_reservation", return_value=False))
        stack.enter_context(mock.patch.object(upkeep, "plan_reservation", nothing))
        yield


@contextmanager
def a_cut_at_the_first_bad_checksum_anywhere() -> Iterator[None]:
    def cut(stop: StopKind, tail: Tail) -> Case:
        return case_for(StopKind.CRASHED if tail is Tail.BAD_IN_BETWEEN else stop, tail)

    def scan_to_the_first(*arguments: Any, **options: Any) -> ScannedSegment:
        return scan_open_segment(*arguments, **{**options, "stop_at_first_bad": True})

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(recovery, "case_for", cut))
        stack.enter_context(mock.patch.object(recovery, "scan_open_segment", scan_to_the_first))
        yield


def a_cut_without_a_copy() -> AbstractContextManager[object]:
    return mock.patch.object(Quarantine, "copy", nothing)


@contextmanager
def a_cut_without_a_sync() -> Iterator[None]:
    cut: set[int] = set()

    def truncate(file: FakeFile, size: int) -> None:
        _truncate(file, size)
        cut.add(id(file))

    def sync(file: FakeFile) -> None:
        if id(file) in cut:
            cut.discard(id(file))
        else:
            _sync(file)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(FakeFile, "truncate", truncate))
        stack.enter_context(mock.patch.object(FakeFile, "sync", sync))
        yield


@contextmanager
def a_start_offset_that_is_not_durable_before_the_unlink() -> Iterator[None]:
    removals: set[LedgerDraft] = set()

    def draft(ledger: Ledger, *events: Any, **numbers: int) -> LedgerDraft:
        drafted = _draft(ledger, *events, **numbers)
        if "start_offset" in numbers:
            removals.add(drafted)
        return drafted

    def append(file: LedgerFile, drafted: LedgerDraft, *, sync: bool) -> None:
        _append_to_ledger(file, drafted, sync=sync and drafted not in removals)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Ledger, "draft", draft))
        stack.enter_context(mock.patch.object(LedgerFile, "append", append))
        yield


@contextmanager
def offsets_renamed_without_a_sync() -> Iterator[None]:
    def sync(file: FakeFile) -> None:
        if not file.path.name.startswith("offsets.tmp"):
            _sync(file)

    with mock.patch.object(FakeFile, "sync", sync):
        yield


def offsets_that_move_forward() -> AbstractContextManager[object]:
    def append(table: offset_table.OffsetTable, key: offset_table.ConsumerKey, offset: int) -> bool:
        store(table, key, offset)
        return False

    store = offset_table.OffsetTable.store
    return mock.patch.object(offset_table.OffsetTable, "store", append)


@contextmanager
def a_torn_record_that_is_believed() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(scan, "check_body", nothing))
        stack.enter_context(mock.patch.object(batch_loader, "xxh3", return_value=mock.ANY))
        yield


def a_power_cut_taken_for_a_kill() -> AbstractContextManager[object]:
    return mock.patch.object(partition_simulation, "how_it_stopped", return_value=StopKind.KILLED)


def a_time_that_never_goes_back() -> AbstractContextManager[object]:
    def stand_still(log: PartitionLog, timestamp: int) -> int:
        return max(timestamp, log._last_timestamp)

    return mock.patch.object(PartitionLog, "_time_after_a_step", stand_still)


@contextmanager
def a_step_of_the_clock_that_nobody_notices() -> Iterator[None]:
    with ExitStack() as stack:
        # Only what lies in the future is corrected then: what was stored while the clock was behind seems old.
        stack.enter_context(mock.patch.object(watched_clock, "CLOCK_LEAD_MAX", 2**63))
        yield


def offsets_that_are_marked_before_they_are_synced() -> AbstractContextManager[object]:
    def plan(log: PartitionLog) -> Any:
        log.synced_offsets = log.offsets.mark
        return plan_mark(log)

    plan_mark = upkeep._plan_offsets_mark
    return mock.patch.object(upkeep, "_plan_offsets_mark", plan)


def producers_that_a_start_forgets() -> AbstractContextManager[object]:
    return mock.patch.object(LogReader, "newest_of_producers", return_value=[])


def numbers_that_are_not_stored() -> AbstractContextManager[object]:
    return mock.patch.object(partition_log, "with_producer", lambda blank, _producer: blank)


PLANTS: dict[Plant, str] = {
    acknowledge_before_the_sync: "b",
    no_directory_sync_at_all: "abcdghlmn",
    no_directory_sync_for_new_segments: "bcgm",
    an_ignored_sync_error: "abcfghlm",
    a_retried_sync_that_is_believed: "abcfghm",
    a_sync_believed_after_another_job_failed: "abcdfgm",
    an_index_that_is_trusted: "abcdf",
    offsets_that_are_not_reserved: "c",
    a_cut_at_the_first_bad_checksum_anywhere: "abcl",
    a_cut_without_a_copy: "l",
    a_cut_without_a_sync: "abcfglm",
    a_start_offset_that_is_not_durable_before_the_unlink: "abcghm",
    offsets_renamed_without_a_sync: "gm",
    offsets_that_move_forward: "g",
    a_torn_record_that_is_believed: "abcdf",
    a_power_cut_taken_for_a_kill: "abcm",
    a_time_that_never_goes_back: "e",
    a_step_of_the_clock_that_nobody_notices: "e",
    offsets_that_are_marked_before_they_are_synced: "gm",
    producers_that_a_start_forgets: "p",
    numbers_that_are_not_stored: "p",
}
"""Each mistake, and the letters of the promises that it may break.

The list is long where a sync is missing: what a power cut or a failed sync then takes is a message (a, b), its number
(c), a consumer's offset (g), or the ledger with the start (h) and the holes, of which a lookup knows nothing then (f).
"""

TROUBLES: dict[Plant, Trouble] = {
    an_ignored_sync_error: Trouble(failing=("sync",), failure_odds=0.8),
    a_retried_sync_that_is_believed: Trouble(failing=("sync",), failure_odds=0.8),
    a_sync_believed_after_another_job_failed: Trouble(failing=("sync",), failure_odds=0.8),
    an_index_that_is_trusted: Trouble(index_odds=0.8),
    a_cut_at_the_first_bad_checksum_anywhere: Trouble(rot_odds=0.5),
}
"""Where the mistake only shows when something else goes wrong too."""

TRACEBACKS: dict[Plant, tuple[str, ...]] = {a_torn_record_that_is_believed: ("unexpected: error(",)}
"""What is not a frame cannot be taken apart."""


RARE = (a_sync_believed_after_another_job_failed, an_index_that_is_trusted)
"""It takes hundreds of seeds to catch one of them."""


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=pytest.mark.slow) if plant in RARE else plant for plant in PLANTS],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_caught(plant: Plant, seed: int) -> None:
    failure = first_failure(plant, seed)
    assert failure is not None, f"{SEED_COUNT_MAX} seeds from {seed} on did not notice: {plant.__name__}"
    count, reason = failure
    print(f"{plant.__name__}: caught by seed number {count}: {reason}")
    assert reason.startswith(tuple(f"({letter})" for letter in PLANTS[plant]) + TRACEBACKS.get(plant, ())), reason


def first_failure(plant: Plant, seed: int) -> tuple[int, str] | None:
    with plant():
        for count in range(SEED_COUNT_MAX):
            try:
                simulate(seed + count, TROUBLES.get(plant))
            except SimulationFailure as failure:
                if any(step.startswith("acknowledge") for step in failure.trace):
                    return count + 1, failure.reason
    return None
