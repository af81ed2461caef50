"""Messages for programs, and types that say where to send and where to start reading."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any, TypeAlias, TypeVar, overload

import msgspec

from courser.model.buffers import Buffer
from courser.model.messaging import Balanced, ByKey, PollingKind, ToPartition
from courser.model.messaging import Partitioning as ModelPartitioning
from courser.model.quantities import CALENDAR_END
from courser.records.message_keys import KEY_HEADER, key_header, key_of
from courser.records.user_headers import (
    HeaderKind,
    HeaderValue,
    UserHeader,
    build_user_headers,
    is_typed,
    iterate_user_headers,
    read_value,
)

Headers: TypeAlias = Mapping[str, HeaderValue | UserHeader]
"""Headers by name. A ``UserHeader`` chooses the exact kind, such as a number of 16 bits."""
Payload: TypeAlias = Any
"""Bytes are sent unchanged, text as UTF-8, everything else as JSON."""

Decoded = TypeVar("Decoded")

_FLOAT = Struct("<d")
_INT64 = range(-(2**63), 2**63)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- partitioning and polling strategy ----------------------------------------------------------------


class Partitioning:
    """How a send chooses its partition. A plain number is a partition id.

    Example:
        choose = courser.Partitioning
        for where in (choose.balanced(), choose.partition(1), choose.key("customer-7")):
            await client.send_messages("shop/orders", partitioning=where, messages=["hello"])
    """

    @staticmethod
    def balanced() -> Balanced:
        """Use all partitions in turn, one batch each."""
        return Balanced()

    @staticmethod
    def partition(partition_id: int) -> ToPartition:
        """Use the partition with this id."""
        return ToPartition(partition_id)

    @staticmethod
    def key(key: str | bytes) -> ByKey:
        """Use the partition of the key: the same for the same key and number of partitions."""
        return ByKey(key_bytes(key))

    # Aliases with the names of other SDKs.
    Balanced = balanced
    PartitionId = partition
    Key = key
    MessagesKey = key


AnyPartitioning: TypeAlias = int | ModelPartitioning | None
"""A partition id, what ``Partitioning`` returns, or None for all partitions in turn."""


def partitioning_of(value: AnyPartitioning) -> ModelPartitioning:
    """A number is a partition, None is balanced. Raises ``TypeError`` for anything else."""
    if value is None:
        return Balanced()
    if isinstance(value, Balanced | ByKey | ToPartition):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"partitioning must be a partition id, a Partitioning or None, not {value!r}")
    return ToPartition(value)


class PollingStrategy(msgspec.Struct, frozen=True):
    """Where a poll starts.

    Example:
        start = courser.PollingStrategy
        for strategy in (start.First(), start.Last(), start.Next(), start.Offset(2), start.Timestamp(0)):
            print(len(await client.poll_messages("shop/orders", partition_id=0, polling_strategy=strategy)))
    """

    kind: PollingKind
    """What ``value`` means."""
    value: int = 0
    """An offset, or microseconds since 1970."""

    @classmethod
    def Next(cls) -> "PollingStrategy":  # noqa: N802 - the call names of the other SDKs
        """After the stored offset of the consumer or group; without one, at the first message."""
        return cls(PollingKind.NEXT)

    @classmethod
    def First(cls) -> "PollingStrategy":  # noqa: N802
        """At the oldest message."""
        return cls(PollingKind.FIRST)

    @classmethod
    def Last(cls) -> "PollingStrategy":  # noqa: N802
        """Return the newest messages, as many as requested."""
        return cls(PollingKind.LAST)

    @classmethod
    def Offset(cls, value: int) -> "PollingStrategy":  # noqa: N802
        """Start at this offset."""
        return cls(PollingKind.OFFSET, value)

    @classmethod
    def Timestamp(cls, value: "int | datetime") -> "PollingStrategy":  # noqa: N802
        """At the first message received at this time or later: a datetime, or microseconds since 1970."""
        return cls(PollingKind.TIMESTAMP, microseconds(value))


def microseconds(value: int | datetime) -> int:
    """A time as microseconds since 1970. A datetime without a zone is local time."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, datetime):
        raise TypeError(f"a time must be a datetime, or microseconds since 1970 as an int, not {value!r}")
    difference = value.astimezone(UTC) - _EPOCH
    return (difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds


# --- payloads and headers -----------------------------------------------------------------------------


def payload_bytes(payload: Payload) -> Buffer:
    """Bytes unchanged, text as UTF-8, everything else as JSON.

    Raises:
        TypeError: the payload cannot be represented as JSON.
    """
    if isinstance(payload, memoryview) and not (payload.c_contiguous and payload.nbytes == len(payload)):
        # A memoryview of numbers, or with gaps: take its bytes in order.
        return payload.tobytes()
    if isinstance(payload, bytes | bytearray | memoryview):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    try:
        return msgspec.json.encode(payload)
    except TypeError as error:
        kind = type(payload).__name__
        raise TypeError(f"a payload must be bytes, text, or a value for JSON, which {kind} is not: {error}") from error


def key_bytes(key: str | bytes) -> bytes:
    """A key as bytes. Raises ``TypeError`` for anything else."""
    if isinstance(key, str):
        return key.encode()
    if not isinstance(key, bytes):
        raise TypeError(f"a key must be a str or bytes, not {key!r}")
    return key


def write_headers(headers: Headers | None, key: bytes | None = None) -> bytes:
    """The block of user headers. The key comes last, where the server would add it.

    Raises:
        InvalidBatch: a name or value is empty or too long.
        TypeError: a name is not a str, or a value has none of the types of ``HeaderValue``.
    """
    if not headers and key is None:
        return b""
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of names to values, not {headers!r}")
    entries = [_entry_of(name, value) for name, value in (headers or {}).items()]
    if key is not None:
        entries.append(key_header(key))
    return build_user_headers(entries)


def read_headers(block: bytes) -> tuple[Headers | None, bytes | None]:
    """Headers and key from a block that ``write_headers`` wrote."""
    if not block:
        return None, None
    entries = {entry.name: entry for entry in iterate_user_headers(block)}
    key = entries.pop(KEY_HEADER.decode(), None)
    return entries or None, None if key is None else key.value


def _entry_of(name: str, value: HeaderValue | UserHeader) -> UserHeader:
    if isinstance(value, UserHeader):
        return value
    if not isinstance(name, str):
        raise TypeError(f"the name of a header must be a str, not {name!r}")
    if not isinstance(value, str | bytes | bytearray | memoryview | bool | int | float):
        raise TypeError(f'header "{name}" must be a str, bytes, a bool or a number, not {value!r}')
    kind, data = _typed(value)
    return UserHeader(name.encode(), data, HeaderKind.STRING, kind)


def _typed(value: HeaderValue) -> tuple[HeaderKind, bytes]:
    if isinstance(value, str):
        return HeaderKind.STRING, value.encode()
    if isinstance(value, bool):
        return HeaderKind.BOOL, bytes((value,))
    if isinstance(value, int):
        kind = HeaderKind.INT64 if value in _INT64 else HeaderKind.INT128
        return kind, value.to_bytes(kind.width, "little", signed=True)
    if isinstance(value, float):
        return HeaderKind.FLOAT64, _FLOAT.pack(value)
    return HeaderKind.RAW, bytes(value)


# --- messages -----------------------------------------------------------------------------------------


class SendMessage(msgspec.Struct, frozen=True):
    """A message to send with more than a payload.

    Example:
        message = courser.SendMessage({"n": 1}, key="customer-7", headers={"source": "web"})
        await client.send_messages("shop/orders", messages=[message])
    """

    payload: Payload
    """Bytes are sent unchanged, text as UTF-8, everything else as JSON."""
    id: int | None = None
    """128 bits; None means a random id."""
    headers: Headers | None = None
    """By name; a value is text, bytes, a number or a truth value."""
    key: str | bytes | None = None
    """Stored with the message in a header of Courser."""
    timestamp: int | None = None
    """The creation time in microseconds since 1970; None means now."""


class Message(msgspec.Struct, frozen=True):
    """A message that was read.

    Example:
        for message in await client.poll_messages("shop/orders", partition_id=0):
            print(message.offset, message.time, message.key, message.headers, message.payload)
    """

    payload: bytes
    """The bytes that were sent."""
    offset: int
    """Its number in the partition."""
    partition_id: int
    """The partition."""
    timestamp: int
    """When the server received it, in microseconds since 1970."""
    origin_timestamp: int
    """The creation time, set by the producer."""
    id: int
    """128 bits."""
    raw_headers: bytes = b""
    """The block of user headers in its stored form."""

    @property
    def time(self) -> datetime:
        """When the server received it. Times after the year 9999 become its last microsecond."""
        return _EPOCH + timedelta(microseconds=min(self.timestamp, CALENDAR_END))

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The user headers without the key; empty if the block is malformed."""
        return {
            entry.name: read_value(entry.value_kind, entry.value)
            for entry in self.header_entries()
            if entry.key != KEY_HEADER
        }

    @property
    def key(self) -> bytes | None:
        """The key of the message, if any."""
        return key_of(self.raw_headers)

    def header_entries(self) -> Iterator[UserHeader]:
        """The user headers with their kinds, in order; empty if the block is malformed."""
        block = self.raw_headers
        return iterate_user_headers(block) if block and is_typed(block) else iter(())

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text.

        Raises:
            UnicodeDecodeError: the payload is not text in this encoding.
        """
        return self.payload.decode(encoding)

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[Decoded]) -> Decoded: ...

    def json(self, kind: type[Decoded] | None = None) -> Any:
        """The payload parsed as JSON. With ``kind``, converted to that type: a dataclass, a TypedDict, list[int]...

        Raises:
            msgspec.DecodeError: the payload is not JSON.
            msgspec.ValidationError: the value is not of this kind.

        Example:
            (message, *_) = await client.poll_messages("shop/orders", partition_id=0)
            print(message.json(), message.json(dict[str, int]))
        """
        return msgspec.json.decode(self.payload) if kind is None else msgspec.json.decode(self.payload, type=kind)


def outgoing(messages: "Iterable[Payload | SendMessage] | Payload | SendMessage") -> list[SendMessage]:
    """The messages to send: from one or several payloads or ``SendMessage`` objects. A list means several."""
    if isinstance(messages, SendMessage):
        return [messages]
    if _is_one(messages):
        return [SendMessage(messages)]
    return [entry if isinstance(entry, SendMessage) else SendMessage(entry) for entry in messages]


def several(messages: Iterable[Payload | SendMessage]) -> Iterable[Payload | SendMessage]:
    """The messages of a call that takes several. Raises ``TypeError`` for a single one: text would become letters."""
    if isinstance(messages, SendMessage) or _is_one(messages):
        raise TypeError(f"several messages must be given, in a list for example, not {messages!r}")
    return messages


def _is_one(messages: object) -> bool:
    """Whether this is a payload, and not several of them."""
    return isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Iterable)
