"""Subscriptions in JSON: what a browser sends over WebSocket, and what it gets.

JavaScript reads numbers as floats. Ids have 128 bits and are written as strings; offsets and times have 64 bits and are
written as strings from 2^53 on, so that nothing is rounded.
"""

from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from courser.api.replies import Polled
from courser.api.subscriptions import Delivery, PayloadForm, Selection
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.identifiers import Identifier
from courser.model.messaging import PollingKind
from courser.records.frames import iterate_messages
from courser.wire.rest_failures import encode_failure
from courser.wire.rest_fields import U32_MAX, U64_MAX
from courser.wire.rest_messages import encode_headers

_EXACT_MAX = 2**53 - 1
"""The largest number that every JSON reader takes exactly."""

# --- requests -----------------------------------------------------------------------------------------

_U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Number = Annotated[int, msgspec.Meta(ge=0)] | Annotated[str, msgspec.Meta(pattern="^[0-9]{1,20}$")]
"""Below 2^64; also as a string, because that is how large ones are sent to the client."""


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What a client sends."""


class LoginRequest(_Request, frozen=True, tag="login"):
    """The first message: a token."""

    token: str
    """An access token of HTTP, or a personal access token."""
    credit: _U32 | None = None
    """How many messages the client takes before it gives more credit; None if that is unlimited."""


class SubscribeRequest(_Request, frozen=True, tag="subscribe"):
    """A request for one more topic."""

    stream: _U32 | _Name
    topic: _U32 | _Name
    partitions: list[_U32] | None = None
    start: Literal["new", "next", "first", "last", "offset", "timestamp"] = "new"
    value: _Number = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=U32_MAX)] = 1
    consumer: _U32 | _Name = 0
    offsets: dict[str, _Number] = {}
    payload: bool = True
    encoding: Literal["base64", "text", "json"] = "base64"

    def selection(self) -> Selection:
        """The topic and where to start. Raises ``CommandRejected``."""
        return Selection(
            stream=self.stream,
            topic=self.topic,
            partition_ids=None if self.partitions is None else tuple(self.partitions),
            start=None if self.start == "new" else PollingKind[self.start.upper()],
            value=_whole("value", self.value, U64_MAX),
            count=self.count,
            consumer=self.consumer,
            offsets={
                _whole("offsets", partition, U32_MAX): _whole("offsets", offset, U64_MAX)
                for partition, offset in self.offsets.items()
            },
            payload_form=PayloadForm(self.encoding) if self.payload else PayloadForm.NONE,
        )


class UnsubscribeRequest(_Request, frozen=True, tag="unsubscribe"):
    """A request to end one topic."""

    stream: _U32 | _Name
    topic: _U32 | _Name

    def selection(self) -> Selection:
        return Selection(stream=self.stream, topic=self.topic)


class CreditRequest(_Request, frozen=True, tag="credit"):
    """The client takes so many more messages."""

    count: _U32


SubscriptionRequest: TypeAlias = LoginRequest | SubscribeRequest | UnsubscribeRequest | CreditRequest
_decoder: "msgspec.json.Decoder[SubscriptionRequest]" = msgspec.json.Decoder(SubscriptionRequest)


def decode_request(data: bytes) -> SubscriptionRequest:
    """A message of a client. Raises ``CommandRejected`` (3)."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(str(error)) from None


def _whole(name: str, given: int | str, limit: int) -> int:
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        raise _invalid(f"{given[:40]!r} is not a number - at `$.{name}`")
    number = int(given)
    if number > limit:
        raise _invalid(f"{number} is larger than {limit} - at `$.{name}`")
    return number


def _invalid(reason: str) -> CommandRejected:
    return CommandRejected(ErrorCode.INVALID_COMMAND, f"the message is not valid: {reason}")


# --- answers ------------------------------------------------------------------------------------------


def exact(number: int) -> int | str:
    """A number that JavaScript does not round."""
    return number if number <= _EXACT_MAX else str(number)


def encode_logged_in(user_id: int) -> bytes:
    """The answer to a login."""
    return msgspec.json.encode({"type": "logged_in", "user_id": user_id})


def encode_subscribed(selection: Selection, offsets: Mapping[int, int]) -> bytes:
    """The answer to a subscription: where each partition starts."""
    starts = {str(partition_id): exact(offset) for partition_id, offset in offsets.items()}
    return msgspec.json.encode(_topic("subscribed", selection) | {"offsets": starts})


def encode_unsubscribed(selection: Selection) -> bytes:
    """The answer to the end of a subscription."""
    return msgspec.json.encode(_topic("unsubscribed", selection))


def encode_error(error: CourserError, selection: Selection | None = None, *, is_end: bool = False) -> bytes:
    """Something was refused, or nothing more comes from a topic."""
    fields = {"type": "error"} if selection is None else _topic("ended" if is_end else "error", selection)
    return msgspec.json.encode(fields | {"error": msgspec.Raw(encode_failure(None, error)[1])})


def _topic(kind: str, selection: Selection) -> dict[str, Any]:
    names: dict[str, Identifier] = {"stream": selection.stream, "topic": selection.topic}
    return {"type": kind, **names}


def encode_delivery(delivery: Delivery) -> bytes:
    """Messages of one partition."""
    polled = delivery.polled
    fields = _topic("messages", delivery.selection) | {
        "partition_id": polled.partition_id,
        "current_offset": exact(polled.current_offset),
        "next_offset": exact(delivery.next_offset),
        "gaps": [
            {"first_offset": exact(gap.first_offset), "end_offset": exact(gap.end_offset), "reason": gap.reason}
            for gap in delivery.gaps
        ],
        "messages": [message for _, message in encode_messages(polled, delivery.selection.payload_form)],
    }
    return msgspec.json.encode(fields)


def encode_messages(polled: Polled, form: PayloadForm) -> Iterator[tuple[int, msgspec.Raw]]:
    """The offset of each message, and the message as JSON."""
    for offset, timestamp, origin_timestamp, frame in iterate_messages(polled.pieces):
        fields: dict[str, Any] = {
            "offset": exact(offset),
            "id": str(frame.message_id),
            "timestamp": exact(timestamp),
            "origin_timestamp": exact(origin_timestamp),
        }
        yield offset, msgspec.Raw(msgspec.json.encode(fields | contents_of(frame.payload, frame.user_headers, form)))


def contents_of(payload: memoryview, user_headers: memoryview, form: PayloadForm) -> dict[str, Any]:
    """The payload in the wanted form, if it has that form, and the user headers."""
    if form is PayloadForm.NONE:
        return {}
    shown, encoding = _payload(payload, form)
    headers = {"user_headers": msgspec.Raw(encode_headers(user_headers))} if user_headers else {}
    return {"payload": shown, "encoding": encoding.value} | headers


def _payload(payload: memoryview, form: PayloadForm) -> tuple[str | msgspec.Raw, PayloadForm]:
    try:
        if form is PayloadForm.TEXT:
            return str(payload, "utf-8"), form
        if form is PayloadForm.JSON:
            # On one line, and otherwise as it is: numbers stay exact.
            return msgspec.Raw(msgspec.json.format(str(payload, "utf-8"), indent=-1)), form
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return b2a_base64(payload, newline=False).decode(), PayloadForm.BASE64
