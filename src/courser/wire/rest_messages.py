"""Messages in JSON: a send and a poll, the two requests that must be fast, and a send of raw bytes.

Payloads are base64. Ids have 128 bits and offsets 64: both are written as exact numbers.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from courser.api import commands as c
from courser.api.fields import Kind
from courser.api.replies import Polled, Sent
from courser.errors import CommandRejected, ErrorCode
from courser.model.identifiers import Consumer
from courser.model.messaging import Balanced, ByKey, Partitioning, PollingKind, ToPartition
from courser.model.quantities import parse_byte_size, parse_duration
from courser.model.trace_context import PARENT, TraceContext
from courser.records import layout
from courser.records.batch import Batch, NewMessage, batch_in_place, build_batch
from courser.records.user_headers import HeaderKind, UserHeader, build_user_headers, is_typed, iterate_user_headers
from courser.wire.rest_fields import (
    BAD_REQUEST,
    NAME_SIZE_MAX,
    U32_MAX,
    U64_MAX,
    UNPROCESSABLE,
    RestRefused,
    identifier_of,
    number_of,
)
from courser.wire.rest_requests import QueryField, RestRequest, from_json
from courser.wire.rest_views import ContextView

RAW_TYPE = "application/octet-stream"
RAW_QUICK_SIZE_MAX = 4 * 1024 * 1024
"""Bytes of a raw body that are decoded without delaying other connections: they are only copied and hashed."""
PAYLOAD_SIZE_MAX = 64_000_000
_ID_MAX = 2**128 - 1
_PARTITION_SIZE = 4
COUNT_DEFAULT = 10
WAIT_MAX = 20_000_000
"""Microseconds: longer waits end there, so larger numbers mean the same."""
DEFERRED_WAIT_MAX = 600_000_000
"""Microseconds: SDK 0.10 has the same limit."""
ACKNOWLEDGEMENTS = ("replicated", "none")

SDK_0_6, SDK_0_6_VERSION = "0.6", "0.8.0"
"""The release whose user headers are an object, and what its clients call themselves when they log in."""

Draw = Callable[[int], bytes]
"""So many random bytes."""


# --- sending ------------------------------------------------------------------------------------------


class JsonField(msgspec.Struct):
    """A key or a value of a user header."""

    kind: Literal[tuple(kind.name.lower() for kind in HeaderKind)]  # type: ignore[valid-type]
    value: bytes


class JsonHeader(msgspec.Struct):
    """A user header: kind and value."""

    key: JsonField
    value: JsonField


class JsonMessage(msgspec.Struct):
    """A message to send."""

    payload: Annotated[bytes, msgspec.Meta(min_length=1, max_length=PAYLOAD_SIZE_MAX)]
    id: int | str = 0
    """A number below 2^64, or a text: a decimal number below 2^128, or a UUID."""
    user_headers: list[JsonHeader] | bytes | None = None
    """Bytes are a block that only its readers understand, for example because it is encrypted."""
    headers: dict[str, JsonField] | None = None
    """User headers as SDK 0.6 sends them. Ignored if there are ``user_headers``."""


class JsonPartitioning(msgspec.Struct):
    """How the partition is chosen."""

    kind: Literal["balanced", "partition_id", "messages_key"]
    value: bytes
    """A partition as four bytes, little-endian, or a key."""


class SendContext(msgspec.Struct):
    """Which history of the partition the sender means."""

    incarnation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a send."""

    partitioning: JsonPartitioning
    messages: list[JsonMessage]
    context: SendContext | None = None
    """As SDK 0.10 sends it."""


_send_decoder = msgspec.json.Decoder(SendBody)


def is_raw(content_type: str) -> bool:
    """Whether the body of a send is the payload of one message."""
    return content_type == RAW_TYPE or content_type.partition(";")[0].strip().lower() == RAW_TYPE


def decode_send(request: RestRequest, now: int, draw: Draw) -> c.SendMessages:
    """A send, as JSON or as the bytes of one message. Raises ``RestRefused``, ``CommandRejected``, ``InvalidBatch``."""
    stream, topic = identifier_of(request.values["stream"]), identifier_of(request.values["topic"])
    if request.room_size:
        return c.SendMessages(stream, topic, _raw_partitioning(request.query), [_raw_batch(request, now, draw)])
    body: SendBody = from_json(request, _send_decoder)
    partitioning = _partitioning(body.partitioning)
    batch = build_batch([_message(message, now, draw, request.trace) for message in body.messages])
    incarnation = 0 if body.context is None else body.context.incarnation
    return c.SendMessages(stream, topic, partitioning, [batch], incarnation)


