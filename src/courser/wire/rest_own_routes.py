"""The routes that are not one command each: what the server and the OpenAPI document need to know of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from courser.api.scans import HIT_COUNT_MAX, ScanOrder
from courser.api.subscriptions import PayloadForm
from courser.model.messaging import PollingKind
from courser.records.message_filter import FILTER_COUNT_MAX, FILTER_SIZE_MAX
from courser.wire.rest_events import EVENT_STARTS, EVENTS_TYPE
from courser.wire.rest_fields import U32_MAX, U64_MAX, JsonPermissions
from courser.wire.rest_members import MemberBody, MemberOffsetBody, MemberView
from courser.wire.rest_messages import DEFERRED_WAIT_MAX, PolledView
from courser.wire.rest_requests import JSON_TYPE
from courser.wire.rest_views import IdentityView

_TEXT_TYPE, _HTML_TYPE = "text/plain", "text/html"
_MEMBERS = "/streams/{stream}/topics/{topic}/consumer-groups/{group}/members"
_MEMBER = f"{_MEMBERS}/{{member}}"


class ConsoleLoginBody(msgspec.Struct):
    """A name and a password, or a token: a personal access token, or one that is valid once."""

    username: str = ""
    password: str = ""
    token: str = ""


class ConsoleSessionView(msgspec.Struct):
    """A session of the web console."""

    user_id: int
    username: str
    permissions: JsonPermissions | None
    expires_at: int
    """Seconds since 1970."""
    read_only: bool
    """Whether the console may change nothing, whoever is logged in."""
    version: str
    """Of the server."""


class RefreshBody(msgspec.Struct):
    """An access token to be replaced."""

    token: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the query or a header."""

    name: str
    description: str
    schema: Mapping[str, Any]
    place: str = "query"
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRoute:
    """A route of Courser's own: method, path and command."""

    name: str
    """Of the operation; the server finds by it what answers."""
    method: str
    path: str
    summary: str
    status: int = 200
    media_type: str | None = JSON_TYPE
    """Of the reply; None: it has no body."""
    reply: Any = None
    """The type of the JSON reply."""
    body: type[msgspec.Struct] | None = None
    is_body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    is_public: bool = False


WAIT = Parameter(
    "wait",
    "How long to wait for messages: microseconds, or a text such as 5s; at most 20 seconds.",
    {"type": "string", "examples": ["5s"]},
)
MAX_BYTES = Parameter(
    "max_bytes",
    "Bytes of messages in the reply: a number, or a text such as 1 MiB. One message is always returned.",
    {"type": "string", "examples": ["1MiB"]},
)
STRICT = Parameter(
    "strict",
    "Whether deleted or damaged messages are an error; otherwise they are skipped, as in Iggy. With wait or max_bytes, "
    "they always are.",
    {"type": "boolean"},
)
_COUNT = Parameter("count", "How many messages.", {"type": "integer", "minimum": 0, "maximum": U32_MAX, "default": 10})
_PARTITION = Parameter(
    "partition_id",
    "One of the member's partitions. Otherwise they take turns.",
    {"type": "integer", "minimum": 0, "maximum": U32_MAX},
)
_CONSOLE_HEADER = Parameter(
    "X-Courser-Console", "Any value: pages of other origins cannot send it.", {"type": "string"}, place="header"
)
_AUTO_COMMIT = Parameter(
    "auto_commit", "Whether to store the offset of the last message.", {"type": "boolean", "default": False}
)

_OFFSET_SCHEMA = {"type": "integer", "minimum": 0, "maximum": U64_MAX}
_DEFERRED = "/streams/{stream}/topics/{topic}/messages/deferred"
_DEFERRED_POLL = (
    Parameter("consumer_id", "Whose stored offsets kind=next means.", {"type": "string", "minLength": 1}),
    Parameter("partition_id", "The partition.", {"type": "integer", "minimum": 0, "maximum": U32_MAX, "default": 0}),
    Parameter(
        "kind",
        "Where to start.",
        {"type": "string", "enum": [kind.name.lower() for kind in PollingKind], "default": "offset"},
    ),
    Parameter("value", "The offset or the time in microseconds.", _OFFSET_SCHEMA),
    _COUNT,
    _AUTO_COMMIT,
    Parameter(
        "wait_us",
        "Microseconds to wait for messages.",
        {"type": "integer", "minimum": 0, "maximum": DEFERRED_WAIT_MAX, "default": 0},
    ),
    Parameter(
        "min_count",
        "How many messages to wait for.",
        {"type": "integer", "minimum": 1, "maximum": U32_MAX, "default": 1},
    ),
    Parameter(
        "max_bytes",
        "Bytes of messages in the reply. One message is always returned.",
        {"type": "integer", "minimum": 0, "maximum": U32_MAX, "default": 1024 * 1024},
    ),
    Parameter(
        "request_timeout_us",
        "Microseconds after which the client gives up: the wait ends by then.",
        {"type": "integer", "minimum": 0, "maximum": U64_MAX},
    ),
)

