"""The feed of metadata changes over HTTP: its query, and its JSON."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET

from courser.api import metadata_changes as f
from courser.api.commands import GetMetadataChanges
from courser.api.metadata_changes import ChangeGroup, ChangeKind, ChangesStart
from courser.errors import CommandRejected, ErrorCode
from courser.model.topic_options import TopicOptions
from courser.wire.reading import Malformed, Reader
from courser.wire.rest_fields import U32_MAX, U64_MAX, number_of, permissions_to_json
from courser.wire.rest_views import options_of_topic
from courser.wire.vsr_changes import (
    CURSOR_SIZE,
    groups_of,
    read_cursor,
    read_page_token,
    write_cursor,
    write_page_token,
)

Value = TypeVar("Value")

_CURSOR, _PAGE_TOKEN = "mc1_", "cs1_"
"""What the texts of positions begin with."""
_KEYS = frozenset({"from", "after", "current_after", "groups", "since", "until", "limit", "consistency"})
_STARTS = {start.name.lower(): start for start in ChangesStart if start is not ChangesStart.AFTER}
_GROUPS = {group.name.lower(): group for group in ChangeGroup}


class MetadataChangesView(msgspec.Struct):
    """A page of the changes of the metadata, or of its present state."""

    status: str
    """ok; expired: changes after the position are no longer known; reset: it is of another history."""
    phase: Literal["changes", "current"]
    log_id: str
    oldest_op: int
    retained_since: int
    head_op: int
    next: str | None
    """Where to continue to read changes: the value of ``after``."""
    has_more: bool
    records: list[dict[str, Any]]
    items: list[dict[str, Any]]
    current_page_token: str | None
    """Where to continue to read the present state: the value of ``current_after``."""


# --- the query ----------------------------------------------------------------------------------------


def read_changes_query(query: Mapping[str, str]) -> GetMetadataChanges:
    """The command of a query. Raises ``CommandRejected``."""
    try:
        return _read_query(query)
    except (Malformed, ValueError) as error:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"invalid query: {error}") from None


def _read_query(query: Mapping[str, str]) -> GetMetadataChanges:
    if not _KEYS.issuperset(query):
        raise ValueError("it has names that are not known")
    after, token = query.get("after"), query.get("current_after")
    if ("from" in query) == (after is not None):
        raise ValueError("it has either from or after")
    start = ChangesStart.AFTER if after is not None else _word(query["from"], _STARTS)
    if token is not None and start is not ChangesStart.CURRENT:
        raise ValueError("current_after without from=current")
    names = query.get("groups", "")
    return GetMetadataChanges(
        start,
        None if after is None else _position(after, _CURSOR, _read_whole_cursor),
        _number(query["since"], U64_MAX) if "since" in query else None,
        _number(query["until"], U64_MAX) if "until" in query else None,
        _number(query.get("limit", str(f.LIMIT_DEFAULT)), U32_MAX),
        groups_of(bytes(_word(name, _GROUPS) for name in names.split(",")) if names else b""),
        None if token is None else _position(token, _PAGE_TOKEN, read_page_token),
    )


def _word(word: str, known: Mapping[str, Value]) -> Value:
    if word not in known:
        raise ValueError(f"{word[:40]!r} is none of {', '.join(known)}")
    return known[word]


def _number(text: str, maximum: int) -> int:
    """A number in its only form: without leading zeros."""
    if text != "0" and text.startswith("0"):
        raise ValueError(f"{text[:40]!r} has leading zeros")
    return number_of(text, maximum)


def _position(text: str, prefix: str, read: Callable[[memoryview], Value]) -> Value:
    """What a text stands for, in its only form: without padding, and without bits that say nothing."""
    data = urlsafe_b64decode(text.removeprefix(prefix) + "==")
    if _text(prefix, data) != text:
        raise ValueError(f"{text[:80]!r} is not a position")
    return read(memoryview(data))


def _read_whole_cursor(data: memoryview) -> f.Cursor:
    if len(data) != CURSOR_SIZE:
        raise ValueError(f"a position has {len(data)} bytes instead of {CURSOR_SIZE}")
    return read_cursor(Reader(data))


def _text(prefix: str, data: bytes) -> str:
    return prefix + urlsafe_b64encode(data).decode().rstrip("=")


# --- the page -----------------------------------------------------------------------------------------

_REASONS = {
    ChangeKind.USER_PERMISSIONS_UPDATED: ("updated", "resource_deleted"),
    ChangeKind.PERSONAL_ACCESS_TOKEN_DELETED: ("deleted", "expired"),
}


def _body_to_json(body: f.ChangeBody) -> dict[str, Any]:
    """What a record or an item says. Numbers that stand for nothing are left out."""
    shown = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    del shown["effective"]
    if shown.get("requested_op", 0) is None:
        del shown["requested_op"]
    if not shown.get("expiry", 1):
        del shown["expiry"]
    if "status" in shown:
        shown["status"] = "active" if body.status else "inactive"
    if "permissions" in shown:
        shown["permissions"] = permissions_to_json(body.permissions)
    if isinstance(body.options, TopicOptions):
        shown["options"] = options_of_topic(body.options, body.effective or body.options)
    elif "options" in shown:
        shown["options"] = {}
    return shown


def record_to_json(record: f.ChangeRecord) -> dict[str, Any]:
    said = _body_to_json(record.body)
    if "reason" in said:
        said["reason"] = _REASONS[record.kind][record.body.reason]
    return {
        "op": record.op,
        "ordinal": 0,
        "checksum": _hexadecimal(record.checksum),
        "timestamp": record.timestamp,
        "group": record.kind.group.name.lower(),
        "kind": record.kind.name.lower(),
        **said,
    }


def item_to_json(item: f.ChangeItem) -> dict[str, Any]:
    return {"group": item.group.name.lower(), **_body_to_json(item.body)}


def page_to_json(page: f.MetadataChanges) -> MetadataChangesView:
    return MetadataChangesView(
        status=page.status.name.lower(),
        phase="current" if page.is_current else "changes",
        log_id=_hexadecimal(page.log_id),
        oldest_op=page.oldest_op,
        retained_since=page.retained_since,
        head_op=page.head_op,
        next=None if page.next is None else _text(_CURSOR, write_cursor(page.next)),
        has_more=page.has_more,
        records=[record_to_json(record) for record in page.records],
        items=[item_to_json(item) for item in page.items],
        current_page_token=None if page.page_token is None else _text(_PAGE_TOKEN, write_page_token(page.page_token)),
    )


def _hexadecimal(number: bytes) -> str:
    """A number of 128 bits: the first byte is the smallest."""
    return number[::-1].hex()