def _partitioning(given: JsonPartitioning) -> Partitioning:
    if given.kind == "balanced":
        return Balanced()
    if given.kind == "messages_key":
        return _by_key(given.value)
    if len(given.value) != _PARTITION_SIZE:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, f"a partition has 4 bytes, not {len(given.value)}")
    return ToPartition(int.from_bytes(given.value, "little"))


def _by_key(key: bytes) -> ByKey:
    if not 1 <= len(key) <= NAME_SIZE_MAX:
        raise CommandRejected(
            ErrorCode.INVALID_KEY_LENGTH, f"a key must have 1 to {NAME_SIZE_MAX} bytes, not {len(key)}"
        )
    return ByKey(key)


def _message(message: JsonMessage, now: int, draw: Draw, trace: TraceContext | None) -> NewMessage:
    given = message.user_headers
    message_id = _message_id(message.id, draw)
    if isinstance(given, bytes):
        return NewMessage(message.payload, message_id, now, given)
    if given is None and message.headers:
        headers = [
            UserHeader(key.encode(), value.value, value_kind=HeaderKind[value.kind.upper()])
            for key, value in message.headers.items()
        ]
    else:
        headers = [_header(header) for header in given or ()]
    # Whoever has marked a message already knows best.
    if trace is not None and all(header.key != _TRACE_PARENT for header in headers):
        headers += _trace_headers(trace)
    return NewMessage(message.payload, message_id, now, build_user_headers(headers))


_TRACE_PARENT = PARENT.encode()


def _trace_headers(trace: TraceContext) -> list[UserHeader]:
    """What tells consumers which trace a message belongs to, as our client sends it."""
    return [UserHeader(name.encode(), value.encode()) for name, value in trace.headers.items()]


def _header(header: JsonHeader) -> UserHeader:
    key, value = header.key, header.value
    return UserHeader(key.value, value.value, HeaderKind[key.kind.upper()], HeaderKind[value.kind.upper()])


def _message_id(given: int | str, draw: Draw) -> int:
    if isinstance(given, int):
        if not 0 <= given <= U64_MAX:
            raise RestRefused(UNPROCESSABLE, f"the message id {given} is not a number below 2^64; send it as a text")
        number = given
    elif given.isascii() and given.isdigit():
        number = int(given) if len(given) <= len(str(_ID_MAX)) else _ID_MAX + 1
    else:
        try:
            number = UUID(given).int
        except ValueError:
            number = -1
    if not 0 <= number <= _ID_MAX:
        raise RestRefused(UNPROCESSABLE, "a message id must be a number below 2^128 or a UUID")
    return number or int.from_bytes(draw(16), "little")


def _raw_partitioning(query: Mapping[str, str]) -> Partitioning:
    if "partition_id" in query:
        return ToPartition(_PARTITION.of(query))
    return _by_key(query["key"].encode(errors="surrogateescape")) if "key" in query else Balanced()


def _raw_batch(request: RestRequest, now: int, draw: Draw) -> Batch:
    size = len(request.body) - request.room_size
    if not 1 <= size <= PAYLOAD_SIZE_MAX:
        raise RestRefused(UNPROCESSABLE, f"a payload must have 1 to {PAYLOAD_SIZE_MAX} bytes, not {size}")
    frame, message_id = memoryview(request.body), _message_id(request.query.get("id", "0"), draw)
    if request.trace is None:
        return batch_in_place(frame, message_id, now)
    block = build_user_headers(_trace_headers(request.trace))
    return build_batch([NewMessage(frame[request.room_size :], message_id, now, block)])


def wants_acknowledgement(query: Mapping[str, str]) -> bool:
    """Whether the sender waits for its reply. Raises ``RestRefused`` for a word that is not known."""
    word = query.get("ack", ACKNOWLEDGEMENTS[0])
    if word not in ACKNOWLEDGEMENTS:
        raise RestRefused(BAD_REQUEST, f"invalid query: ack: {word[:40]!r} is neither replicated nor none")
    return word != "none"


class SentView(msgspec.Struct):
    """Where the messages are stored."""

    confirmations: list[Sent]


def encode_sent(sent: Sent) -> bytes:
    """Where the messages are."""
    return msgspec.json.encode(SentView([sent]))


# --- polling ------------------------------------------------------------------------------------------


