"""The session loop that all binary transports share: frames in, replies out, in order.

A codec turns bytes into commands, and the dispatcher carries them out; the loop knows neither. A request is handled
once the kernel has accepted the previous reply. A client that does not read is therefore not served, and each
connection has at most one request and one reply in memory.

Only reads that wait leave this order, if the codec says so (``Deferral``). They are parked, and hold no memory for
messages. Once there is something to read, or the wait is over, a read comes back into the line, as the next request.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Protocol

from courser.api.replies import Polled, Reply
from courser.broker.access.sessions import Session
from courser.broker.partition.waiting import Waiting
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.transports.frame_buffer import FrameBuffer
from courser.transports.minimum_rate import MinimumRate
from courser.transports.parked_reads import ParkedRead, ParkedReads
from courser.transports.services import Services
from courser.transports.turns import REQUEST_COUNT_MAX, REQUEST_COUNT_PAUSE, TIME_MAX
from courser.wire.codec import (
    QUICK_REPLY_SIZE_MAX,
    QUICK_SIZE_MAX,
    Cancellation,
    Codec,
    Deferral,
    FrameRefused,
    Incoming,
)

_log = logging.getLogger(__name__)

_HEAD_SIZE_MAX = 256
"""Bytes that are enough to determine the size of a frame in both protocol generations."""


RATE_TIME_MIN = 1_000_000
"""Microseconds that a client must have been sending before its rate is judged."""


class State(Enum):
    """What a connection is doing. Details of receiving, such as the size of the frame, are kept separately."""

    RECEIVING = "receiving"
    """The next request has not arrived, or not completely."""
    YIELDING = "yielding"
    """Other connections come first. It continues in its next turn with what is in its buffer."""
    ANSWERING = "answering"
    """A request is in progress."""
    SENDING = "sending"
    """The kernel has not accepted all of a reply."""
    DISCARDING = "discarding"
    """A frame was refused. The rest of it is dropped, so that the client finishes sending it and reads the reply."""
    FINISHING = "finishing"
    """A request is in progress, and the connection will be closed after its reply."""
    CLOSED = "closed"
    """No more requests are handled. A reply may still be in flight."""


# Global names, because looking up the members of an enum is slow.
_RECEIVING, _YIELDING, _ANSWERING = State.RECEIVING, State.YIELDING, State.ANSWERING
_SENDING, _DISCARDING, _FINISHING, _CLOSED = State.SENDING, State.DISCARDING, State.FINISHING, State.CLOSED


class InternalFailure(CourserError):
    """A bug in the server. The client learns only that something went wrong."""

    code = ErrorCode.ERROR

    def __str__(self) -> str:
        return "internal error; see the server log for details"


class SessionTransport(Protocol):
    """What the loop needs of a transport."""

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send bytes. False: not all of them are with the kernel yet, and ``SessionLoop.sent`` will be called."""

    def acknowledge(self) -> None:
        """Confirm now that the bytes of a request have come: its reply, which would do so, comes much later."""

    def pause(self) -> None:
        """Receive nothing more for now."""

    def resume(self) -> None:
        """Receive again, after a pause."""

    def finish(self, reason: str = "") -> None:
        """Tell the client that nothing more is sent, and why, if the transport can; receive on."""

    def close(self, reason: str = "") -> None:
        """Send what is left, then close. The client is told the reason if the transport can."""


def _last_request(reason: str) -> Incoming:
    """One that gets no answer."""
    return Incoming(None, reason=reason, closes=True)


def _interrupted(reason: CourserError | None) -> CommandRejected:
    """What becomes of the reads that wait on a connection that ends."""
    return CommandRejected(ErrorCode.NOT_ACCEPTED, str(reason or "the connection is closed"))


