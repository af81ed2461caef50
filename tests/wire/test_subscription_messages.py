"""Subscriptions in JSON: nothing is rounded, and what is wrong is named."""

import json
from typing import Any

import pytest

from courser.api.replies import Polled
from courser.api.subscriptions import Delivery, Gap, PayloadForm, Selection
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import PollingKind
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.user_headers import UserHeader, build_user_headers
from courser.wire import subscription_messages as m


def encoded(form: PayloadForm, *messages: NewMessage, base_offset: int = 0) -> list[dict[str, Any]]:
    data = memoryview(encode_batch(build_batch(messages), base_offset=base_offset))
    polled = Polled(3, base_offset, len(messages), (data,), len(data))
    selection = Selection(stream="s", topic=7, payload_form=form)
    sent = json.loads(m.encode_delivery(Delivery(selection, polled, base_offset + len(messages), (Gap(0, 1, "lost"),))))
    assert (sent["type"], sent["stream"], sent["topic"], sent["partition_id"]) == ("messages", "s", 7, 3)
    assert sent["gaps"] == [{"first_offset": 0, "end_offset": 1, "reason": "lost"}]
    found: list[dict[str, Any]] = sent["messages"]
    return found


@pytest.mark.parametrize(
    ("form", "payload", "expected", "encoding"),
    [
        (PayloadForm.BASE64, b"\xff", "/w==", "base64"),
        (PayloadForm.TEXT, "grün\n".encode(), "grün\n", "text"),
        (PayloadForm.TEXT, b"\xff", "/w==", "base64"),
        (PayloadForm.JSON, b'{"a": [1,\n 2]}', {"a": [1, 2]}, "json"),
        (PayloadForm.JSON, b'{"a": ', "eyJhIjog", "base64"),
        (PayloadForm.JSON, b'"\xff"', "Iv8i", "base64"),
        (PayloadForm.JSON, b"[" * 5000, None, "base64"),
    ],
)
def test_a_payload_has_the_wanted_form_if_it_can(
    form: PayloadForm, payload: bytes, expected: object, encoding: str
) -> None:
    (message,) = encoded(form, NewMessage(payload))
    assert message["encoding"] == encoding
    assert expected is None or message["payload"] == expected


def test_a_subscriber_who_wants_no_payload_gets_none() -> None:
    (message,) = encoded(PayloadForm.NONE, NewMessage(b"secret"))
    assert message.keys() == {"offset", "id", "timestamp", "origin_timestamp"}


def test_large_numbers_are_strings_and_numbers_in_payloads_stay_as_they_are() -> None:
    message_id = 2**128 - 1
    headers = build_user_headers([UserHeader.of_text("k", "v")])
    message = NewMessage(b'{"n": 12345678901234567890}', message_id, 5, headers)
    (found,) = encoded(PayloadForm.JSON, message, base_offset=2**53)
    assert (found["offset"], found["id"]) == (str(2**53), str(message_id))
    assert found["payload"] == {"n": 12345678901234567890}
    assert [header["key"]["kind"] for header in found["user_headers"]] == ["string"]
    assert encoded(PayloadForm.TEXT, message, base_offset=2**53 - 1)[0]["offset"] == 2**53 - 1


def test_all_fields_of_a_subscription() -> None:
    found = selected(
        b'{"type":"subscribe","stream":"shop","topic":3,"partitions":[1,0],"start":"last","count":5,"consumer":"me",'
        b'"offsets":{"1":"18446744073709551615"},"payload":true,"encoding":"json"}'
    )
    assert found == Selection(
        stream="shop",
        topic=3,
        partition_ids=(1, 0),
        start=PollingKind.LAST,
        count=5,
        consumer="me",
        offsets={1: 2**64 - 1},
        payload_form=PayloadForm.JSON,
    )


def selected(data: bytes) -> Selection:
    request = m.decode_request(data)
    assert isinstance(request, m.SubscribeRequest)
    return request.selection()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "truncated"),
        (b"[]", "object"),
        (b'{"type":"shout"}', "shout"),
        (b'{"type":"login"}', "token"),
        (b'{"type":"subscribe","stream":"s","topic":"t","tail":1}', "tail"),
        (b'{"type":"subscribe","stream":"","topic":"t"}', "stream"),
        (b'{"type":"subscribe","stream":-1,"topic":"t"}', "stream"),
        (b'{"type":"subscribe","stream":"s","topic":"t","value":"18446744073709551616"}', "value"),
        (b'{"type":"subscribe","stream":"s","topic":"t","offsets":{"x":1}}', "offsets"),
        (b'{"type":"subscribe","stream":"s","topic":"t","start":"yesterday"}', "start"),
        (b'{"x":' + b"[" * 60_000, "recursion"),
        (b'{"type":"login","token":"\xff"}', "utf-8"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(CommandRejected, match=reason) as refused:
        _ = selected(data)
    assert refused.value.code is ErrorCode.INVALID_COMMAND
