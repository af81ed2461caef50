"""The feed of metadata changes as SDK 0.10 has it on the wire and over HTTP: the vectors that come with that SDK.

Left out of ``metadata_changes.jsonl`` is what Courser has not: members, sessions, and the statuses of a cluster.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from courser.api import metadata_changes as f
from courser.api.commands import GetMetadataChanges
from courser.api.metadata_changes import ChangeBody, ChangeGroup, ChangeKind, ChangesStart, ChangesStatus
from courser.catalog.change_feed import ChangeFeed
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.permissions import Permissions
from courser.model.topic_options import TopicOptions
from courser.wire.reading import Malformed, Reader
from courser.wire.rest_changes import item_to_json, page_to_json, read_changes_query, record_to_json
from courser.wire.rest_fields import JSON_KINDS
from courser.wire.vsr_changes import read_request, write_item, write_page, write_page_token, write_record
from tests.wire.vsr_0_12 import Client12

VECTORS = [json.loads(line) for line in Path(__file__).with_name("metadata_changes.jsonl").read_text().splitlines()]
REASONS = {"updated": 0, "resource_deleted": 1, "deleted": 0, "expired": 1}
WITH_DEFERRAL = ("deleted", "partitions_changed", "consumer_group_deleted")


def vectors(section: str, *what: str) -> list[Any]:
    found = [row for row in VECTORS if row["section"] == section and (not what or row["what"] in what)]
    assert found
    return [pytest.param(row, id=f"{row.get('what', '')}-{row['case']}") for row in found]


def u128(text: str) -> bytes:
    return bytes.fromhex(text)[::-1]


def body_of(expected: dict[str, Any]) -> ChangeBody:
    """What a record says, without options."""
    fields = {name: value for name, value in expected.items() if name in ChangeBody.__struct_fields__}
    fields.pop("options", None)
    if "removed_partition_ids" in fields:
        fields["removed_partition_ids"] = tuple(fields["removed_partition_ids"])
    if "status" in fields:
        fields["status"] = fields["status"] == "active"
    if "reason" in fields:
        fields["reason"] = REASONS[fields["reason"]]
    if "permissions" in fields:
        json_type, convert, _ = JSON_KINDS[Permissions]
        fields["permissions"] = convert(msgspec.convert(fields["permissions"], json_type, strict=False))
    kind, group = expected.get("kind", ""), expected["group"]
    if (group in ("streams", "topics", "consumer_groups") and kind.endswith("deleted")) or kind == "partitions_changed":
        fields.setdefault("requested_op", None)
    if group == "personal_access_tokens" and not kind.endswith("deleted"):
        fields.setdefault("expiry", 0)
    return ChangeBody(**fields)


def without_options(expected: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in expected.items() if not name.startswith(("options", "actor"))}


@pytest.mark.parametrize("vector", vectors("records"))
def test_records(vector: dict[str, Any]) -> None:
    expected = vector["expected"]
    has_options = "options" in expected
    kind, body = ChangeKind[expected["kind"].upper()], body_of(expected)
    if expected["group"] == "users" and has_options:
        body = msgspec.structs.replace(body, options=None)
        has_options = False
    record = f.ChangeRecord(expected["op"], u128(expected["checksum"]), expected["timestamp"], kind, body)
    assert without_options(json.loads(msgspec.json.encode(record_to_json(record)))) == without_options(expected)
    # Who made a change is not known: the byte that says so is 0, and the number is left out.
    data = bytes.fromhex(vector["record_hex"])
    end = 37 + 4 * data[36]
    wanted = data[:36] + b"\0" + data[end:]
    written = write_record(record)
    if not has_options:
        assert written == wanted
        return
    # Those of the vectors are not ours.
    assert (written[:39], written[43:]) == (wanted[:39], wanted[43 : len(written)])
    assert wanted[len(written)] in (0, 1)


@pytest.mark.parametrize("vector", vectors("items"))
def test_items(vector: dict[str, Any]) -> None:
    expected = vector["expected"]
    body = body_of(expected)
    item = f.ChangeItem(ChangeGroup[expected["group"].upper()], body)
    assert without_options(json.loads(msgspec.json.encode(item_to_json(item)))) == without_options(expected)
    written, wanted = write_item(item), bytes.fromhex(vector["item_hex"])
    assert (written[0], written[5:]) == (wanted[0], wanted[5 : len(written)])
    assert int.from_bytes(written[1:5], "little") == len(written) - 5


def test_the_options_of_a_topic_follow_what_is_said_of_it() -> None:
    """The explicit option of the vector "topic", and the defaults of Courser."""
    (vector,) = [row for row in VECTORS if row["section"] == "items" and row["case"] == "topic"]
    options = TopicOptions(message_expiry=604_800_000_000)
    body = msgspec.structs.replace(body_of(vector["expected"]), options=options, effective=options)
    written, wanted = write_item(f.ChangeItem(ChangeGroup.TOPICS, body)), bytes.fromhex(vector["item_hex"])
    end = wanted.index(b"\x1e\0\0\0\x02\x0c\0\0\0segment_size")
    assert written[5:end] == wanted[5:end]
    assert b"partition_resize_policy" in written[end:]
    shown = item_to_json(f.ChangeItem(ChangeGroup.TOPICS, body))["options"]
    assert msgspec.to_builtins(shown["message_expiry"]) == vector["expected"]["options"]["message_expiry"]


@pytest.mark.parametrize("vector", vectors("cursors"))
def test_positions(vector: dict[str, Any]) -> None:
    command = read_changes_query({"after": vector["text"]})
    wanted = f.Cursor(u128(vector["log_id"]), vector["op"], u128(vector["checksum"]), vector["ordinal"])
    assert (command.start, command.cursor) == (ChangesStart.AFTER, wanted)
    page = f.MetadataChanges(ChangesStatus.OK, False, bytes(16), 1, 0, 0, next=wanted)
    assert page_to_json(page).next == vector["text"]
    assert bytes.fromhex(vector["hex"]) in write_page(page)


@pytest.mark.parametrize("vector", vectors("page_tokens"))
def test_page_tokens(vector: dict[str, Any]) -> None:
    token = read_changes_query({"from": "current", "current_after": vector["text"]}).page_token
    assert token is not None
    assert (token.head, token.groups) == (vector["required_head"], vector["groups_mask"])
    assert ChangeGroup(token.group).name.lower() == vector["group"]
    assert write_page_token(token).hex() == vector["hex"]
    page = f.MetadataChanges(ChangesStatus.OK, True, bytes(16), 1, 0, 0, page_token=token)
    assert page_to_json(page).current_page_token == vector["text"]
    assert write_page(page).endswith(bytes.fromhex(vector["hex"]))


def command_of(wanted: dict[str, Any]) -> GetMetadataChanges:
    query = {"groups": ",".join(wanted["groups"]), "limit": str(wanted["limit"])}
    query |= {"after": wanted["cursor"]} if wanted["start"] == "after" else {"from": wanted["start"]}
    query |= {name: str(wanted[name]) for name in ("since", "until") if wanted[name] is not None}
    if wanted["page_token"] is not None:
        query["current_after"] = wanted["page_token"]
    return read_changes_query(query)


@pytest.mark.parametrize("vector", vectors("requests"))
def test_requests(vector: dict[str, Any]) -> None:
    command = command_of(vector["input"])
    assert command.start.name.lower() == vector["input"]["start"]
    assert (command.since, command.until) == (vector["input"]["since"], vector["input"]["until"])
    client = Client12()
    assert client.command(client.read(17, bytes.fromhex(vector["request_hex"]))) == command
    query = dict(pair.split("=") for pair in vector["http_query"].split("&"))
    assert read_changes_query(query) == command


@pytest.mark.parametrize("vector", vectors("responses"))
def test_pages_without_anything(vector: dict[str, Any]) -> None:
    expected = vector["expected"]
    page = f.MetadataChanges(
        ChangesStatus[expected["status"].upper()],
        False,
        u128(expected["log_id"]),
        expected["oldest_op"],
        expected["retained_since"],
        expected["head_op"],
    )
    assert write_page(page).hex() == vector["response_hex"]
    assert msgspec.to_builtins(page_to_json(page)) == expected


def test_a_page_counts_what_it_has() -> None:
    body = ChangeBody(user_id=1, user_created_at=2, name="n", expiry=3)
    record = f.ChangeRecord(4, bytes(16), 5, ChangeKind.PERSONAL_ACCESS_TOKEN_CREATED, body)
    item = f.ChangeItem(ChangeGroup.PERSONAL_ACCESS_TOKENS, body)
    page = f.MetadataChanges(ChangesStatus.OK, False, bytes(16), 1, 0, 4, has_more=True, records=(record, record))
    end = b"\0\1\2\0\0\0" + 2 * write_record(record) + bytes(6)
    assert write_page(page)[43:] == end
    page = msgspec.structs.replace(page, is_current=True, records=(), items=(item,))
    assert write_page(page)[:2] == b"\0\1"
    assert write_page(page)[43:] == b"\0\1" + bytes(4) + b"\1\0\0\0" + write_item(item) + bytes(2)


# --- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", vectors("refused", "cursors", "page_tokens"))
def test_positions_that_are_refused(vector: dict[str, Any]) -> None:
    start = {"after": vector["text"]} if vector["what"] == "cursors" else {"from": "current"}
    with pytest.raises(CommandRejected) as refused:
        read_changes_query(start | ({} if "after" in start else {"current_after": vector["text"]}))
    assert refused.value.code is ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize("vector", vectors("refused", "requests"))
def test_requests_that_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read_request(Reader(memoryview(bytes.fromhex(vector["hex"]))))


@pytest.mark.parametrize("vector", vectors("refused", "queries"))
def test_commands_that_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(CommandRejected) as refused:
        ChangeFeed().read(CatalogState(), command_of(vector["input"]))
    assert refused.value.code is ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize("vector", vectors("refused", "http_queries"))
def test_queries_that_are_refused(vector: dict[str, Any]) -> None:
    pairs = [pair.split("=") for pair in vector["query"].split("&")]
    if vector["case"] == "duplicate_key":
        # As everywhere over HTTP here, the last one counts.
        assert read_changes_query(dict(pairs)).start is ChangesStart.LATEST
        return
    with pytest.raises(CommandRejected) as refused:
        read_changes_query(dict(pairs))
    assert refused.value.code is ErrorCode.INVALID_COMMAND


@pytest.mark.parametrize("size", range(64))
def test_a_request_that_ends_too_early_is_refused(size: int) -> None:
    (vector,) = [row for row in VECTORS if row["case"] == "after_cursor_with_time_range"]
    data = bytes.fromhex(vector["request_hex"])
    with pytest.raises(Malformed):
        read_request(Reader(memoryview(data)[:size]))
