"""Parts of subscriptions and scans that a further process carries out for the first one, which has their clients."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from courser.api.scans import ScanEvent, ScanRequest
from courser.api.subscriptions import Selection
from courser.broker.broker import Broker
from courser.broker.sessions import Session
from courser.broker.subscriptions import Subscription
from courser.errors import CommandRejected, ErrorCode
from courser.processes.mirrors import Mirrors, Passing
from courser.processes.peer import Call, Peer


@dataclass(eq=False, slots=True)
class _Part:
    """The part of a subscription that is here."""

    session: Session
    subscription: Subscription
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Scan:
    """A scan of a topic that is here."""

    held: ExitStack
    events: AsyncGenerator[ScanEvent, None]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class ReadingForOthers:
    """Of one process. The login is the matter of the first process; what may be read is checked here."""

    def __init__(self, broker: Broker, mirrors: Mirrors) -> None:
        self._broker = broker
        self._mirrors = mirrors
        self._parts: dict[int, _Part] = {}
        self._scans: dict[int, _Scan] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def services(self) -> dict[str, Callable[..., Any]]:
        """The services of ``Peer`` ..."""
        return {
            "subscription_add": self._add,
            "subscription_remove": self._remove,
            "subscription_close": self._close,
            "scan_open": self._open_scan,
            "scan_close": self._close_scan,
        }

    def calls(self) -> dict[str, Callable[..., None]]:
        """... and those that answer by themselves."""
        return {
            "subscription_wait": self._wait,
            "subscription_take": self._take,
            "scan_next": self._next_of_scan,
        }

    # --- subscriptions ---

    async def _add(self, _: Peer, number: int, facts: Passing, user_id: int, selection: Selection) -> dict[int, int]:
        part = self._parts.get(number)
        if part is None:
            session = self._mirrors.passing(facts, user_id)
            part = self._parts[number] = _Part(session, self._broker.subscriptions.open(session))
        return await part.subscription.add(selection)

    def _remove(self, _: Peer, number: int, selection: Selection) -> None:
        part = self._parts.get(number)
        if part is not None:
            try:
                part.subscription.remove(selection)
            except CommandRejected:
                # It has ended meanwhile.
                return

    def _close(self, _: Peer, number: int) -> None:
        part = self._parts.pop(number, None)
        if part is not None:
            part.subscription.close()
            for task in part.tasks:
                task.cancel()

    def _wait(self, call: Call, number: int) -> None:
        part = self._parts.get(number)
        if part is None:
            call.fail(_gone())
            return

        async def wait() -> None:
            await part.subscription.wait()
            call.answer(None)

        _begin(part.tasks, call, wait())

    def _take(self, call: Call, number: int, count_max: int) -> None:
        part = self._parts.get(number)
        if part is None:
            call.fail(_gone())
            return

        async def take() -> None:
            try:
                call.answer(await part.subscription.take(count_max))
            finally:
                # The answer is sent or copied.
                self._broker.reply_sent(part.session)

        _begin(part.tasks, call, take())

    # --- scans ---

    def _open_scan(self, _: Peer, number: int, facts: Passing, user_id: int, request: ScanRequest) -> None:
        session = self._mirrors.passing(facts, user_id)
        held = ExitStack()
        scan = held.enter_context(self._broker.scans.open(session, request, lambda: None))
        self._scans[number] = _Scan(held, scan.events())

    def _next_of_scan(self, call: Call, number: int) -> None:
        scan = self._scans.get(number)
        if scan is None:
            call.fail(_gone())
            return

        async def find() -> None:
            call.answer(await anext(scan.events))

        _begin(scan.tasks, call, find())

    def _close_scan(self, _: Peer, number: int) -> None:
        scan = self._scans.pop(number, None)
        if scan is not None:
            task = asyncio.get_running_loop().create_task(_end(scan))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


async def _end(scan: _Scan) -> None:
    for task in scan.tasks:
        task.cancel()
    if scan.tasks:
        await asyncio.wait(scan.tasks)
    await scan.events.aclose()
    scan.held.close()


def _begin(tasks: set[asyncio.Task[None]], call: Call, work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        try:
            await work
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the caller gets it
            call.fail(error)

    task = asyncio.get_running_loop().create_task(run())
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _gone() -> CommandRejected:
    return CommandRejected(ErrorCode.DISCONNECTED, "a process of the server has ended")
