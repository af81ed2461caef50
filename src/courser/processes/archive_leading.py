"""The archiver of the first process, and the partitions of the others.

All processes see the same data directory. So the others only give captures of their partitions, which are plain values,
and the first process uploads everything. What it has archived, it tells the owner of each partition, who deletes
nothing before. A process that is started again begins with nothing and is told everything again.
"""

import asyncio
import contextlib
import pickle
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from courser.archive.capture import CapturedPartition
from courser.archive.errors import ArchiveFailure
from courser.archive.writer import Confirmed, ConfirmedLog
from courser.broker.archive.archive_share import AwaitedSegment, FoundDamage
from courser.broker.archive.archiving import Archiver
from courser.broker.archive.followed_archive import ArchiveNews, PartitionNews, confirmed_news, news_of
from courser.catalog.directories import identity_of
from courser.catalog.state import CatalogState
from courser.errors import CourserError
from courser.model.identifiers import TopicAddress
from courser.processes.links import Links
from courser.processes.ownership import FIRST
from courser.processes.peer import Peer
from courser.records.stored_header import PartitionIdentity

_NEWS_COUNT_MAX = 100
"""Partitions that one message tells about: the event loop of the other process has other work in between."""


class ArchiveLead:
    """Those of all other processes. Implements ``OtherArchiveShares``."""

    def __init__(self, links: Links, take_over: Callable[[], Awaitable[bool]]) -> None:
        """``take_over`` is that of ``OtherProcesses``."""
        self._links = links
        self._take_over = take_over
        self._archiver: Archiver | None = None
        self._state: CatalogState | None = None
        self._told: dict[int, Peer] = {}
        """The processes that are told what is archived from now on."""
        self._owners: dict[PartitionIdentity, int] = {}
        """As of the last capture."""
        self._confirmed: Confirmed = {}
        self._sent: dict[PartitionIdentity, ConfirmedLog] = {}
        """What the owner of a partition knows to be confirmed."""
        self._informed: set[int] = set()
        """The processes that know what the archive had when it was read."""
        self._refusal: str | None = None
        """Why all writes are refused."""

    def begin(self, archiver: Archiver | None, state: CatalogState) -> None:
        """The metadata is open. Without an archiver, there is nothing to do."""
        self._archiver, self._state = archiver, state

    @property
    def services(self) -> Mapping[str, Callable[..., Any]]:
        """What the others may ask for."""
        return {"archive_hurry": self._hurry}

    def _hurry(self, _: Peer) -> None:
        if self._archiver is not None:
            self._archiver.hurry()

    # --- what is told ---

    async def introduce(self, peer: Peer) -> None:
        """Tell a process that was just started everything, before it gets requests."""
        if self._archiver is None:
            return
        self._told[peer.number] = peer
        self._informed.discard(peer.number)
        if self._archiver.is_known:
            self._tell_all(peer)
        if self._refusal is not None:
            peer.note("archive_refuse_writes", self._refusal)
        # Messages are in order: when this is answered, all the others have arrived.
        await peer.call("archive_told")

    def tell_known(self) -> None:
        """See ``OtherArchiveShares``."""
        for number, peer in self._told.items():
            if number not in self._informed:
                self._tell_all(peer)

    def _tell_all(self, peer: Peer) -> None:
        assert self._archiver is not None, "checked before"
        self._informed.add(peer.number)
        news: list[PartitionNews] = []
        for identity in self._partitions_of(peer.number):
            found = self._confirmed.get(identity)
            if found is not None:
                news.append(confirmed_news(identity, found))
                self._sent[identity] = found
            elif (archive := self._archiver.find(identity)) is not None:
                news.append(news_of(identity, archive.manifest))
        self._tell(peer, news)

    def _tell(self, peer: Peer, news: Sequence[PartitionNews]) -> None:
        assert self._archiver is not None, "checked before"
        for start in range(0, max(len(news), 1), _NEWS_COUNT_MAX):
            part = tuple(news[start : start + _NEWS_COUNT_MAX])
            peer.note("archive_news", ArchiveNews(self._archiver.cluster, part))

    def _partitions_of(self, number: int) -> Iterable[PartitionIdentity]:
        assert self._state is not None, "the metadata is open"
        for stream in self._state.streams.values():
            for topic in stream.topics.values():
                if self._links.owner_of(stream.stream_id, topic.topic_id) == number:
                    for partition in topic.partitions:
                        yield identity_of(topic, partition)

    def confirm(self, confirmed: Confirmed) -> None:
        """See ``OtherArchiveShares``."""
        self._confirmed = confirmed
        news: dict[int, list[PartitionNews]] = {}
        for identity, log in confirmed.items():
            owner = self._owners.get(identity, FIRST)
            if owner != FIRST and self._sent.get(identity) is not log:
                self._sent[identity] = log
                news.setdefault(owner, []).append(confirmed_news(identity, log))
        for owner, rows in news.items():
            if (peer := self._told.get(owner)) is not None:
                self._tell(peer, rows)

    def retract(self) -> None:
        """See ``OtherArchiveShares``."""
        self._confirmed, self._sent = {}, {}
        for peer in self._told.values():
            peer.note("archive_retract")

    def refuse_writes(self, reason: str) -> None:
        """See ``OtherArchiveShares``."""
        self._refusal = reason
        for peer in self._told.values():
            peer.note("archive_refuse_writes", reason)

    async def take_over(self) -> bool:
        """See ``OtherArchiveShares``."""
        return await self._take_over()

    # --- what is asked for ---

    async def prepare(self, *, with_active: bool) -> None:
        """See ``OtherArchiveShares``. One that is being restarted is waited for."""
        await self._ask_each(await self._all(), "archive_prepare", with_active)

    async def capture(self, *, with_active: bool) -> tuple[list[int], tuple[CapturedPartition, ...]]:
        """See ``OtherArchiveShares``."""
        # Nobody is waited for: one that is being restarted needs the turn that the caller has.
        peers = [self._at(number) for number in sorted(self._links.numbers)]
        times: list[int] = []
        captured: list[CapturedPartition] = []
        owners: dict[PartitionIdentity, int] = {}
        loop, answers = asyncio.get_running_loop(), await self._ask_each(peers, "archive_capture", with_active)
        for peer, (time, encoded) in zip(peers, answers, strict=True):
            # Not on the event loop: there may be many.
            partitions: tuple[CapturedPartition, ...] = await loop.run_in_executor(None, pickle.loads, encoded)
            times.append(time)
            captured += partitions
            owners |= dict.fromkeys((partition.identity for partition in partitions), peer.number)
        self._owners = owners
        self._sent = {identity: log for identity, log in self._sent.items() if identity in owners}
        return times, tuple(captured)

    async def report_damages(self, damages: Sequence[FoundDamage]) -> None:
        """See ``OtherArchiveShares``."""
        shares: dict[int, list[FoundDamage]] = {}
        for damage in damages:
            shares.setdefault(self._owners.get(damage.identity, FIRST), []).append(damage)
        for owner, share in shares.items():
            if owner != FIRST:
                # If it is being restarted, the next run finds them again.
                with contextlib.suppress(ArchiveFailure):
                    await self._ask_each([self._at(owner)], "archive_damages", share)

    async def ask_for(self, addresses: Iterable[TopicAddress]) -> list[AwaitedSegment]:
        """See ``OtherArchiveShares``."""
        shares: dict[int, list[TopicAddress]] = {}
        for address in addresses:
            shares.setdefault(self._links.owner_of(*address), []).append(address)
        found: list[AwaitedSegment] = []
        for owner, share in shares.items():
            found += await self._links.at(owner).call("archive_ask_for", share)
        return found

    async def _all(self) -> list[Peer]:
        try:
            return [await self._links.wait_for(number) for number in sorted(self._links.numbers)]
        except CourserError as error:
            raise ArchiveFailure("capture", "the partitions of all processes", str(error)) from error

    def _at(self, number: int) -> Peer:
        try:
            return self._links.at(number)
        except CourserError as error:
            raise ArchiveFailure("capture", f"the partitions of process {number}", str(error)) from error

    async def _ask_each(self, peers: Sequence[Peer], name: str, *arguments: object) -> list[Any]:
        """The answers of all. Every one is waited for, also if one fails."""
        calls = (peer.call(name, *arguments) for peer in peers)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for peer, result in zip(peers, results, strict=True):
            if isinstance(result, CourserError):
                raise ArchiveFailure("capture", f"the partitions of process {peer.number}", str(result)) from result
            if isinstance(result, BaseException):
                raise result
        return results
