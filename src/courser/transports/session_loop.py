"""The one session loop: frames in, answers out, in order. Every binary transport feeds it.

It knows bytes only through a codec, and commands not at all. A request is handled when the answer to the one before
it is with the kernel: a client that does not read is not served, and at most one request and one reply of a connection
are in memory.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.broker.sessions import Session
from courser.errors import CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.model.clock import Clock
from courser.transports import eager
from courser.transports.frame_buffer import FrameBuffer
from courser.transports.request_memory import RequestMemory
from courser.transports.settings import ConnectionSettings
from courser.wire.codec import Codec, FrameRefused, Incoming

_log = logging.getLogger(__name__)

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

    dispatch: Callable[[Session, Command], Coroutine[Any, Any, Reply | None]]
    choose_codec: Callable[[memoryview], Codec | None]
    """The codec for a connection that begins with these bytes; None if they are too few. Raises ``FrameRefused``."""
    reply_sent: Callable[[Session], None]
    """Told when a reply is with the kernel: its memory may be used again."""
    clock: Clock
    settings: ConnectionSettings
    memory: RequestMemory


class SessionLoop:
    """The requests of one connection."""

    def __init__(self, services: Services, session: Session, link: Link) -> None:
        self.session = session
        self._services = services
        self._link = link
        self._buffer = FrameBuffer(services.memory, self._advance)
        self._codec: Codec | None = None
        self._frame_size: int | None = None
        """Of the frame that is being received."""
        self.frame_since: int | None = None
        """When the first bytes of the frame that is being received came, on the monotonic clock."""
        self.unsent_since: int | None = None
        """Since when the client has not read its reply."""
        self.request_count = 0
        self._is_busy = False
        self._is_paused = False
        self._is_closing = False
        self._task: asyncio.Task[tuple[Incoming, Sequence[Buffer]]] | None = None
        session.on_end = self.end

    # --- receiving ---

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._buffer.room()

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._buffer.received(count)
        self._advance()

    def _advance(self) -> None:
        """Handle all frames that are there, until one has to be waited for."""
        while not self._is_busy and not self._is_closing:
            try:
                frame = self._next_frame()
            except FrameRefused as refusal:
                self._refuse(refusal)
                return
            if frame is None:
                break
            self._begin(frame)
        self._control_flow()

    def _next_frame(self) -> memoryview | None:
        """The next whole frame, or None if it has not arrived yet."""
        buffer = self._buffer
        if not buffer.size:
            return None
        size = self._frame_size
        if size is None:
            if self._codec is None:
                self._codec = self._services.choose_codec(buffer.head())
                if self._codec is None:
                    self._note_incomplete()
                    return None
            size = self._codec.frame_size(buffer.head())
            if size is None:
                self._note_incomplete()
                return None
            self._check_size(size)
        if buffer.size < size:
            self._frame_size = size
            buffer.fit(size)
            self._note_incomplete()
            return None
        self._frame_size = self.frame_since = None
        return buffer.take(size)

    def _check_size(self, size: int) -> None:
        settings = self._services.settings
        if self.session.user_id is None and size > settings.login_frame_size_max:
            limit = settings.login_frame_size_max
            raise FrameRefused(f"a frame of {size} bytes before a login, where {limit} are allowed")
        if size > settings.frame_size_max:
            raise FrameRefused(f"a frame of {size} bytes, where {settings.frame_size_max} are allowed")

    def _note_incomplete(self) -> None:
        if self._frame_size is None:
            self._buffer.fit(_HEAD_SIZE_MAX)
        if self.frame_since is None:
            self.frame_since = self._services.clock.monotonic()

    def _control_flow(self) -> None:
        """Receive if there is room for more, and only then."""
        buffer = self._buffer
        if not self._is_busy and not buffer.size:
            buffer.rest()
        must_pause = buffer.is_waiting or buffer.is_full
        if must_pause != self._is_paused:
            self._is_paused = must_pause
            if must_pause:
                self._link.pause()
            else:
                self._link.resume()

    # --- answering ---

    def _begin(self, frame: memoryview) -> None:
        self._is_busy = True
        self.request_count += 1
        self.session.last_seen = self._services.clock.monotonic()
        task = eager.start(self._answer(frame), self._finish)
        if task is not None:
            self._task = task
            task.add_done_callback(self._on_done)

    async def _answer(self, frame: memoryview) -> tuple[Incoming, Sequence[Buffer]]:
        codec = self._codec
        assert codec is not None, "a frame was found with it"
        incoming = codec.decode(frame, is_logged_in=self.session.user_id is not None)
        if incoming.answer is not None:
            _log.debug("request of client %d refused: %s", self.session.client_id, incoming.reason)
            return incoming, incoming.answer
        assert incoming.command is not None, "without an answer there is a command"
        try:
            reply = await self._services.dispatch(self.session, incoming.command)
            return incoming, codec.encode_reply(incoming, reply)
        except CourserError as error:
            _log.debug("request of client %d failed: %s", self.session.client_id, error)
            return incoming, codec.encode_failure(incoming, error)
        except Exception:  # noqa: BLE001 - one defect must not take the other clients down
            name = type(incoming.command).__name__
            _log.exception("client %d: %s failed for a reason that is a defect", self.session.client_id, name)
            return incoming, codec.encode_failure(incoming, InternalFailure())

    def _on_done(self, task: "asyncio.Task[tuple[Incoming, Sequence[Buffer]]]") -> None:
        self._task = None
        if task.cancelled():
            # The server stops, or nobody is left to read the answer.
            self._services.reply_sent(self.session)
            return
        self._finish(task.result())
        if not self._is_busy:
            self._advance()

    def _finish(self, answer: tuple[Incoming, Sequence[Buffer]]) -> None:
        incoming, buffers = answer
        if incoming.closes or self.session.ended is not None:
            self._is_closing = True
        if not buffers or self._link.send(buffers):
            self._sent()
        else:
            self.unsent_since = self._services.clock.monotonic()
        if self._is_closing:
            self._link.close()

    def sent(self) -> None:
        """The transport has handed all of the last answer to the kernel."""
        if self.unsent_since is not None:
            self.unsent_since = None
            self._sent()
            self._advance()

    def _sent(self) -> None:
        self._is_busy = False
        self._services.reply_sent(self.session)

    def frame_time_max(self, settings: ConnectionSettings) -> int:
        """Microseconds that the frame under way may take: what every frame gets, and what its size needs."""
        return settings.frame_deadline + (self._frame_size or 0) * 1_000_000 // settings.frame_rate_min

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
        if self._task is not None:
            # What was begun is finished, or a change of metadata might be left half done; only a wait is cut short.
            if self.session.waiting is not None:
                self.session.waiting.cancel()
        elif self.unsent_since is not None:
            self._services.reply_sent(self.session)
        self._buffer.close()