_CONSUMER = QueryField("consumer_id", Consumer)
_PARTITION = QueryField("partition_id", Kind.OPTIONAL_PARTITION)
_KIND = QueryField("kind", PollingKind, "offset")
_VALUE = QueryField("value", Kind.U64, "0")
_COUNT = QueryField("count", Kind.U32, str(COUNT_DEFAULT))
_AUTO_COMMIT = QueryField("auto_commit", Kind.FLAG, "false")
_STRICT = QueryField("strict", Kind.FLAG, "false")


def decode_poll(request: RestRequest) -> c.PollMessages | c.WaitForMessages:
    """A poll; with ``wait``, ``max_bytes`` or ``strict`` one that skips nothing silently. Raises ``RestRefused``."""
    query = request.query
    poll = c.PollMessages(
        _CONSUMER.of(query),
        identifier_of(request.values["stream"]),
        identifier_of(request.values["topic"]),
        _PARTITION.of(query),
        _KIND.of(query),
        _VALUE.of(query),
        _COUNT.of(query),
        _AUTO_COMMIT.of(query),
    )
    has_own = "wait" in query or "max_bytes" in query
    is_strict: bool = _STRICT.of(query) if "strict" in query else has_own
    if not is_strict:
        if has_own:
            reason = "invalid query: strict: a poll with wait or max_bytes is always strict"
            raise RestRefused(BAD_REQUEST, reason)
        return poll
    return c.WaitForMessages(poll, min(duration_of(query, "wait", 0), WAIT_MAX), byte_size_of(query, "max_bytes"))


_WAIT_US = QueryField("wait_us", Kind.U64, "0")
_MIN_COUNT = QueryField("min_count", Kind.U32, "1")
_MAX_BYTES = QueryField("max_bytes", Kind.U32, str(1024 * 1024))
_REQUEST_TIMEOUT_US = QueryField("request_timeout_us", Kind.U64, str(DEFERRED_WAIT_MAX))


def decode_deferred_poll(
    values: Mapping[str, str], query: Mapping[str, str]
) -> tuple[c.AwaitMessages | None, c.ReadMessages]:
    """A poll of SDK 0.10: what it waits for, and what it reads then. Raises ``RestRefused``."""
    consumer, stream, topic = _CONSUMER.of(query), identifier_of(values["stream"]), identifier_of(values["topic"])
    partition_id, kind, value = _PARTITION.of(query), _KIND.of(query), _VALUE.of(query)
    count, min_count, wait = _COUNT.of(query), _MIN_COUNT.of(query), _WAIT_US.of(query)
    if not 0 < min_count <= count:
        raise RestRefused(BAD_REQUEST, f"invalid query: min_count: {min_count} of {count} messages")
    if wait > DEFERRED_WAIT_MAX:
        raise RestRefused(BAD_REQUEST, f"invalid query: wait_us: {wait} is more than {DEFERRED_WAIT_MAX}")
    poll = c.PollMessages(consumer, stream, topic, partition_id, kind, value, count, _AUTO_COMMIT.of(query))
    read = c.ReadMessages(poll, _MAX_BYTES.of(query))
    # The client gives up after this time, whatever it has asked for.
    wait = min(wait, _REQUEST_TIMEOUT_US.of(query))
    targets = (c.ReadTarget(partition_id, kind, value),)
    return (c.AwaitMessages(consumer, stream, topic, targets, min_count, wait) if wait else None), read


def duration_of(query: Mapping[str, str], name: str, default: int) -> int:
    """A duration in the query, in microseconds. Raises ``RestRefused``."""
    return _quantity(query, name, parse_duration, default)


def byte_size_of(query: Mapping[str, str], name: str, default: int = U32_MAX) -> int:
    """A size in the query, in bytes; by default as much as there may be. Raises ``RestRefused``."""
    return min(_quantity(query, name, parse_byte_size, default), U32_MAX)


def _quantity(query: Mapping[str, str], name: str, parse: Callable[[str], int], default: int) -> int:
    """A number of microseconds or bytes, or a text with a unit."""
    text = query.get(name)
    if text is None:
        return default
    try:
        return number_of(text, U64_MAX) if text.isdigit() else parse(text)
    except ValueError as error:
        raise RestRefused(BAD_REQUEST, f"invalid query: {name}: {error}") from None


class MessageHeaderView(msgspec.Struct):
    """What the server knows of a message."""

    checksum: int
    id: int
    """Up to 128 bits."""
    offset: int
    timestamp: int
    """When the server received it, in microseconds since 1970."""
    origin_timestamp: int
    """When it was sent, according to the sender."""
    user_headers_length: int
    payload_length: int
    reserved: int


