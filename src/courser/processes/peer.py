"""Calls between two processes of a server: a name, arguments, and an answer or an error."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from courser.broker.partition.waiting import Waiting
from courser.errors import CourserError, ErrorCode
from courser.processes.channel import Channel
from courser.processes.encoding import ANSWER, CALL, CANCELLED, FAILURE, INTERRUPT, NOTE

_log = logging.getLogger(__name__)


class ProcessGone(CourserError):
    """The process that a request was sent to has ended. Whether it was carried out is not known."""

    code = ErrorCode.SERVER_BUSY

    def __str__(self) -> str:
        return "a process of the server has ended while it carried out this request; it may be done or not"


class ProcessFailed(CourserError):
    """A request failed in another process, for a reason that is a defect. The log of that process has the details."""

    code = ErrorCode.ERROR

    def __str__(self) -> str:
        return "a process of the server failed to carry out this request"


Services: TypeAlias = Mapping[str, Callable[..., Any]]
"""By name. Each gets the peer, and the arguments of the call; it gives the answer, or a coroutine."""


class Call:
    """A call of the other process, for a service that answers it by itself."""

    __slots__ = ("_call_id", "_peer", "on_interrupt")

    def __init__(self, peer: "Peer", call_id: int) -> None:
        self._peer = peer
        self._call_id = call_id
        self.on_interrupt: Callable[[bool | None], None] | None = None
        """Told that the caller cannot wait any longer (False), should look again (True), or has gone (None)."""

    @property
    def is_congested(self) -> bool:
        """Whether the caller does not read its answers."""
        return self._peer.is_congested

    def answer(self, value: object) -> None:
        """Give the answer. What it refers to may be changed afterwards."""
        self._peer.finish(self._call_id, (ANSWER, self._call_id, value))

    def fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._peer.finish(self._call_id, (CANCELLED, self._call_id))
            return
        if not isinstance(error, CourserError):
            _log.error("a request of another process failed for a reason that is a defect", exc_info=error)
            error = ProcessFailed()
        self._peer.finish(self._call_id, (FAILURE, self._call_id, error))

    def settle(self, waiting: Waiting[Any]) -> None:
        """Give the answer that was waited for."""
        try:
            value = waiting.result()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self.fail(error)
        else:
            self.answer(value)


class Peer:
    """Another process. ``on_lost`` is called once, when it is gone, before the calls fail that it has not answered."""

    def __init__(
        self,
        number: int,
        end: socket.socket,
        *,
        services: Services,
        calls: Mapping[str, Callable[..., None]],
        on_lost: Callable[["Peer"], None],
    ) -> None:
        """``services`` give their answers; ``calls`` get a ``Call`` and answer it themselves."""
        self.number = number
        self._services = services
        self._calls = calls
        self._on_lost = on_lost
        self.last_call_id = 0
        """Of the call that was made last."""
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """Calls of ours that are not answered."""
        self._serving: dict[int, Call] = {}
        """Calls of the other process that are not answered."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel = Channel(end, self._received, self._lost)

    # --- ours ---

    def call(self, name: str, *arguments: object) -> "asyncio.Future[Any]":
        """Call the other process. The future raises ``ProcessGone`` if it ends before it answers."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._channel.is_open:
            future.set_exception(ProcessGone())
            return future
        self.last_call_id = call_id = self.last_call_id + 1
        self._asked[call_id] = future
        self._channel.send((CALL, call_id, name, arguments))
        return future

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    @property
    def is_congested(self) -> bool:
        """Whether the other process does not read what is sent to it."""
        return self._channel.is_congested

    def interrupt(self, call_id: int, flag: bool | None) -> None:
        """End the wait of a call (``Call.on_interrupt``)."""
        if call_id in self._asked:
            self._channel.send((INTERRUPT, call_id, flag))

    def note(self, name: str, *arguments: object) -> None:
        """Tell the other process something, in the order of calls. There is no answer."""
        self._channel.send((NOTE, name, arguments))

    def lose(self) -> None:
        """Give the other process up, as if it were gone."""
        self._channel.lose()

    def close(self) -> None:
        """Close the channel, without calling ``on_lost``."""
        self._channel.close()
        self._forget_calls()

    # --- theirs ---

    def _received(self, message: tuple[Any, ...]) -> None:
        try:
            self._handle(message)
        except Exception:  # noqa: BLE001 - the messages after it are there already, and have to be handled
            _log.exception("a message of process %d was not handled, for a reason that is a defect", self.number)

    def _handle(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == CALL:
            _, call_id, name, arguments = message
            self._serve(call_id, name, arguments)
        elif kind == NOTE:
            self._services[message[1]](self, *message[2])
        elif kind == INTERRUPT:
            call = self._serving.get(message[1])
            if call is not None and call.on_interrupt is not None:
                call.on_interrupt(message[2])
        else:
            future = self._asked.pop(message[1], None)
            if future is None or future.done():
                return
            if kind == ANSWER:
                future.set_result(message[2])
            elif kind == FAILURE:
                future.set_exception(message[2])
            else:
                future.cancel()

    def _serve(self, call_id: int, name: str, arguments: tuple[Any, ...]) -> None:
        call = self._serving[call_id] = Call(self, call_id)
        direct = self._calls.get(name)
        try:
            if direct is not None:
                direct(call, *arguments)
                return
            value = self._services[name](self, *arguments)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            call.fail(error)
            return
        if isinstance(value, Coroutine):
            task = self._loop.create_task(_answered(call, value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            call.answer(value)

    def finish(self, call_id: int, message: tuple[Any, ...]) -> None:
        """Send the answer of a call."""
        if self._serving.pop(call_id, None) is not None:
            self._channel.send(message)

    def _lost(self) -> None:
        # First: whoever hears that a call has failed may make the next one at once, and must not make it here.
        try:
            self._on_lost(self)
        finally:
            self._forget_calls()

    def _forget_calls(self) -> None:
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(ProcessGone())
                # It may be that nobody waits for it any more.
                _ = future.exception()
        serving, self._serving = self._serving, {}
        for call in serving.values():
            if call.on_interrupt is not None:
                call.on_interrupt(None)


async def _answered(call: Call, work: Coroutine[Any, Any, Any]) -> None:
    try:
        value = await work
    except BaseException as error:
        call.fail(error)
        if not isinstance(error, Exception):
            raise
    else:
        call.answer(value)
