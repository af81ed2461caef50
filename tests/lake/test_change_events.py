"""Debezium's events as rows with an operation, and what is left of a batch by key."""

import json
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from courser.lake.change_events import Changes, EnvelopeDecoder, latest_by_key
from courser.lake.schemas import parse_schema
from courser.lake.table_mismatch import SchemaRefused
from tests.lake.payload_checks import binary

SCHEMA = parse_schema("id BIGINT NOT NULL, name STRING NOT NULL, tags ARRAY<STRUCT<a: INT NOT NULL>>")
ROW = {"id": 1, "name": "x", "tags": [{"a": 1}]}
WHOLE = "a whole number from -9223372036854775808 to 9223372036854775807"


def decoded(*events: object) -> Changes:
    payloads = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return EnvelopeDecoder(SCHEMA, ["id"]).decode(binary(payloads))


@pytest.mark.parametrize(
    ("event", "operation", "row"),
    [
        ({"before": None, "after": ROW, "op": "c", "source": {"table": "t"}, "ts_ms": 1}, "insert", ROW),
        ({"after": ROW, "op": "r"}, "insert", ROW),
        ({"before": {"id": 1}, "after": ROW, "op": "u"}, "update", ROW),
        ({"before": {"id": 1}, "after": None, "op": "d"}, "delete", {"id": 1, "name": None, "tags": None}),
        ({"before": ROW, "op": "d"}, "delete", ROW),
        ({"schema": {"type": "struct"}, "payload": {"after": ROW, "op": "c"}}, "insert", ROW),
    ],
)
def test_an_event_is_a_row_and_an_operation(event: object, operation: str, row: object) -> None:
    found = decoded(event)
    assert found.rows.to_pylist() == [row]
    assert found.operations.to_pylist() == [operation]
    assert not found.bad


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"null", "the payload is null, not a JSON object"),
        ({"id": 1}, "the payload has none of the columns before, after, op, payload"),
        ({"op": "t"}, "the field op is t: it empties the whole table"),
        ({"op": "m"}, "the field op is m: it is a message, not a row"),
        ({"op": "x", "after": ROW}, "the field op is x: it must be c, r, u or d"),
        ({"after": ROW}, "the field op is missing: it must be c, r, u or d"),
        ({"op": "u", "before": ROW}, "the field after is missing, but an event with op u needs it"),
        ({"op": "d", "before": {"name": "x"}}, "the field before has no value for the key id"),
        ({"op": "d"}, "the field before has no value for the key id"),
        ({"op": "c", "after": ROW | {"id": "1"}}, f'the field after.id is "1", but must be {WHOLE}'),
        ({"op": "c", "after": {"id": 1}}, "the field after.name is missing, but the schema requires it"),
    ],
)
def test_an_event_that_cannot_be_applied_is_bad(event: object, reason: str) -> None:
    assert [bad.reason for bad in decoded(event).bad] == [reason]


def test_each_payload_is_a_row_or_bad_or_a_tombstone() -> None:
    delete = {"before": {"id": 1}, "op": "d"}
    found = decoded({"after": ROW, "op": "c"}, b"5", delete, b"", {"payload": delete}, {"op": "t"})
    assert found.good.to_pylist() == [0, 2, 4]
    assert [bad.index for bad in found.bad] == [1, 5]
    assert found.tombstones.to_pylist() == [3]
    assert found.operations.to_pylist() == ["insert", "delete", "delete"]


def test_no_events_are_no_rows() -> None:
    assert decoded().rows.num_rows == 0
    assert decoded(b"").tombstones.to_pylist() == [0]


@pytest.mark.parametrize(
    ("key", "reason"),
    [([], "no columns"), (["other"], "not a column"), (["tags"], "cannot be a key"), (["score"], "cannot be a key")],
)
def test_a_key_that_identifies_nothing_is_refused(key: list[str], reason: str) -> None:
    with pytest.raises(SchemaRefused, match=reason):
        EnvelopeDecoder(parse_schema("id INT, tags ARRAY<INT>, score DOUBLE"), key)


# --- the latest by key --------------------------------------------------------------------------------


def test_the_latest_row_of_each_key_counts() -> None:
    keys = [pa.array(["a", "b", "a", "b", None]), pa.array([1, 1, 1, 2, 1])]
    found = latest_by_key(keys, pa.array([5, 6, 7, 8, 9]), pa.array([False, False, True, False, False]))
    assert (found.upserts.to_pylist(), found.deletes.to_pylist(), found.keyless.to_pylist()) == ([1, 3], [2], [4])


ROWS = st.lists(st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), st.integers(0, 9), st.booleans()), max_size=30)


@given(ROWS)
def test_a_batch_by_key_is_what_applying_its_rows_in_order_leaves(rows: list[tuple[bytes | None, int, bool]]) -> None:
    expected: dict[bytes, int] = {}
    for place in sorted(range(len(rows)), key=lambda place: rows[place][1]):
        key = rows[place][0]
        if key is not None:
            expected[key] = place
    columns: Any = list(zip(*rows, strict=True)) or [(), (), ()]
    found = latest_by_key(
        [pa.array(columns[0], pa.binary())], pa.array(columns[1], pa.int64()), pa.array(columns[2], pa.bool_())
    )
    assert found.upserts.to_pylist() == sorted(place for place in expected.values() if not rows[place][2])
    assert found.deletes.to_pylist() == sorted(place for place in expected.values() if rows[place][2])
    assert found.keyless.to_pylist() == [place for place, row in enumerate(rows) if row[0] is None]
