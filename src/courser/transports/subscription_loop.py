"""A subscription on a WebSocket connection: JSON requests in, answers and messages out.

The counterpart of the session loop for browsers. The next delivery is read once the kernel has accepted the last one,
so a client that does not read holds one delivery in memory, and the usual deadline disconnects it. A browser cannot
slow down its socket: it can give credit, message by message, and gets no more than that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from courser.api.commands import LoginWithToken
from courser.api.subscriptions import Delivery, TopicEnded
from courser.broker.access.access_tokens import Access, AccessTokens
from courser.broker.access.sessions import Session
from courser.broker.partition.waiting import Waiting
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.handlers.subscriptions import DELIVERY_COUNT_MAX, Subscription, Subscriptions
from courser.transports.services import Services
from courser.transports.session_loop import InternalFailure, SessionTransport
from courser.wire.codec import QUICK_SIZE_MAX
from courser.wire.subscription_messages import (
    CreditRequest,
    LoginRequest,
    SubscriptionRequest,
    UnsubscribeRequest,
    decode_request,
    encode_delivery,
    encode_error,
    encode_logged_in,
    encode_subscribed,
    encode_unsubscribed,
)

_log = logging.getLogger(__name__)

REQUEST_SIZE_MAX = 64 * 1024
"""Bytes of a message from the client."""
_PING_INTERVAL = 30.0
"""Seconds between two signs of life that a client is asked for."""
_CREDIT_MAX = 2**32
_SECOND = 1_000_000


class SubscriptionLink(SessionTransport, Protocol):
    """What the loop needs of a WebSocket connection."""

    def ping(self) -> bool:
        """Ask the client for a sign of life. False if it has not answered the last time."""


@dataclass(frozen=True, slots=True)
class SubscriptionServices:
    """What all subscriptions share."""

    services: Services
    subscriptions: Subscriptions
    tokens: AccessTokens | None = None
    """The access tokens of HTTP; None if it is disabled."""
    check_token: Callable[[str], Awaitable[Access]] | None = None
    """Checks an access token. Raises ``CommandRejected``."""


class SubscriptionLoop:
    """One connection. Requests are carried out one after the other, while messages are delivered."""

    def __init__(self, shared: SubscriptionServices, session: Session, link: SubscriptionLink) -> None:
        self.session = session
        self.unsent_since: int | None = None
        self.frame_since: int | None = None
        """Always None: what has come of a request takes no memory of others."""
        self._shared = shared
        self._services = shared.services
        self._link = link
        self._buffer = np.empty(REQUEST_SIZE_MAX, np.uint8).data
        self._size = 0
        """Bytes of the request that is being received."""
        self._is_answering = False
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        """Held until the kernel has accepted a message."""
        self._accepted: asyncio.Future[None] | None = None
        """What whoever sends waits for."""
        self._subscription: Subscription | None = None
        """None before the login."""
        self._credit: int | None = None
        """How many messages the client still takes; None if that is unlimited."""
        self._credit_came = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        session.on_end = self.end

    # --- requests ---

    def room(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes of a request go."""
        del size_hint
        return self._buffer[self._size :]

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._size += count

    def message_ended(self) -> None:
        """The request is complete. The next one waits until it is answered."""
        data = bytes(self._buffer[: self._size])
        self._size = 0
        if not self._is_over:
            self._is_answering = True
            self._link.pause()
            self._begin(self._answer(data))

    async def _answer(self, data: bytes) -> None:
        self.session.last_seen = self._services.clock.monotonic()
        try:
            reply = await self._carry_out(decode_request(data))
        except CommandRejected as error:
            if self._subscription is None:
                # There is nothing to do without a login.
                raise
            reply = encode_error(error)
        if reply is not None:
            await self._send(reply)
        self._is_answering = False
        self._link.resume()

    async def _carry_out(self, request: SubscriptionRequest) -> bytes | None:
        """Do what the client wants. Gives the answer, if there is one."""
        subscription = self._subscription
        if isinstance(request, LoginRequest):
            return await self._login(request)
        if subscription is None:
            raise CommandRejected(ErrorCode.UNAUTHENTICATED, "the first message must be a login")
        if isinstance(request, CreditRequest):
            self._give_credit(request.count)
            return None
        selection = request.selection()
        try:
            if isinstance(request, UnsubscribeRequest):
                subscription.remove(selection)
                return encode_unsubscribed(selection)
            return encode_subscribed(selection, await subscription.add(selection))
        except CourserError as error:
            return encode_error(error, selection)

    def _give_credit(self, count: int) -> None:
        if self._credit is None:
            raise CommandRejected(ErrorCode.INVALID_COMMAND, "the login has set no credit: it is unlimited")
        self._credit = min(self._credit + count, _CREDIT_MAX)
        self._credit_came.set()

    # --- the login ---

    async def _login(self, request: LoginRequest) -> bytes:
        if self._subscription is not None:
            raise CommandRejected(ErrorCode.INVALID_COMMAND, "a user is already logged in on this connection")
        check_login = await self._check(request.token)
        self._credit = request.credit
        self._subscription = self._shared.subscriptions.open(self.session, check_login)
        self._begin(self._deliver(self._subscription))
        self._ping_later()
        assert self.session.user_id is not None, "a login sets it"
        return encode_logged_in(self.session.user_id)

    async def _check(self, token: str) -> Callable[[], None]:
        """Log in. Returns what tells whether the login is still valid."""
        check_token, tokens = self._shared.check_token, self._shared.tokens
        if check_token is None or tokens is None or "." not in token:
            # Its session ends when the token is deleted.
            answer = self._services.begin(self.session, LoginWithToken(token))
            if isinstance(answer, Waiting):
                await answer
            return lambda: None
        access = await check_token(token)
        if self.session.ended is not None:
            raise self.session.ended.with_traceback(None)
        self.session.enter(access)
        delay = tokens.time_left(access) / _SECOND
        self._timers["expiry"] = asyncio.get_running_loop().call_later(delay, self._review)
        return partial(tokens.check_again, access)

    def _review(self) -> None:
        if self._subscription is not None:
            self._subscription.review()

    # --- deliveries ---

    async def _deliver(self, subscription: Subscription) -> None:
        """Send messages as they arrive, for as long as the connection lasts."""
        try:
            while True:
                event = await subscription.next(await self._wait_for_credit())
                if isinstance(event, TopicEnded):
                    await self._send(encode_error(event.error, event.selection, is_end=True))
                    continue
                data = await self._encode(event)
                if self._credit is not None:
                    self._credit -= event.polled.message_count
                # The text counts from now on, and what it was made from does not.
                self._services.buffers.unread(self.session, len(data), is_copied=True)
                await self._send(data)
                self._services.buffers.give_back(self.session)
        finally:
            self._services.buffers.give_back(self.session)

    async def _wait_for_credit(self) -> int:
        while self._credit == 0:
            self._credit_came.clear()
            await self._credit_came.wait()
        return DELIVERY_COUNT_MAX if self._credit is None else self._credit

    async def _encode(self, delivery: Delivery) -> bytes:
        if delivery.polled.size > QUICK_SIZE_MAX:
            return await self._services.convert(partial(encode_delivery, delivery))
        return encode_delivery(delivery)

    async def _send(self, data: bytes) -> None:
        """Send a message, and wait until the kernel has accepted all of it."""
        async with self._sending:
            if self._is_over or self._link.send((data,)):
                return
            self.unsent_since = self._services.clock.monotonic()
            self._accepted = asyncio.get_running_loop().create_future()
            await self._accepted

    def sent(self) -> None:
        """The kernel has accepted all that was sent."""
        self.unsent_since = None
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)

    # --- signs of life ---

    def _ping_later(self) -> None:
        self._timers["ping"] = asyncio.get_running_loop().call_later(_PING_INTERVAL, self._ping)

    def _ping(self) -> None:
        # A client that has something to read has a deadline for that.
        if self.unsent_since is None and not self._link.ping():
            self.end(CommandRejected(ErrorCode.STALE_CLIENT, "the client did not answer a ping"))
        else:
            self._ping_later()

    # --- for whoever looks after connections ---

    @property
    def is_idle(self) -> bool:
        """Whether nothing is subscribed to, and nothing is being done."""
        return not self._is_answering and (self._subscription is None or self._subscription.is_empty)

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""
        return self._is_answering

    def is_frame_overdue(self, now: int) -> bool:
        """Never: what has come of a request takes no memory of others."""
        del now
        return False

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """None: requests reserve no memory."""
        del now
        return None

    # --- the end ---

    def end(self, error: CourserError) -> None:
        """Tell the client why, and close."""
        if not self._is_over:
            self._is_over = True
            self._link.send((encode_error(error),))
            self._link.close(str(error))
            self._release()

    def lost(self) -> None:
        """Handle the loss of the connection."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        self._release()

    def _release(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._subscription is not None:
            self._subscription.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """One defect of ours must not take other clients down."""
        try:
            await work
        except CourserError as error:
            self.end(error)
        except Exception:  # noqa: BLE001 - logged, and this client is disconnected
            _log.exception("client %d: a subscription failed for a reason that is a defect", self.session.client_id)
            self.end(InternalFailure())
