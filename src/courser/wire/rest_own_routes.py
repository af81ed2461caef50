"""The routes that are not one command each: what the server and the OpenAPI document need to know of them."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
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
_DEFERRED = "/streams/{stream}/topics/{topic}/messages/deferred"
_PAYLOAD_FORMS = [form.value for form in PayloadForm]


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


def text(name: str, description: str, **schema: object) -> Parameter:
    """A value that is any text."""
    return Parameter(name, description, {"type": "string", **schema})


def word(name: str, description: str, words: Iterable[str], **schema: object) -> Parameter:
    """A value that is one of some words."""
    return text(name, description, enum=list(words), **schema)


def number(name: str, description: str, maximum: int = U32_MAX, minimum: int = 0, **schema: object) -> Parameter:
    """A value that is a whole number."""
    return Parameter(name, description, {"type": "integer", "minimum": minimum, "maximum": maximum, **schema})


def _several(one: Parameter, **schema: object) -> Parameter:
    """A value that may be repeated."""
    return Parameter(one.name, one.description, {"type": "array", "items": one.schema, **schema})


@dataclass(frozen=True, slots=True)
class OwnRoute:
    """A route of Courser's own: method, path and command."""

    name: str
    """Of the operation; the server finds by it what answers."""
    method: str
    path: str
    summary: str
    _: KW_ONLY
    status: int = 200
    media_type: str | None = JSON_TYPE
    """Of the reply; None: it has no body."""
    reply: Any = None
    """The type of the JSON reply."""
    body: type[msgspec.Struct] | None = None
    is_body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    is_public: bool = False


WAIT = text(
    "wait",
    "How long to wait for messages: microseconds, or a text such as 5s; at most 20 seconds.",
    examples=["5s"],
)
MAX_BYTES = text(
    "max_bytes",
    "Bytes of messages in the reply: a number, or a text such as 1 MiB. One message is always returned.",
    examples=["1MiB"],
)
STRICT = Parameter(
    "strict",
    "Whether deleted or damaged messages are an error; otherwise they are skipped, as in Iggy. With wait or max_bytes, "
    "they always are.",
    {"type": "boolean"},
)
_COUNT = number("count", "How many messages.", default=10)
_AUTO_COMMIT = Parameter(
    "auto_commit", "Whether to store the offset of the last message.", {"type": "boolean", "default": False}
)
_CONSUMER = text("consumer_id", "Whose stored offsets kind=next means.", minLength=1)
_CONSOLE_HEADER = Parameter(
    "X-Courser-Console", "Any value: pages of other origins cannot send it.", {"type": "string"}, place="header"
)
_DEFERRED_POLL = (
    _CONSUMER,
    number("partition_id", "The partition.", default=0),
    word("kind", "Where to start.", (kind.name.lower() for kind in PollingKind), default="offset"),
    number("value", "The offset or the time in microseconds.", U64_MAX),
    _COUNT,
    _AUTO_COMMIT,
    number("wait_us", "Microseconds to wait for messages.", DEFERRED_WAIT_MAX, default=0),
    number("min_count", "How many messages to wait for.", minimum=1, default=1),
    number("max_bytes", "Bytes of messages in the reply. One message is always returned.", default=1024 * 1024),
    number("request_timeout_us", "Microseconds after which the client gives up: the wait ends by then.", U64_MAX),
)
_EVENTS = (
    Parameter(
        "topic",
        "A stream and a topic, each a number or a name: shop/orders. May be repeated.",
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        is_required=True,
    ),
    word("kind", "Where to start.", EVENT_STARTS, default="new"),
    number("value", "The offset or the time in microseconds at which to start.", U64_MAX),
    number("count", "How many of the newest messages of each partition, if kind is last."),
    _CONSUMER,
    word("payload", "How the payload is written; by default it is not.", _PAYLOAD_FORMS, default="none"),
    Parameter(
        "Last-Event-ID",
        "The id of the last event that was received: continue after it.",
        {"type": "string"},
        place="header",
    ),
)
_SEARCH = (
    _several(
        text(
            "filter",
            "A condition such as text, key=a, header.source=shop or .order.id=17. May be repeated: all must be "
            "satisfied.",
            maxLength=FILTER_SIZE_MAX,
        ),
        maxItems=FILTER_COUNT_MAX,
    ),
    word("order", "Which messages come first.", (order.value for order in ScanOrder), default=ScanOrder.NEWEST.value),
    number("count", "How many messages to find.", HIT_COUNT_MAX, minimum=1, default=100),
    _several(number("partition_id", "Only this partition. May be repeated.")),
    number("first_offset", "Only messages from this offset on.", U64_MAX),
    number("end_offset", "Only messages before this offset.", U64_MAX),
    number("first_time", "Only messages from this time on, in microseconds.", U64_MAX),
    number("end_time", "Only messages before this time, in microseconds.", U64_MAX),
    word("payload", "How the payload is written.", _PAYLOAD_FORMS, default=PayloadForm.BASE64.value),
    text(
        "payload_bytes",
        "Bytes of a payload that are returned: a number, or a text such as 1 MiB. The rest is left out.",
        default="16KiB",
    ),
    text("positions", "Continue where an earlier search stopped: what its last event says."),
)
_MEMBER_POLL = (
    number("partition_id", "One of the member's partitions. Otherwise they take turns."),
    _COUNT,
    WAIT,
    MAX_BYTES,
    _AUTO_COMMIT,
)