class MessageView(msgspec.Struct):
    """A message that was read."""

    header: MessageHeaderView
    payload: bytes
    user_headers: list[JsonHeader] | bytes
    """Bytes are a block that only its readers understand."""


class PolledView(msgspec.Struct):
    """The messages of a poll."""

    partition_id: int
    current_offset: int
    """Of the newest message of the partition."""
    context: ContextView
    count: int
    messages: list[MessageView]


def encode_polled(polled: Polled, *, has_header_objects: bool = False) -> Iterator[bytes]:
    """The messages of a poll, for SDK 0.6 with user headers as objects. Written by hand: no object per message.

    Gives the text in parts of about ``PART_SIZE`` bytes, so that no call takes long and nothing large is copied.
    """
    encode_block, no_headers = (_header_object, b"{}") if has_header_objects else (encode_headers, b"[]")
    unpack, header_size, number = layout.FRAME_HEADER.unpack_from, layout.FRAME_HEADER_SIZE, int.from_bytes
    head = _POLLED_HEAD % (
        polled.partition_id,
        polled.current_offset,
        polled.incarnation,
        polled.incarnation,
        polled.message_count,
    )
    parts = [head]
    before, size = b"", 0
    for piece in polled.pieces:
        position = 0
        while position < len(piece):
            _, base_offset, timestamp, origin, _, _, count = layout.WIRE_HEADER.unpack_from(piece, position)
            position += layout.BATCH_HEADER_SIZE
            for _ in range(count):
                checksum, message_id, offset_delta, timestamp_delta, headers_size, payload_size, _ = unpack(
                    piece, position
                )
                start = position + header_size
                end = start + payload_size
                position = end + headers_size
                parts.append(
                    _MESSAGE_HEAD
                    % (
                        before,
                        checksum,
                        number(message_id, "little"),
                        base_offset + offset_delta,
                        timestamp,
                        origin + timestamp_delta,
                        headers_size,
                        payload_size,
                    )
                )
                while end - start > _BASE64_SIZE:
                    parts.append(b2a_base64(piece[start : start + _BASE64_SIZE], newline=False))
                    yield b"".join(parts)
                    parts, size, start = [], 0, start + _BASE64_SIZE
                parts += (
                    b2a_base64(piece[start:end], newline=False),
                    b'","user_headers":',
                    encode_block(piece[end:position]) if headers_size else no_headers,
                )
                before = b"},"
                size += _MESSAGE_SIZE + payload_size + headers_size
                if size > PART_SIZE:
                    yield b"".join(parts)
                    parts, size = [], 0
    parts.append(b"}]}" if before else b"]}")
    yield b"".join(parts)


PART_SIZE = 256 * 1024
"""Bytes after which a part of a reply ends."""
_BASE64_SIZE = PART_SIZE // 3 * 3
"""Bytes of a payload that are encoded at a time: a multiple of 3, of which base64 makes four characters each."""
_MESSAGE_SIZE = 256
"""Bytes of a message in JSON besides payload and user headers, roughly."""
_POLLED_HEAD = (
    b'{"partition_id":%d,"current_offset":%d,'
    b'"context":{"incarnation":%d,"owner_generation":0,"metadata_op":%d},"count":%d,"messages":['
)
_MESSAGE_HEAD = (
    b'%b{"header":{"checksum":%d,"id":%d,"offset":%d,"timestamp":%d,"origin_timestamp":%d,'
    b'"user_headers_length":%d,"payload_length":%d,"reserved":0},"payload":"'
)


def _header_object(block: memoryview) -> bytes:
    """As SDK 0.6 reads them. It knows neither other blocks nor keys that are no text."""
    headers = iterate_user_headers(block) if is_typed(block) else ()
    return msgspec.json.encode(
        {
            header.key.decode(errors="replace"): {"kind": header.value_kind.name.lower(), "value": header.value}
            for header in headers
            if header.key_kind is HeaderKind.STRING
        }
    )


def encode_headers(block: memoryview) -> bytes:
    """User headers as a list, or in base64 if only their readers understand them."""
    if not is_typed(block):
        return msgspec.json.encode(bytes(block))
    return msgspec.json.encode(
        [
            {
                "key": {"kind": header.key_kind.name.lower(), "value": header.key},
                "value": {"kind": header.value_kind.name.lower(), "value": header.value},
            }
            for header in iterate_user_headers(block)
        ]
    )
