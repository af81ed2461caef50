"""Raw, text and Avro payloads, and the rows of good and bad ones beside the columns of their messages."""

import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from courser.lake.avro_format import AvroFormat, AvroRefused, avro_columns, read_avro_schema
from courser.lake.json_format import JsonFormat
from courser.lake.payloads import RawFormat, TextFormat, bad_rows, decode, rows_with_messages
from courser.lake.schemas import MESSAGE_FIELDS, parse_schema, schema_text
from courser.lake.table_mismatch import SchemaRefused
from courser.lake.topic_schemas import FORMATS, PayloadsOf, format_of, schema_of
from tests.lake.payload_checks import binary, check_both_ways

AT = datetime(2026, 11, 17, 10, tzinfo=UTC)


def avro(folder: Path, *fields: tuple[str, object]) -> str:
    rows = [{"name": name, "type": kind} for name, kind in fields]
    path = folder / "order.avsc"
    path.write_text(json.dumps({"type": "record", "name": "Order", "fields": rows}))
    return read_avro_schema(path)


def datum(schema: str, row: Mapping[str, object]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, json.loads(schema), row)
    return written.getvalue()


def test_raw_payloads_are_rows_as_they_are() -> None:
    assert decode(RawFormat(), binary([b"", b"\xff", None])).rows.to_pylist() == [
        {"payload": b""},
        {"payload": b"\xff"},
        {"payload": b""},
    ]


def test_text_that_is_not_utf_8_is_bad() -> None:
    found = check_both_ways(TextFormat(), [b"a", b"b\xff", "ä".encode(), b""])
    assert found.rows.column("text").to_pylist() == ["a", "ä", ""]
    assert [(bad.index, bad.reason) for bad in found.bad] == [
        (1, "the payload is not UTF-8 text: byte 2 of 2 is wrong")
    ]


def test_avro_data_become_typed_rows(tmp_path: Path) -> None:
    schema = avro(
        tmp_path,
        ("id", "long"),
        ("status", {"type": "enum", "name": "Status", "symbols": ["new", "paid"]}),
        ("price", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}]),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("counts", {"type": "map", "values": "int"}),
    )
    assert schema_text(avro_columns(schema)) == (
        "id BIGINT NOT NULL, status STRING NOT NULL, price DECIMAL(6, 2), at TIMESTAMP NOT NULL, "
        "counts MAP<STRING, INT> NOT NULL"
    )
    row = {"id": 1, "status": "paid", "price": None, "at": AT, "counts": {"a": 1}}
    found = decode(AvroFormat(schema), binary([datum(schema, row)]))
    assert found.rows.to_pylist() == [row | {"counts": [("a", 1)]}]


def test_an_avro_payload_that_is_no_datum_or_has_a_value_that_no_column_holds_is_bad(tmp_path: Path) -> None:
    schema = avro(tmp_path, ("number", "int"), ("name", "string"))
    good, wide = datum(schema, {"number": 1, "name": "x"}), b"\x80\x80\x80\x80\x80\x01\x02x"
    found = decode(AvroFormat(schema), binary([good, b"", good + b"x", wide, b"\x02\x02\xff", good]))
    assert found.rows.to_pylist() == [{"number": 1, "name": "x"}] * 2
    assert found.good.to_pylist() == [0, 5]
    reasons = [bad.reason for bad in found.bad]
    assert [bad.index for bad in found.bad] == [1, 2, 3, 4]
    assert reasons[:2] == ["the payload is empty", "the payload has extra bytes after its Avro record"]
    assert reasons[2] == "the field number is 17179869184, which a column of int32 cannot hold"
    assert reasons[3].startswith("the payload does not match the Avro schema: UnicodeDecodeError")


def test_an_avro_union_of_several_types_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AvroRefused, match="union of 2 types"):
        avro_columns(avro(tmp_path, ("a", ["int", "string"])))


# --- beside their messages ----------------------------------------------------------------------------


def messages(count: int) -> pa.Table:
    columns = [
        ["shop/orders"] * count,
        [0] * count,
        list(range(100, 100 + count)),
        [AT] * count,
        [b"k", *[None] * (count - 1)],
    ]
    return pa.table(columns, schema=MESSAGE_FIELDS)


def test_each_row_has_the_columns_of_its_message_at_the_top_level() -> None:
    payloads = binary([b"null", b'{"id": 1}', b"{", b'{"id": 2}'])
    found = decode(JsonFormat(parse_schema("id INT")), payloads)
    rows = rows_with_messages(found, messages(4)).to_pylist()
    own = {"_topic_name": "shop/orders", "_topic_partition": 0, "_topic_timestamp": AT, "_topic_key": None}
    assert rows == [{"id": 1, "_topic_offset": 101} | own, {"id": 2, "_topic_offset": 103} | own]


def test_bad_payloads_keep_their_bytes_offset_and_reason() -> None:
    payloads = binary([b"null", b'{"id": 1}', None])
    found = decode(JsonFormat(parse_schema("id INT")), payloads)
    rows = bad_rows(found, payloads, messages(3).drop_columns(["_topic_key"])).to_pylist()
    own = {"_topic_name": "shop/orders", "_topic_partition": 0, "_topic_timestamp": AT, "_topic_key": None}
    assert rows == [
        own | {"_topic_offset": 100, "payload": b"null", "reason": "the payload is null, not a JSON object"},
        own | {"_topic_offset": 102, "payload": b"", "reason": "the payload is empty"},
    ]


def test_without_bad_payloads_there_are_no_bad_rows() -> None:
    payloads = binary([b'{"id": 1}'])
    found = decode(JsonFormat(parse_schema("id INT")), payloads)
    assert bad_rows(found, payloads, messages(1)).num_rows == 0


# --- where a schema comes from ------------------------------------------------------------------------


def test_every_format_has_a_schema_and_a_decoder(tmp_path: Path) -> None:
    schema = avro(tmp_path, ("id", "long"))
    payload = {"avro": datum(schema, {"id": 7}), "json": b'{"id": 7}', "csv": b"7", "text": b"7", "raw": b"7"}
    values = {"text": "7", "raw": b"7"}
    for name in FORMATS:
        described = PayloadsOf(format=name, schema="id BIGINT", avro_schema=schema)
        columns = schema_of(described, lambda: pytest.fail("the schema is declared"))
        found = decode(format_of(described, columns), binary([payload[name]]))
        assert found.rows.schema.equals(columns)
        assert [list(row.values()) for row in found.rows.to_pylist()] == [[values.get(name, 7)]]


def test_json_without_a_schema_gets_that_of_the_sample() -> None:
    assert schema_text(schema_of(PayloadsOf(format="json"), lambda: [b'{"id": 7}'])) == "id BIGINT"


def test_csv_without_a_schema_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="CSV has no names of columns"):
        schema_of(PayloadsOf(format="csv"), list)
