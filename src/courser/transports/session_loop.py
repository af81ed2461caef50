"""The one session loop: frames in, answers out, in order. Every binary transport feeds it.

It knows bytes only through a codec, and commands not at all. A request is handled when the answer to the one before
it is with the kernel: a client that does not read is not served, and at most one request and one reply of a connection
are in memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import CoroutineType
from typing import Any, Protocol, TypeVar

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.pending import Pending
from courser.broker.sessions import Session
from courser.errors import CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.transports.eager import rest_of
from courser.transports.frame_buffer import FrameBuffer
from courser.transports.request_memory import RequestMemory
from courser.transports.settings import ConnectionSettings
from courser.wire.codec import QUICK_SIZE_MAX, Codec, FrameRefused, Incoming

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

_HEAD_SIZE_MAX = 256
"""Bytes that suffice to tell the size of a frame, in every generation."""


class InternalFailure(CourserError):
    """A defect of the server: the client learns only that something went wrong."""

    code = ErrorCode.ERROR

    def __str__(self) -> str:
        return "the server failed to carry out the command; its log says why"


class Link(Protocol):
    """What the loop needs of a transport."""

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send bytes. False: not all of them are with the kernel yet, and ``SessionLoop.sent`` will be called."""

    def pause(self) -> None:
        """Receive nothing more for now."""

    def resume(self) -> None:
        """Receive again."""

    def close(self) -> None:
        """Send what is left, then close."""


@dataclass(frozen=True, slots=True)
class Services:
    """What all connections share."""

    begin: Callable[[Session, Command], Coroutine[Any, Any, Reply | None] | Pending | Reply]
    """Begins to carry out a command: gives the reply, now or later, or the coroutine that it comes from."""
    choose_codec: Callable[[memoryview], Codec | None]
    """The codec for a connection that begins with these bytes; None if they are too few. Raises ``FrameRefused``."""
    reply_sent: Callable[[Session], None]
    """Told when a reply is with the kernel: its memory may be used again."""
    clock: Clock
    settings: ConnectionSettings
    memory: RequestMemory
    slow_work: Executor
    """For requests and replies that take long to convert. One thread: more would keep the event loop waiting."""


def _last_request() -> Incoming:
    """One that gets no answer."""
    incoming = Incoming(None)
    incoming.closes = True
    return incoming


async def _ready(reply: Reply | None) -> Reply | None:
    return reply


