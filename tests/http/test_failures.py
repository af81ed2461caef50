"""Which status an error has over HTTP."""

import json

import pytest

from courser.api import commands as c
from courser.errors import CommandRejected, ErrorCode
from courser.wire.rest_failures import encode_failure


@pytest.mark.parametrize(
    ("command", "code", "status"),
    [
        (c.LoginUser, ErrorCode.SERVER_BUSY, 429),
        (c.LoginWithToken, ErrorCode.SERVER_BUSY, 429),
        (c.PollMessages, ErrorCode.SERVER_BUSY, 503),
        (c.SendMessages, ErrorCode.PARTITION_READ_ONLY, 503),
        (c.SendMessages, ErrorCode.DISK_FULL, 507),
        (c.PollMessages, ErrorCode.OFFSET_GONE, 410),
        (c.PollMessages, ErrorCode.DAMAGED_DATA, 500),
        (c.GetStreams, ErrorCode.UNAUTHORIZED, 403),
        (c.CreateStream, ErrorCode.STREAM_NAME_ALREADY_EXISTS, 400),
    ],
)
def test_errors_and_their_status(command: type[c.Command], code: ErrorCode, status: int) -> None:
    found, body = encode_failure(command, CommandRejected(code, "why"))
    assert found == status
    assert json.loads(body)["id"] == code


def test_a_login_with_an_impossible_name_or_password_has_the_code_of_a_wrong_one() -> None:
    bodies = {
        json.loads(encode_failure(c.LoginUser, CommandRejected(code, "why"))[1])["code"]
        for code in (ErrorCode.INVALID_USERNAME, ErrorCode.INVALID_PASSWORD, ErrorCode.INVALID_CREDENTIALS)
    }
    assert bodies == {"invalid_credentials"}
