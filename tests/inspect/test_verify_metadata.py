"""Metadata that is damaged, or that the tree does not follow, is found; and nothing else is."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from courser.catalog import changes as c
from courser.catalog.descriptors import decode_descriptor, encode_descriptor
from courser.catalog.state import CatalogState
from courser.errors import MetadataDamaged, StartRefused
from courser.inspect.findings import Severity
from courser.inspect.verify import Verification
from courser.model.topic_options import TopicOptions
from courser.records.stored_header import PartitionIdentity
from courser.storage.journal import Journal
from courser.storage.local_files import LocalFileSystem
from courser.storage.partition_log import PartitionLog
from courser.storage.recovery_cases import StopKind
from courser.storage.snapshot import Snapshot, encode_snapshot, read_snapshot
from tests.inspect.catalogs import (
    PASSWORD_HASH,
    Catalog,
    busy_catalog,
    chain_of,
    mark_running,
    small_catalog,
)
from tests.inspect.partitions import cut, flip
from tests.inspect.verifying import damages_of, findings_of, only_finding

# --- healthy ---


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_healthy_catalog_has_no_findings(tmp_path: Path, is_closed: bool) -> None:
    catalog = busy_catalog(tmp_path / "data", is_closed=is_closed)
    verification = Verification(LocalFileSystem(), catalog.data_directory)
    assert list(verification.findings()) == []
    summary = verification.summary
    assert (summary.stream_count, summary.topic_count, summary.entry_count) == (2, 2, 4)
    assert summary.partition_count == 4


def test_a_new_directory_has_no_findings(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "data")
    assert findings_of(catalog.data_directory) == []
    catalog.perform(c.StreamCreation("shop", bytes(16)))
    assert findings_of(catalog.data_directory) == []
    catalog.close()
    assert findings_of(catalog.data_directory) == []


def test_a_drain_that_was_interrupted_is_no_damage(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    before = catalog.journal.read_bytes()
    catalog.open()
    catalog.take_snapshot()
    catalog.close()
    catalog.journal.write_bytes(before)
    assert findings_of(catalog.data_directory) == []


def test_a_rebuild_that_was_interrupted_is_no_damage(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    snapshot = read_snapshot(LocalFileSystem(), catalog.snapshot)
    assert snapshot is not None
    catalog.open()
    catalog.take_snapshot()
    catalog.close()
    ahead = read_snapshot(LocalFileSystem(), catalog.snapshot)
    assert ahead is not None
    mark = type(ahead.mark)(ahead.mark.op + 100, bytes(16))
    catalog.snapshot.write_bytes(encode_snapshot(Snapshot(mark, ahead.state_hash, 1, ahead.body)))
    entries = chain_of([c.UserCreation("root", PASSWORD_HASH)])
    catalog.journal.write_bytes(entries[0][1])
    assert findings_of(catalog.data_directory) == []


_COMMANDER = """
import sys
from pathlib import Path
from courser.catalog import changes as c
from courser.model.topic_options import TopicOptions
from tests.inspect.catalogs import Catalog
catalog = Catalog(Path(sys.argv[1]))
catalog.perform(c.StreamCreation("shop", bytes(16)))
number = 0
while True:
    topic = c.TopicCreation(0, f"topic {number}", number.to_bytes(16, "big"), 2, TopicOptions())
    catalog.perform(topic, c.GroupCreation(0, number, "readers"), c.TopicUpdate(0, number, "x", TopicOptions()))
    catalog.perform(c.PartitionCreation(0, number, 1), c.PartitionDeletion(0, number, 2), c.TopicPurge(0, number))
    catalog.perform(c.TopicDeletion(0, number))
    catalog.perform(c.StreamUpdate(0, f"shop {number}"))
    if number % 3 == 2:
        catalog.take_snapshot()
    number += 1
    print(number, flush=True)
