"""Decode the elements that both protocol generations share: a cursor over a payload.

Ids are sent as 32-bit numbers. SDK 0.5 numbers streams, topics, partitions, groups and users from 1: its reader has
``first_id`` 1 and subtracts it, modulo 2^32. So its 0, which is not a valid id, becomes 4,294,967,295, which does not
exist here, and the handlers reply as for any id that does not exist.
"""

from functools import lru_cache
from struct import Struct

from courser.errors import ErrorCode, Rejection
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import Balanced, ByKey, Partitioning, PollingKind, ToPartition
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions

_U16 = Struct("<H")
_U32 = Struct("<I")
_U64 = Struct("<Q")
_unpack_u32 = _U32.unpack_from

ID_MASK = 2**32 - 1
"""Ids are shifted modulo 2^32."""

IDENTIFIER_SIZE_MAX = 2 + 255
POLL_HEAD_SIZE_MAX = 1 + 3 * IDENTIFIER_SIZE_MAX
"""Bytes of consumer, stream and topic in a poll."""
ROUTE_SIZE_MAX = 3 * IDENTIFIER_SIZE_MAX + _U32.size
"""Bytes of the destination of a send: stream, topic, partitioning, number of messages."""
ROUTE_COUNT_MAX = 1024
"""Names of streams and topics that stay decoded: clients use the same few again and again, and decoding them is half of
decoding a poll."""

PERMISSIONS_SIZE_MAX = 256 * 1024
"""Bytes of permissions: twenty thousand streams and topics. Each becomes an object here and in the metadata."""

_SNAPSHOT_COMPRESSIONS = range(1, 7)
_SNAPSHOT_KINDS = frozenset(range(1, 7))
_SNAPSHOT_ALL = 100

BALANCED = Balanced()
CONSUMER_KINDS = {kind.value: kind for kind in ConsumerKind}
POLLING_KINDS = {kind.value: kind for kind in PollingKind}
"""A dict lookup, because calling an enum costs five times as much."""


