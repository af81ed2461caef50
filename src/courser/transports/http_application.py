"""The HTTP API: requests to commands, through the same dispatcher as all other transports, and replies back.

Each request has a session of its own, with the user that its access token names.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from typing import Any

import msgspec

from courser import __version__
from courser.api import commands as c
from courser.api import replies as r
from courser.api.table import CommandRow
from courser.broker.access_tokens import Access, AccessTokens
from courser.broker.sessions import Session
from courser.broker.waiting import Waiting
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.handlers.audit import Answer as DispatchAnswer
from courser.model.clock import Clock
from courser.model.messaging import Transport
from courser.model.metric_table import HTTP_REQUESTS
from courser.model.metrics import Registry
from courser.transports.http_cors import Cors
from courser.transports.http_exchange import (
    REQUEST_ID,
    Answer,
    ClientGone,
    Exchange,
    Receive,
    Scope,
    Send,
    text_answer,
)
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import InternalFailure
from courser.transports.settings import ConnectionSettings, HttpSettings
from courser.wire import prometheus
from courser.wire.codec import QUICK_SIZE_MAX
from courser.wire.openapi import openapi_document
from courser.wire.rest_failures import encode_failure
from courser.wire.rest_fields import BAD_REQUEST, RestRefused
from courser.wire.rest_messages import decode_poll, decode_send, encode_polled, encode_sent, wants_acknowledgement
from courser.wire.rest_replies import encode_reply, identity
from courser.wire.rest_requests import JSON_TYPE, Decoder, RestRequest, decoder_of, from_json, has_body
from courser.wire.rest_routes import Router

_log = logging.getLogger(__name__)

_OK, _ACCEPTED, _UNAUTHORIZED, _NOT_FOUND, _NOT_ALLOWED, _FAILED, _UNAVAILABLE = 200, 202, 401, 404, 405, 500, 503
_RETRY_STATUSES = (429, _UNAVAILABLE)
_RETRY_AFTER = "1"
_CONSISTENCIES = ("serializable", "linearizable")


@dataclass(frozen=True, slots=True)
class HttpServices:
    """What requests need."""

    begin: Callable[[Session, c.Command], DispatchAnswer]
    """The dispatcher."""
    tokens: AccessTokens
    check_trusted: Callable[[str], Awaitable[Access | None]] | None
    """Checks a token of a trusted issuer; returns None for tokens of others. None: no issuer is trusted."""
    reply_sent: Callable[[Session], None]
    """The memory of a reply may be used again."""
    reply_unread: Callable[[Session, int, bool], None]
    """A reply of so many bytes is on its way."""
    problems: Callable[[], Awaitable[list[str]]]
    """Why the server is not ready; empty if it is."""
    metrics: Registry
    read_metrics: Callable[[], Awaitable[str]]
    """All metrics as text."""
    memory: RequestMemory
    """For large bodies; shared with all transports."""
    clock: Clock
    draw: Callable[[int], bytes]
    slow_work: Executor
    """For conversions that would hold other connections up."""


@dataclass(frozen=True, slots=True)
class _Route:
    """What a method and a path lead to."""

    answer: Callable[[Exchange, Mapping[str, str], Access | None], Awaitable[Answer]]
    is_public: bool


class _RefreshBody(msgspec.Struct):
    token: str


_refresh_decoder = msgspec.json.Decoder(_RefreshBody)


class HttpApplication:
    """An ASGI application."""

    def __init__(self, services: HttpServices, settings: HttpSettings, connections: ConnectionSettings) -> None:
        self._services = services
        self._settings = settings
        self._connections = connections
        self._cors = None if settings.cors is None else Cors(settings.cors)
        self._waiting: set[Session] = set()
        """Long polls."""
        self._request_count = services.metrics.counter(HTTP_REQUESTS)
        self._date = (0, "")
        self._router: Router[_Route] = Router()
        for row in c.COMMANDS:
            if row.route is not None:
                answer = partial(self._answer_command, row, self._decoder_of(row))
                self._router.add(row.route.method, row.route.path, _Route(answer, row.is_public))
        self._add_other_routes()

    def _add_other_routes(self) -> None:
        others = [
            ("GET", "/", self._answer_root),
            ("GET", "/ping", self._answer_ping),
            ("GET", "/health/live", self._answer_ping),
            ("GET", "/health/ready", self._answer_ready),
            ("GET", "/openapi.json", self._answer_openapi),
            ("POST", "/users/refresh-token", self._answer_refresh),
        ]
        if self._settings.metrics_path is not None:
            others.append(("GET", self._settings.metrics_path, self._answer_metrics))
        for method, path, answer in others:
            self._router.add(method, path, _Route(answer, is_public=True))

    def _decoder_of(self, row: CommandRow) -> Decoder:
        if row.kind is c.SendMessages:
            return lambda request: decode_send(request, self._services.clock.now(), self._services.draw)
        return decode_poll if row.kind is c.PollMessages else decoder_of(row)

    def hurry(self) -> None:
        """The server stops: long polls end with what they have."""
        for session in self._waiting:
            session.hurry()

    # --- every request ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send, self._connections, self._services.draw)
        self._request_count.value += 1
        try:
            answer = await self._answer(exchange)
            await exchange.send(answer, self._headers(exchange, answer.status))
        except (ClientGone, TimeoutError):
            # Nobody reads the answer.
            exchange.seat.abort()
        finally:
            exchange.release()
            if exchange.session is not None:
                self._services.reply_sent(exchange.session)

    def _headers(self, exchange: Exchange, status: int) -> dict[str, str]:
        second = self._services.clock.now() // 1_000_000
        if second != self._date[0]:
            self._date = (second, formatdate(second, usegmt=True))
        headers = {"date": self._date[1], REQUEST_ID: exchange.request_id}
        if self._cors is not None:
            headers |= self._cors.headers(exchange.header(b"origin"))
        if status in _RETRY_STATUSES:
            headers["retry-after"] = _RETRY_AFTER
        return headers

    async def _answer(self, exchange: Exchange) -> Answer:
        if exchange.method == "OPTIONS" and self._cors is not None:
            return Answer(_OK, headers=self._cors.preflight(exchange.headers))
        try:
            return await self._answer_route(exchange)
        except RestRefused as refusal:
            return text_answer(refusal.status, refusal.reason)
        except CourserError as error:
            return _failure(None, error)

    async def _answer_route(self, exchange: Exchange) -> Answer:
        match = self._router.find(exchange.path)
        is_public = match is not None and any(route.is_public for route in match.targets.values())
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
        exchange.seat.is_stranger = True
        scheme, _, token = exchange.header(b"authorization").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise CommandRejected(ErrorCode.ACCESS_TOKEN_MISSING, "the request has no access token; log in first")
        token, check_trusted = token.strip(), self._services.check_trusted
        access = None if check_trusted is None else await check_trusted(token)
        if access is None:
            access = self._services.tokens.check(token)
        exchange.seat.is_stranger = False
        return access

    # --- commands ---

    async def _answer_command(
        self, row: CommandRow, decode: Decoder, exchange: Exchange, values: Mapping[str, str], access: Access | None
    ) -> Answer:
        session = Session(0, Transport.HTTP, exchange.address, now=self._services.clock.monotonic())
        exchange.session = session
        session.request_id = exchange.request_id
        if access is not None:
            session.user_id, session.token_name = access.user.user_id, access.token_name
        try:
            command = await self._decode(row, decode, exchange, values)
            reply = await self._carry_out(exchange, session, command)
            return await self._success(row, command, reply, session, access, exchange)
        except CourserError as error:
            _log.debug("%s over HTTP failed request=%s reason=%s", row.kind.__name__, exchange.request_id, error)
            return _failure(row.kind, error)
        except (RestRefused, ClientGone, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001 - one defect of ours must not take the connection down
            name, request_id = row.kind.__name__, exchange.request_id
            _log.exception("%s over HTTP failed for a reason that is a defect request=%s", name, request_id)
            return _failure(row.kind, InternalFailure())

    async def _decode(
        self, row: CommandRow, decode: Decoder, exchange: Exchange, values: Mapping[str, str]
    ) -> c.Command:
        assert row.route is not None, "it was found by its route"
        body = bytearray()
        if has_body(row.route):
            size_max = self._settings.request_size_max
            if row.is_public:
                size_max = min(size_max, self._connections.login_frame_size_max)
            services = self._services
            body = await exchange.read_body(size_max, services.memory, services.clock)
        query = exchange.query()
        consistency = query.get("consistency", _CONSISTENCIES[0])
        if consistency not in _CONSISTENCIES:
            raise RestRefused(BAD_REQUEST, f"invalid query: consistency: {consistency[:40]!r} is not known")
        if row.kind is c.SendMessages:
            # Before anything is sent.
            wants_acknowledgement(query)
        request = RestRequest(values, query, exchange.header(b"content-type"), body)
        if len(body) > QUICK_SIZE_MAX:
            return await asyncio.get_running_loop().run_in_executor(self._services.slow_work, decode, request)
        return decode(request)

    async def _carry_out(self, exchange: Exchange, session: Session, command: c.Command) -> r.Reply | None:
        # Durations of requests do not include the time in which the client sends the body.
        session.last_seen = self._services.clock.monotonic()
        begun = self._services.begin(session, command)
        if not isinstance(begun, Waiting):
            return begun
        if not isinstance(command, c.WaitForMessages):
            return await _awaited(begun)
        self._waiting.add(session)
        gone = asyncio.ensure_future(exchange.wait_for_disconnect())
        gone.add_done_callback(lambda _: _cancel_wait(session))
        try:
            return await _awaited(begun)
        except asyncio.CancelledError:
            if gone.done() and not gone.cancelled():
                raise ClientGone from None
            raise
        finally:
            self._waiting.discard(session)
            gone.cancel()

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
                return Answer(status, await self._encode_polled(session, reply), JSON_TYPE)
            case r.Sent():
                if not wants_acknowledgement(exchange.query()):
                    return Answer(_ACCEPTED)
                return Answer(status, encode_sent(reply), JSON_TYPE)
            case r.LoggedIn():
                token, expires_at = self._services.tokens.issue(reply.user_id, session.token_name)
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

    async def _encode_polled(self, session: Session, polled: r.Polled) -> bytes:
        if polled.size > QUICK_SIZE_MAX:
            body = await asyncio.get_running_loop().run_in_executor(self._services.slow_work, encode_polled, polled)
        else:
            body = encode_polled(polled)
        self._services.reply_unread(session, len(body), True)
        return body

    # --- other routes ---

    async def _answer_root(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return text_answer(_OK, "Courser API")

    async def _answer_ping(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return text_answer(_OK, "pong")

    async def _answer_ready(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        problems = await self._services.problems()
        return text_answer(_UNAVAILABLE, "\n".join(problems)) if problems else text_answer(_OK, "ready")

    async def _answer_metrics(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return Answer(_OK, (await self._services.read_metrics()).encode(), prometheus.CONTENT_TYPE)

    async def _answer_openapi(self, _: Exchange, _values: Mapping[str, str], _access: Access | None) -> Answer:
        return Answer(_OK, msgspec.json.encode(openapi_document(__version__)), JSON_TYPE)

    async def _answer_refresh(self, exchange: Exchange, values: Mapping[str, str], _: Access | None) -> Answer:
        services, tokens = self._services, self._services.tokens
        body = await exchange.read_body(self._connections.login_frame_size_max, services.memory, services.clock)
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
        return Answer(_OK, identity(user_id, *tokens.issue(user_id, access.token_name)), JSON_TYPE)


async def _awaited(waiting: Waiting[Any]) -> r.Reply | None:
    reply: r.Reply | None = await waiting
    return reply


def _cancel_wait(session: Session) -> None:
    if session.waiting is not None:
        session.waiting.cancel()


def _failure(command: type[c.Command] | None, error: CourserError) -> Answer:
    status, body = encode_failure(command, error)
    return Answer(status, body, JSON_TYPE)
