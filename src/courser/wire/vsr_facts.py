"""Failures with details for Courser's own client.

Other clients get an empty body. Courser's client sends ``OWN_SDK_NAME`` in its login and gets a JSON object: the
message, and the offsets if the failure is about messages.
"""

import msgspec

from courser.errors import (
    AlreadyExists,
    AuthenticationFailed,
    CourserError,
    ErrorCode,
    InvalidRequest,
    NotAllowed,
    NotAssigned,
    NotFound,
    OffsetsUnavailable,
    RequestFailed,
    ServerFailure,
)
from courser.errors import ErrorCode as E
from courser.model.buffers import Buffer

OWN_SDK_NAME = "courser-python"
_UNAVAILABLE = (E.OFFSET_GONE, E.DAMAGED_DATA)

_KINDS: dict[int, type[RequestFailed]] = {
    **dict.fromkeys(
        (
            E.RESOURCE_NOT_FOUND,
            E.CLIENT_NOT_FOUND,
            E.INVALID_CLIENT_ID,
            E.STREAM_NOT_FOUND,
            E.TOPIC_NOT_FOUND,
            E.PARTITION_NOT_FOUND,
            E.NO_PARTITIONS,
            E.CONSUMER_OFFSET_NOT_FOUND,
            E.GROUP_NOT_FOUND,
            E.SINK_NOT_FOUND,
            E.STAGED_PART_NOT_FOUND,
            E.STAGED_TARGET_GONE,
        ),
        NotFound,
    ),
    **dict.fromkeys(
        (
            E.USER_ALREADY_EXISTS,
            E.TOKEN_ALREADY_EXISTS,
            E.STREAM_ID_ALREADY_EXISTS,
            E.STREAM_NAME_ALREADY_EXISTS,
            E.TOPIC_ID_ALREADY_EXISTS,
            E.TOPIC_NAME_ALREADY_EXISTS,
            E.GROUP_ID_ALREADY_EXISTS,
            E.GROUP_NAME_ALREADY_EXISTS,
        ),
        AlreadyExists,
    ),
    **dict.fromkeys(
        (E.UNAUTHENTICATED, E.INVALID_CREDENTIALS, E.USER_INACTIVE, E.INVALID_TOKEN, E.TOKEN_EXPIRED),
        AuthenticationFailed,
    ),
    **dict.fromkeys((E.UNAUTHORIZED, E.CANNOT_DELETE_USER, E.CANNOT_CHANGE_PERMISSIONS), NotAllowed),
    **dict.fromkeys((E.PARTITION_NOT_OWNED, E.GROUP_MEMBER_NOT_FOUND, E.CONSUMER_NOT_RESOLVED), NotAssigned),
    **dict.fromkeys(
        (
            E.ERROR,
            E.TOPIC_FULL,
            E.SNAPSHOT_FAILED,
            E.DISK_FULL,
            E.PARTITION_READ_ONLY,
            E.PARTITION_OFFLINE,
            E.DAMAGED_DATA,
            E.KEY_MISSING,
            E.STORAGE_FAILURE,
            E.METADATA_READ_ONLY,
            E.JOURNAL_FULL,
            E.SERVER_BUSY,
            E.STAGING_FULL,
            E.PUBLISH_UNFINISHED,
            E.NOT_ARCHIVED,
            E.ARCHIVE_FAILURE,
        ),
        ServerFailure,
    ),
}
"""All others are invalid requests."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a failure."""

    reason: str
    first_offset: int | None = None
    """Of the deleted or damaged messages."""
    end_offset: int | None = None
    """Where reading can continue."""
    detail: str | None = None
    """What happened to those messages: part of the message text."""


def write_facts(error: CourserError) -> bytes:
    """The details of a failure for Courser's own client."""
    if isinstance(error, OffsetsUnavailable):
        return msgspec.json.encode(Facts(str(error), error.first_offset, error.end_offset, error.reason))
    return write_reason(str(error))


def write_reason(reason: str) -> bytes:
    """Write a failure that has only a message text."""
    return msgspec.json.encode(Facts(reason))


def read_failure(number: int, body: Buffer) -> CourserError:
    """The exception for a failure: by its number, with the details if the server sent any."""
    code = ErrorCode(number) if number in _NUMBERS else ErrorCode.ERROR
    facts = _read_facts(number, body)
    if facts.first_offset is not None and facts.end_offset is not None and code in _UNAVAILABLE:
        return OffsetsUnavailable(
            code, first_offset=facts.first_offset, end_offset=facts.end_offset, reason=facts.detail or "not there"
        )
    kind = _KINDS.get(number, InvalidRequest) if number in _NUMBERS else RequestFailed
    return kind(code, facts.reason, number)


_NUMBERS = frozenset(int(code) for code in ErrorCode)


def _read_facts(number: int, body: Buffer) -> Facts:
    if body:
        try:
            return msgspec.json.decode(body, type=Facts)
        except msgspec.MsgspecError:
            # The body has another format: not a Courser server.
            return Facts(bytes(body).decode(errors="replace"))
    name = ErrorCode(number).name.lower().replace("_", " ") if number in _NUMBERS else "unknown"
    return Facts(f"error {number}: {name}")