class SessionLoop:
    """The requests of one connection."""

    def __init__(
        self, services: Services, session: Session, link: SessionTransport, codec: Codec | None = None
    ) -> None:
        """``codec`` is that of a connection which another process has served before."""
        self.session = session
        # By name: these are called for every request.
        self._begin = services.begin
        self._buffers = services.buffers
        self._monotonic = services.clock.monotonic
        self._settings = services.settings
        self._usual_size_max = min(services.settings.login_frame_size_max, services.settings.frame_size_max)
        """Bytes that any frame may have."""
        self._choose_codec = services.choose_codec
        self._convert = services.convert
        self._turns = services.turns
        self._link = link
        self._buffer = FrameBuffer(services.memory, self._memory_came)
        self.room: Callable[..., memoryview] = self._buffer.room
        """Where the next bytes go."""
        self._codec = codec
        self._frame_size: int | None = None
        """Of the frame that is being received."""
        self.frame_since: int | None = None
        """When the first bytes of the frame that is being received came, on the monotonic clock."""
        self._frame_pace = MinimumRate(services.settings.frame_deadline, services.settings.frame_rate_min)
        self._memory_since: int | None = None
        """Since when the frame that is being received waits for memory."""
        self._rate_size = 0
        """Bytes of the frame that were there at ``frame_since``; less than 0 by as many as were dropped since then."""
        self._refused_size = 0
        """Bytes that are still to come of a frame that was refused."""
        self.unsent_since: int | None = None
        """Since when the client has not read its reply."""
        self._state = _RECEIVING
        self._is_paused = False
        self._task: asyncio.Task[Any] | None = None
        self._parked = ParkedReads()
        session.on_end = self.end

    # --- receiving ---

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._buffer.received(count)
        if self._state is _RECEIVING:
            self._advance()
        elif self._state is _DISCARDING:
            self._discard()
        else:
            self._control_flow()

    def _advance(self, is_admitted: bool = False) -> None:
        """Handle the frames that are there, until one has to be waited for, or others come first."""
        buffer, session = self._buffer, self.session
        count = began = 0
        while buffer.size:
            if session.user_id is None and not is_admitted and not self._turns.admit(self._turn_came):
                self._state = _YIELDING
                break
            is_admitted = False
            try:
                frame = self._next_frame()
            except FrameRefused as refusal:
                self._refuse(refusal)
                return
            if frame is None:
                break
            self._state = _ANSWERING
            self._answer(frame)
            if self._state is not _RECEIVING:
                break
            if buffer.size or count:
                # The client sends ahead. The time of each request is noted anyway.
                count += 1
                began = began or session.last_seen
                if self._has_had_its_turn(count, session.last_seen - began):
                    break
        if not buffer.size and self._state is _RECEIVING:
            buffer.rest()
            if not self._is_paused:
                return
        self._control_flow()

    def _go_on(self) -> None:
        """After a request that had to wait: with reads that have come back meanwhile, or else with the next frame."""
        if self._parked.ready:
            self._yield()
        else:
            self._advance()

    def _has_had_its_turn(self, count: int, time: int) -> bool:
        """Whether others come first, after so many requests in so many microseconds."""
        turns = self._turns
        count_max = REQUEST_COUNT_MAX if self._buffer.size else REQUEST_COUNT_PAUSE
        # All that send ahead share one turn, so that it stays short however many they are.
        share = turns.yielding_count + 1
        if count * share < count_max and time * share < TIME_MAX:
            return False
        self._yield()
        return True

    def _yield(self) -> None:
        self._state = _YIELDING
        self._turns.yielding_count += 1
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turns.yielding_count -= 1
        self._turn_came()

    def _turn_came(self) -> bool:
        """Go on after the others. False if there is nothing to do any more."""
        if self._state is not _YIELDING:
            return False
        self._state = _RECEIVING
        if self._parked.ready:
            self._answer_ready()
        if self._state is _RECEIVING:
            self._advance(is_admitted=True)
        return True

    def _next_frame(self) -> memoryview | None:
        """The next whole frame, or None if it has not arrived yet."""
        buffer, codec, size = self._buffer, self._codec, self._frame_size
        if size is None:
            head = buffer.head()
            if codec is None:
                codec = self._codec = self._choose_codec(head, self.session)
            size = None if codec is None else codec.frame_size(head)
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
            self._rate_size = 0
        if self._buffer.is_waiting:
            self._memory_since = self._monotonic()

    def _memory_came(self) -> None:
        """There is room for the frame under way. That it had to be waited for is not the client's fault."""
        self._memory_since = None
        self.frame_since = self._monotonic()
        self._rate_size = self._buffer.size
        if self._state is _RECEIVING:
            self._advance()

    def _control_flow(self) -> None:
        """Receive if there is room for more, and only then."""
        buffer = self._buffer
        state = self._state
        if state is _ANSWERING and buffer.size:
            self.session.hurry()
        must_pause = buffer.is_waiting or buffer.is_full or (state is _YIELDING and self.session.user_id is None)
        if must_pause != self._is_paused:
            self._is_paused = must_pause
            if must_pause:
                self._link.pause()
            else:
                self._link.resume()

    # --- answering ---

    def _answer(self, frame: memoryview) -> None:
        """Answer a request: on the spot if nothing has to be waited for, as for most."""
        # Few calls from here on: each costs every request a hundredth of its time.
        codec, session, monotonic = self._codec, self.session, self._monotonic
        assert codec is not None, "a frame was found with it"
        session.last_seen = monotonic()
        if len(frame) > QUICK_SIZE_MAX and codec.is_slow(frame):
            self._task = asyncio.get_running_loop().create_task(self._answer_slowly(codec, frame))
            return
        try:
            incoming = codec.decode(frame, session.user_id is not None)
        except Exception as error:  # noqa: BLE001 - one defect of ours must not take the other clients down
            incoming = self._undecodable(error)
        self._carry_out(codec, incoming)

    def _carry_out(self, codec: Codec, incoming: Incoming) -> None:
        """Have a request carried out, and answer it unless there is something to wait for."""
        command = incoming.command
        if command is None:
            self._answer_at_once(codec, incoming)
            return
        try:
            begin = self._begin  # Python 3.11 is slow at calling methods that are attributes.
            answer: Any = begin(self.session, command)
            if isinstance(answer, Waiting):
                self._wait_for(codec, incoming, answer)
                return
            if type(answer) is Polled and answer.size > QUICK_REPLY_SIZE_MAX and codec.encodes_slowly(answer):
                self._task = asyncio.get_running_loop().create_task(self._reply_slowly(codec, incoming, answer))
                return
            buffers = codec.encode_reply(incoming, answer)
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            buffers = self._failure(codec, incoming, error)
        self._send(incoming, buffers)

    def _answer_at_once(self, codec: Codec, incoming: Incoming) -> None:
        """Answer what is no command, or begin a read that waits beside the line."""
        if isinstance(incoming, Deferral):
            self._begin_deferral(codec, incoming)
            return
        if isinstance(incoming, Cancellation):
            self._parked.cancel(incoming.number)
        else:
            _log.debug("request of client %d refused: %s", self.session.client_id, incoming.reason)
        self._send(incoming, incoming.answer or ())

    def _wait_for(self, codec: Codec, incoming: Incoming, waiting: Waiting[Reply | None]) -> None:
        if isinstance(waiting.future, asyncio.Task):
            # Nobody else waits for it: it ends with the connection.
            self._task = waiting.future
        waiting.future.add_done_callback(partial(self._answer_waiting, codec, incoming, waiting))

    def _answer_waiting(
        self, codec: Codec, incoming: Incoming, waiting: Waiting[Reply | None], _: "asyncio.Future[Any]"
    ) -> None:
        self._task = None
        if waiting.future.cancelled():
            # The server stops, or nobody is left to read the answer.
            self._buffers.give_back(self.session)
            return
        try:
            reply = waiting.result()
            if type(reply) is Polled and reply.size > QUICK_REPLY_SIZE_MAX and codec.encodes_slowly(reply):
                self._task = asyncio.get_running_loop().create_task(self._reply_slowly(codec, incoming, reply))
                return
            buffers = codec.encode_reply(incoming, reply)
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            buffers = self._failure(codec, incoming, error)
        self._send(incoming, buffers)
        if self._state is _RECEIVING:
            self._go_on()

    # --- reads that wait beside the line ---

    def _begin_deferral(self, codec: Codec, deferral: Deferral) -> None:
        """Begin to wait for what a read needs. It is answered on the spot if there is nothing to wait for."""
        request = deferral.request
        try:
            begin = self._begin
            outcome: Any = begin(self.session, deferral.wait)
            if isinstance(outcome, Waiting):
                self._park(codec, deferral, outcome)
                return
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            self._send(request, self._failure(codec, request, error))
            return
        self._end_deferral(codec, deferral, outcome)

    def _park(self, codec: Codec, deferral: Deferral, waiting: Waiting[Any]) -> None:
        try:
            self._parked.check(deferral.number)
        except CommandRejected:
            waiting.cancel()
            raise
        read = ParkedRead(codec, deferral, waiting)
        self._parked.add(read)
        self._left_line(deferral.number)
        self._link.acknowledge()
        waiting.future.add_done_callback(partial(self._come_back, read))
        self._send(deferral, ())

    def _come_back(self, read: ParkedRead, _: "asyncio.Future[Any]") -> None:
        """A read has waited: it is the next request, after those of others that have come back in this turn."""
        if self._parked.return_to_line(read) and self._state is _RECEIVING:
            self._yield()

    def _answer_ready(self) -> None:
        """Answer reads that have waited, until one has to be waited for, or others come first."""
        count, began = 0, self._monotonic()
        while self._parked.ready and self._state is _RECEIVING:
            self._answer_parked(self._parked.take())
            count += 1
            if self._state is _RECEIVING and self._has_had_its_turn(count, self.session.last_seen - began):
                break

    def _answer_parked(self, read: ParkedRead) -> None:
        self._state = _ANSWERING
        self.session.last_seen = self._monotonic()
        self._joined_line(read.deferral.number)
        try:
            outcome = read.outcome()
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            request = read.deferral.request
            self._send(request, self._failure(read.codec, request, error))
        else:
            self._end_deferral(read.codec, read.deferral, outcome)

    def _end_deferral(self, codec: Codec, deferral: Deferral, outcome: Any) -> None:
        """The wait is over: carry the read out, if the outcome of the wait is not the reply."""
        request = deferral.request
        if request.command is not deferral.wait:
            self._carry_out(codec, request)
            return
        try:
            buffers = codec.encode_reply(request, outcome)
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            buffers = self._failure(codec, request, error)
        self._send(request, buffers)

    def _refuse_parked(self, error: CourserError) -> None:
        """Nothing more is read for this client: refuse all reads that wait, unless it does not read its replies."""
        for read in self._parked.end_all(error):
            if self.unsent_since is not None:
                continue
            request = read.deferral.request
            self._joined_line(read.deferral.number)
            self._link.send(self._failure(read.codec, request, error))

    def _left_line(self, number: int) -> None:
        """A read with this number will be answered later. For transports that have a stream for each request."""

    def _joined_line(self, number: int) -> None:
        """The next reply is to the read with this number."""

    async def _answer_slowly(self, codec: Codec, frame: memoryview) -> None:
        """A request that takes long to decode. Its frame stays where it is meanwhile."""
        try:
            incoming = await self._convert(partial(self._decode_slowly, codec, frame))
        finally:
            self._task = None
        self._carry_out(codec, incoming)
        if self._state is _RECEIVING:
            self._go_on()

    async def _reply_slowly(self, codec: Codec, incoming: Incoming, reply: Reply) -> None:
        """A reply that takes long to encode."""
        try:
            buffers = await self._convert(partial(codec.encode_reply, incoming, reply))
        except asyncio.CancelledError:
            # The server stops, or nobody is left to read the answer.
            self._buffers.give_back(self.session)
            raise
        except Exception as error:  # noqa: BLE001 - looked at in _failure
            buffers = self._failure(codec, incoming, error)
        finally:
            self._task = None
        self._send(incoming, buffers)
        if self._state is _RECEIVING:
            self._go_on()

    def _decode_slowly(self, codec: Codec, frame: memoryview) -> Incoming:
        """On another thread. Whoever went away while others were served is not worth the work."""
        if self.session.ended is not None:
            return _last_request("nobody is left to read the answer")
        try:
            return codec.decode(frame, self.session.user_id is not None)
        except Exception as error:  # noqa: BLE001 - one defect of ours must not take the other clients down
            return self._undecodable(error)

    def _undecodable(self, error: Exception) -> Incoming:
        """In place of a request that the codec failed to decode."""
        _log.error(
            "client %d: a request could not be decoded, which is a defect", self.session.client_id, exc_info=error
        )
        return _last_request("it could not be decoded")

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
        is_last = incoming.closes or self.session.ended is not None or self._state is _FINISHING
        if not buffers or self._link.send(buffers):
            self._state = _CLOSED if is_last else _RECEIVING
            if self.session.lease is not None:
                self._buffers.give_back(self.session)
        else:
            self.unsent_since = self._monotonic()
            self._state = _CLOSED if is_last else _SENDING
            # All of it is held until the last byte is taken.
            self._buffers.unread(self.session, sum(map(len, buffers)), is_copied=incoming.is_copied)
        if is_last:
            if self._parked:
                self._refuse_parked(_interrupted(self.session.ended))
            self._link.close()

    def sent(self) -> None:
        """The transport has handed all of the last answer to the kernel."""
        if self.unsent_since is not None:
            self.unsent_since = None
            self._buffers.give_back(self.session)
            if self._state is _SENDING:
                self._state = _RECEIVING
                self._go_on()

    # --- slow clients ---

    def is_frame_overdue(self, now: int) -> bool:
        """Whether the client sends a frame too slowly.

        Every frame gets some time, and more with every byte. A client that stops in the middle of a frame is therefore
        detected soon, however large the frame is: others may wait for its memory.
        """
        if self.frame_since is None or self._buffer.is_waiting:
            return False
        return self._frame_pace.is_late(now, self.frame_since, self._buffer.size - self._rate_size)

    def reserved_by_sender(self, now: int) -> tuple[int, int] | None:
        """The rate in bytes per second at which a frame larger than the base buffer arrives, and its reserved memory.

        None if there is no such frame, or if it is too early to judge.
        """
        reserved_size, since = self._buffer.reserved_size, self.frame_since
        if not reserved_size or since is None or self._state is not _RECEIVING:
            return None
        time = (now if self._memory_since is None else self._memory_since) - since
        if time < RATE_TIME_MIN:
            return None
        return (self._buffer.size - self._rate_size) * 1_000_000 // time, reserved_size

    # --- the end ---

    @property
    def codec(self) -> Codec:
        """The codec. There is one as soon as a request was answered."""
        assert self._codec is not None, "requests were answered"
        return self._codec

    @property
    def link(self) -> SessionTransport:
        """What carries the requests and replies."""
        return self._link

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered. Reads that wait are no sign of life of the client."""
        return self._state is _RECEIVING and not self._buffer.size

    @property
    def has_parked_reads(self) -> bool:
        return bool(self._parked)

    @property
    def is_answering(self) -> bool:
        """Whether a request is being carried out."""
        return self._state is _ANSWERING or self._state is _FINISHING

    def end(self, error: CourserError) -> None:
        """Close the connection after the reply in progress."""
        state = self._state
        if state is _ANSWERING:
            self._state = _FINISHING
            if self.session.waiting is not None:
                # Cancelling a long poll loses nothing, and a stopping server would have to wait for it.
                self.session.waiting.cancel()
        elif state is _SENDING or state is _DISCARDING:
            # The last reply is in flight, or a request is. Whoever does not read is not told more.
            self._state = _CLOSED
            self._parked.end_all(_interrupted(error))
            self._link.close()
        elif state is _RECEIVING or state is _YIELDING:
            self._state = _CLOSED
            self._refuse_parked(_interrupted(error))
            farewell = self._codec.farewell(error) if self._codec is not None else b""
            if farewell:
                self._link.send((farewell,))
            self._link.close(str(error))

    def _refuse(self, refusal: FrameRefused) -> None:
        _log.info("disconnecting client %d at %s: %s", self.session.client_id, self.session.address, refusal.reason)
        if refusal.answer:
            self._link.send((refusal.answer,))
        if self.session.user_id is not None and refusal.size > self._buffer.size:
            # Closed now, with bytes unread, the connection would be reset, and the client might never see the answer.
            self._state = _DISCARDING
            self._refused_size = refusal.size
            self.frame_since, self._rate_size = self._monotonic(), 0
            self._link.finish(refusal.reason)
            self._discard()
        else:
            self._state = _CLOSED
            self._link.close(refusal.reason)

    def _discard(self) -> None:
        """Drop what has come of a refused frame, and close the connection behind it."""
        buffer = self._buffer
        self._refused_size -= buffer.size
        self._rate_size -= buffer.size
        buffer.take_all()
        buffer.rest()
        if self._refused_size > 0:
            self._control_flow()
        else:
            self._state = _CLOSED
            self._link.close()

    def give_up(self) -> None:
        """Leave the connection to another process, between two requests."""
        assert self.is_idle, "nothing is received or answered"
        assert not self._parked, "no read waits"
        self._state = _CLOSED
        self._buffer.close()
        self.session.on_end = None

    def lost(self) -> None:
        """Handle the loss of the connection."""
        self._parked.end_all(_interrupted(None))
        self._state = _FINISHING if self.is_answering else _CLOSED
        task = self._task
        if task is None:
            if self.unsent_since is not None:
                self._buffers.give_back(self.session)
            self._buffer.close()
            return
        # A request in progress is finished, so that no metadata change is left half done; only waiting is cancelled.
        # The request may still refer to its memory, which is therefore released last.
        task.add_done_callback(lambda _: self._buffer.close())
        if self.session.waiting is not None:
            self.session.waiting.cancel()
