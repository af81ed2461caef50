"""The feed of metadata changes in the protocol of SDK 0.10: the request, the page, and the positions in both.

What records and items say is derived from their fields (``layouts``); the options of streams, topics and users follow.
"""

from collections.abc import Mapping
from struct import Struct

from msgspec import UNSET

from courser.api import metadata_changes as f
from courser.api.commands import GetMetadataChanges
from courser.api.metadata_changes import ChangeGroup, ChangesStart
from courser.wire.layouts import layout_of
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_records import OPTIONS_OF_STREAM, OPTIONS_OF_USER, write_options_of_topic
from courser.wire.writing import text8, u32

CURSOR_SIZE = 44
_NO_CURSOR = bytes(CURSOR_SIZE)
_NO_CHECKSUM = bytes(16)
_READABLE = b"\0"
"""Before the options of a resource: they are not of a later release."""

_PAGE = Struct(
    "<"
    "B"  # status
    "B"  # phase: 1 for the present state
    "B"  # has_log_id
    "16s"  # log_id
    "Q"  # oldest_op
    "Q"  # retained_since
    "Q"  # head_op
)
_RECORD = Struct(
    "<"
    "Q"  # op
    "I"  # ordinal
    "16s"  # checksum
    "Q"  # timestamp
    "B"  # has_actor: never
    "B"  # group
    "B"  # kind
    "I"  # size of the body
)
_ITEM = Struct("<BI")
"""group, size of the body"""
_U16 = Struct("<H")

_cursor, _token_head, _body = layout_of(f.Cursor), layout_of(f.PageToken), layout_of(f.ChangeBody)
_KEY_SIZES: Mapping[int, int] = {1: 1, 2: 2, 3: 2, 4: 3, 5: 4, 6: 1, 8: 2}
"""How many numbers are in the key of an item, by group. A token has a number and a name."""


# --- positions ----------------------------------------------------------------------------------------


def read_cursor(reader: Reader) -> f.Cursor:
    """A position. Raises ``Malformed``."""
    cursor = _cursor.read(reader)
    if not cursor.op and (cursor.checksum != _NO_CHECKSUM or cursor.ordinal):
        raise Malformed("a position before the first change has a checksum or an ordinal")
    return cursor


def write_cursor(cursor: f.Cursor) -> bytes:
    return _cursor.write(cursor)


def read_page_token(data: memoryview) -> f.PageToken:
    """Where to continue. Raises ``Malformed``."""
    reader = Reader(data)
    anchor = read_cursor(reader)
    head, groups, group = reader.u64(), reader.u8(), reader.u8()
    size = reader.u16()
    if size != reader.remaining:
        raise Malformed(f"the key of a page token has {reader.remaining} bytes instead of {size}")
    key: f.ItemKey
    if group == ChangeGroup.PERSONAL_ACCESS_TOKENS:
        key = (reader.u32(), reader.name())
    elif group in _KEY_SIZES:
        key = tuple(reader.u32() for _ in range(_KEY_SIZES[group]))
    else:
        raise Malformed(f"unknown group {group} in a page token")
    if reader.remaining or not ChangeGroup(group).bit & groups or head < anchor.op:
        raise Malformed("a page token contradicts itself")
    return f.PageToken(anchor, head, groups, group, key)


def write_page_token(token: f.PageToken) -> bytes:
    key = b"".join(text8(part) if isinstance(part, str) else u32(part) for part in token.key)
    return _token_head.write(token) + _U16.pack(len(key)) + key


# --- the request --------------------------------------------------------------------------------------


def read_request(reader: Reader) -> GetMetadataChanges:
    """Decode a request. Raises ``Malformed``."""
    start = reader.u8()
    if start not in tuple(ChangesStart):
        raise Malformed(f"unknown start {start}")
    start = ChangesStart(start)
    is_after = start is ChangesStart.AFTER
    cursor = reader.take(CURSOR_SIZE)
    since = reader.u64() if reader.is_present() else None
    until = reader.u64() if reader.is_present() else None
    limit = reader.u32()
    groups = groups_of(bytes(reader.take(reader.u8())))
    token = reader.take(reader.u16())
    if reader.remaining or (token and start is not ChangesStart.CURRENT) or (not is_after and cursor != _NO_CURSOR):
        raise Malformed("it has a position that does not belong to its start, or bytes too many")
    return GetMetadataChanges(
        start,
        read_cursor(Reader(cursor)) if is_after else None,
        since,
        until,
        limit,
        groups,
        read_page_token(token) if token else None,
    )


def groups_of(numbers: bytes) -> int:
    """A set of groups; all if none is named. Raises ``Malformed``."""
    groups = 0
    for number in numbers:
        if number not in tuple(ChangeGroup):
            raise Malformed(f"unknown group {number}")
        groups |= ChangeGroup(number).bit
    return groups or f.ALL_GROUPS


# --- the page -----------------------------------------------------------------------------------------


def _write_body(group: ChangeGroup, body: f.ChangeBody) -> bytes:
    values = [(field, getattr(body, name)) for name, field in zip(_body.names, _body.fields, strict=True)]
    said = b"".join([field.write(value, 0) for field, value in values if value is not UNSET])
    if body.options is UNSET:
        return said
    if body.options is None:
        return said + _READABLE + (OPTIONS_OF_STREAM if group is ChangeGroup.STREAMS else OPTIONS_OF_USER)
    return said + _READABLE + write_options_of_topic(body.options, body.effective or body.options)


def write_record(record: f.ChangeRecord) -> bytes:
    group, body = record.kind.group, _write_body(record.kind.group, record.body)
    return _RECORD.pack(record.op, 0, record.checksum, record.timestamp, 0, group, record.kind, len(body)) + body


def write_item(item: f.ChangeItem) -> bytes:
    body = _write_body(item.group, item.body)
    return _ITEM.pack(item.group, len(body)) + body


def write_page(page: f.MetadataChanges) -> bytes:
    """The body of the reply."""
    head = _PAGE.pack(page.status, page.is_current, 1, page.log_id, page.oldest_op, page.retained_since, page.head_op)
    token = b"" if page.page_token is None else write_page_token(page.page_token)
    return b"".join(
        (
            head,
            b"\0" if page.next is None else b"\1" + write_cursor(page.next),
            bytes((page.has_more,)),
            u32(len(page.records)),
            *map(write_record, page.records),
            u32(len(page.items)),
            *map(write_item, page.items),
            _U16.pack(len(token)),
            token,
        )
    )
