"""The HTTP API: requests to commands, through the same dispatcher as all other transports, and replies back.

Each request has a session of its own, with the user that its access token names.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

import msgspec

from courser import __version__
from courser.api import commands as c
from courser.api import replies as r
from courser.api.table import CommandRow
from courser.broker.access.access_tokens import Access
from courser.broker.access.sessions import Session
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.model.metric_table import HTTP_REQUESTS
from courser.model.trace_context import TraceContext
from courser.records.layout import FRAME_HEADER_SIZE
from courser.transports.http_commands import HttpCommands, HttpServices
from courser.transports.http_connection import HttpConnection
from courser.transports.http_console import PRIVATE, Console
from courser.transports.http_events import EventRoute, SearchRoute
from courser.transports.http_exchange import (
    Answer,
    ClientGone,
    Exchange,
    RequestIds,
    head_line,
    text_answer,
)
from courser.transports.http_members import MemberRoutes
from courser.transports.session_loop import InternalFailure
from courser.transports.settings import ConnectionSettings, CorsSettings, HttpSettings
from courser.wire import prometheus
from courser.wire.api_page import HTML_TYPE, PAGE_HEADERS, api_page
from courser.wire.codec import QUICK_SIZE_MAX
from courser.wire.openapi import Json, openapi_document
from courser.wire.rest_failures import encode_failure, encode_refusal
from courser.wire.rest_fields import BAD_REQUEST, RestRefused
from courser.wire.rest_messages import (
    RAW_QUICK_SIZE_MAX,
    SDK_0_6,
    SDK_0_6_VERSION,
    decode_deferred_poll,
    decode_poll,
    decode_send,
    encode_sent,
    is_raw,
    wants_acknowledgement,
)
from courser.wire.rest_own_routes import RefreshBody, own_routes
from courser.wire.rest_replies import encode_reply, identity
from courser.wire.rest_requests import JSON_TYPE, Decoder, RestRequest, decoder_of, from_json, has_body
from courser.wire.rest_routes import Match, RouteTable

_VARY = "origin, access-control-request-method, access-control-request-headers"

_log = logging.getLogger(__name__)

_OK, _ACCEPTED, _UNAUTHORIZED, _NOT_FOUND, _NOT_ALLOWED, _FAILED, _UNAVAILABLE = 200, 202, 401, 404, 405, 500, 503
_RETRY_STATUSES = (429, _UNAVAILABLE)
_RETRY_LINE = head_line("retry-after", "1")
_HOT_METHODS = ("GET", "POST")
_HOT_PATH = re.compile(rb"/streams/[^/]+/topics/[^/]+/messages")
_SAME_LINES = head_line("x-content-type-options", "nosniff")
_PRIVATE_LINES = b"".join(head_line(name, value) for name, value in PRIVATE.items())
_KNOWN_PATH_COUNT, _KNOWN_PATH_SIZE_MAX = 1_000, 200
"""Paths that are remembered, because clients send the same ones again, and how long they may be."""
_CONSISTENCIES = ("serializable", "linearizable")


RouteAnswer: TypeAlias = Callable[[Exchange, Mapping[str, str], Access | None], Awaitable[Answer]]


class Cors:
    """Writes the headers that let pages of other origins use the API (CORS), as the settings say."""

    def __init__(self, settings: CorsSettings) -> None:
        self._settings = settings
        self._is_open = settings.origins[:1] == ("*",)
        self._lines = {origin.encode(): self._lines_for(origin) for origin in settings.origins}
        self._lines_for_others = self._lines_for("*" if self._is_open else None)

    def lines(self, origin: bytes) -> bytes:
        """The headers of every answer, as lines."""
        return self._lines_for_others if self._is_open else self._lines.get(origin, self._lines_for_others)

    def _lines_for(self, allowed: str | None) -> bytes:
        return b"".join(head_line(name, value) for name, value in self._headers(allowed).items())

    def _headers(self, allowed: str | None) -> dict[str, str]:
        settings = self._settings
        found = {"vary": _VARY}
        if allowed is not None:
            found["access-control-allow-origin"] = allowed
        if settings.allows_credentials:
            found["access-control-allow-credentials"] = "true"
        if settings.exposed_headers:
            found["access-control-expose-headers"] = ",".join(settings.exposed_headers)
        return found

    def preflight(self, request: Mapping[bytes, bytes]) -> dict[str, str]:
        """Those of the answer to a question what is allowed, besides the usual ones."""
        settings = self._settings
        found = {
            "access-control-allow-methods": ",".join(settings.methods),
            "access-control-allow-headers": ",".join(settings.headers),
        }
        if settings.allows_private_network and b"access-control-request-private-network" in request:
            found["access-control-allow-private-network"] = "true"
        return found


@dataclass(frozen=True, slots=True)
class _Route:
    """What a method and a path lead to."""

    name: str
    answer: RouteAnswer
    is_public: bool


_refresh_decoder = msgspec.json.Decoder(RefreshBody)


class HttpApplication:
    """Answers the requests of all HTTP connections."""

    def __init__(self, services: HttpServices, settings: HttpSettings, connections: ConnectionSettings) -> None:
        self._services = services
        self._settings = settings
        self._connections = connections
        self._cors = None if settings.cors is None else Cors(settings.cors)
        self._commands = HttpCommands(services)
        self._events = EventRoute(services)
        self._console = None
        if settings.console is not None:
            self._console = Console(services, self._commands, settings.console, connections.login_frame_size_max)
        self._base_path = b"" if settings.console is None else settings.console.base_path.encode()
        self._searches = SearchRoute(services)
        self._request_count = services.metrics.counter(HTTP_REQUESTS)
        self._ids = RequestIds(services.draw)
        self._dated_lines = (0, b"")
        """A second, and the headers of the answers in it."""
        self._router: RouteTable[_Route] = RouteTable()
        self._find_known = lru_cache(_KNOWN_PATH_COUNT)(self._find)
        for row in c.COMMANDS:
            if row.route is not None:
                answer = partial(self._answer_command, row, self._decoder_of(row))
                self._router.add(row.route.method, row.route.path, _Route(row.kind.__name__, answer, row.is_public))
        self._add_own_routes()

    def _add_own_routes(self) -> None:
        members = MemberRoutes(self._commands, self._services.members)
        answers: Mapping[str, RouteAnswer] = {
            "get_root": self._answer_root,
            "ping": self._answer_ping,
            "get_liveness": self._answer_ping,
            "get_readiness": self._answer_ready,
            "get_metrics": self._answer_metrics,
            "get_openapi": self._answer_openapi,
            "get_api_page": self._answer_api_page,
            "refresh_token": self._answer_refresh,
            "subscribe_to_events": self._events.subscribe,
            "search_messages": self._searches.search,
            "poll_deferred": self._answer_deferred_poll,
            "poll_deferred_and_commit": self._answer_deferred_poll,
            "create_member": members.create,
            "get_member": members.get,
            "poll_as_member": members.poll,
            "commit_as_member": members.commit,
            "delete_member": members.delete,
        }
        if self._console is not None:
            answers = {
                **answers,
                "redirect_to_console": self._console.redirect,
                "get_console": self._console.page,
                "get_console_file": self._console.file,
                "get_versioned_console_file": self._console.versioned_file,
                "create_console_session": self._console.log_in,
                "get_console_session": self._console.show,
                "delete_console_session": self._console.log_out,
            }
        for route in own_routes(self._settings.metrics_path, has_console=self._console is not None):
            answer = answers[route.name]
            self._router.add(route.method, route.path, _Route(route.name, answer, route.is_public))

    def _decoder_of(self, row: CommandRow) -> Decoder:
        if row.kind is c.SendMessages:
            return lambda request: decode_send(request, self._services.clock.now(), self._services.draw)
        return decode_poll if row.kind is c.PollMessages else decoder_of(row)

    def hurry(self) -> None:
        """The server stops: long polls end with what they have, and streams of events end."""
        self._commands.hurry()
        self._events.stop()
        self._searches.stop()

    def is_hot(self, method: str, path: bytes) -> bool:
        """Whether it is a send or a poll. Keys of trusted issuers may have to be fetched, with a timeout."""
        return method in _HOT_METHODS and self._services.check_trusted is None and _HOT_PATH.fullmatch(path) is not None

    # --- every request ---

    def open(
        self,
        connection: HttpConnection,
        method: str,
        path: bytes,
        query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> Exchange:
        """A request whose head has arrived."""
        return Exchange(connection, method, path, query, headers, self._connections, self._ids)

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request, and close what it held."""
        self._request_count.value += 1
        try:
            answer = await self._answer(exchange)
            await exchange.send(answer, self._lines(exchange, answer))
        except (ClientGone, TimeoutError):
            # Nobody reads the answer.
            exchange.connection.abort()
        finally:
            if exchange.session is not None:
                self._services.buffers.give_back(exchange.session)
            if exchange.has_to_release:
                await exchange.release()

    def _lines(self, exchange: Exchange, answer: Answer) -> bytes:
        """The headers of every answer."""
        second = self._services.clock.now() // 1_000_000
        if second != self._dated_lines[0]:
            self._dated_lines = (second, head_line("date", formatdate(second, usegmt=True)) + _SAME_LINES)
        lines = self._dated_lines[1]
        if self._cors is not None:
            lines += self._cors.lines(exchange.headers.get(b"origin", b""))
        if exchange.is_private and not PRIVATE.keys() <= answer.headers.keys():
            lines += _PRIVATE_LINES
        return lines + _RETRY_LINE if answer.status in _RETRY_STATUSES else lines

    async def _answer(self, exchange: Exchange) -> Answer:
        if exchange.method == "OPTIONS" and self._cors is not None:
            return Answer(_OK, headers=self._cors.preflight(exchange.headers))
        try:
            return await self._answer_route(exchange)
        except RestRefused as refusal:
            return Answer(refusal.status, encode_refusal(refusal), JSON_TYPE)
        except CourserError as error:
            return _failure(None, error)
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001 - one defect of ours must not take the connection down
            _log.exception(
                "%s %s failed for a reason that is a defect request=%s",
                exchange.method,
                exchange.path[:_KNOWN_PATH_SIZE_MAX],
                exchange.request_id,
            )
            return _failure(None, InternalFailure())

    def _find(self, path: bytes) -> tuple[Match[_Route] | None, bool]:
        """The route of a path, and whether it has one for everybody."""
        match = self._router.find(path)
        return match, match is not None and any(route.is_public for route in match.targets.values())

    async def _answer_route(self, exchange: Exchange) -> Answer:
        path = exchange.path
        if self._base_path and path.startswith(self._base_path + b"/"):
            # Some proxies leave what they put before the path.
            path = path[len(self._base_path) :]
        find = self._find_known if len(path) <= _KNOWN_PATH_SIZE_MAX else self._find
        match, is_public = find(path)
        # Whoever has no token learns nothing, not even which paths exist.
        access = None if is_public else await self._check_token(exchange)
        if match is None:
            return Answer(_NOT_FOUND)
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = match.targets.get(method)
        if route is None:
            return Answer(_NOT_ALLOWED, headers={"allow": match.allowed})
        if access is None and not route.is_public:
            access = await self._check_token(exchange)
        return await route.answer(exchange, match.values(method), access)

    async def _check_token(self, exchange: Exchange) -> Access:
        # Until its token is found to be valid, it makes room for others.
        exchange.connection.is_stranger = True
        token = self._token_of(exchange)
        if not token:
            raise CommandRejected(ErrorCode.ACCESS_TOKEN_MISSING, "the request has no access token; log in first")
        services = self._services
        access = services.tokens.check(token) if services.check_trusted is None else await services.check_token(token)
        exchange.connection.is_stranger = False
        return access

    def _token_of(self, exchange: Exchange) -> str:
        """The access token of a request, or an empty text."""
        connection, authorization = exchange.connection, exchange.headers.get(b"authorization", b"")
        if not authorization and self._console is not None:
            cookie = self._console.token_of(exchange)
            exchange.is_private = cookie is not None
            return cookie or ""
        if authorization != connection.authorization:
            scheme, _, token = authorization.decode("latin-1").partition(" ")
            connection.authorization, connection.token = (
                authorization,
                token.strip() if scheme.lower() == "bearer" else "",
            )
        return connection.token

    # --- commands ---

    async def _answer_command(
        self, row: CommandRow, decode: Decoder, exchange: Exchange, values: Mapping[str, str], access: Access | None
    ) -> Answer:
        session = self._commands.make_session(exchange, access)
        try:
            command = await self._decode(row, decode, exchange, values, session.trace)
            reply = await self._commands.carry_out(exchange, session, command)
            return await self._success(row, command, reply, session, access, exchange)
        except CourserError as error:
            _log.debug("%s over HTTP failed request=%s reason=%s", row.kind.__name__, exchange.request_id, error)
            return _failure(row.kind, error)

    async def _decode(
        self,
        row: CommandRow,
        decode: Decoder,
        exchange: Exchange,
        values: Mapping[str, str],
        trace: TraceContext | None,
    ) -> c.Command:
        assert row.route is not None, "it was found by its route"
        content_type = exchange.header(b"content-type")
        # So that a payload is in its place, however large it is.
        room_size = FRAME_HEADER_SIZE if row.kind is c.SendMessages and is_raw(content_type) else 0
        body: Buffer = b""
        if has_body(row.route):
            size_max = self._settings.request_size_max
            if row.is_public:
                size_max = min(size_max, self._connections.login_frame_size_max)
            whole = exchange.whole_body(size_max, room_size)
            body = await self._commands.read_body(exchange, size_max, room_size) if whole is None else whole
        query = exchange.query
        consistency = query.get("consistency", _CONSISTENCIES[0])
        if consistency not in _CONSISTENCIES:
            raise RestRefused(BAD_REQUEST, f"invalid query: consistency: {consistency[:40]!r} is not known")
        if row.kind is c.SendMessages:
            # Before anything is sent.
            wants_acknowledgement(query)
        request = RestRequest(values, query, content_type, body, room_size, trace)
        if len(body) > (RAW_QUICK_SIZE_MAX if room_size else QUICK_SIZE_MAX):
            return await asyncio.get_running_loop().run_in_executor(self._services.slow_work, decode, request)
        return decode(request)

    async def _success(
        self,
        row: CommandRow,
        command: c.Command,
        reply: r.Reply | None,
        session: Session,
        access: Access | None,
        exchange: Exchange,
    ) -> Answer:
        assert row.route is not None, "it was found by its route"
        status = row.route.status
        match reply:
            case r.Polled():
                has_header_objects = access is not None and access.sdk == SDK_0_6
                body = await self._commands.encode_polled(session, reply, has_header_objects=has_header_objects)
                return Answer(status, body[0], JSON_TYPE, rest=body[1:])
            case r.Sent():
                if not wants_acknowledgement(exchange.query):
                    return Answer(_ACCEPTED)
                return Answer(status, encode_sent(reply), JSON_TYPE)
            case r.LoggedIn():
                login, sdk = (reply.user_id, session.token_name, session.login_hash), _sdk_of(command)
                token, expires_at = self._services.tokens.issue(*login, sdk)
                return Answer(status, identity(reply.user_id, token, expires_at), JSON_TYPE)
            case r.SnapshotArchive():
                name = f"courser_snapshot_{self._services.clock.now() // 1_000_000}.zip"
                disposition = {"content-disposition": f'attachment; filename="{name}"'}
                return Answer(status, reply.data, "application/zip", disposition)
            case None:
                if isinstance(command, c.LogoutUser) and access is not None:
                    await self._services.tokens.revoke(access)
                return Answer(status)
        return Answer(status, encode_reply(reply), JSON_TYPE)

    # --- other routes ---

    async def _answer_deferred_poll(
        self, exchange: Exchange, values: Mapping[str, str], access: Access | None
    ) -> Answer:
        session = self._commands.make_session(exchange, access)
        wait, read = decode_deferred_poll(values, exchange.query)
        if wait is not None:
            await self._commands.wait(exchange, session, wait)
        reply = await self._commands.carry_out(exchange, session, read)
        assert isinstance(reply, r.Polled), "that is the reply to a poll"
        body = await self._commands.encode_polled(session, reply)
        return Answer(_OK, body[0], JSON_TYPE, rest=body[1:])

    async def _answer_root(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return text_answer(_OK, "Courser API")

    async def _answer_ping(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return text_answer(_OK, "pong")

    async def _answer_ready(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        problems = await self._services.problems()
        if problems:
            return text_answer(_UNAVAILABLE, "\n".join(problems))
        return text_answer(_OK, "\n".join(("ready", *self._services.notices())))

    async def _answer_metrics(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return Answer(_OK, (await self._services.read_metrics()).encode(), prometheus.CONTENT_TYPE)

    async def _answer_openapi(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return Answer(_OK, msgspec.json.encode(self._document), JSON_TYPE)

    async def _answer_api_page(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return Answer(_OK, api_page(self._document), HTML_TYPE, PAGE_HEADERS)

    @cached_property
    def _document(self) -> Json:
        return openapi_document(__version__, self._settings.metrics_path, has_console=self._console is not None)

    async def _answer_refresh(self, exchange: Exchange, values: Mapping[str, str], _: Access | None) -> Answer:
        tokens = self._services.tokens
        body = await self._commands.read_body(exchange, self._connections.login_frame_size_max)
        request = RestRequest(values, {}, exchange.header(b"content-type"), body)
        token: str = from_json(request, _refresh_decoder).token
        try:
            access = tokens.check(token)
            if not access.user.is_active:
                raise CommandRejected(ErrorCode.USER_INACTIVE, f"user {access.user.name!r} is inactive")
            await tokens.revoke(access)
        except CommandRejected as error:
            if error.code is not ErrorCode.UNAUTHENTICATED:
                raise
            raise CommandRejected(ErrorCode.INVALID_ACCESS_TOKEN, error.reason) from None
        user_id = access.user.user_id
        token, expires_at = tokens.issue(user_id, access.token_name, access.login_hash, access.sdk)
        return Answer(_OK, identity(user_id, token, expires_at), JSON_TYPE)


def _sdk_of(command: c.Command) -> str | None:
    """The release of a client that logs in, if what it reads differs from what others do."""
    return SDK_0_6 if isinstance(command, c.LoginUser) and command.version == SDK_0_6_VERSION else None


def _failure(command: type[c.Command] | None, error: CourserError) -> Answer:
    status, body = encode_failure(command, error)
    return Answer(status, body, JSON_TYPE)
