"""Searches over HTTP: what a query asks for, and the events of the answer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from courser.api.fields import Kind
from courser.api.scans import Hit, ScanDone, ScanEvent, ScanGap, ScanOrder, ScanProgress, ScanRequest, ScanStarted
from courser.api.subscriptions import PayloadForm
from courser.wire.rest_events import encode_event, word_of
from courser.wire.rest_fields import BAD_REQUEST, U32_MAX, U64_MAX, RestRefused, identifier_of
from courser.wire.rest_messages import byte_size_of
from courser.wire.rest_requests import from_query
from courser.wire.subscription_messages import contents_of, exact

_POSITION = re.compile(r"([0-9]{1,10})\.([0-9]{1,20})")
_PAYLOAD_SIZE = 16 * 1024
"""Bytes of a payload that are returned unless the client says how many."""
_FORMS = {form.value: form for form in PayloadForm}
_ORDERS = {order.value: order for order in ScanOrder}


def decode_scan(path: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> tuple[ScanRequest, PayloadForm]:
    """What is wanted, and how payloads are written. Raises ``RestRefused``, or ``CommandRejected`` for a name."""
    query = dict(pairs)
    partition_ids = tuple(from_query({name: value}, name, Kind.U32) for name, value in pairs if name == "partition_id")
    request = ScanRequest(
        stream=identifier_of(path["stream"]),
        topic=identifier_of(path["topic"]),
        partition_ids=tuple(dict.fromkeys(partition_ids)) or None,
        conditions=tuple(value for name, value in pairs if name == "filter"),
        order=word_of(query, "order", _ORDERS, ScanOrder.NEWEST.value),
        first_offset=from_query(query, "first_offset", Kind.U64, "0"),
        end_offset=_optional(query, "end_offset"),
        first_time=from_query(query, "first_time", Kind.U64, "0"),
        end_time=_optional(query, "end_time"),
        count=from_query(query, "count", Kind.U32, "100"),
        payload_size_max=byte_size_of(query, "payload_bytes", _PAYLOAD_SIZE),
        positions=_positions(query.get("positions", "")),
    )
    return request, word_of(query, "payload", _FORMS, PayloadForm.BASE64.value)


def _optional(query: Mapping[str, str], name: str) -> int | None:
    return None if name not in query else int(from_query(query, name, Kind.U64))


def _positions(text: str) -> dict[int, int]:
    positions = {}
    for part in text.split("~") if text else ():
        match = _POSITION.fullmatch(part)
        if match is None or int(match[1]) > U32_MAX or int(match[2]) > U64_MAX:
            raise RestRefused(BAD_REQUEST, f"invalid query: positions: {part[:40]!r} is not a partition and an offset")
        positions[int(match[1])] = int(match[2])
    return positions


# --- events -------------------------------------------------------------------------------------------


def encode_scan_event(event: ScanEvent, form: PayloadForm) -> bytes:
    match event:
        case ScanStarted():
            rows = [
                _range(row.first_offset, row.end_offset) | {"partition_id": row.partition_id} for row in event.bounds
            ]
            return _event("started", {"partitions": rows, "total_count": event.message_count})
        case Hit():
            return _event("message", _hit(event, form))
        case ScanGap():
            place = {"partition_id": event.partition_id, "reason": event.gap.reason}
            return _event("gap", place | _range(event.gap.first_offset, event.gap.end_offset))
        case ScanProgress():
            return _event("progress", _progress(event))
        case ScanDone():
            return _event("done", _progress(event.progress) | {"is_complete": event.is_complete})


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return encode_event(kind, msgspec.json.encode(fields))


def _range(first_offset: int, end_offset: int) -> dict[str, Any]:
    return {"first_offset": exact(first_offset), "end_offset": exact(end_offset)}


def _hit(hit: Hit, form: PayloadForm) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "partition_id": hit.partition_id,
        "offset": exact(hit.offset),
        "id": str(hit.message_id),
        "timestamp": exact(hit.timestamp),
        "origin_timestamp": exact(hit.origin_timestamp),
        "payload_size": hit.payload_size,
    }
    return fields | contents_of(memoryview(hit.payload), memoryview(hit.headers), form)


def _progress(progress: ScanProgress) -> dict[str, Any]:
    return {
        "scanned_count": progress.scanned_count,
        "scanned_bytes": progress.scanned_size,
        "found_count": progress.found_count,
        "undecoded_count": progress.undecoded_count,
        "positions": "~".join(f"{partition_id}.{offset}" for partition_id, offset in progress.positions.items()),
    }
