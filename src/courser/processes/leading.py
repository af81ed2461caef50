"""The first process of a server: it starts the others, has them follow its metadata, and restarts one that ends.

A further process that ends takes its connections with it and nothing else: its partitions are recovered by the one
that is started in its place, as after a kill of a whole server. If the first process ends, all end.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from courser.broker.access.sessions import SessionActivity
from courser.broker.broker import Broker
from courser.broker.catalog.purging import AnyPurge
from courser.broker.partition.peers import Answer, RedoStep
from courser.broker.settings import BrokerSettings
from courser.catalog import changes
from courser.catalog.entities import PurgedTopic
from courser.catalog.store import CatalogStore, PreparedChange
from courser.errors import CourserError
from courser.model.metrics import Family
from courser.processes.asking import Question
from courser.processes.channel import socket_pair
from courser.processes.children import Child
from courser.processes.following import OpeningOrders
from courser.processes.handles import Handles, handle_pair
from courser.processes.links import Links
from courser.processes.merged_metrics import Snapshot, grown, merged
from courser.processes.ownership import FIRST, owns_of
from courser.processes.peer import Peer, ProcessFailed, ProcessGone
from courser.processes.peer_heartbeats import HEARTBEAT, USUAL_PATIENCE, Patience, PeerHeartbeats
from courser.records.stored_header import PartitionIdentity
from courser.storage.recovery_cases import StopKind
from courser.storage.staged_file import StagingTarget

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.2
_PAUSE_MAX = 30.0
"""Seconds before a process that ended is started again. The pause doubles each time."""
_RETRY_PAUSE = 1.0
"""Seconds before the next try to do what there was no descriptor for."""
_HEALTHY_AFTER = 60.0
"""Seconds that a process has to live before the pause is reset."""


class PeerProcesses:
    """The further processes, for the broker of the first one. Implements ``ManagedPeers``."""

    def __init__(
        self,
        links: Links,
        start: Callable[[int], Child],
        settings: BrokerSettings,
        *,
        first_pause: float = _FIRST_PAUSE,
        retry_pause: float = _RETRY_PAUSE,
        patience: Patience = USUAL_PATIENCE,
    ) -> None:
        """``start`` starts the process with a number. ``settings`` are those of further processes.

        ``first_pause``: seconds before a process that ended is started again; ``retry_pause``: before the next try of
        what there was no descriptor for. ``patience`` is that with silent ones.
        """
        self._first_pause = first_pause
        self._retry_pause = retry_pause
        self._patience = patience
        self.links = links
        self._start = start
        self._settings = settings
        self._children: dict[int, Child] = {}
        self._handles: dict[int, Handles] = {}
        self.connected: dict[int, Peer] = {}
        """Those that are connected, ready or not."""
        self.services: dict[str, Callable[..., Any]] = {}
        """What the others may ask this process for."""
        self.calls: dict[str, Callable[..., None]] = {}
        self.handle_services: dict[str, Callable[..., None]] = {}
        self.on_start: Callable[[Peer], None] = lambda _: None
        """Told of a process that was just started."""
        self.on_lost: Callable[[int], None] = lambda _: None
        """Told of a process that is gone."""
        self.on_ready: Callable[[Peer, Handles], None] | None = None
        """Told of a process that is ready to accept connections, once this one is."""
        self.services["link_again"] = lambda peer, number: self._link_again(peer.number, number)
        self._broker: Broker | None = None
        self._lost: frozenset[Path] = frozenset()
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, float] = {}
        """By process: seconds before it is started again the next time."""
        self._ready_times: dict[int, float] = {}
        """When processes were ready that were started again."""
        self._heartbeats = PeerHeartbeats(patience.interval, self)
        self._watch: asyncio.Task[None] | None = None
        self._metrics, self._facts, self._problems = (
            Question(name, links, patience.figures, self._is_silent) for name in ("metrics", "facts", "problems")
        )
        self._late: frozenset[int] = frozenset()
        """Processes that did not answer the last scrape."""
        self._retired: Snapshot = {}
        """What processes have counted that ended."""
        self._opening: set[int] = set()
        """Processes that were started again and get ready now."""
        self._closed: set[int] = set()
        """Processes that have closed their partitions."""
        self._is_open = self._is_closing = False

    # --- starting ---

    def start(self) -> None:
        """Start all processes. They load their modules while this one opens the metadata."""
        for number in range(1, self.links.process_count):
            self._connect(self._start(number))
        self._watch = asyncio.get_running_loop().create_task(self._heartbeats.run())

    def _connect(self, child: Child) -> None:
        self._children[child.number] = child
        self._handles[child.number] = Handles(child.handles, self.handle_services)
        peer = Peer(
            child.number,
            child.channel,
            services=self.services,
            calls=self.calls,
            on_lost=self._peer_lost,
        )
        self.connected[child.number] = peer
        self.on_start(peer)
        self._heartbeats.watch(peer)

    async def open_all(self, broker: Broker, lost: AbstractSet[Path]) -> frozenset[PartitionIdentity]:
        self._broker, self._lost = broker, frozenset(lost)
        broker.operating.scrapes.collect = self.metrics
        broker.disk_watch.remote_problems = self.problems
        broker.operating.machine.other_processes = lambda: [child.process.pid for child in self._children.values()]
        self.services["settle_below"] = self._settle_below
        state, data = broker.catalog.state.encode(), broker.data
        opening = [self._open(number, state, data.stop, data.unopened) for number in self._children]
        unopened = await asyncio.gather(*opening)
        if broker.archiver is not None:
            self.services["archive_hurry"] = self._hurry_archive
        await asyncio.gather(*map(self._join_archive, self.connected.values()))
        for one, other in combinations(self._children, 2):
            self._link(one, other)
        for peer in self.connected.values():
            broker.operating.start_findings.add(await peer.call("start_report"))
        # One that ends before this has failed to start. From now on, it is started again.
        self._is_open = True
        for peer in self.connected.values():
            self.links.add(peer)
            if not peer.is_open:
                self._peer_lost(peer)
        return frozenset[PartitionIdentity]().union(*unopened)

    async def _open(
        self, number: int, state: bytes, stop: StopKind, unopened: frozenset[PartitionIdentity]
    ) -> frozenset[PartitionIdentity]:
        assert self._broker is not None, "its metadata is open"
        path, count = self._broker.data.path, self.links.process_count
        orders = OpeningOrders(number, count, path, self._settings, state, stop, self._lost, unopened)
        found: frozenset[PartitionIdentity] = await self.connected[number].call("open", orders)
        return found

    async def _join_archive(self, peer: Peer) -> None:
        """Before a process gets requests, it reads what the archive has of its topics."""
        assert self._broker is not None, "it is open"
        if self._broker.archiver is not None:
            await peer.call("archive", self._broker.archiver.joining())

    def _hurry_archive(self, _: Peer) -> None:
        if self._broker is not None and self._broker.archiver is not None:
            self._broker.archiver.hurry()

    def _link_or_retry(self, one: int, other: int) -> None:
        """Connect two further processes, now or when there are descriptors for it."""
        try:
            self._link(one, other)
        except OSError as error:
            _log.error("could not connect processes %d and %d; trying again: %s", one, other, error)
            self._link_later(one, other)

    def _link_later(self, one: int, other: int) -> None:
        asyncio.get_running_loop().call_later(self._retry_pause, self._link_again, one, other)

    def _link_again(self, one: int, other: int) -> None:
        """Connect two processes again, one of which says that it is not connected."""
        if not self._is_open:
            self._link_later(one, other)
        elif {one, other} <= self.links.peers.keys() and not self._is_closing:
            self._link_or_retry(one, other)
        # Else one of them is started again, and connected with all others then.

    def _link(self, one: int, other: int) -> None:
        channels, handles = socket_pair(), handle_pair()
        try:
            for number, their_number, ends in (
                (one, other, (channels[0], handles[0])),
                (other, one, (channels[1], handles[1])),
            ):
                self._handles[number].send([end.fileno() for end in ends], "link", their_number)
        finally:
            for end in (*channels, *handles):
                end.close()

    def begin(self, on_ready: Callable[[Peer, Handles], None]) -> None:
        """This process listens. ``on_ready`` lets another one listen too, now or after it was restarted."""
        self.on_ready = on_ready
        for peer in self.links:
            on_ready(peer, self._handles[peer.number])

    def handles_of(self, number: int) -> Handles:
        """What carries descriptors to a process."""
        return self._handles[number]

    # --- restarting ---

    def _peer_lost(self, peer: Peer) -> None:
        number = peer.number
        self.links.remove(peer)
        if self._broker is None or not self._is_open or number in self._closed:
            return
        self._retired = grown(self._broker.metrics, self._retired, self._metrics.forget(number) or {})
        self._facts.forget(number)
        self._problems.forget(number)
        self.on_lost(number)
        if number not in self._restarts and not self._is_closing:
            # Otherwise it has ended again before it was ready, which whoever starts it notices.
            self._restarts[number] = asyncio.get_running_loop().create_task(self._restart(number))

    async def _restart(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        broker = self._broker
        assert broker is not None, "it was open"
        if loop.time() - self._ready_times.get(number, 0.0) > _HEALTHY_AFTER:
            self._pauses.pop(number, None)
        while not self._is_closing:
            self._disconnect(number)
            # It may be that only its channel is broken. Nobody else may write to its partitions before it is gone.
            self._children[number].kill()
            await self._children[number].ended()
            await self._pause(number)
            try:
                self._connect(self._start_again(number))
                # Not while changes wait for it: it loads its modules first.
                await self.connected[number].call(HEARTBEAT)
                is_ready = await broker.catalog.between_changes(partial(self._get_ready, number))
                # It may have ended since then. While it is started again, nobody else does that.
                if is_ready and self.connected[number].is_open:
                    break
            except (CourserError, OSError) as error:
                _log.error("process %d could not be started again: %s", number, error)
            except Exception:  # noqa: BLE001 - a defect, but its topics must not be away until somebody notices
                _log.exception("process %d could not be started again", number)
        self._ready_times[number] = loop.time()
        del self._restarts[number]

    def _start_again(self, number: int) -> Child:
        try:
            return self._start(number)
        except OSError:
            # There is no memory or no descriptor for it. It has not ended: a long pause would help nobody.
            self._pauses[number] = min(self._pauses[number], self._retry_pause)
            raise

    def _disconnect(self, number: int) -> None:
        """What is asked of a process fails from now on."""
        self.links.remove(self.connected[number])
        self.connected[number].close()
        self._handles[number].close()

    async def _pause(self, number: int) -> None:
        """Longer each time: one that ends again and again takes no more processor time than it has to."""
        pause = self._pauses.get(number, self._first_pause)
        self._pauses[number] = min(2 * pause, _PAUSE_MAX)
        _log.error("process %d has ended; starting it again in %.1f s", number, pause)
        await asyncio.sleep(pause)

    async def _get_ready(self, number: int, store: CatalogStore) -> bool:
        self._opening.add(number)
        try:
            return await self._open_again(number, store)
        finally:
            self._opening.discard(number)

    async def _open_again(self, number: int, store: CatalogStore) -> bool:
        """Between two changes. False if it is not possible now: a topic has no directory yet, or it has ended."""
        broker = self._broker
        assert broker is not None, "it was open"
        if not broker.catalog.is_settled:
            return False
        peer = self.connected[number]
        # Only a process has ended: every completed write is there.
        await self._open(number, store.state.encode(), StopKind.KILLED, broker.data.unopened)
        await self._join_archive(peer)
        for other in self.links:
            self._link_or_retry(number, other.number)
        if not peer.is_open:
            return False
        self.links.add(peer)
        if self.on_ready is not None:
            self.on_ready(peer, self._handles[number])
        _log.info("process %d is back", number)
        return True

    # --- silence ---

    def patience_with(self, peer: Peer, has_answered: bool) -> float:
        if self._is_closing:
            return self._patience.stopping
        if self._broker is None or not self._is_open or not has_answered:
            return self._patience.starting
        # One that gets ready opens its partitions, and may have many.
        is_blocking = self._broker.catalog.is_busy and peer.number not in self._opening
        return self._patience.blocking if is_blocking else self._patience.silence

    def end_silent(self, peer: Peer, silence: float) -> None:
        _log.error("process %d has not answered for %.1f s; ending it", peer.number, silence)
        self._children[peer.number].kill()
        asyncio.get_running_loop().call_later(self._patience.leaving, self._leave, peer)

    def _leave(self, peer: Peer) -> None:
        """A process was killed. If the kernel waits for the disk before it ends it, nobody else does."""
        if peer.is_open:
            for other in self.links:
                other.note("gone", peer.number)
            peer.lose()

    def _is_silent(self, peer: Peer) -> bool:
        return self._heartbeats.age_of_question(peer) >= self._patience.hint

    # --- metadata ---

    async def apply(self, prepared: PreparedChange) -> CourserError | None:
        entry = prepared.entry
        arguments = ("apply", entry.op, entry.timestamp, changes.encode_change(prepared.change))
        refusals: list[CourserError] = []
        for peer, result in zip(peers := tuple(self.links), await self._call_each(peers, *arguments), strict=True):
            if isinstance(result, ProcessFailed):
                # What it has done of it is not known. The next one starts with the whole state.
                self._children[peer.number].process.kill()
            elif isinstance(result, CourserError) and not isinstance(result, ProcessGone):
                refusals.append(result)
        return refusals[0] if refusals else None

    async def _call_each(self, peers: Sequence[Peer], name: str, *arguments: object) -> list[Any]:
        return await asyncio.gather(*(peer.call(name, *arguments) for peer in peers), return_exceptions=True)

    async def _call_all(self, name: str, *arguments: object) -> list[Any]:
        """The answers of all that are there. Raises the first error."""
        results = await self._call_each(tuple(self.links), name, *arguments)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    @asynccontextmanager
    async def held_writes(self, change: AnyPurge) -> AsyncIterator[Mapping[int, PurgedTopic]]:
        assert self._broker is not None, "it is open"
        stream = self._broker.catalog.state.streams.get(change.stream_id)
        named = [change.topic_id] if isinstance(change, changes.TopicPurge) else list(stream.topics if stream else ())
        owners = {self.links.owner_of(change.stream_id, topic_id) for topic_id in named} - {FIRST}
        peers = [self.links.at(number) for number in owners]
        held: dict[int, PurgedTopic] = {}
        try:
            for peer in peers:
                held |= await peer.call("hold_writes", change)
            yield held
        finally:
            await self._call_each(peers, "release_writes")

    async def open_new(self, stream_id: int, topic_id: int) -> None:
        peer = self.links.peers.get(self.links.owner_of(stream_id, topic_id))
        if peer is not None:
            with contextlib.suppress(ProcessGone):
                await peer.call("open_new", stream_id, topic_id)
        # One that is being restarted opens all partitions of the catalog.

    async def wait_for_closed(self) -> None:
        await self._call_each(tuple(self.links), "wait_for_closed")

    # --- publishes ---

    async def check_targets(self, targets: Mapping[StagingTarget, int]) -> Mapping[StagingTarget, int]:
        shares: dict[int, dict[StagingTarget, int]] = {}
        for target, size in targets.items():
            owner = self.links.owner_of(target.stream_id, target.topic_id)
            shares.setdefault(owner, {})[target] = size
        found: dict[StagingTarget, int] = {}
        for owner, share in shares.items():
            found |= await self.links.at(owner).call("check_targets", share)
        return found

    async def redo(self, sink: str, step: RedoStep) -> None:
        for number in self.links.numbers:
            # All must be there: one that is missing may own some of the targets.
            self.links.at(number)
        await self._call_all("redo", sink, step)

    async def _settle_below(self, _: Peer, identity: PartitionIdentity, before_offset: int) -> None:
        assert self._broker is not None, "it is open"
        await self._broker.publishing.settle_below(identity, before_offset)

    # --- the archive ---

    async def wait_for_all(self) -> None:
        for number in sorted(self.links.numbers):
            await self.links.wait_for(number)

    def ask_archives(self, phase: Callable[[Any], Awaitable[Answer]]) -> Sequence[Awaitable[Answer]]:
        peers = [self.links.at(number) for number in sorted(self.links.numbers)]
        return [peer.call("archive", phase) for peer in peers]

    def tell_archives(self, tell: Callable[[Any], None]) -> None:
        for peer in self.links:
            peer.note("tell_archive", tell)

    # --- figures ---

    async def collect(self) -> None:
        """Bring the figures of other processes up to date.

        Those of one that is silent or is being restarted stay as they were.
        """
        broker = self._broker
        assert broker is not None, "it is open"
        sums = dict(broker.figures.remote)
        sessions: dict[int, SessionActivity] = {}
        await self._facts.ask()
        for topics, clients in self._facts.answers.values():
            sums |= topics
            for client_id, facts in clients.items():
                sessions[client_id] = sessions[client_id].joined(facts) if client_id in sessions else facts
        state = broker.catalog.state
        broker.figures.remote = {place: found for place, found in sums.items() if state.topic(*place) is not None}
        broker.sessions.remote = sessions

    async def metrics(self) -> Iterable[Family]:
        broker = self._broker
        assert broker is not None, "it is open"
        self._late = await self._metrics.ask()
        return merged(broker.metrics, (*self._metrics.answers.values(), self._retired))

    @property
    def count(self) -> int:
        return self.links.process_count

    def answering(self) -> tuple[int, ...]:
        return FIRST, *sorted(self.links.peers.keys() - self._late)

    async def problems(self) -> list[str]:
        """Why other processes cannot take every write."""
        late = await self._problems.ask()
        missing = self.links.numbers - self.links.peers.keys()
        found = [f"process {number} is being restarted" for number in sorted(missing)]
        found += [f"process {number} does not answer" for number in sorted(late - missing)]
        for number, problems in self._problems.answers.items():
            found += problems if number not in late | missing else []
        return found

    # --- the end ---

    async def tell_all(self, name: str, *arguments: object) -> None:
        """Call all that are there, and wait for them, whatever they say."""
        await self._call_each(tuple(self.links), name, *arguments)

    def end_restarts(self) -> None:
        """The server stops: start no process again, but let one get ready that is about to. May be repeated."""
        self._is_closing = True
        # The server may not listen any more.
        self.on_ready = None
        self.links.stop_waiting()
        for number, restart in self._restarts.items():
            if number not in self._opening:
                restart.cancel()

    async def take_over(self) -> bool:
        self.end_restarts()
        await asyncio.gather(*self._restarts.values(), return_exceptions=True)
        self._restarts.clear()
        gone = self.links.numbers - self.links.peers.keys() - self._closed
        return any([await self._take_over(number) for number in sorted(gone)])

    async def _take_over(self, number: int) -> bool:
        """Open the partitions of a process here. Returns whether it was possible; the reason is logged."""
        assert self._broker is not None, "it is open"
        self._disconnect(number)
        self._children[number].kill()
        if not await self._children[number].is_ended():
            _log.error("process %d does not end, so nobody else may open its partitions", number)
            return False
        try:
            await self._broker.catalog.between_changes(partial(self._open_here, number))
        except CourserError as error:
            _log.error("could not open the partitions of process %d, which has ended reason=%s", number, error)
            return False
        # Not earlier: the archive must not be written without its partitions.
        self.links.numbers.discard(number)
        _log.info("process %d has ended; its partitions are closed by the first process", number)
        return True

    async def _open_here(self, number: int, store: CatalogStore) -> None:
        broker, owns = self._broker, owns_of(number, self.links.process_count)
        assert broker is not None, "it is open"
        streams, unopened = list(store.state.streams.values()), broker.data.unopened
        # Only a process has ended: every completed write is there.
        await broker.partitions.open_all(streams, StopKind.KILLED, lost=self._lost, unopened=unopened, owns=owns)

    async def close(self) -> bool:
        await self.take_over()
        is_clean = all(await asyncio.gather(*map(self._close, self.links)))
        await self.take_over()
        await self._let_go(Child.let_go)
        return is_clean and self.links.numbers == self._closed

    async def _close(self, peer: Peer) -> bool:
        """Have a process close its partitions. Returns whether all is well: if it ends, that is another matter."""
        try:
            is_clean: bool = await peer.call("close")
        except ProcessGone:
            return True
        except CourserError as error:
            _log.error("process %d could not stop reason=%s", peer.number, error)
            is_clean = False
        self._closed.add(peer.number)
        return is_clean

    async def abandon(self) -> None:
        """End all processes now: the start failed."""
        self._is_closing = True
        for restart in self._restarts.values():
            restart.cancel()
        await asyncio.gather(*self._restarts.values(), return_exceptions=True)
        for child in self._children.values():
            child.kill()
        await self._let_go(Child.is_ended)

    async def _let_go(self, end: Callable[[Child], Awaitable[object]]) -> None:
        for number in self._children:
            self._disconnect(number)
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*map(end, self._children.values()))


def share_of(settings: BrokerSettings, process_count: int) -> BrokerSettings:
    """The settings of one of several processes: what is limited for the whole server is divided."""
    archive = settings.archive
    return replace(
        settings,
        archive=None
        if archive is None
        else replace(
            archive,
            cache_size=archive.cache_size // process_count,
            bandwidth=-(-archive.bandwidth // process_count),
        ),
        reply_memory=max(settings.reply_memory // process_count, 1),
        scrub_rate=-(-settings.scrub_rate // process_count),
        condensing_rate=-(-settings.condensing_rate // process_count),
    )
