"""The fourteen tests that came with the design of the journal, each with a counterpart of the same intent.

| original                                    | here                                                        |
| ------------------------------------------- | ----------------------------------------------------------- |
| open_empty_wal                              | test_an_empty_journal_has_no_last_entry                     |
| append_and_read                             | test_what_was_appended_can_be_read                          |
| reopen_rebuilds_index                       | test_a_start_finds_every_entry_again                        |
| truncated_entry_on_reopen                   | test_a_torn_last_entry_is_cut                               |
| iter_headers_from                           | test_entries_come_in_order_from_the_snapshot_on             |
| previous_header_navigation                  | test_every_entry_names_the_one_before_it                    |
| slot_wraparound_evicts_snapshotted_entry    | test_a_slot_is_used_again_once_a_snapshot_covers_it         |
| drain_shrinks_wal_and_preserves_live_entries| test_a_drain_shrinks_the_file_and_keeps_live_entries        |
| append_panics_on_evicting_unsnapshotted_entry| test_a_full_journal_refuses_instead_of_losing_an_entry     |
| recover_empty_state                         | test_an_empty_directory_gives_an_empty_catalog              |
| recover_snapshot_only                       | test_a_snapshot_alone_gives_its_state                       |
| recover_journal_only                        | test_a_journal_alone_is_replayed_from_its_first_entry       |
| recover_snapshot_plus_journal               | test_only_what_the_snapshot_does_not_cover_is_replayed      |
| snapshot_persist_load_roundtrip             | test_a_snapshot_is_read_as_it_was_written                   |

The original numbers ops as it likes and drops an entry with ``set_snapshot_op``; here ops have no gap, and only a drain
moves the snapshot mark.
"""

import random
from pathlib import Path

import pytest

from courser.catalog import changes as c
from courser.catalog.state import CatalogState
from courser.catalog.store import CatalogSettings, CatalogStore
from courser.errors import JournalFull
from courser.model.topic_options import TopicOptions
from courser.storage.journal import SLOT_COUNT, Journal
from courser.storage.journal_entries import NO_PARENT, Entry, SnapshotMark
from courser.storage.recovery_cases import StopKind
from courser.storage.snapshot import Snapshot, read_snapshot, write_snapshot
from tests.catalog.opening import open_journal, open_store
from tests.catalog.scenes import JOURNAL_PATH, SNAPSHOT_PATH, uuid
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem

PATH = Path("/data/metadata/journal.wal")


def new_disk() -> FakeFileSystem:
    disk = FakeFileSystem(random.Random(1))
    disk.plant_directory(PATH.parent)
    return disk


def opened(disk: FakeFileSystem, mark: SnapshotMark | None = None, stop: StopKind = StopKind.KILLED) -> Journal:
    return open_journal(disk, PATH, snapshot=mark, stop=stop)


def append(journal: Journal, body_size: int = 32) -> Entry:
    body = bytes((journal.next_op + number) % 256 for number in range(body_size))
    entry, data = journal.make_next(timestamp=7, kind=1, body=body)
    journal.append(entry, data)
    return entry


def mark_of(entry: Entry) -> SnapshotMark:
    return SnapshotMark(entry.op, entry.checksum)


def store_on(disk: FakeFileSystem, settings: CatalogSettings | None = None) -> CatalogStore:
    return open_store(disk, Path("/data"), clock=ManualClock(), stop=StopKind.KILLED, settings=settings)


def test_an_empty_journal_has_no_last_entry() -> None:
    journal = opened(new_disk())
    assert journal.last is None
    assert journal.entry(0) is None
    assert journal.next_op == 0


def test_what_was_appended_can_be_read() -> None:
    journal = opened(new_disk())
    first, second = append(journal, 64), append(journal, 32)
    assert journal.last == mark_of(second)
    assert (journal.entry(0), journal.entry(1), journal.entry(2)) == (first, second, None)
    assert (len(first.body), len(second.body)) == (64, 32)


def test_a_start_finds_every_entry_again() -> None:
    disk = new_disk()
    journal = opened(disk)
    entries = [append(journal, size) for size in (64, 128, 32)]
    disk.power_cut()
    again = opened(disk, stop=StopKind.CRASHED)
    assert again.last == mark_of(entries[-1])
    assert again.entries() == entries


def test_a_torn_last_entry_is_cut() -> None:
    disk = new_disk()
    journal = opened(disk)
    first = append(journal, 64)
    append(journal, 128)
    disk.kill()
    disk.plant(PATH, disk.contents(PATH)[:-10])
    again = opened(disk)
    assert again.last == mark_of(first)
    assert again.entry(1) is None
    assert len(disk.contents(PATH)) == first.size