class SessionLoop:
    """The requests of one connection."""

    def __init__(self, services: Services, session: Session, link: Link) -> None:
        self.session = session
        # By name: these are called for every request.
        self._begin = services.begin
        self._reply_sent = services.reply_sent
        self._monotonic = services.clock.monotonic
        self._settings = services.settings
        self._usual_size_max = min(services.settings.login_frame_size_max, services.settings.frame_size_max)
        """Bytes that any frame may have."""
        self._choose_codec = services.choose_codec
        self._slow_work = services.slow_work
        self._link = link
        self._buffer = FrameBuffer(services.memory, self._memory_came)
        self.room = self._buffer.room
        """Where the next bytes go."""
        self._codec: Codec | None = None
        self._frame_size: int | None = None
        """Of the frame that is being received."""
        self.frame_since: int | None = None
        """When the first bytes of the frame that is being received came, on the monotonic clock."""
        self.unsent_since: int | None = None
        """Since when the client has not read its reply."""
        self._is_busy = False
        self._is_paused = False
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        session.on_end = self.end

    # --- receiving ---

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._buffer.received(count)
        if self._is_busy:
            self._control_flow()
        else:
            self._advance()

    def _advance(self) -> None:
        """Handle all frames that are there, until one has to be waited for."""
        buffer = self._buffer
        while buffer.size and not self._is_busy and not self._is_closing:
            try:
                frame = self._next_frame()
            except FrameRefused as refusal:
                self._refuse(refusal)
                return
            if frame is None:
                break
            self._is_busy = True
            self._answer(frame)
        if not buffer.size and not self._is_busy:
            buffer.rest()
            if not self._is_paused:
                return
        self._control_flow()

    def _next_frame(self) -> memoryview | None:
        """The next whole frame, or None if it has not arrived yet."""
        buffer = self._buffer
        size = self._frame_size
        if size is None:
            if self._codec is None:
                self._codec = self._choose_codec(buffer.head())
                if self._codec is None:
                    self._note_incomplete()
                    return None
            head = buffer.head()
            size = self._codec.frame_size(head)
            if size is None:
                self._note_incomplete()
                return None
            if size > self._usual_size_max:
                self._check_size(size)
            if size == buffer.size:
                # As usual: nothing but this frame is there.
                self.frame_since = None
                buffer.take_all()
                return head
        if buffer.size < size:
            self._frame_size = size
            buffer.fit(size)
            self._note_incomplete()
            return None
        self._frame_size = self.frame_since = None
        return buffer.take(size)

    def _check_size(self, size: int) -> None:
        settings = self._settings
        if self.session.user_id is None and size > settings.login_frame_size_max:
            limit = settings.login_frame_size_max
            raise FrameRefused(f"a frame of {size} bytes before a login, where {limit} are allowed")
        if size > settings.frame_size_max:
            raise FrameRefused(f"a frame of {size} bytes, where {settings.frame_size_max} are allowed")

    def _note_incomplete(self) -> None:
        if self._frame_size is None:
            self._buffer.fit(_HEAD_SIZE_MAX)
        if self.frame_since is None:
            self.frame_since = self._monotonic()

    def _memory_came(self) -> None:
        """There is room for the frame under way. That it had to be waited for is not the client's fault."""
        self.frame_since = self._monotonic()
        self._advance()

    def _control_flow(self) -> None:
        """Receive if there is room for more, and only then."""
        buffer = self._buffer
        if self._is_busy and buffer.size:
            self.session.hurry()
        must_pause = buffer.is_waiting or buffer.is_full
        if must_pause != self._is_paused:
            self._is_paused = must_pause
            if must_pause:
                self._link.pause()
            else:
                self._link.resume()

    # --- answering ---

    def _answer(self, frame: memoryview) -> None:
        """Answer a request: on the spot if nothing has to be waited for, which is so for most; else in a task."""
        # Taken out before they are called: Python 3.11 is slow at methods that are attributes of an object.
        session, codec, begin, monotonic = self.session, self._codec, self._begin, self._monotonic
        assert codec is not None, "a frame was found with it"
        session.last_seen = monotonic()
        if len(frame) > QUICK_SIZE_MAX and codec.is_slow(frame):
            self._task = asyncio.get_running_loop().create_task(self._answer_slowly(codec, frame))
            return
        incoming = self._decode(codec, frame)
        command = incoming.command
        if command is None:
            self._send(incoming, incoming.answer or ())
            return
        reply: Reply | None = None
        rest: Awaitable[Reply | None] | None = None
        try:
            # Not asked with ``isinstance`` whether it is a reply: that takes long for the types of replies.
            begun: Any = begin(session, command)
            if type(begun) is CoroutineType:
                rest = rest_of(begun, begun.send(None))
            elif type(begun) is Pending:
                begun.done.add_done_callback(partial(self._answer_pending, codec, incoming, begun))
                return
            else:
                reply = begun
        except StopIteration as stop:
            reply = stop.value
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            self._send(incoming, self._failure(codec, incoming, error))
            return
        if rest is not None:
            self._answer_later(codec, incoming, rest)
        elif reply is not None and codec.encodes_slowly(reply):
            self._answer_later(codec, incoming, _ready(reply))
        else:
            self._send(incoming, self._encode(codec, incoming, reply))

    def _answer_pending(self, codec: Codec, incoming: Incoming, pending: Pending, _: "asyncio.Future[None]") -> None:
        """What is left of a request whose reply was known. Its memory is not needed any more."""
        try:
            buffers = self._encode(codec, incoming, pending.result())
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            buffers = self._failure(codec, incoming, error)
        self._send(incoming, buffers)
        if not self._is_busy:
            self._advance()

    def _answer_later(self, codec: Codec, incoming: Incoming, reply: Awaitable[Reply | None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait_for(codec, incoming, reply))

    async def _answer_slowly(self, codec: Codec, frame: memoryview) -> None:
        """A request that takes long to decode. Its frame stays where it is meanwhile."""
        try:
            incoming = await self._do_elsewhere(partial(self._decode_slowly, codec, frame))
            if incoming.command is not None:
                await self._wait_for(codec, incoming, self._carry_out(incoming.command))
                return
        except asyncio.CancelledError:
            self._task = None
            raise
        self._task = None
        self._send(incoming, incoming.answer or ())
        if not self._is_busy:
            self._advance()

    async def _carry_out(self, command: Command) -> Reply | None:
        begun = self._begin(self.session, command)
        return begun if isinstance(begun, Reply) else await begun

    async def _wait_for(self, codec: Codec, incoming: Incoming, reply: Awaitable[Reply | None]) -> None:
        """What is left of a request that has to wait."""
        try:
            outcome = await reply
            if outcome is not None and codec.encodes_slowly(outcome):
                buffers = await self._do_elsewhere(partial(self._encode, codec, incoming, outcome))
            else:
                buffers = self._encode(codec, incoming, outcome)
        except asyncio.CancelledError:
            # The server stops, or nobody is left to read the answer.
            self._task = None
            self._reply_sent(self.session)
            raise
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            buffers = self._failure(codec, incoming, error)
        self._task = None
        self._send(incoming, buffers)
        if not self._is_busy:
            self._advance()

    async def _do_elsewhere(self, work: Callable[[], Result]) -> Result:
        """Do what would hold other connections up."""
        return await asyncio.get_running_loop().run_in_executor(self._slow_work, work)

    def _decode_slowly(self, codec: Codec, frame: memoryview) -> Incoming:
        """On another thread. Whoever went away while others were served is not worth the work."""
        return self._decode(codec, frame) if self.session.ended is None else _last_request()

    def _decode(self, codec: Codec, frame: memoryview) -> Incoming:
        try:
            incoming = codec.decode(frame, self.session.user_id is not None)
        except Exception:  # noqa: BLE001 - one defect of ours must not take the other clients down
            _log.exception("client %d: a request could not be decoded, which is a defect", self.session.client_id)
            incoming = _last_request()
        else:
            if incoming.command is None:
                _log.debug("request of client %d refused: %s", self.session.client_id, incoming.reason)
        return incoming

    def _encode(self, codec: Codec, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        try:
            return codec.encode_reply(incoming, reply)
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            return self._failure(codec, incoming, error)

    def _failure(self, codec: Codec, incoming: Incoming, error: Exception) -> Sequence[Buffer]:
        """The answer to a request that failed. One defect of ours must not take the other clients down."""
        if not isinstance(error, CourserError):
            name = type(incoming.command).__name__
            _log.error(
                "client %d: %s failed for a reason that is a defect", self.session.client_id, name, exc_info=error
            )
            error = InternalFailure()
        _log.debug("request of client %d failed: %s", self.session.client_id, error)
        return codec.encode_failure(incoming, error)

    def _send(self, incoming: Incoming, buffers: Sequence[Buffer]) -> None:
        if incoming.closes or self.session.ended is not None:
            self._is_closing = True
        reply_sent = self._reply_sent
        if not buffers or self._link.send(buffers):
            self._is_busy = False
            reply_sent(self.session)
        else:
            self.unsent_since = self._monotonic()
        if self._is_closing:
            self._link.close()

    def sent(self) -> None:
        """The transport has handed all of the last answer to the kernel."""
        if self.unsent_since is not None:
            self.unsent_since = None
            self._is_busy = False
            self._reply_sent(self.session)
            self._advance()

    def is_frame_overdue(self, now: int) -> bool:
        """Whether the client takes too long to send a frame.

        Every frame has some time, and more with every byte of it that came. So whoever stops in the middle is found
        out soon, however large the frame: others may wait for its memory.
        """
        if self.frame_since is None or self._buffer.is_waiting:
            return False
        settings = self._settings
        time_max = settings.frame_deadline + self._buffer.size * 1_000_000 // settings.frame_rate_min
        return now - self.frame_since > time_max

    # --- the end ---

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return not self._is_busy and not self._buffer.size

    def end(self, error: CourserError) -> None:
        """Close from the server's side, once the answer under way is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._is_busy:
            farewell = self._codec.farewell(error) if self._codec is not None else b""
            if farewell:
                self._link.send((farewell,))
            self._link.close()
        elif self.unsent_since is not None:
            # The last answer is on its way, and nothing comes after it.
            self._link.close()
        elif self.session.waiting is not None:
            # Nothing is lost with a long poll, and a server that stops would wait for it.
            self.session.waiting.cancel()

    def _refuse(self, refusal: FrameRefused) -> None:
        _log.info("client %d at %s cut off: %s", self.session.client_id, self.session.address, refusal.reason)
        self._is_closing = True
        if refusal.answer:
            self._link.send((refusal.answer,))
        self._link.close()

    def lost(self) -> None:
        """The connection is gone."""
        self._is_closing = True
        task = self._task
        if task is None:
            if self.unsent_since is not None:
                self._reply_sent(self.session)
            self._buffer.close()
            return
        # What was begun is finished, or a change of metadata might be left half done; only a wait is cut short. The
        # memory of the request is not given back before: somebody may still read it.
        task.add_done_callback(lambda _: self._buffer.close())
        if self.session.waiting is not None:
            self.session.waiting.cancel()
