"""The 256-byte headers of SDK 0.9 and later: requests, replies, evictions. The only place that knows where fields are.

All numbers are little-endian. Unused fields are zero and left out: checksums of the header and the body, cluster, view,
release, replica, timestamp, context.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct

from courser.api import commands as c

HEADER_SIZE = 256
FRAME_SIZE_MAX = 64 * 1024 * 1024
"""Bytes of a request, header included."""

SIZE_POSITION = 48
"""All bytes before it are zero in requests of SDKs."""
COMMAND_POSITION = 60
OPERATION_POSITION = 176
_SIZE = Struct("<I")

COMMAND_REQUEST = 5
COMMAND_REPLY = 8
COMMAND_EVICTION = 13

CLIENT_SIZE = 16
NO_CLIENT = bytes(CLIENT_SIZE)
NO_CHECKSUM = bytes(16)

PROTOCOL_VERSION = 11 << 10
"""Of Courser's own client: 0.11.0, packed. Major, minor and patch have ten bits each, the patch the lowest."""

_REQUEST = Struct(
    "<"
    "48x"
    "I"  # 48 size: header and body
    "8x"
    "B"  # 60 command
    "67x"
    "16s"  # 128 client
    "16s"  # 144 request_checksum: XXH3-64 of the body, or zero
    "8x"
    "Q"  # 168 request: its number
    "B"  # 176 operation
    "7x"
    "Q"  # 184 session
    "4x"
    "I"  # 196 code: of the command, if the operation is NON_REPLICATED
    # 200 incarnation of the partition, from SDK 0.10 on; its other new fields are for clusters.
    "56x"
)
assert _REQUEST.size == HEADER_SIZE

_REPLY_FIELDS = (
    "<"
    "48x"
    "I"  # 48 size
    "8x"
    "B"  # 60 command
    "67x"
    "16s"  # 128 request_checksum
    "16x"
    "16s"  # 160 client
    "Q"  # 176 op
    "Q"  # 184 commit
    "8x"
    "Q"  # 200 request
    "B"  # 208 operation
    "7x"
    "I"  # 216 status
    "36x"
)
_REPLY = Struct(_REPLY_FIELDS)
_SENT = Struct(
    _REPLY_FIELDS + "I"  # count: always one
    "III"  # stream_id, topic_id, partition_id
    "Q"  # base_offset
)
_POLLED = Struct(
    _REPLY_FIELDS + "I"  # partition_id
    "Q"  # current_offset
    "I"  # message_count
)
_POLLED_WITH_CONTEXT = Struct(
    _POLLED.format + "Q"  # incarnation
    "Q"  # owner_generation: 0
    "Q"  # metadata_op
)
assert (_REPLY.size, _SENT.size, _POLLED.size) == (HEADER_SIZE, HEADER_SIZE + 24, HEADER_SIZE + 16)
assert _POLLED_WITH_CONTEXT.size == HEADER_SIZE + 40

_EVICTION = Struct(
    "<"
    "48x"
    "I"  # 48 size
    "8x"
    "B"  # 60 command
    "67x"
    "16s"  # 128 client: not zero
    "I"  # 144 highest protocol version that is accepted
    "I"  # 148 lowest
    "103x"
    "B"  # 255 reason
)
assert _EVICTION.size == HEADER_SIZE


REGISTER = 1
"""The operation of logins."""
NON_REPLICATED = 2
"""The operation of commands that have none of their own: their code is in another field."""
LOGOUT = 3
SEND_MESSAGES = c.SendMessages.row.operation
SESSION_OPERATIONS = frozenset({REGISTER, NON_REPLICATED, LOGOUT, SEND_MESSAGES})
"""Operations that every release knows; the rows of the commands assign all others."""

INTERNAL_OPERATIONS = range(64, 69)
"""Operations between servers of a cluster. Clients never send them, but three of them are in replies."""

OPERATION_OF_REPLY = {
    c.CreateTopic.row.operation: 64,
    c.CreatePartitions.row.operation: 65,
    c.DeleteSegments.row.operation: 68,
}
"""Commands that the original rewrites before it carries them out: their results carry the new operation."""