def test_entries_come_in_order_from_the_snapshot_on() -> None:
    disk = new_disk()
    journal = opened(disk)
    entries = [append(journal) for _ in range(5)]
    for covered in range(5):
        disk.kill()
        assert opened(disk, mark_of(entries[covered])).entries() == entries[covered + 1 :]


def test_every_entry_names_the_one_before_it() -> None:
    journal = opened(new_disk())
    first, second = append(journal), append(journal)
    assert second.parent == first.checksum
    assert first.parent == NO_PARENT


def test_a_slot_is_used_again_once_a_snapshot_covers_it() -> None:
    journal = opened(new_disk())
    fourth = [append(journal) for _ in range(4)][3]
    journal.drain(mark_of(fourth))
    last = [append(journal) for _ in range(SLOT_COUNT)][-1]
    assert last.op == 3 + SLOT_COUNT
    assert journal.entry(3) is None
    assert journal.entry(3 + SLOT_COUNT) == last
    assert journal.last == mark_of(last)


def test_a_drain_shrinks_the_file_and_keeps_live_entries() -> None:
    disk = new_disk()
    journal = opened(disk)
    entries = [append(journal, 64) for _ in range(5)]
    size = len(disk.contents(PATH))
    journal.drain(mark_of(entries[2]))
    assert len(disk.contents(PATH)) == journal.size < size
    assert [journal.entry(op) for op in range(5)] == [None, None, None, *entries[3:]]
    disk.power_cut()
    again = opened(disk, mark_of(entries[2]), StopKind.CRASHED)
    assert again.last == mark_of(entries[4])
    assert again.entries() == entries[3:]


def test_a_full_journal_refuses_instead_of_losing_an_entry() -> None:
    disk = new_disk()
    journal = opened(disk)
    entries = [append(journal) for _ in range(SLOT_COUNT)]
    with pytest.raises(JournalFull, match="1024 entries"):
        append(journal)
    disk.kill()
    assert opened(disk).entries() == entries


def test_an_empty_directory_gives_an_empty_catalog() -> None:
    store = store_on(new_disk())
    assert (store.last_op, store.snapshot_op) == (None, None)
    assert store.state.encode() == CatalogState().encode()


def test_a_snapshot_alone_gives_its_state() -> None:
    disk = new_disk()
    store = store_on(disk)
    for number in range(43):
        store.submit(c.StreamCreation(f"stream {number}", uuid(number)))
    store.take_snapshot()
    disk.kill()
    assert disk.contents(JOURNAL_PATH) == b""
    again = store_on(disk)
    assert (again.snapshot_op, again.last_op, again.remaining_count) == (42, 42, SLOT_COUNT)
    assert again.state.encode() == store.state.encode()


def test_a_journal_alone_is_replayed_from_its_first_entry() -> None:
    disk = new_disk()
    store = store_on(disk)
    for number in range(4):
        store.submit(c.StreamCreation(f"stream {number}", uuid(number)))
    disk.kill()
    again = store_on(disk)
    assert (again.snapshot_op, again.last_op) == (None, 3)
    assert again.state.encode() == store.state.encode()


def test_only_what_the_snapshot_does_not_cover_is_replayed() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.submit(c.StreamCreation("stream", uuid(0)))
    store.submit(c.TopicCreation(0, "topic", uuid(1), 1, TopicOptions()))
    for _ in range(4):
        store.submit(c.TopicPurge(0, 0))
    covered = disk.contents(JOURNAL_PATH)
    store.take_snapshot()
    for _ in range(5):
        store.submit(c.TopicPurge(0, 0))
    disk.kill()
    # As if the drain had not come: the snapshot goes up to op 5, the journal has ops 0 to 10.
    disk.plant(JOURNAL_PATH, covered + disk.contents(JOURNAL_PATH))
    again = store_on(disk)
    assert (again.snapshot_op, again.last_op) == (5, 10)
    assert again.state.streams[0].topics[0].purge_count == 9
    assert again.state.encode() == store.state.encode()


def test_a_snapshot_is_read_as_it_was_written() -> None:
    disk = new_disk()
    snapshot = Snapshot(SnapshotMark(99, b"c" * 16), b"h" * 16, 5, b"the state")
    write_snapshot(disk, SNAPSHOT_PATH, snapshot)
    disk.power_cut()
    assert read_snapshot(disk, SNAPSHOT_PATH) == snapshot
