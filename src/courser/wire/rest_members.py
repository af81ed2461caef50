"""Members of consumer groups over HTTP: what their routes read and write."""

import re
from typing import Annotated

import msgspec

from courser.api import commands as c
from courser.api.fields import Kind
from courser.api.replies import Assignment
from courser.model.identifiers import Consumer, ConsumerKind, Identifier
from courser.model.messaging import PollingKind
from courser.model.quantities import parse_duration
from courser.wire.rest_fields import BAD_REQUEST, U32_MAX, U64_MAX, UNPROCESSABLE, RestRefused, identifier_of, number_of
from courser.wire.rest_messages import COUNT_DEFAULT, WAIT_MAX, byte_size_of, duration_of
from courser.wire.rest_requests import RestRequest, from_json, from_query

_MEMBER_ID = re.compile("[0-9a-f]{32}")

_U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]


class MemberBody(msgspec.Struct):
    """A new member. An empty body is one, too."""

    ttl: _Natural | str | None = None
    """How long it stays without a request: microseconds, or a text such as 30s, which is the default."""


class MemberView(msgspec.Struct):
    """A member, and the partitions that it reads."""

    id: str
    ttl: int
    """How long it stays without a request, in microseconds."""
    generation: int
    """Increases whenever the partitions of the group are assigned anew."""
    partitions: list[int]


class MemberOffsetBody(msgspec.Struct):
    """How far a member got in one of its partitions."""

    partition_id: _U32
    offset: _Natural
    """Of the last message that is done."""


_member_decoder = msgspec.json.Decoder(MemberBody)
_offset_decoder = msgspec.json.Decoder(MemberOffsetBody)


def member_id_of(request: RestRequest) -> str:
    """The member that a path names, or an empty text, which no member is called."""
    text = request.values["member"]
    return text if _MEMBER_ID.fullmatch(text) else ""


def group_of(request: RestRequest) -> tuple[Identifier, Identifier, Identifier]:
    """The stream, topic and group that a path names."""
    stream, topic, group = (identifier_of(request.values[name]) for name in ("stream", "topic", "group"))
    return stream, topic, group


def decode_time_to_live(request: RestRequest, default: int, minimum: int, maximum: int) -> int:
    """How long a new member stays, in microseconds. Raises ``RestRefused``."""
    given = from_json(request, _member_decoder).ttl if request.body else None
    if given is None:
        return default
    try:
        value = (
            given if isinstance(given, int) else number_of(given, U64_MAX) if given.isdigit() else parse_duration(given)
        )
    except ValueError as error:
        raise RestRefused(UNPROCESSABLE, f"invalid body: ttl: {error}") from None
    if not minimum <= value <= maximum:
        reason = f"invalid body: ttl must be {minimum} to {maximum} microseconds, not {value}"
        raise RestRefused(UNPROCESSABLE, reason)
    return value


def decode_member_poll(request: RestRequest) -> c.WaitForMessages:
    """A poll of a member: from where its group has got to. Raises ``RestRefused``."""
    query = request.query
    stream, topic, group = group_of(request)
    poll = c.PollMessages(
        Consumer(ConsumerKind.GROUP, group),
        stream,
        topic,
        from_query(query, "partition_id", Kind.U32) if "partition_id" in query else None,
        PollingKind.NEXT,
        0,
        from_query(query, "count", Kind.U32, str(COUNT_DEFAULT)),
        from_query(query, "auto_commit", Kind.FLAG, "false"),
    )
    return c.WaitForMessages(poll, min(duration_of(query, "wait", 0), WAIT_MAX), byte_size_of(query, "max_bytes"))


def decode_member_offset(request: RestRequest) -> c.StoreConsumerOffset:
    """A commit of a member. Raises ``RestRefused``."""
    body: MemberOffsetBody = from_json(request, _offset_decoder)
    if body.offset > U64_MAX:
        raise RestRefused(BAD_REQUEST, f"invalid body: offset: {body.offset} is larger than {U64_MAX}")
    stream, topic, group = group_of(request)
    return c.StoreConsumerOffset(Consumer(ConsumerKind.GROUP, group), stream, topic, body.partition_id, body.offset)


def member_view(member_id: str, time_to_live: int, assignment: Assignment) -> MemberView:
    """The reply about a member."""
    return MemberView(member_id, time_to_live, assignment.generation, list(assignment.partition_ids))