class EvictionReason(IntEnum):
    """Why a client is refused. The comments say what the SDK does."""

    NO_SESSION = 1  # unauthenticated: it logs in again and repeats the request once
    INTERNAL_OPERATION = 4  # invalid command
    INVALID_CREDENTIALS = 9
    INVALID_TOKEN = 10
    SESSION_ERROR = 12  # unauthenticated
    STALE_CLIENT = 13
    INCOMPATIBLE_PROTOCOL = 14
    MALFORMED_LOGIN = 15  # invalid format


unpack_request: Callable[[memoryview], tuple[int, int, bytes, bytes, int, int, int, int]] = _REQUEST.unpack_from
"""size, command, client, request_checksum, request, operation, session, code"""

unpack_size_and_command: Callable[[memoryview], tuple[int, int]] = Struct("<48xI8xB").unpack_from
"""Size and command, from a head of at least 61 bytes."""

_unpack_incarnation = Struct("<200xQ").unpack_from


def incarnation_of(frame: memoryview) -> int:
    """The incarnation of the partition that a request is for; SDK 0.9 always sends 0."""
    incarnation: int = _unpack_incarnation(frame)[0]
    return incarnation


# Plain numbers, because looking up members of an enum costs more than the rest of a reply's header.

_pack_request = _REQUEST.pack
_pack_reply = _REPLY.pack
pack_sent = _SENT.pack
"""The whole reply to a send: size (``SENT_SIZE``), command, checksum, client, 0, 0, request, operation, status, count,
stream, topic, partition, base offset."""
SENT_SIZE = HEADER_SIZE + 24
pack_polled = _POLLED.pack
"""The reply to a poll up to its batches: size (``POLLED_SIZE`` and the batches), the same as far as the status, then
partition, current offset, number of messages."""
POLLED_SIZE = HEADER_SIZE + 16
pack_polled_with_context = _POLLED_WITH_CONTEXT.pack
"""The same with the context that SDK 0.10 sends back with its next requests for the partition: incarnation, 0,
incarnation. The journal entry that created the partition is also the one that the context is valid from: no change to
other metadata makes the client look for the partition again."""
POLLED_WITH_CONTEXT_SIZE = HEADER_SIZE + 40


def frame_size_of(head: memoryview) -> int:
    """The size field of a frame; the head has at least 52 bytes."""
    size: int = _SIZE.unpack_from(head, SIZE_POSITION)[0]
    return size


def reply_header(
    client: bytes,
    checksum: bytes,
    request: int,
    operation: int,
    *,
    status: int = 0,
    body_size: int = 0,
    commit: int = 0,
) -> bytes:
    """The header of a reply whose body follows."""
    return _pack_reply(
        HEADER_SIZE + body_size, COMMAND_REPLY, checksum, client, commit, commit, request, operation, status
    )


def eviction(client: bytes, reason: EvictionReason, *, version_max: int = 0, version_min: int = 0) -> bytes:
    """A frame that ends the client's session."""
    if client == NO_CLIENT:
        # A client with the id 0 does not accept a frame with the id 0.
        client = b"\x01" + NO_CLIENT[1:]
    return _EVICTION.pack(HEADER_SIZE, COMMAND_EVICTION, client, version_max, version_min, reason)


# --- the client's side --------------------------------------------------------------------------------

_unpack_reply = _REPLY.unpack_from
_unpack_eviction = _EVICTION.unpack_from


def request_header(
    client: bytes, request: int, operation: int, session: int, *, code: int = 0, body_size: int = 0, checksum: int = 0
) -> bytes:
    """The header of a request whose body follows."""
    return _pack_request(
        HEADER_SIZE + body_size,
        COMMAND_REQUEST,
        client,
        checksum.to_bytes(16, "little"),
        request,
        operation,
        session,
        code,
    )


def unpack_reply(frame: memoryview) -> tuple[int, int, int, int]:
    """Command, request, operation and status of a server's frame; in an eviction only the command is valid."""
    _, command, _, _, _, _, request, operation, status = _unpack_reply(frame)
    return command, request, operation, status


def unpack_eviction(frame: memoryview) -> tuple[int, int, int]:
    """Reason, highest and lowest protocol version."""
    _, _, _, version_max, version_min, reason = _unpack_eviction(frame)
    return reason, version_max, version_min
