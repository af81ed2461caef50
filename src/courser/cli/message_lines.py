"""Messages as records: what ``tail -o jsonl`` writes, and ``send -i jsonl`` reads.

A line keeps the payload, the key, the headers with their kinds, the id and the creation time of a message.
"""

from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

import click
import msgspec

from courser.cli.fields import Record, fields
from courser.cli.payloads import header_bytes, header_values, key_text, shown_payload
from courser.client.messages import Message, SendMessage
from courser.records.message_keys import KEY_HEADER
from courser.records.user_headers import HeaderKind, HeaderValue, UserHeader

MESSAGE_FIELDS = fields(
    "partition_id, offset, timestamp, origin_timestamp, id, key, headers, payload, payload_encoding"
)
_NATURAL_KINDS: Mapping[type, HeaderKind] = {
    str: HeaderKind.STRING,
    bool: HeaderKind.BOOL,
    int: HeaderKind.INT64,
    float: HeaderKind.FLOAT64,
}
"""The kind of a header without an entry in ``header_kinds``."""


# --- out ---


def message_record(message: Message, payload_kind: str, output: str) -> Record:
    """A message as a record for JSON and CSV. It names encodings and kinds only if they are not the usual ones."""
    payload, encoding = shown_payload(message.payload, payload_kind, output)
    record: dict[str, object] = {
        "partition_id": message.partition_id,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "origin_timestamp": message.origin_timestamp,
        "id": str(UUID(int=message.id)),
        "key": key_text(message),
        "headers": header_values(message),
        "payload": payload,
        "payload_encoding": encoding,
    }
    if message.key is not None and str(record["key"]).encode() != message.key:
        record["key_encoding"] = "hex"
    if kinds := _kinds(message):
        record["header_kinds"] = kinds
    return record


def _kinds(message: Message) -> dict[str, str]:
    """The kinds of headers that the reader of the JSON would not choose; with the name's kind, if it is no text."""
    kinds: dict[str, str] = {}
    entries = [entry for entry in message.header_entries() if entry.key != KEY_HEADER]
    for (name, value), entry in zip(header_values(message).items(), entries, strict=False):
        kind = entry.value_kind.name.lower()
        if entry.key_kind is not HeaderKind.STRING:
            kinds[name] = f"{entry.key_kind.name.lower()}:{kind}"
        elif entry.value_kind is not _NATURAL_KINDS[type(value)]:
            kinds[name] = kind
    return kinds


# --- in ---


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message in a line of JSON. Only the payload is required."""

    payload: msgspec.Raw
    payload_encoding: Literal["text", "json", "hex"] | None = None
    """By default, a string is text, and everything else is JSON."""
    key: str | None = None
    key_encoding: Literal["text", "hex"] = "text"
    headers: dict[str, str | bool | int | float] = {}
    header_kinds: dict[str, str] = {}
    id: UUID | None = None
    origin_timestamp: int | None = None
    # Where tail read the message. Its copy gets other ones.
    partition_id: Any = None
    offset: Any = None
    timestamp: Any = None


def message_of_line(data: bytes, number: int) -> SendMessage:
    """The message in a line of JSON; ``number`` is the number of the message, for errors.

    Raises:
        click.UsageError: the line is not such a message.
    """
    try:
        line = msgspec.json.decode(data, type=_Line)
        return SendMessage(
            _payload(line),
            id=None if line.id is None else line.id.int,
            headers={name: _header(name, value, line.header_kinds.get(name)) for name, value in line.headers.items()},
            key=None if line.key is None else bytes.fromhex(line.key) if line.key_encoding == "hex" else line.key,
            timestamp=line.origin_timestamp,
        )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise click.UsageError(f"message {number} is not a message in JSON: {error}") from None
    except click.UsageError as error:
        raise click.UsageError(f"message {number}: {error.message}") from None


def _payload(line: _Line) -> bytes:
    raw = bytes(line.payload)
    is_string = raw.startswith(b'"')
    encoding = line.payload_encoding or ("text" if is_string else "json")
    if encoding == "json":
        raw.decode()  # must be UTF-8
        return raw
    if not is_string:
        raise ValueError(f"a payload in {encoding} must be a string")
    text = msgspec.json.decode(raw, type=str)
    return bytes.fromhex(text) if encoding == "hex" else text.encode()


def _header(name: str, value: HeaderValue, kind: str | None) -> HeaderValue | UserHeader:
    if kind is None:
        return value
    name_kind, _, value_kind = kind.rpartition(":")
    return UserHeader(
        _field_bytes(name, name, name_kind or "string"),
        _field_bytes(name, value, value_kind),
        HeaderKind[(name_kind or "string").upper()],
        HeaderKind[value_kind.upper()],
    )


def _field_bytes(name: str, value: HeaderValue, kind: str) -> bytes:
    """The name or value of a header; raw bytes are hexadecimal digits."""
    return bytes.fromhex(str(value)) if kind == "raw" else header_bytes(name, kind, str(value))