_CONSOLE_ROUTES = (
    OwnRoute(
        name="redirect_to_console",
        method="GET",
        path="/ui",
        summary="Leads to the web console.",
        status=307,
        media_type=None,
        is_public=True,
    ),
    OwnRoute(
        name="get_console",
        method="GET",
        path="/ui/",
        summary="The web console.",
        media_type=_HTML_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="get_console_file",
        method="GET",
        path="/ui/{file}",
        summary="A file of the web console.",
        media_type=_TEXT_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="get_versioned_console_file",
        method="GET",
        path="/ui/{version}/{file}",
        summary="A file of the web console, of the version that the page names: it never changes.",
        media_type=_TEXT_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="create_console_session",
        method="POST",
        path="/ui/session",
        summary="Log in to the web console: the session is a cookie. Needs the header X-Courser-Console.",
        reply=ConsoleSessionView,
        body=ConsoleLoginBody,
        parameters=(_CONSOLE_HEADER,),
        is_public=True,
    ),
    OwnRoute(
        name="get_console_session",
        method="GET",
        path="/ui/session",
        summary="Who is logged in to the web console, and what it may do.",
        reply=ConsoleSessionView,
    ),
    OwnRoute(
        name="delete_console_session",
        method="DELETE",
        path="/ui/session",
        summary="Log out of the web console.",
        status=204,
        media_type=None,
    ),
)
_SEARCH = (
    Parameter(
        "filter",
        "A condition such as text, key=a, header.source=shop or .order.id=17. May be repeated: all must be satisfied.",
        {"type": "array", "items": {"type": "string", "maxLength": FILTER_SIZE_MAX}, "maxItems": FILTER_COUNT_MAX},
    ),
    Parameter(
        "order",
        "Which messages come first.",
        {"type": "string", "enum": [order.value for order in ScanOrder], "default": ScanOrder.NEWEST.value},
    ),
    Parameter(
        "count",
        "How many messages to find.",
        {"type": "integer", "minimum": 1, "maximum": HIT_COUNT_MAX, "default": 100},
    ),
    Parameter(
        "partition_id",
        "Only this partition. May be repeated.",
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": U32_MAX}},
    ),
    Parameter("first_offset", "Only messages from this offset on.", _OFFSET_SCHEMA),
    Parameter("end_offset", "Only messages before this offset.", _OFFSET_SCHEMA),
    Parameter("first_time", "Only messages from this time on, in microseconds.", _OFFSET_SCHEMA),
    Parameter("end_time", "Only messages before this time, in microseconds.", _OFFSET_SCHEMA),
    Parameter(
        "payload",
        "How the payload is written.",
        {"type": "string", "enum": [form.value for form in PayloadForm], "default": PayloadForm.BASE64.value},
    ),
    Parameter(
        "payload_bytes",
        "Bytes of a payload that are returned: a number, or a text such as 1 MiB. The rest is left out.",
        {"type": "string", "default": "16KiB"},
    ),
    Parameter("positions", "Continue where an earlier search stopped: what its last event says.", {"type": "string"}),
)

