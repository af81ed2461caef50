"""A protocol just large enough to drive the session loop: a length byte pair, a verb, some text."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from courser.api.commands import Command
from courser.api.replies import Polled, Reply
from courser.broker.access.sessions import Session
from courser.broker.partition.read_buffers import ReadBuffers
from courser.broker.partition.waiting import Waiting, attempt
from courser.errors import CommandRejected, CourserError, ErrorCode
from courser.model.buffers import Buffer
from courser.model.memory_ledger import MemoryLedger
from courser.model.messaging import Transport
from courser.transports.services import Services
from courser.transports.session_loop import SessionLoop
from courser.transports.settings import ConnectionSettings
from courser.transports.turns import Turns
from courser.wire.codec import QUICK_REPLY_SIZE_MAX, Cancellation, Codec, Deferral, FrameRefused, Incoming
from tests.fakes.clocks import ManualClock


class Say(Command, frozen=True):
    """A request."""

    text: bytes


class Said(Reply, frozen=True):
    """Its answer."""

    text: bytes


REFUSED_SIZE = 1_000_000
GONE = CommandRejected(ErrorCode.STALE_CLIENT, "silent for too long")


def frame(text: bytes) -> bytes:
    return len(text).to_bytes(3, "little") + text


async def settle(turns: int = 5) -> None:
    """Let callbacks run that are due."""
    for _ in range(turns):
        await asyncio.sleep(0)


class EchoCodec:
    """Three bytes of length, then text. ``!`` is refused, ``?`` is answered by the codec itself.

    ``~`` begins a frame of ``REFUSED_SIZE`` bytes that is refused.

    ``@7 text`` is a read with number 7, which waits first; ``#7`` cancels it.

    Long texts that begin with ``slow`` take long to decode. The answer to ``epic`` takes long to encode.
    """

    def frame_size(self, head: memoryview) -> int | None:
        if bytes(head[:1]) == b"!":
            raise FrameRefused("it begins with an exclamation mark", b"no!")
        if bytes(head[:1]) == b"~":
            raise FrameRefused("it is too large", b"too large!", REFUSED_SIZE)
        return None if len(head) < 3 else 3 + int.from_bytes(head[:3], "little")

    def is_slow(self, frame: memoryview) -> bool:
        return bytes(frame[3:7]) == b"slow"

    def decode(self, frame: memoryview, is_logged_in: bool) -> Incoming:
        text = bytes(frame[3:])
        if text.endswith(b"riddle"):
            raise KeyError("a defect")
        if text.startswith(b"@"):
            number, _, later = text[1:].partition(b" ")
            wait = Say(b"arrival " + later)
            request = Incoming(wait if later.startswith(b"arrived") else Say(later))
            return Deferral(None, number=int(number), wait=wait, request=request)
        if text.startswith(b"#"):
            return Cancellation(None, number=int(text[1:]))
        if text.startswith(b"?"):
            incoming = Incoming(None, answer=[b"what?"], reason="asked")
            incoming.closes = text == b"?close"
            return incoming
        return Incoming(Say(text))

    def encodes_slowly(self, reply: Polled) -> bool:
        return True

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        if isinstance(reply, Polled):
            return [b"<", *reply.pieces, b">"]
        assert isinstance(reply, Said)
        return [b"<", reply.text, b">"]

    def encode_failure(self, incoming: Incoming, error: CourserError) -> Sequence[Buffer]:
        return [b"failed: " + str(error).encode()]

    def farewell(self, error: CourserError) -> bytes:
        return b"bye"


class Wire:
    """The transport's side, in memory."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_stuck = False
        self.flow = "open"
        self.is_finished = False
        self.is_closed = False
        self.acknowledged_count = 0

    def send(self, buffers: Sequence[Buffer]) -> bool:
        for buffer in buffers:
            self.sent += buffer
        return not self.is_stuck

    def acknowledge(self) -> None:
        self.acknowledged_count += 1

    def pause(self) -> None:
        assert self.flow == "open"
        self.flow = "paused"

    def resume(self) -> None:
        assert self.flow == "paused"
        self.flow = "open"

    def finish(self, reason: str = "") -> None:
        self.is_finished = True

    def close(self, reason: str = "") -> None:
        self.is_closed = True


