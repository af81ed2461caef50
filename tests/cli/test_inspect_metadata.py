"""``courser inspect journal|snapshot|descriptor``: as a table, as JSON, when it fails, and what is never printed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from courser.catalog import changes as c
from courser.catalog import entities
from courser.inspect.metadata_files import HIDDEN, SECRETS, password_text
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.storage.journal_entries import SnapshotMark, make_entry
from courser.storage.snapshot import Snapshot, encode_snapshot
from tests.cli.inspecting import Run, document, runner
from tests.inspect.catalogs import (
    CANARIES,
    EVERY_COMMAND,
    EVERY_COMMAND_OF_A_SINK,
    HASH,
    PASSWORD_HASH,
    SALT,
    TOKEN_HASH,
    Catalog,
    busy_catalog,
    chain_of,
    small_catalog,
)
from tests.inspect.partitions import cut, flip

PASSWORD_TEXT = "argon2id m=19456,t=2,p=1"


@pytest.fixture
def courser(capsys: pytest.CaptureFixture[str]) -> Run:
    plain = runner(capsys)

    def call(*arguments: object) -> tuple[int, str, str]:
        code, out, errors = plain(*arguments)
        for canary in CANARIES:
            assert canary not in out + errors, "no command ever prints a secret"
        return code, out, errors

    return call


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return busy_catalog(tmp_path / "data")


def planted(path: Path, *pieces: bytes) -> Path:
    path.write_bytes(b"".join(pieces))
    return path


# --- journal ---


def test_journal_as_a_table(courser: Run, catalog: Catalog) -> None:
    code, out, err = courser("inspect", "journal", catalog.journal)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["POSITION", "SIZE", "OP", "TIME", "CHANGE", "CHAIN", "CONTENTS"]
    assert 'name="attic", uuid=' + (b"W" * 16).hex() in lines[1]
    assert "stream creation" in lines[1]
    assert 'token_hash="***"' in lines[3]
    assert PASSWORD_TEXT in lines[4]
    assert all(" ok " in line for line in lines[1:])
    assert "snapshot at op 28" in err
    assert "4 entries, 0 faults" in err


def test_journal_as_json_is_complete(courser: Run, catalog: Catalog) -> None:
    parsed = document(courser, "journal", catalog.journal)
    head, rows, summary = parsed["file"], parsed["rows"], parsed["summary"]
    assert (head["size"], head["snapshot_op"]) == (catalog.journal.stat().st_size, 28)
    assert sum(row["size"] for row in rows) == head["size"]
    assert [row["op"] for row in rows] == [29, 30, 31, 32]
    assert {(row["kind"], row["chain"], row["is_covered"]) for row in rows} == {("change", "ok", False)}
    assert [row["parent"] for row in rows[1:]] == [row["checksum"] for row in rows[:-1]]
    assert rows[0]["fields"] == {"name": "attic", "uuid": (b"W" * 16).hex(), "stream_id": None}
    assert rows[2]["fields"] == {"user_id": 1, "name": "watch", "token_hash": HIDDEN, "expires_at": 0}
    assert rows[3]["fields"] == {"user_id": 1, "password_hash": PASSWORD_TEXT}
    assert summary == {"entry_count": 4, "fault_count": 0, "torn_size": 0, "first_op": 29, "last_op": 32}


def test_every_command_is_shown_with_all_its_fields(courser: Run, tmp_path: Path) -> None:
    every = [*EVERY_COMMAND, c.DirectoryRemoval(("streams/7",)), *EVERY_COMMAND_OF_A_SINK]
    assert {type(command) for command in every} == set(get_args(c.AnyChange))
    path = planted(tmp_path / "any name", *(data for _, data in chain_of(every)))
    rows = document(courser, "journal", path)["rows"]
    assert [row["change_number"] for row in rows] == [c.change_number(command) for command in every]
    assert [list(row["fields"]) for row in rows] == [list(command.__struct_fields__) for command in every]
    assert rows[0]["chain"] == "start"
    assert rows[2]["fields"]["options"]["message_expiry"] == NEVER
    _, out, _ = courser("inspect", "journal", path)
    assert "message_expiry=never" in out
    granted = "everywhere: read_servers; stream 0: poll_messages; stream 0 topic 0: send_messages"
    assert f"permissions=({granted})" in out


def test_a_part_of_a_journal(courser: Run, tmp_path: Path) -> None:
    path = planted(tmp_path / "journal.wal", *(data for _, data in chain_of(list(EVERY_COMMAND))))
    rows = document(courser, "journal", path, "--from-op", 5, "--limit", 3)["rows"]
    assert [row["op"] for row in rows] == [5, 6, 7]
    code, out, _ = courser("inspect", "journal", path, "--limit", 1)
    assert (code, len(out.splitlines())) == (0, 2)
    assert courser("inspect", "journal", path, "--from-op", "-1")[0] == 2


USERS: list[c.AnyChange] = [c.UserCreation(f"user {number}", PASSWORD_HASH) for number in range(4)]


def test_faults_are_shown_in_their_place(courser: Run, tmp_path: Path) -> None:
    (first, zero), (_, one), (_, two), (_, three) = chain_of(USERS)
    (_, _), (_, other) = chain_of([USERS[0], USERS[3]])
    body = c.encode_change(USERS[1])
    _, wrong = make_entry(op=1, timestamp=1, kind=5, parent=first.checksum, body=body)
    _, unknown = make_entry(op=1, timestamp=1, kind=99, parent=first.checksum, body=b"\x91\x63" + TOKEN_HASH)
    path = tmp_path / "journal.wal"
    for pieces, kinds, fault in (
        ((zero, two), ["change", "fault", "change"], "gap"),
        ((zero, b"junk", one), ["change", "fault", "change"], "damage"),
        ((zero, one[:-1] + b"?", two), ["change", "fault", "change"], "damage"),
        ((zero, one, other), ["change", "change", "fault", "change"], "conflicting duplicate"),
        ((zero, one, one, two), ["change", "change", "fault", "change", "change"], "identical duplicate"),
        ((zero, other, two), ["change", "change", "fault", "change"], "broken chain"),
        ((zero, one, two[:-1]), ["change", "change", "fault"], "torn tail"),
        ((zero, one, bytes(300)), ["change", "change", "fault"], "torn tail"),
        ((zero, wrong), ["change", "fault", "change"], "bad change"),
        ((zero, unknown), ["change", "fault", "change"], "bad change"),
        ((one, two, three), ["change", "change", "change"], None),
    ):
        planted(path, *pieces)
        parsed = document(courser, "journal", path)
        faults = [row["fault"] for row in parsed["rows"] if row["kind"] == "fault"]
        assert ([row["kind"] for row in parsed["rows"]], faults) == (kinds, [fault] if fault else [])
        assert parsed["summary"]["fault_count"] == len(faults)
        code, out, _ = courser("inspect", "journal", path)
        assert (code, fault is None or fault in out) == (0, True)
    assert document(courser, "journal", planted(path, one, two))["rows"][0]["chain"] == "unchecked"


def test_a_damaged_stretch_names_the_missing_commands(courser: Run, tmp_path: Path) -> None:
    pieces = [data for _, data in chain_of(USERS)]
    path = planted(tmp_path / "journal.wal", pieces[0], bytes(len(pieces[1] + pieces[2])), pieces[3])
    _, damage, _ = document(courser, "journal", path)["rows"]
    assert (damage["fault"], damage["first_op"], damage["end_op"]) == ("damage", 1, 3)
    assert (damage["position"], damage["end_position"]) == (len(pieces[0]), len(b"".join(pieces[:3])))
    assert "1..2" in courser("inspect", "journal", path)[1]


def test_the_snapshot_beside_a_journal_says_where_it_begins(courser: Run, tmp_path: Path) -> None:
    catalog = small_catalog(tmp_path / "data")
    assert [row["chain"] for row in document(courser, "journal", catalog.journal)["rows"]] == ["ok"] * 3
    data = catalog.journal.read_bytes()
    catalog.open()
    catalog.take_snapshot()
    planted(catalog.journal, data)
    rows = document(courser, "journal", catalog.journal)["rows"]
    assert [(row["chain"], row["is_covered"]) for row in rows] == [("unchecked", True), ("ok", True), ("ok", True)]
    catalog.snapshot.unlink()
    assert "no snapshot" in courser("inspect", "journal", catalog.journal)[2]


# --- snapshot ---


def test_snapshot_as_a_table(courser: Run, catalog: Catalog) -> None:
    code, out, err = courser("inspect", "snapshot", catalog.snapshot)
    assert code == 0
    kinds = [line.split()[0] for line in out.splitlines()[1:]]
    assert kinds == ["stream", "topic", *["partition"] * 3, "group", "user", "user", "token", "ids", "ids"]
    assert "    partition  0/0/2" in out
    assert 'message_expiry=never, segment_size=4096, durability="persisted"' in out
    assert f"active, password {PASSWORD_TEXT}, permissions: everywhere: read_servers; stream 0" in out
    assert "expires 2030-" in out
    assert "header: ok, body: ok, state: ok" in err
    assert "op 28, taken 2023-" in err


def test_snapshot_as_json_is_complete(courser: Run, catalog: Catalog) -> None:
    parsed = document(courser, "snapshot", catalog.snapshot)
    head, rows = parsed["file"], parsed["rows"]
    assert (head["header"], head["body"], head["state"], head["fields"]["op"]) == ("ok", "ok", "ok", 28)
    assert head["size"] == 128 + head["fields"]["body_size"]
    by_kind = {row["kind"]: row for row in rows}
    for entity, kind, elsewhere in (
        (entities.Stream, "stream", {"topics"}),
        (entities.Topic, "topic", {"partitions", "groups"}),
        (entities.Partition, "partition", set()),
        (entities.ConsumerGroup, "group", set()),
        (entities.User, "user", {"tokens"}),
        (entities.Token, "token", {"token_hash"}),
    ):
        assert set(entity.__struct_fields__) - elsewhere <= by_kind[kind].keys()
    assert (by_kind["topic"]["name"], by_kind["topic"]["purge_count"]) == ("sales", 2)
    assert by_kind["topic"]["options"].keys() == set(TopicOptions.__struct_fields__)
    assert by_kind["topic"]["group_ids"] == {"next_id": 2, "holes": []}
    assert by_kind["user"]["password_hash"] == PASSWORD_TEXT
    assert by_kind["user"]["permissions"]["streams"]["0"]["topics"]["0"]["send_messages"] is True
    ids = {row["owner"]: (row["next_id"], row["holes"]) for row in rows if row["kind"] == "used_ids"}
    assert ids == {"streams": (8, [[1, 7]]), "users": (3, [])}
    assert parsed["summary"] == {"row_count": len(rows), "bad_count": 0}


def test_deleted_directories_are_shown(courser: Run, catalog: Catalog) -> None:
    catalog.open()
    catalog.opened.store.submit(c.TopicDeletion(0, 0))
    catalog.take_snapshot()
    (row,) = (row for row in document(courser, "snapshot", catalog.snapshot)["rows"] if "directory" in row)
    assert (row["directory"], row["uuid"]) == ("streams/0/topics/0", (b"T" * 16).hex())
    assert "streams/0/topics/0" in courser("inspect", "snapshot", catalog.snapshot)[1]


def test_a_damaged_snapshot_is_shown_as_such_and_its_state_is_not(courser: Run, catalog: Catalog) -> None:
    good = catalog.snapshot.read_bytes()
    for position in range(len(good)):
        flip(catalog.snapshot, position)
        code, out, _ = courser("inspect", "snapshot", catalog.snapshot, "-o", "json")
        (row,) = json.loads(out)["rows"]
        assert (code, row["kind"], row["position"]) == (0, "bad_record", 0 if position < 128 else 128)
        planted(catalog.snapshot, good)
    flip(catalog.snapshot, 200)
    code, out, err = courser("inspect", "snapshot", catalog.snapshot)
    assert (code, "damage" in out, "body: the body checksum does not match" in err) == (0, True, True)


def test_a_wrong_state_hash_and_a_body_that_is_no_state(courser: Run, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.bin"
    mark = SnapshotMark(1, bytes(16))
    planted(path, encode_snapshot(Snapshot(mark, bytes(16), 1, b"\x91" + TOKEN_HASH)))
    parsed = document(courser, "snapshot", path)
    assert (parsed["file"]["body"], "not a catalog state" in parsed["file"]["state"]) == ("ok", True)
    catalog = small_catalog(tmp_path / "data")
    body = catalog.snapshot.read_bytes()[128:]
    planted(path, encode_snapshot(Snapshot(mark, bytes(16), 1, body)))
    parsed = document(courser, "snapshot", path)
    assert "hash" in parsed["file"]["state"]
    assert [row["kind"] for row in parsed["rows"]] == ["bad_record", "stream", "user", "used_ids", "used_ids"]


# --- descriptor ---


def test_descriptors_as_table_and_json(courser: Run, catalog: Catalog) -> None:
    parsed = document(courser, "descriptor", catalog.stream(0) / "descriptor")
    (row,) = parsed["rows"]
    assert (parsed["file"]["describes"], row["kind"], row["name"]) == ("stream", "stream", "shop")
    assert (row["uuid"], row["topic_ids"]["next_id"]) == ((b"S" * 16).hex(), 6)
    parsed = document(courser, "descriptor", catalog.topic(0, 0) / "descriptor")
    assert (parsed["file"]["describes"], parsed["file"]["stream_uuid"]) == ("topic", (b"S" * 16).hex())
    assert [row["kind"] for row in parsed["rows"]] == ["topic", *["partition"] * 3, "group"]
    code, out, err = courser("inspect", "descriptor", catalog.topic(0, 0) / "descriptor")
    assert (code, "sales" in out, "describes: topic" in err) == (0, True, True)
    code, out, _ = courser("inspect", "descriptor", catalog.stream(0) / "descriptor")
    assert (code, "topic ids used: below 6 but 1..4" in out) == (0, True)


def test_a_damaged_descriptor_is_shown_as_such(courser: Run, catalog: Catalog) -> None:
    path = catalog.topic(0, 0) / "descriptor"
    flip(path, 40)
    parsed = document(courser, "descriptor", path)
    assert (parsed["file"]["describes"], parsed["rows"][0]["kind"]) == ("unknown", "bad_record")
    code, out, _ = courser("inspect", "descriptor", path)
    assert (code, "damage" in out) == (0, True)


def test_names_cannot_steer_the_terminal(courser: Run, tmp_path: Path) -> None:
    command = c.StreamCreation("\x1b[2J\n\u202e", bytes(16))
    path = planted(tmp_path / "journal.wal", *(data for _, data in chain_of([command])))
    _, out, _ = courser("inspect", "journal", path)
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert document(courser, "journal", path)["rows"][0]["fields"]["name"] == command.name


# --- failing ---


@pytest.mark.parametrize("contents", [b"", b"no metadata at all", bytes(5000), bytes(range(256)) * 20])
@pytest.mark.parametrize("command", ["journal", "snapshot", "descriptor"])
def test_any_bytes_are_printed_without_a_traceback(courser: Run, tmp_path: Path, command: str, contents: bytes) -> None:
    path = planted(tmp_path / "file", contents)
    document(courser, command, path)
    assert courser("inspect", command, path)[0] == 0


@pytest.mark.parametrize("command", ["journal", "snapshot", "descriptor"])
def test_a_file_that_is_not_there(courser: Run, tmp_path: Path, command: str) -> None:
    code, out, err = courser("inspect", command, tmp_path / "absent")
    assert (code, out) == (1, "")
    first, last = err.splitlines()
    assert (first.startswith("error: cannot read "), last.startswith("hint:")) == (True, True)
    code, _, err = courser("inspect", command, tmp_path)
    assert (code, "courser inspect verify" in err) == (1, True)


# --- verify ---


def test_verify_with_metadata(courser: Run, catalog: Catalog) -> None:
    parsed = document(courser, "verify", catalog.data_directory)
    assert parsed["findings"] == []
    assert parsed["summary"]["topic_count"] == 2
    cut(catalog.journal, catalog.journal.stat().st_size - 1)
    code, out, _ = courser("inspect", "verify", catalog.data_directory)
    assert (code, "after a clean stop" in out) == (2, True)
    parsed = document(courser, "verify", catalog.data_directory)
    assert [(row["check"], row["severity"]) for row in parsed["findings"]] == [("journal", "damage")]


def test_verify_a_directory_with_nothing_but_metadata(courser: Run, tmp_path: Path) -> None:
    Catalog(tmp_path / "data").close()
    code, out, _ = courser("inspect", "verify", tmp_path / "data")
    assert (code, out) == (0, "")


# --- secrets ---


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_no_secret_is_printed_whatever_is_wrong(courser: Run, catalog: Catalog, output: str) -> None:
    """The fixture looks for the canaries in all that is printed."""
    descriptor = catalog.topic(0, 0) / "descriptor"
    files = {"journal": catalog.journal, "snapshot": catalog.snapshot, "descriptor": descriptor}
    for command, path in files.items():
        good = path.read_bytes()
        assert command == "descriptor" or SALT.encode() in good
        for position in range(0, len(good), 31):
            flip(path, position)
            courser("inspect", command, path, "-o", output)
            if position % 5 == 0:
                courser("inspect", "verify", catalog.data_directory, "-o", output)
            planted(path, good)


def test_a_journal_whose_bodies_are_changed_under_right_checksums_gives_no_secret_away(
    courser: Run, tmp_path: Path
) -> None:
    for command in (c.UserCreation("alice", PASSWORD_HASH), c.TokenCreation(1, "laptop", TOKEN_HASH)):
        body = c.encode_change(command)
        path = tmp_path / "journal.wal"
        for position in range(len(body)):
            for bit in (1, 16, 128):
                changed = bytearray(body)
                changed[position] ^= bit
                entry = make_entry(op=0, timestamp=1, kind=13, parent=bytes(16), body=bytes(changed))
                planted(path, entry[1])
                run_quietly(courser, path)


def test_a_password_in_the_place_of_a_name_is_not_shown(courser: Run, tmp_path: Path) -> None:
    """The header says "password change", the body "stream update", whose name it would be."""
    body = bytearray(c.encode_change(c.PasswordChange(0, PASSWORD_HASH)))
    assert body[1] == 16
    body[1] = 2
    entry = make_entry(op=0, timestamp=1, kind=16, parent=bytes(16), body=bytes(body))
    rows = document(courser, "journal", planted(tmp_path / "journal.wal", entry[1]))["rows"]
    assert [(row["kind"], row.get("fields")) for row in rows] == [("fault", None), ("change", {})]


def run_quietly(courser: Run, path: Path) -> None:
    for output in ("table", "json"):
        assert courser("inspect", "journal", path, "-o", output)[0] == 0


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (PASSWORD_HASH, PASSWORD_TEXT),
        (f"$argon2id$m=8,t=1,p=1${SALT}${HASH}", "argon2id m=8,t=1,p=1"),
        (f"$argon2id$v=19$m=8,t=1,p=1${SALT}${HASH}\n", HIDDEN),
        (f"$argon2id$v=19$m={SALT},t=1,p=1${SALT}${HASH}", HIDDEN),
        (f"$argon2id${SALT}", HIDDEN),
        ("hunter2", HIDDEN),
        ("", HIDDEN),
        (None, HIDDEN),
    ],
)
def test_what_is_shown_of_a_password(stored: str | None, shown: str) -> None:
    assert password_text(stored) == shown


NO_SECRETS = {
    "change": {"name", "nonce", "paths", "sink", "uuid"},
    "entity": {
        "consumer_offset_durability",
        "durability",
        "name",
        "nonce",
        "partition_resize_policy",
        "path",
        "tokens",
        "topic_uuid",
        "uuid",
    },
}
"""Fields of text or bytes that anybody may see. Whoever adds one decides here, or masks it."""


def test_every_field_that_could_be_a_secret_is_masked_or_known_to_be_none() -> None:
    found = {
        "change": set(fields_with_text(get_args(c.AnyChange))),
        "entity": set(fields_with_text([kind for kind in vars(entities).values() if is_structure(kind)])),
    }
    for where, names in found.items():
        assert names - SECRETS.keys() == NO_SECRETS[where]


def is_structure(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def fields_with_text(kinds: Any) -> Iterator[str]:
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            types = str(field.type)
            if "str" in types.replace("Struct", "").replace("StreamPermissions", "") or "bytes" in types:
                yield field.name