class Malformed(Rejection):
    """A payload that cannot be decoded."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.INVALID_COMMAND) -> None:
        super().__init__(reason, code)
        self.reason = reason
        self.code = code

    def __str__(self) -> str:
        return f"malformed request: {self.reason}"


def identifier_at(buffer: memoryview, position: int, first_id: int = 0) -> tuple[Identifier, int]:
    """The identifier at ``position``, and the position after it."""
    try:
        kind, length = buffer[position], buffer[position + 1]
    except IndexError:
        raise Malformed("it ends inside an identifier") from None
    position += 2
    end = position + length
    if kind == 2:
        if not length:
            raise Malformed("an identifier has an empty name", ErrorCode.INVALID_FORMAT)
        return text_at(buffer, position, end), end
    if kind != 1:
        raise Malformed(f"unknown identifier kind {kind}")
    if length != 4:
        raise Malformed(f"a numeric identifier must have 4 bytes, not {length}", ErrorCode.INVALID_FORMAT)
    if end > len(buffer):
        raise Malformed("it ends inside an identifier")
    return (_unpack_u32(buffer, position)[0] - first_id) & ID_MASK, end


def text_at(buffer: memoryview, position: int, end: int) -> str:
    """The text between two positions."""
    if end > len(buffer):
        raise Malformed("it ends inside a string")
    try:
        return str(buffer[position:end], "utf-8")
    except UnicodeDecodeError:
        raise Malformed("a string is not valid UTF-8") from None


def consumer_at(buffer: memoryview, position: int, first_id: int = 0) -> tuple[Consumer, int]:
    """The consumer at ``position``, and the position after it. Groups have ids, single consumers any number."""
    try:
        kind = CONSUMER_KINDS[buffer[position]]
    except IndexError:
        raise Malformed("it ends before a consumer") from None
    except KeyError:
        raise Malformed(f"unknown consumer kind {buffer[position]}") from None
    identifier, end = identifier_at(buffer, position + 1, first_id if kind is ConsumerKind.GROUP else 0)
    return Consumer(kind, identifier), end


def partitioning_at(buffer: memoryview, position: int, first_id: int = 0) -> tuple[Partitioning, int]:
    """The partitioning at ``position``, and the position after it."""
    try:
        kind, length = buffer[position], buffer[position + 1]
    except IndexError:
        raise Malformed("it ends inside the partitioning") from None
    position += 2
    end = position + length
    if end > len(buffer):
        raise Malformed("it ends inside the partitioning")
    if kind == 1 and not length:
        return BALANCED, end
    if kind == 2 and length == 4:
        return ToPartition((_unpack_u32(buffer, position)[0] - first_id) & ID_MASK), end
    if kind == 3:
        return ByKey(bytes(buffer[position:end])), end
    raise Malformed(f"unknown partitioning kind {kind} with {length} bytes")


@lru_cache(maxsize=ROUTE_COUNT_MAX)
def route_of_poll(head: bytes, first_id: int) -> tuple[Consumer, Identifier, Identifier, int]:
    """Consumer, stream and topic at the start of a poll, and the position after them."""
    view = memoryview(head)
    consumer, position = consumer_at(view, 0, first_id)
    stream, position = identifier_at(view, position, first_id)
    topic, position = identifier_at(view, position, first_id)
    return consumer, stream, topic, position


class Reader:
    """A cursor over a payload. Every method reads a value at the cursor and moves past it.

    All of them raise ``Malformed``. Bytes after the last field that is read are ignored.
    """

    __slots__ = ("_buffer", "_first_id", "position")

    def __init__(self, buffer: memoryview, position: int = 0, *, first_id: int = 0) -> None:
        self._buffer = buffer
        self._first_id = first_id
        self.position = position

    @property
    def remaining(self) -> int:
        """How many bytes are left."""
        return len(self._buffer) - self.position

    def _advance(self, size: int) -> int:
        """Skip ``size`` bytes; return where they start."""
        start = self.position
        if start + size > len(self._buffer):
            raise Malformed(f"expected {size} bytes at byte {start} of {len(self._buffer)}")
        self.position = start + size
        return start

    # --- numbers and bytes ----------------------------------------------------------------------------

    def u8(self) -> int:
        return self._buffer[self._advance(1)]

    def u16(self) -> int:
        value: int = _U16.unpack_from(self._buffer, self._advance(2))[0]
        return value

    def u32(self) -> int:
        value: int = _U32.unpack_from(self._buffer, self._advance(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self._buffer, self._advance(8))[0]
        return value

    def flag(self) -> bool:
        """A byte: true unless it is 0."""
        return self.u8() != 0

    def is_present(self) -> bool:
        """A byte that says whether something follows: only 1 means yes."""
        return self.u8() == 1

    def take(self, size: int) -> memoryview:
        """``size`` bytes, in place."""
        start = self._advance(size)
        return self._buffer[start : start + size]

    def peek(self, size: int) -> memoryview:
        """``size`` bytes, in place, without moving the cursor."""
        ahead = self.take(size)
        self.position -= size
        return ahead

    def rest(self) -> memoryview:
        """All remaining bytes, in place."""
        return self.take(self.remaining)

    # --- texts ----------------------------------------------------------------------------------------

    def text8(self) -> str:
        """A text after its length in one byte."""
        length = self.u8()
        start = self._advance(length)
        return text_at(self._buffer, start, start + length)

    def name(self) -> str:
        """A text after its length in one byte; it must not be empty."""
        name = self.text8()
        if not name:
            raise Malformed("a name is empty", ErrorCode.INVALID_FORMAT)
        return name

    def text32(self) -> str:
        """A text after its length in four bytes."""
        length = self.u32()
        start = self._advance(length)
        return text_at(self._buffer, start, start + length)

    # --- what both generations share ------------------------------------------------------------------

    def id(self) -> int:
        """The id of a stream, a topic, a partition, a group or a user."""
        return (self.u32() - self._first_id) & ID_MASK

    def identifier(self) -> Identifier:
        """A number or a name."""
        identifier, self.position = identifier_at(self._buffer, self.position, self._first_id)
        return identifier

    def consumer(self) -> Consumer:
        """A single consumer or a group."""
        consumer, self.position = consumer_at(self._buffer, self.position, self._first_id)
        return consumer

    def partitioning(self) -> Partitioning:
        """How a send chooses its partition."""
        partitioning, self.position = partitioning_at(self._buffer, self.position, self._first_id)
        return partitioning

    def optional_partition(self) -> int | None:
        """A byte that says whether a partition is named, and four bytes for it in any case (SDK 0.6 and later)."""
        is_named = self.is_present()
        partition_id = self.id()
        return partition_id if is_named else None

    def polling_kind(self) -> PollingKind:
        """Where a poll starts; a value of eight bytes follows."""
        kind = POLLING_KINDS.get(number := self.u8())
        if kind is None:
            raise Malformed(f"unknown polling strategy {number}")
        return kind

    def is_active(self) -> bool:
        """The status of a user: 1 active, 2 inactive."""
        status = self.u8()
        if status not in (1, 2):
            raise Malformed(f"unknown user status {status}")
        return status == 1

    def snapshot_compression(self) -> int:
        """The compression of a diagnosis archive."""
        compression = self.u8()
        if compression not in _SNAPSHOT_COMPRESSIONS:
            raise Malformed(f"unknown snapshot compression {compression}")
        return compression

    def snapshot_kinds(self) -> tuple[int, ...]:
        """The contents of a diagnosis archive: everything, or some kinds."""
        kinds = tuple(self.take(self.u8()))
        if kinds != (_SNAPSHOT_ALL,) and not _SNAPSHOT_KINDS.issuperset(kinds):
            raise Malformed(f"a snapshot cannot contain the kinds {kinds}")
        return kinds

    def optional_permissions(self) -> Permissions | None:
        """A byte that says whether permissions follow, their size in four bytes, and the permissions."""
        if not self.is_present():
            return None
        size = self.u32()
        start = self.position
        permissions = self.permissions()
        if self.position - start != size:
            reason = f"the permissions have {self.position - start} bytes instead of {size}"
            raise Malformed(reason, ErrorCode.INVALID_FORMAT)
        return permissions

    def permissions(self) -> Permissions:
        """Global permissions, then those of streams and their topics."""
        end = self.position + PERMISSIONS_SIZE_MAX
        everywhere = GlobalPermissions(*self._flags(10))
        streams: dict[int, StreamPermissions] = {}
        while self._permission_follows(end):
            stream_id = self.id()
            manage_stream, read_stream, manage_topics, read_topics, poll_messages, send_messages = self._flags(6)
            topics: dict[int, TopicPermissions] = {}
            while self._permission_follows(end):
                topic_id = self.id()
                topics[topic_id] = TopicPermissions(*self._flags(4))
            streams[stream_id] = StreamPermissions(
                manage_stream, read_stream, manage_topics, read_topics, poll_messages, send_messages, topics
            )
        return Permissions(everywhere, streams)

    def _permission_follows(self, end: int) -> bool:
        if self.position > end:
            raise Malformed(f"the permissions have more than {PERMISSIONS_SIZE_MAX} bytes", ErrorCode.INVALID_FORMAT)
        return self.is_present()

    def _flags(self, count: int) -> list[bool]:
        return [byte != 0 for byte in self.take(count)]