_ROUTES = (
    OwnRoute(
        name="get_root",
        method="GET",
        path="/",
        summary="The name of the server.",
        media_type=_TEXT_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="ping", method="GET", path="/ping", summary="Replies with pong.", media_type=_TEXT_TYPE, is_public=True
    ),
    OwnRoute(
        name="get_liveness",
        method="GET",
        path="/health/live",
        summary="200 as long as the server answers.",
        media_type=_TEXT_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="get_readiness",
        method="GET",
        path="/health/ready",
        summary="200, or 503 with the reasons why the server is not ready.",
        media_type=_TEXT_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="get_openapi",
        method="GET",
        path="/openapi.json",
        summary="This document.",
        reply=dict[str, Any],
        is_public=True,
    ),
    OwnRoute(
        name="get_api_page",
        method="GET",
        path="/docs",
        summary="This document as a page to read.",
        media_type=_HTML_TYPE,
        is_public=True,
    ),
    OwnRoute(
        name="refresh_token",
        method="POST",
        path="/users/refresh-token",
        summary="Exchange an access token for a new one.",
        reply=IdentityView,
        body=RefreshBody,
        is_public=True,
    ),
    OwnRoute(
        name="subscribe_to_events",
        method="GET",
        path="/events",
        summary="Server-sent events for messages as they arrive, from one or several topics.",
        media_type=EVENTS_TYPE,
        parameters=(
            Parameter(
                "topic",
                "A stream and a topic, each a number or a name: shop/orders. May be repeated.",
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                is_required=True,
            ),
            Parameter(
                "kind",
                "Where to start.",
                {"type": "string", "enum": list(EVENT_STARTS), "default": "new"},
            ),
            Parameter(
                "value",
                "The offset or the time in microseconds at which to start.",
                {"type": "integer", "minimum": 0, "maximum": U64_MAX},
            ),
            Parameter(
                "count",
                "How many of the newest messages of each partition, if kind is last.",
                {"type": "integer", "minimum": 0, "maximum": U32_MAX},
            ),
            Parameter("consumer_id", "Whose stored offsets kind=next means.", {"type": "string", "minLength": 1}),
            Parameter(
                "payload",
                "How the payload is written; by default it is not.",
                {"type": "string", "enum": [form.value for form in PayloadForm], "default": "none"},
            ),
            Parameter(
                "Last-Event-ID",
                "The id of the last event that was received: continue after it.",
                {"type": "string"},
                place="header",
            ),
        ),
    ),
    OwnRoute(
        name="search_messages",
        method="GET",
        path="/streams/{stream}/topics/{topic}/search",
        summary="Server-sent events with the messages of a topic that satisfy conditions, in the order of time.",
        media_type=EVENTS_TYPE,
        parameters=_SEARCH,
    ),
    OwnRoute(
        name="poll_deferred",
        method="GET",
        path=_DEFERRED,
        summary="Read messages of one partition, once there are enough of them or the wait is over.",
        reply=PolledView,
        parameters=_DEFERRED_POLL,
    ),
    OwnRoute(
        name="poll_deferred_and_commit",
        method="POST",
        path=_DEFERRED,
        summary="The same for polls with auto_commit: a proxy does not repeat it.",
        reply=PolledView,
        parameters=_DEFERRED_POLL,
    ),
    OwnRoute(
        name="create_member",
        method="POST",
        path=_MEMBERS,
        summary="Join a consumer group: the member leaves when it has sent no request for its time to live.",
        status=201,
        reply=MemberView,
        body=MemberBody,
        is_body_required=False,
    ),
    OwnRoute(
        name="get_member",
        method="GET",
        path=_MEMBER,
        summary="Which partitions a member reads.",
        reply=MemberView,
    ),
    OwnRoute(
        name="poll_as_member",
        method="GET",
        path=f"{_MEMBER}/messages",
        summary="Read the next messages of the member's partitions. Deleted or damaged messages are an error.",
        reply=PolledView,
        parameters=(_PARTITION, _COUNT, WAIT, MAX_BYTES, _AUTO_COMMIT),
    ),
    OwnRoute(
        name="commit_as_member",
        method="PUT",
        path=f"{_MEMBER}/offsets",
        summary="Store how far the consumer group got in one of the member's partitions.",
        status=204,
        media_type=None,
        body=MemberOffsetBody,
    ),
    OwnRoute(
        name="delete_member",
        method="DELETE",
        path=_MEMBER,
        summary="Leave the consumer group.",
        status=204,
        media_type=None,
    ),
)


def own_routes(metrics_path: str | None, *, has_console: bool = True) -> tuple[OwnRoute, ...]:
    """All of them. ``metrics_path`` is configured; None: metrics are not served."""
    routes = (*_ROUTES, *_CONSOLE_ROUTES) if has_console else _ROUTES
    if metrics_path is None:
        return routes
    metrics = OwnRoute(
        name="get_metrics",
        method="GET",
        path=metrics_path,
        summary="All metrics in the text format of Prometheus.",
        media_type=_TEXT_TYPE,
        is_public=True,
    )
    return (*routes, metrics)
