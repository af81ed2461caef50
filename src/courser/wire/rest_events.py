"""Server-sent events: which topics a request names, the events as text, and the id with which a client resumes.

The id of an event is the position of the whole subscription after it: for each partition the topic and the next offset.
A client that was disconnected sends the last one back, and gets exactly what follows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from courser.api.fields import Kind
from courser.api.subscriptions import Delivery, PayloadForm, Selection
from courser.errors import CourserError
from courser.model.identifiers import Identifier, TopicAddress
from courser.model.messaging import PollingKind
from courser.wire.rest_failures import encode_failure
from courser.wire.rest_fields import BAD_REQUEST, U64_MAX, RestRefused, identifier_of
from courser.wire.rest_requests import from_query
from courser.wire.subscription_messages import encode_messages, exact

EVENTS_TYPE = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
_RETRY = b"retry: 3000\n"
"""Milliseconds after which a browser connects again."""
_NEW = "new"
EVENT_STARTS: Mapping[str, PollingKind | None] = {_NEW: None} | {kind.name.lower(): kind for kind in PollingKind}
_ID_SIZE_MAX = 32 * 1024
"""Bytes of an id: it must fit into the head of a request."""
_ROW_COUNT_OF_ID_MAX = 16
"""Partitions up to which every message has an id. With more, only the last message of several that come together."""
_POSITION = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,20})")

TopicName = tuple[Identifier, Identifier]
"""Stream and topic, as the request names them."""


@dataclass(frozen=True, slots=True)
class EventRequest:
    """What a client wants to hear of."""

    topics: Sequence[TopicName]
    start: PollingKind | None
    value: int
    count: int
    consumer: Identifier
    payload_form: PayloadForm
    resume: "ResumePoint | None"

    def selection(self, address: TopicAddress) -> Selection:
        """The messages of one topic that are wanted."""
        start, offsets = self.start, {}
        if self.resume is not None:
            # What the client has not seen of this topic. If it is not in the id, that is everything: it is a new topic
            # of the same name. The same is true of new partitions.
            start, offsets = PollingKind.FIRST, self.resume.offsets.get(address, {})
        return Selection(
            stream=address.stream_id,
            topic=address.topic_id,
            start=start,
            value=self.value,
            count=self.count,
            consumer=self.consumer,
            offsets=offsets,
            payload_form=self.payload_form,
        )


@dataclass(slots=True)
class ResumePoint:
    """How far a client has got: the next offset of each partition."""

    offsets: dict[TopicAddress, dict[int, int]] = field(default_factory=dict)

    @property
    def is_too_long(self) -> bool:
        """Whether a client could not send it back."""
        return len(self.encode()) > _ID_SIZE_MAX

    def encode(self) -> bytes:
        """As the id of an event."""
        return b"~".join(
            b"%d.%d.%d.%d" % (address.stream_id, address.topic_id, partition_id, offset)
            for address, rows in self.offsets.items()
            for partition_id, offset in rows.items()
        )

    def move(self, address: TopicAddress, partition_id: int, next_offset: int) -> None:
        """The client has got everything below ``next_offset``."""
        self.offsets.setdefault(address, {})[partition_id] = next_offset

    def leave(self, address: TopicAddress) -> None:
        """Remove a topic that has ended."""
        self.offsets.pop(address, None)

    @property
    def row_count(self) -> int:
        """How many partitions it has."""
        return sum(map(len, self.offsets.values()))


# --- requests -----------------------------------------------------------------------------------------


def decode_events(pairs: Sequence[tuple[str, str]], last_event_id: str) -> EventRequest:
    """A subscription. Raises ``RestRefused``, or ``CommandRejected`` for a name that cannot be one."""
    query = dict(pairs)
    topics = [_topic_of(value) for name, value in pairs if name == "topic"]
    if not topics:
        raise RestRefused(BAD_REQUEST, "invalid query: topic is missing")
    return EventRequest(
        topics=list(dict.fromkeys(topics)),
        start=word_of(query, "kind", EVENT_STARTS, _NEW),
        value=from_query(query, "value", Kind.U64, "0"),
        count=from_query(query, "count", Kind.U32, "1"),
        consumer=identifier_of(query.get("consumer_id", "1")),
        payload_form=word_of(query, "payload", {form.value: form for form in PayloadForm}, PayloadForm.NONE.value),
        resume=decode_cursor(last_event_id) if last_event_id else None,
    )


def _topic_of(text: str) -> TopicName:
    stream, slash, topic = text.partition("/")
    if not slash:
        raise RestRefused(BAD_REQUEST, f"invalid query: topic: {text[:40]!r} is not a stream and a topic: stream/topic")
    # Once more: a name may have a slash of its own, which is escaped twice.
    return identifier_of(unquote(stream, errors="surrogateescape")), identifier_of(
        unquote(topic, errors="surrogateescape")
    )


def word_of(query: Mapping[str, str], name: str, words: Mapping[str, Any], default: str) -> Any:
    """What a word of the query stands for. Raises ``RestRefused``."""
    word = query.get(name, default)
    if word not in words:
        raise RestRefused(BAD_REQUEST, f"invalid query: {name}: {word[:40]!r} is none of {', '.join(words)}")
    return words[word]


def decode_cursor(text: str) -> ResumePoint:
    """The id of the last event that a client got. Raises ``RestRefused``."""
    cursor = ResumePoint()
    for part in text.split("~"):
        match = _POSITION.fullmatch(part)
        if match is None or int(match[4]) > U64_MAX:
            raise RestRefused(BAD_REQUEST, f"invalid Last-Event-ID: {part[:40]!r} is not a position")
        stream_id, topic_id, partition_id, offset = map(int, match.groups())
        cursor.move(TopicAddress(stream_id, topic_id), partition_id, offset)
    return cursor


# --- events -------------------------------------------------------------------------------------------


def encode_start(cursor: ResumePoint, topics: Mapping[TopicAddress, TopicName]) -> bytes:
    """The first event: where each partition starts. Its id lets a client resume that never got a message."""
    starts = [
        _named(topics[address]) | {"offsets": {str(row): exact(offset) for row, offset in rows.items()}}
        for address, rows in cursor.offsets.items()
    ]
    return _RETRY + encode_event("subscribed", msgspec.json.encode({"topics": starts}), cursor.encode())


def encode_delivery(delivery: Delivery, address: TopicAddress, name: TopicName, cursor: ResumePoint) -> bytes:
    """The events of a delivery, which moves the cursor."""
    return b"".join(_delivery_events(delivery, address, name, cursor))


def _delivery_events(
    delivery: Delivery, address: TopicAddress, name: TopicName, cursor: ResumePoint
) -> Iterator[bytes]:
    partition_id = delivery.polled.partition_id
    place = _named(name) | {"partition_id": partition_id}
    messages = list(encode_messages(delivery.polled, delivery.selection.payload_form))
    if not messages:
        cursor.move(address, partition_id, delivery.next_offset)
    for index, gap in enumerate(delivery.gaps, start=1):
        bounds = {"first_offset": exact(gap.first_offset), "end_offset": exact(gap.end_offset)}
        is_last = not messages and index == len(delivery.gaps)
        data = msgspec.json.encode(place | bounds | {"reason": gap.reason})
        yield encode_event("gap", data, cursor.encode() if is_last else None)
    has_every_id = cursor.row_count <= _ROW_COUNT_OF_ID_MAX
    # Without its closing brace: each message adds its own fields.
    head = msgspec.json.encode(place)[:-1] + b","
    for index, (offset, message) in enumerate(messages, start=1):
        is_last = index == len(messages)
        cursor.move(address, partition_id, delivery.next_offset if is_last else offset + 1)
        yield encode_event("message", head + bytes(message)[1:], cursor.encode() if is_last or has_every_id else None)


def encode_end(name: TopicName, error: CourserError) -> bytes:
    failure = msgspec.Raw(encode_failure(None, error)[1])
    return encode_event("ended", msgspec.json.encode(_named(name) | {"error": failure}))


def encode_stop(error: CourserError) -> bytes:
    """The end of a subscription or a search that was not to end."""
    return encode_event("stopped", encode_failure(None, error)[1])


def _named(name: TopicName) -> dict[str, Any]:
    return {"stream": name[0], "topic": name[1]}


def encode_event(kind: str, data: bytes, event_id: bytes | None = None) -> bytes:
    """One event. JSON has no line breaks, so one line is enough."""
    head = b"" if event_id is None else b"id: %b\n" % event_id
    return head + b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