"""


def test_nothing_is_found_beside_a_process_that_issues_commands(tmp_path: Path) -> None:
    data_directory = tmp_path / "data"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _COMMANDER, str(data_directory)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as commander:
        assert commander.stdout is not None
        try:
            for _ in range(25):
                assert commander.stdout.readline()
                findings = findings_of(data_directory)
                assert [finding for finding in findings if finding.severity is not Severity.NOTE] == []
        finally:
            commander.kill()
    assert [finding for finding in findings_of(data_directory) if finding.severity is not Severity.NOTE] == []


# --- journal and snapshot ---


def start_refuses(catalog: Catalog, copy: Path, stop: StopKind) -> bool:
    """What the server itself says of the two files."""
    copy.mkdir()
    shutil.copy(catalog.journal, copy)
    shutil.copy(catalog.snapshot, copy)
    try:
        snapshot = read_snapshot(LocalFileSystem(), copy / catalog.snapshot.name)
        assert snapshot is not None
        Journal.read(LocalFileSystem(), copy / catalog.journal.name, snapshot=snapshot.mark, stop=stop).close()
    except MetadataDamaged:
        return True
    finally:
        shutil.rmtree(copy)
    return False


def test_every_flipped_byte_of_the_journal_is_found(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    good = catalog.journal.read_bytes()
    last = good.rindex(b"CRSJ") - 52
    for position in range(len(good)):
        flip(catalog.journal, position)
        assert any(finding.path == catalog.journal for finding in damages_of(catalog.data_directory)), position
        catalog.journal.write_bytes(good)
    mark_running(catalog.data_directory)
    for position in range(0, len(good), 7):
        flip(catalog.journal, position)
        findings = [finding for finding in findings_of(catalog.data_directory) if finding.path == catalog.journal]
        severity = Severity.NOTE if position >= last else Severity.DAMAGE
        assert [finding.severity for finding in findings] == [severity], position
        assert start_refuses(catalog, tmp_path / "copy", StopKind.KILLED) == (severity is Severity.DAMAGE)
        catalog.journal.write_bytes(good)
    assert findings_of(catalog.data_directory) == []


def test_every_flipped_byte_of_the_snapshot_is_found(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    mark_running(catalog.data_directory)
    good = catalog.snapshot.read_bytes()
    for position in range(len(good)):
        flip(catalog.snapshot, position)
        assert [finding.path for finding in damages_of(catalog.data_directory)] == [catalog.snapshot], position
        catalog.snapshot.write_bytes(good)
    assert findings_of(catalog.data_directory) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_journal_cut_anywhere_is_judged_as_a_start_judges_it(tmp_path: Path, is_clean: bool) -> None:
    catalog = small_catalog(tmp_path / "data")
    if not is_clean:
        mark_running(catalog.data_directory)
    good = catalog.journal.read_bytes()
    stop = StopKind.CLEAN if is_clean else StopKind.KILLED
    for size in range(1, len(good), 23):
        cut(catalog.journal, size)
        is_damage = any(finding.path == catalog.journal for finding in damages_of(catalog.data_directory))
        assert is_damage == start_refuses(catalog, tmp_path / "copy", stop), size
        catalog.journal.write_bytes(good)


def test_a_lost_end_of_the_journal_shows_in_the_tree(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    catalog.journal.write_bytes(b"")
    (finding,) = damages_of(catalog.data_directory)
    assert (finding.check, finding.path) == ("tree", catalog.topic(0, 0))
    assert "whose end is lost" in finding.reason
    with pytest.raises(StartRefused):
        catalog.open()


def planted(tmp_path: Path, *pieces: bytes) -> Catalog:
    """A closed catalog without a snapshot, whose journal is these bytes."""
    catalog = Catalog(tmp_path / "data")
    catalog.close()
    catalog.journal.write_bytes(b"".join(pieces))
    return catalog


USERS: list[c.AnyChange] = [c.UserCreation(f"user {number}", PASSWORD_HASH) for number in range(4)]


def test_faults_between_entries_are_damage_and_a_repetition_is_a_note(tmp_path: Path) -> None:
    (_, zero), (_, one), (_, two), (_, three) = chain_of(USERS)
    (_, _), (_, other) = chain_of([USERS[0], USERS[3]])
    for pieces, word in (
        ((zero, two, three), "gap: op 1 is missing"),
        ((one, two), "gap: op 0 is missing"),
        ((zero, one, other), "conflicting duplicate"),
        ((zero, other, two), "broken chain"),
        ((zero, b"junk", one), "good entries follow"),
    ):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        catalog = planted(tmp_path, *pieces)
        (finding,) = damages_of(catalog.data_directory)
        assert (finding.path, word in finding.reason) == (catalog.journal, True), (word, finding)
    shutil.rmtree(tmp_path / "data")
    catalog = planted(tmp_path, zero, one, one, two)
    assert only_finding(catalog.data_directory).severity is Severity.NOTE


def test_the_link_to_the_snapshot_is_checked(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    snapshot = read_snapshot(LocalFileSystem(), catalog.snapshot)
    assert snapshot is not None
    mark = type(snapshot.mark)(snapshot.mark.op, bytes(16))
    catalog.snapshot.write_bytes(encode_snapshot(Snapshot(mark, snapshot.state_hash, 1, snapshot.body)))
    assert "broken chain" in damages_of(catalog.data_directory)[0].reason


def test_a_state_without_its_hash_is_damage(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    snapshot = read_snapshot(LocalFileSystem(), catalog.snapshot)
    assert snapshot is not None
    catalog.snapshot.write_bytes(encode_snapshot(Snapshot(snapshot.mark, bytes(16), 1, snapshot.body)))
    assert "hash" in damages_of(catalog.data_directory)[0].reason
    catalog.snapshot.write_bytes(encode_snapshot(Snapshot(snapshot.mark, bytes(16), 1, b"\x93")))
    assert "not a catalog state" in damages_of(catalog.data_directory)[0].reason


def test_a_command_that_the_rules_forbid_is_a_warning(tmp_path: Path) -> None:
    entries = chain_of([USERS[0], USERS[0]])
    catalog = planted(tmp_path, *(data for _, data in entries))
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, "op 1 has no effect" in finding.reason) == (Severity.WARNING, True)


def test_more_entries_than_slots_are_a_warning(tmp_path: Path) -> None:
    entries = chain_of([USERS[0], *(c.PasswordChange(0, PASSWORD_HASH) for _ in range(1024))])
    catalog = planted(tmp_path, *(data for _, data in entries))
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, "1025 entries" in finding.reason) == (Severity.WARNING, True)


def test_missing_metadata_files(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    journal = catalog.journal.read_bytes()
    catalog.journal.unlink()
    (finding,) = damages_of(catalog.data_directory)
    assert (finding.path, finding.check) == (catalog.journal, "journal")
    catalog.journal.write_bytes(journal)
    catalog.snapshot.unlink()
    assert "op 0 is missing" in damages_of(catalog.data_directory)[0].reason
    shutil.rmtree(catalog.journal.parent)
    (finding,) = damages_of(catalog.data_directory)
    assert (finding.path, "descriptors exist" in finding.reason) == (catalog.journal.parent, True)
    for path in catalog.data_directory.rglob("descriptor"):
        path.unlink()
    findings = findings_of(catalog.data_directory)
    assert {finding.severity for finding in findings} == {Severity.WARNING}


# --- the tree ---


def test_an_absent_or_stale_descriptor_is_a_warning(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    path = catalog.topic(0, 0) / "descriptor"
    good = path.read_bytes()
    path.unlink()
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, finding.path, "missing" in finding.reason) == (Severity.WARNING, path, True)
    descriptor = decode_descriptor(good, path)
    assert not hasattr(descriptor, "name")
    descriptor.topic.name = "an older name"
    path.write_bytes(encode_descriptor(descriptor))
    path.chmod(0o600)
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, finding.path, "stale" in finding.reason) == (Severity.WARNING, path, True)


def test_a_damaged_or_foreign_descriptor_is_damage_that_a_start_repairs(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    path = catalog.stream(0) / "descriptor"
    good = path.read_bytes()
    for position in range(len(good)):
        flip(path, position)
        finding = only_finding(catalog.data_directory)
        assert (finding.severity, finding.path) == (Severity.DAMAGE, path)
        assert "the next start rewrites it" in finding.reason
        path.write_bytes(good)
    shutil.copy(catalog.stream(8) / "descriptor", path)
    assert "another stream or topic" in only_finding(catalog.data_directory).reason
    catalog.open()
    catalog.close()
    assert findings_of(catalog.data_directory) == []


def test_the_last_command_may_be_unfinished_after_a_kill_but_not_after_a_clean_stop(tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    catalog.open()
    catalog.opened.store.submit(c.TopicCreation(0, "late", b"L" * 16, 1, TopicOptions()))
    assert {finding.severity for finding in findings_of(catalog.data_directory)} == {Severity.NOTE}
    catalog.close()
    severities = {finding.check: finding.severity for finding in findings_of(catalog.data_directory)}
    assert severities == {"descriptors": Severity.WARNING, "tree": Severity.DAMAGE}
    mark_running(catalog.data_directory)
    catalog.open()
    assert findings_of(catalog.data_directory) == []


def test_a_missing_partition_is_lost(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    path = catalog.partition(0, 0, "1-2")
    shutil.rmtree(path)
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, finding.path, "lost" in finding.reason) == (Severity.DAMAGE, path, True)
    path.mkdir(0o700)
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, finding.path, "lost" in finding.reason) == (Severity.DAMAGE, path, True)


def test_unknown_directories_are_notes_unless_only_a_later_command_explains_them(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    known = [catalog.partition(0, 0, "9-1"), catalog.stream(0) / "topics" / "5", catalog.stream(7)]
    later = [catalog.partition(0, 0, "9-1000"), catalog.topic(0, 99), catalog.stream(50)]
    for path in (*known, *later):
        path.mkdir(0o700)
    findings = findings_of(catalog.data_directory)
    notes = {finding.path for finding in findings if finding.severity is Severity.NOTE}
    damages = {finding.path for finding in findings if finding.severity is Severity.DAMAGE}
    assert (notes, damages) == (set(known), set(later))


def test_a_ledger_of_another_partition_is_damage(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    path = catalog.partition(0, 0, "1-2")
    shutil.rmtree(path)
    identity = PartitionIdentity(b"T" * 16, 1, 3)
    PartitionLog.create(LocalFileSystem(), path, identity, below=catalog.data_directory)
    finding = only_finding(catalog.data_directory)
    assert (finding.severity, finding.path) == (Severity.DAMAGE, path)
    assert "it contains the ledger of partition" in finding.reason
    assert "the metadata expects" in finding.reason


def test_a_removal_that_was_interrupted_is_no_damage(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data", is_closed=False)
    catalog.opened.store.submit(c.TopicDeletion(8, 0))
    (ledger,) = catalog.topic(8, 0).rglob("ledger")
    flip(ledger, 100)
    assert {finding.severity for finding in findings_of(catalog.data_directory)} == {Severity.NOTE}


def test_damaged_descriptors_are_reported_without_metadata_too(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    flip(catalog.snapshot, 200)
    path = catalog.topic(0, 0) / "descriptor"
    flip(path, 50)
    (catalog.stream(8) / "descriptor").unlink()
    findings = {finding.path: finding.severity for finding in findings_of(catalog.data_directory)}
    assert findings == {
        catalog.snapshot: Severity.DAMAGE,
        path: Severity.DAMAGE,
        catalog.stream(8) / "descriptor": Severity.WARNING,
    }


# --- modes ---


def test_modes_that_let_others_in_are_warnings(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    catalog.snapshot.chmod(0o640)
    (catalog.stream(0) / "descriptor").chmod(0o604)
    (catalog.topic(0, 0) / "descriptor").chmod(0o644)
    catalog.data_directory.chmod(0o755)
    findings = {finding.path: finding for finding in findings_of(catalog.data_directory)}
    assert {(finding.severity, finding.check) for finding in findings.values()} == {(Severity.WARNING, "modes")}
    assert findings.keys() == {catalog.data_directory, catalog.snapshot, catalog.stream(0) / "descriptor"}
    assert "mode 0604" in findings[catalog.stream(0) / "descriptor"].reason
    assert "1 more" in findings[catalog.stream(0) / "descriptor"].reason


def test_nothing_is_written(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    flip(catalog.journal, 300)
    flip(catalog.stream(0) / "descriptor", 30)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    findings_of(catalog.data_directory)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_state_is_what_a_start_gives(tmp_path: Path) -> None:
    catalog = busy_catalog(tmp_path / "data")
    verification = Verification(LocalFileSystem(), catalog.data_directory)
    loaded = verification._metadata_check.load()
    assert isinstance(loaded.state, CatalogState)
    assert loaded.state.hash() == catalog.opened.store.state.hash()
    assert loaded.last_op == catalog.opened.store.last_op
