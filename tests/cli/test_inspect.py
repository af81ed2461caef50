"""Each command of ``courser inspect``: as a table, as JSON, and when it fails."""

import json
from pathlib import Path

import pytest

from courser.records.batch import NewMessage, build_batch
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import DirectoryIdentity
from courser.storage.session_file import SessionRecord
from tests.cli.inspecting import Run, document, runner
from tests.inspect.partitions import (
    IDENTITY,
    PER_BATCH,
    Partition,
    batch_at,
    cut,
    flip,
    full_partition,
    lying_batch,
    payload_of,
    stored,
)


@pytest.fixture
def courser(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return full_partition(tmp_path / "data")


def test_a_key_that_is_none_is_refused(courser: Run, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSER_SYSTEM_ENCRYPTION_KEY", "canary")
    for arguments in (("log", partition.logs[0]), ("verify", partition.directory)):
        code, _, err = courser("inspect", *arguments)
        assert code == 1
        assert "COURSER_SYSTEM_ENCRYPTION_KEY or COURSER_SYSTEM_ENCRYPTION_OLD_KEYS is wrong" in err
        assert "canary" not in err


# --- log ---


def test_log_as_a_table(courser: Run, partition: Partition) -> None:
    code, out, err = courser("inspect", "log", partition.logs[1])
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split()[:5] == ["KIND", "POSITION", "SIZE", "OFFSETS", "COUNT"]
    assert lines[1].split()[:2] == ["batch", "0"]
    assert f"{int(partition.logs[1].stem)}.." in lines[1]
    assert all(line.endswith("ok") for line in lines[1:])
    assert str(IDENTITY) in err


def test_log_as_json_is_complete(courser: Run, partition: Partition) -> None:
    parsed = document(courser, "log", partition.logs[1])
    head, rows, summary = parsed["file"], parsed["rows"], parsed["summary"]
    assert head["size"] == partition.logs[1].stat().st_size
    assert head["identity"] == {"topic_uuid": bytes(range(16)).hex(), "partition_id": 0, "incarnation": 7}
    assert (head["base_offset"], head["base_offset_source"]) == (int(partition.logs[1].stem), "file name")
    assert sum(row["size"] for row in rows) == head["size"]
    assert [row["base_offset"] for row in rows] == [
        head["base_offset"] + number * PER_BATCH for number in range(len(rows))
    ]
    assert {(row["kind"], row["codec"], row["checksums"]) for row in rows} == {("batch", "none", "ok")}
    assert summary["message_count"] == len(rows) * PER_BATCH


def test_messages_of_a_log(courser: Run, partition: Partition) -> None:
    path = partition.logs[0]
    rows = document(courser, "log", path, "--messages", "--from-offset", 4, "--limit", 3)["rows"]
    messages = [row for row in rows if row["kind"] == "message"]
    assert [row["offset"] for row in messages] == [4, 5, 6]
    assert messages[0]["id"] == "00000000-0000-0000-0000-000000000005"
    assert messages[0]["payload"] == payload_of(4).decode()
    assert messages[0]["origin_timestamp"] == 1_700_000_000_000_001
    assert (messages[0]["header_count"], messages[0]["checksum"]) == (1, "ok")
    data = path.read_bytes()
    assert all(data[row["position"] + 48 :].startswith(payload_of(row["offset"])) for row in messages)
    code, out, _ = courser("inspect", "log", path, "--messages", "--payload-size", 9)
    assert code == 0
    assert "message 4..." in out


def test_a_payload_that_is_no_text_is_shown_as_hex_and_cannot_steer_the_terminal(courser: Run, tmp_path: Path) -> None:
    path = tmp_path / "some file"
    payloads = [b"\xff\x00", "gr\u00fc\u00df".encode(), b"\x1b[2J", b"", b"two\nlines"]
    path.write_bytes(stored(build_batch([NewMessage(payload) for payload in payloads]), offset=5, time=1))
    rows = document(courser, "log", path, "--messages")["rows"][1:]
    assert [row["payload"] for row in rows] == ["ff00", "gr\u00fc\u00df", "1b5b324a", "", "two\nlines"]
    _, out, _ = courser("inspect", "log", path, "--messages")
    assert "\x1b" not in out
    assert "two\\nlines" in out


def test_a_log_under_any_name_begins_where_its_first_batch_does(courser: Run, tmp_path: Path) -> None:
    path = tmp_path / "copy.bin"
    path.write_bytes(stored(batch_at(5), offset=5, time=1))
    head = document(courser, "log", path)["file"]
    assert (head["base_offset"], head["base_offset_source"]) == (5, "first batch")


def test_damage_in_a_log_is_shown_in_its_place(courser: Run, partition: Partition) -> None:
    path = partition.logs[0]
    flip(path, 300)
    parsed = document(courser, "log", path)
    damage, *batches = parsed["rows"]
    assert (damage["kind"], damage["position"], damage["end_position"]) == ("damage", 0, batches[0]["position"])
    assert (damage["first_offset"], damage["end_offset"]) == (0, PER_BATCH)
    assert parsed["summary"]["damage_count"] == 1
    code, out, _ = courser("inspect", "log", path)
    assert (code, out.splitlines()[1].split()[0]) == (0, "damage")


def test_a_foreign_batch_a_lying_message_and_zeros_are_shown(courser: Run, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    other = PartitionIdentity(bytes(16), 1, 8)
    pieces = [
        stored(lying_batch(0), offset=0, time=1),
        stored(batch_at(3), offset=3, time=1, identity=other),
        stored(batch_at(6), offset=6, time=1),
        bytes(1000),
    ]
    path.write_bytes(b"".join(pieces))
    lying, foreign, good, zeros = document(courser, "log", path)["rows"]
    assert "sent with a wrong checksum: 1" in lying["checksums"]
    assert "belongs to" in foreign["reason"]
    assert good["checksums"] == "ok"
    assert (zeros["kind"], zeros["end_position"] - zeros["position"]) == ("zero_tail", 1000)


@pytest.mark.parametrize("contents", [b"", b"no log at all", bytes(5000), bytes(range(256)) * 20])
@pytest.mark.parametrize("command", ["log", "index", "ledger", "offsets", "session"])
def test_any_bytes_are_printed_without_a_traceback(courser: Run, tmp_path: Path, command: str, contents: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(contents)
    document(courser, command, path)
    assert courser("inspect", command, path)[0] == 0


def test_a_log_cut_at_every_byte_is_printed(courser: Run, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    whole = stored(batch_at(0), offset=0, time=1)
    for size in range(0, len(whole), 29):
        path.write_bytes(whole + whole[:size])
        code, out, _ = courser("inspect", "log", path, "-o", "json")
        assert (code, len(json.loads(out)["rows"])) == (0, 1 + (size > 0))


# --- index ---


def test_index_as_table_and_json(courser: Run, partition: Partition) -> None:
    path = partition.indexes[0]
    parsed = document(courser, "index", path)
    block, *entries = parsed["rows"]
    assert (block["kind"], block["checksum"], block["interval"]) == ("block", "ok", 256)
    assert block["covered_size"] == partition.logs[0].stat().st_size
    assert len(entries) == block["entry_count"] == parsed["summary"]["entry_count"]
    log = document(courser, "log", partition.logs[0])["rows"]
    assert {entry["batch_position"] for entry in entries} <= {row["position"] for row in log}
    code, out, _ = courser("inspect", "index", path, "--from-offset", 6, "--limit", 2)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["KIND", "block", "entry", "entry"]


def test_an_index_without_its_log_is_shown_unchecked_unless_the_identity_is_given(
    courser: Run, partition: Partition
) -> None:
    partition.logs[0].unlink()
    path = partition.indexes[0]
    code, out, err = courser("inspect", "index", path, "--blocks")
    assert (code, "unchecked" in out, "checksums were not verified" in err) == (0, True, True)
    _, out, _ = courser("inspect", "index", path, "--blocks", "--identity", str(IDENTITY))
    assert " ok " in out
    code, _, err = courser("inspect", "index", path, "--identity", "me")
    assert (code, "hint:" in err) == (2, True)


def test_a_damaged_index_is_shown_as_such(courser: Run, partition: Partition) -> None:
    flip(partition.indexes[0], 100)
    parsed = document(courser, "index", partition.indexes[0])
    assert "does not match" in parsed["rows"][0]["checksum"]
    assert parsed["summary"]["bad_block_count"] == 1


# --- ledger, offsets, session ---


def test_ledger_as_table_and_json(courser: Run, partition: Partition) -> None:
    rows = document(courser, "ledger", partition.ledger)["rows"]
    sealed = [row for row in rows if row["event"] == "sealed"]
    assert [row["details"]["facts"]["base_offset"] for row in sealed] == [
        int(path.stem) for path in partition.logs[:-1]
    ]
    code, out, _ = courser("inspect", "ledger", partition.ledger)
    assert code == 0
    assert len(out.splitlines()) == len(rows) + 1
    flip(partition.ledger, 300)
    bad = document(courser, "ledger", partition.ledger)["rows"][1]
    assert (bad["kind"], bad["position"]) == ("bad_record", 256)


def test_offsets_as_table_and_json(courser: Run, partition: Partition) -> None:
    parsed = document(courser, "offsets", partition.offsets)
    assert (parsed["file"]["epoch"], parsed["file"]["generation"]) == (0, 1)
    assert parsed["file"]["identity"]["partition_id"] == 0
    facts = [(row["consumer"], row["identifier"], row["offset"], row["is_current"]) for row in parsed["rows"]]
    assert facts == [
        ("group", "readers", 5, False),
        ("group", "writers", 7, True),
        ("group", "readers", 9, True),
    ]
    code, out, _ = courser("inspect", "offsets", partition.offsets)
    assert (code, out.splitlines()[-1].split()) == (0, ["128", "group", "readers", "9", "current"])
    flip(partition.offsets, 102)
    assert document(courser, "offsets", partition.offsets)["rows"][1]["kind"] == "bad_record"


def test_session_as_table_and_json(courser: Run, partition: Partition) -> None:
    path = partition.data_directory / "session"
    (row,) = document(courser, "session", path)["rows"]
    assert (row["directory_format"], row["is_clean"]) == (1, True)
    assert row["inode"] == partition.data_directory.stat().st_ino
    path.write_bytes(SessionRecord(1, DirectoryIdentity(bytes(16), 1, 2), is_clean=False).encode())
    assert "running, killed" in courser("inspect", "session", path)[1]
    cut(path, 10)
    assert "damage" in courser("inspect", "session", path)[1]


# --- verify ---


def test_verify_a_healthy_directory(courser: Run, partition: Partition) -> None:
    code, out, err = courser("inspect", "verify", partition.data_directory)
    assert (code, out) == (0, "")
    assert "no damage" in err
    assert "MB/s" in err


def test_verify_a_damaged_directory(courser: Run, partition: Partition) -> None:
    flip(partition.logs[1], 300)
    partition.indexes[0].unlink()
    code, out, err = courser("inspect", "verify", partition.data_directory)
    assert code == 2
    assert {line.split()[0] for line in out.splitlines()[1:]} == {"damage", "warning"}
    assert str(partition.logs[1]) in out
    assert "damage: 1, warnings: 1" in err
    parsed = document(courser, "verify", partition.data_directory)
    assert parsed["directory"]["partition_count"] == 1
    damage = next(row for row in parsed["findings"] if row["severity"] == "damage")
    base = int(partition.logs[1].stem)
    assert (damage["first_offset"], damage["end_offset"], damage["position"]) == (base, base + PER_BATCH, 0)
    assert parsed["summary"]["damage_count"] == 1
    assert parsed["summary"]["megabytes_per_second"] > 0


def test_verify_warnings_alone_are_no_failure(courser: Run, partition: Partition) -> None:
    partition.indexes[0].unlink()
    code, _, err = courser("inspect", "verify", partition.data_directory)
    assert (code, "no damage, warnings: 1" in err) == (0, True)


def test_verify_what_cannot_be_read(courser: Run, partition: Partition) -> None:
    base = int(partition.logs[-1].stem) + 1000
    (partition.directory / f"{base:020d}.log").mkdir()
    assert courser("inspect", "verify", partition.data_directory)[0] == 1


# --- failing ---


@pytest.mark.parametrize("command", ["log", "index", "ledger", "offsets", "session", "verify"])
def test_a_file_that_is_not_there(courser: Run, tmp_path: Path, command: str) -> None:
    code, out, err = courser("inspect", command, tmp_path / "absent")
    assert (code, out) == (1, "")
    first, last = err.splitlines()
    assert first.startswith("error: cannot read ")
    assert last.startswith("hint:")


def test_a_directory_instead_of_a_file_and_the_other_way_round(courser: Run, partition: Partition) -> None:
    code, _, err = courser("inspect", "log", partition.directory)
    assert (code, "courser inspect verify" in err) == (1, True)
    code, _, err = courser("inspect", "verify", partition.logs[0])
    assert (code, "courser inspect log" in err) == (1, True)


def test_a_directory_without_partitions(courser: Run, tmp_path: Path) -> None:
    code, _, err = courser("inspect", "verify", tmp_path)
    assert (code, "no partition" in err, "hint:" in err) == (1, True, True)


def test_a_symbolic_link_that_the_user_names_is_followed(courser: Run, partition: Partition, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(partition.logs[0])
    assert courser("inspect", "log", link)[0] == 0
