"""How a failure is sent over HTTP: a status, and the error as JSON."""

from collections.abc import Mapping

import msgspec

from courser.api import commands as c
from courser.errors import CourserError, OffsetsUnavailable
from courser.errors import ErrorCode as E
from courser.wire.rest_fields import RestRefused
from courser.wire.rest_views import ErrorView

TOO_MANY_REQUESTS, UNAVAILABLE, NOT_FOUND, BAD_REQUEST = 429, 503, 404, 400

_STATUSES: Mapping[E, int] = {
    E.ERROR: 500,
    E.RESOURCE_NOT_FOUND: NOT_FOUND,
    E.STREAM_NOT_FOUND: NOT_FOUND,
    E.TOPIC_NOT_FOUND: NOT_FOUND,
    E.PARTITION_NOT_FOUND: NOT_FOUND,
    E.NO_PARTITIONS: NOT_FOUND,
    E.GROUP_NOT_FOUND: NOT_FOUND,
    E.GROUP_MEMBER_NOT_FOUND: NOT_FOUND,
    E.CONSUMER_OFFSET_NOT_FOUND: NOT_FOUND,
    E.CLIENT_NOT_FOUND: NOT_FOUND,
    E.UNAUTHENTICATED: 401,
    E.INVALID_TOKEN: 401,
    E.ACCESS_TOKEN_MISSING: 401,
    E.INVALID_ACCESS_TOKEN: 401,
    E.UNAUTHORIZED: 403,
    E.PARTITION_NOT_OWNED: 409,
    E.OFFSET_GONE: 410,
    E.DAMAGED_DATA: 500,
    E.KEY_MISSING: 500,
    E.STORAGE_FAILURE: 500,
    E.SERVER_BUSY: UNAVAILABLE,
    E.PARTITION_READ_ONLY: UNAVAILABLE,
    E.PARTITION_OFFLINE: UNAVAILABLE,
    E.METADATA_READ_ONLY: UNAVAILABLE,
    E.JOURNAL_FULL: UNAVAILABLE,
    E.NOT_ARCHIVED: UNAVAILABLE,
    E.ARCHIVE_FAILURE: UNAVAILABLE,
    E.DISK_FULL: 507,
}
"""All others are 400, as in Iggy."""

_WORDS: Mapping[E, str] = {
    E.STREAM_NOT_FOUND: "stream_id_not_found",
    E.TOPIC_NOT_FOUND: "topic_id_not_found",
    E.GROUP_NOT_FOUND: "consumer_group_id_not_found",
    E.GROUP_NAME_ALREADY_EXISTS: "consumer_group_name_already_exists",
    E.GROUP_MEMBER_NOT_FOUND: "consumer_group_member_not_found",
    E.INVALID_GROUP_NAME: "invalid_consumer_group_name",
    E.INVALID_TOKEN: "invalid_personal_access_token",
    E.INVALID_TOKEN_NAME: "invalid_personal_access_token_name",
    E.TOKEN_ALREADY_EXISTS: "personal_access_token_already_exists",
    E.TOKEN_EXPIRED: "personal_access_token_expired",
    E.TOO_MANY_TOKENS: "personal_access_tokens_limit_reached",
    E.TOO_MANY_USERS: "users_limit_reached",
    E.INVALID_KEY_LENGTH: "invalid_key_value_length",
}
"""Where Iggy has another name than ours."""

_FIELDS: Mapping[E, str] = {
    E.STREAM_NOT_FOUND: "stream_id",
    E.TOPIC_NOT_FOUND: "topic_id",
    E.PARTITION_NOT_FOUND: "partition_id",
    E.CLIENT_NOT_FOUND: "client_id",
    E.STREAM_NAME_ALREADY_EXISTS: "name",
    E.INVALID_STREAM_NAME: "name",
    E.TOPIC_NAME_ALREADY_EXISTS: "name",
    E.INVALID_TOPIC_NAME: "name",
    E.GROUP_NAME_ALREADY_EXISTS: "name",
    E.TOKEN_ALREADY_EXISTS: "name",
    E.INVALID_OFFSET: "offset",
    E.USER_ALREADY_EXISTS: "username",
}

_MISSES: Mapping[type[c.Command], frozenset[E]] = {
    c.GetStream: frozenset({E.STREAM_NOT_FOUND}),
    c.GetTopic: frozenset({E.STREAM_NOT_FOUND, E.TOPIC_NOT_FOUND}),
    c.GetTopics: frozenset({E.STREAM_NOT_FOUND}),
    c.CreateTopic: frozenset({E.STREAM_NOT_FOUND}),
    c.GetUser: frozenset({E.RESOURCE_NOT_FOUND}),
    c.GetClient: frozenset({E.CLIENT_NOT_FOUND, E.INVALID_CLIENT_ID}),
    c.GetConsumerOffset: frozenset({E.CONSUMER_OFFSET_NOT_FOUND, E.PARTITION_NOT_FOUND}),
}
"""What is answered in general terms, with 404 as the number of the error."""

_REFUSALS: Mapping[int, E] = {403: E.UNAUTHORIZED, NOT_FOUND: E.RESOURCE_NOT_FOUND, UNAVAILABLE: E.SERVER_BUSY}
"""What is refused for another reason than its form."""

_LOGINS = (c.LoginUser, c.LoginWithToken)
_BAD_LOGIN = frozenset({E.INVALID_USERNAME, E.INVALID_PASSWORD})
NOT_FOUND_BODY = msgspec.json.encode(ErrorView(NOT_FOUND, "not_found", "Resource not found", None))


def encode_failure(command: type[c.Command] | None, error: CourserError) -> tuple[int, bytes]:
    """The status and the body for a command that failed."""
    code = error.code
    if command is not None:
        if code in _MISSES.get(command, ()):
            return NOT_FOUND, NOT_FOUND_BODY
        if command is c.LoginUser and code in _BAD_LOGIN:
            code = E.INVALID_CREDENTIALS
        if command in _LOGINS and code is E.SERVER_BUSY:
            return TOO_MANY_REQUESTS, _body(code, error)
    return _STATUSES.get(code, BAD_REQUEST), _body(code, error)


def encode_refusal(refusal: RestRefused) -> bytes:
    """The body for a request that cannot be read."""
    code = _REFUSALS.get(refusal.status, E.INVALID_COMMAND)
    return msgspec.json.encode(ErrorView(int(code), _WORDS.get(code, code.name.lower()), refusal.reason, None))


def _body(code: E, error: CourserError) -> bytes:
    view = ErrorView(int(code), _WORDS.get(code, code.name.lower()), str(error), _FIELDS.get(code))
    if isinstance(error, OffsetsUnavailable):
        view.first_offset, view.end_offset = error.first_offset, error.end_offset
    return msgspec.json.encode(view)