def _page(name: str, path: str, summary: str, media_type: str = _TEXT_TYPE) -> OwnRoute:
    """Something to read, for everybody."""
    return OwnRoute(name, "GET", path, summary, media_type=media_type, is_public=True)


def _deed(name: str, method: str, path: str, summary: str, body: type[msgspec.Struct] | None = None) -> OwnRoute:
    """A request that has nothing to reply."""
    return OwnRoute(name, method, path, summary, status=204, media_type=None, body=body)


_ROUTES = (
    _page("get_root", "/", "The name of the server."),
    _page("ping", "/ping", "Replies with pong."),
    _page("get_liveness", "/health/live", "200 as long as the server answers."),
    _page("get_readiness", "/health/ready", "200, or 503 with the reasons why the server is not ready."),
    OwnRoute("get_openapi", "GET", "/openapi.json", "This document.", reply=dict[str, Any], is_public=True),
    _page("get_api_page", "/docs", "This document as a page to read.", _HTML_TYPE),
    OwnRoute(
        "refresh_token",
        "POST",
        "/users/refresh-token",
        "Exchange an access token for a new one.",
        reply=IdentityView,
        body=RefreshBody,
        is_public=True,
    ),
    OwnRoute(
        "subscribe_to_events",
        "GET",
        "/events",
        "Server-sent events for messages as they arrive, from one or several topics.",
        media_type=EVENTS_TYPE,
        parameters=_EVENTS,
    ),
    OwnRoute(
        "search_messages",
        "GET",
        "/streams/{stream}/topics/{topic}/search",
        "Server-sent events with the messages of a topic that satisfy conditions, in the order of time.",
        media_type=EVENTS_TYPE,
        parameters=_SEARCH,
    ),
    OwnRoute(
        "poll_deferred",
        "GET",
        _DEFERRED,
        "Read messages of one partition, once there are enough of them or the wait is over.",
        reply=PolledView,
        parameters=_DEFERRED_POLL,
    ),
    OwnRoute(
        "poll_deferred_and_commit",
        "POST",
        _DEFERRED,
        "The same for polls with auto_commit: a proxy does not repeat it.",
        reply=PolledView,
        parameters=_DEFERRED_POLL,
    ),
    OwnRoute(
        "create_member",
        "POST",
        _MEMBERS,
        "Join a consumer group: the member leaves when it has sent no request for its time to live.",
        status=201,
        reply=MemberView,
        body=MemberBody,
        is_body_required=False,
    ),
    OwnRoute("get_member", "GET", _MEMBER, "Which partitions a member reads.", reply=MemberView),
    OwnRoute(
        "poll_as_member",
        "GET",
        f"{_MEMBER}/messages",
        "Read the next messages of the member's partitions. Deleted or damaged messages are an error.",
        reply=PolledView,
        parameters=_MEMBER_POLL,
    ),
    _deed(
        "commit_as_member",
        "PUT",
        f"{_MEMBER}/offsets",
        "Store how far the consumer group got in one of the member's partitions.",
        MemberOffsetBody,
    ),
    _deed("delete_member", "DELETE", _MEMBER, "Leave the consumer group."),
)
_CONSOLE_ROUTES = (
    OwnRoute(
        "redirect_to_console", "GET", "/ui", "Leads to the web console.", status=307, media_type=None, is_public=True
    ),
    _page("get_console", "/ui/", "The web console.", _HTML_TYPE),
    _page("get_console_file", "/ui/{file}", "A file of the web console."),
    _page(
        "get_versioned_console_file",
        "/ui/{version}/{file}",
        "A file of the web console, of the version that the page names: it never changes.",
    ),
    OwnRoute(
        "create_console_session",
        "POST",
        "/ui/session",
        "Log in to the web console: the session is a cookie. Needs the header X-Courser-Console.",
        reply=ConsoleSessionView,
        body=ConsoleLoginBody,
        parameters=(_CONSOLE_HEADER,),
        is_public=True,
    ),
    OwnRoute(
        "get_console_session",
        "GET",
        "/ui/session",
        "Who is logged in to the web console, and what it may do.",
        reply=ConsoleSessionView,
    ),
    _deed("delete_console_session", "DELETE", "/ui/session", "Log out of the web console."),
)


def own_routes(metrics_path: str | None, *, has_console: bool = True) -> tuple[OwnRoute, ...]:
    """All of them. ``metrics_path`` is configured; None: metrics are not served."""
    routes = (*_ROUTES, *_CONSOLE_ROUTES) if has_console else _ROUTES
    if metrics_path is None:
        return routes
    return (*routes, _page("get_metrics", metrics_path, "All metrics in the text format of Prometheus."))