class SlowWork(Executor):
    """Work for another thread: done when a test says so."""

    def __init__(self) -> None:
        self._work: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._is_stopped = False

    @property
    def count(self) -> int:
        """Pieces of work that wait."""
        return len(self._work)

    def submit(self, run: Callable[..., Any], /, *arguments: Any, **options: Any) -> "Future[Any]":
        if self._is_stopped:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._work.append((future, partial(run, *arguments, **options)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work."""
        self._is_stopped = True

    def work(self) -> None:
        """Do the oldest piece."""
        future, run = self._work.pop(0)
        if future.set_running_or_notify_cancel():
            future.set_result(run())


def _explain(error: BaseException) -> Exception:
    return CourserError(f"explained: {error}")


class CountingBuffers(ReadBuffers):
    """Counts what is given back."""

    returned_count = 0

    def give_back(self, session: Session) -> None:
        self.returned_count += session.lease is not None
        super().give_back(session)


class Peer:
    """A client and the loop that serves it."""

    def __init__(
        self,
        settings: ConnectionSettings | None = None,
        memory: MemoryLedger | None = None,
        turns: Turns | None = None,
        kind: type[SessionLoop] = SessionLoop,
    ) -> None:
        self.clock = ManualClock()
        self.wire = Wire()
        self.memory = memory or MemoryLedger(1 << 30)
        self.buffers = CountingBuffers(MemoryLedger(1 << 30))
        self.slow_work = SlowWork()
        self.gate: asyncio.Future[Any] | None = None
        self.arrivals: dict[bytes, asyncio.Future[None]] = {}
        """What reads wait for, by their texts."""
        self.seen: list[bytes] = []
        self.on_request: Callable[[], None] = lambda: None
        self.session = Session(1, Transport.TCP, "127.0.0.1:1", now=0)
        self.session.user_id = 0
        services = Services(
            begin=self._begin,
            choose_codec=self._choose,
            buffers=self.buffers,
            clock=self.clock,
            settings=settings or ConnectionSettings(),
            memory=self.memory,
            slow_work=self.slow_work,
            turns=turns or Turns(),
        )
        self.loop = kind(services, self.session, self.wire)

    def _choose(self, head: memoryview, _session: Session) -> Codec | None:
        return EchoCodec() if len(head) >= 2 else None

    @property
    def replies_sent(self) -> int:
        """Replies whose memory was given back."""
        return self.buffers.returned_count

    def _begin(self, session: Session, command: Command) -> Reply | Waiting[Any] | None:
        assert session is self.session
        assert isinstance(command, Say)
        self.on_request()
        if session.lease is None:
            self.buffers.lease(session, 1000)
        if command.text.startswith(b"pend") or command.text.endswith(b" pend"):
            self.seen.append(command.text)
            self.gate = asyncio.get_running_loop().create_future()
            said: Waiting[Reply] = Waiting(self.gate, Said(command.text))
            return said.then(lambda reply: reply, _explain)
        return attempt(self._dispatch(session, command))

    async def _dispatch(self, session: Session, command: Command) -> Reply | None:
        assert isinstance(command, Say)
        if command.text.startswith(b"arrival "):
            text = command.text.removeprefix(b"arrival ")
            if text.startswith(b"forbidden"):
                raise CourserError("forbidden")
            if not text.startswith(b"there"):
                arrival = self.arrivals[text] = asyncio.get_running_loop().create_future()
                try:
                    await arrival
                finally:
                    self.arrivals.pop(text, None)
            return Said(command.text)
        self.seen.append(command.text)
        if command.text.startswith(b"wait") or command.text.endswith(b" wait"):
            self.gate = asyncio.get_running_loop().create_future()
            await self.gate
        if command.text.startswith(b"break") or command.text.endswith(b" break"):
            raise KeyError("a defect")
        if command.text.startswith(b"refuse") or command.text.endswith(b" refuse"):
            raise CourserError("refused")
        if command.text.startswith(b"epic"):
            return Polled(0, 0, 1, (memoryview(command.text),), QUICK_REPLY_SIZE_MAX + 1)
        return Said(command.text)

    def open_gate(self) -> None:
        """What the request in progress waits for is done, if it waits."""
        if self.gate is not None and not self.gate.done():
            self.gate.set_result(None)

    def release_all(self) -> None:
        """What reads wait for is there."""
        for arrival in self.arrivals.values():
            if not arrival.done():
                arrival.set_result(None)

    def receive(self, data: bytes) -> None:
        """Bytes come, as much at a time as there is room for."""
        view = memoryview(data)
        while view and not self.wire.is_closed:
            assert self.wire.flow == "open", "a paused connection receives nothing"
            room = self.loop.room()
            part = view[: len(room)]
            room[: len(part)] = part
            self.loop.received(len(part))
            view = view[len(part) :]

    def offer(self, data: bytes) -> None:
        """The same, until the connection is not read from: the rest is lost."""
        while data and self.wire.flow == "open" and not self.wire.is_closed:
            size = min(len(data), len(self.loop.room()))
            self.receive(data[:size])
            data = data[size:]

    async def receive_all(self, data: bytes) -> None:
        """The same, over as many turns of the event loop as it takes."""
        view = memoryview(data)
        while view and not self.wire.is_closed:
            if self.wire.flow == "open":
                part = view[: len(self.loop.room())]
                self.receive(bytes(part))
                view = view[len(part) :]
            await asyncio.sleep(0)
