"""What a further process does for the archiver, which is in the first one."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from courser.broker.archive.archive_share import AwaitedSegment, FoundDamage
from courser.broker.archive.followed_archive import ArchiveNews, FollowedArchive
from courser.broker.broker import Broker
from courser.model.identifiers import TopicAddress
from courser.processes.peer import Peer


class ArchiveServices:
    """For a broker with an archive."""

    def __init__(self, broker: Broker, archive: FollowedArchive) -> None:
        self._broker = broker
        self._archive = archive

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """The services of ``Peer``."""
        return {
            "archive_news": self._news,
            "archive_told": self._told,
            "archive_retract": self._retract,
            "archive_refuse_writes": self._refuse_writes,
            "archive_prepare": self._prepare,
            "archive_capture": self._capture,
            "archive_damages": self._damages,
            "archive_ask_for": self._ask_for,
        }

    def _news(self, _: Peer, news: ArchiveNews) -> None:
        self._archive.learn(news)

    def _told(self, _: Peer) -> None:
        """Nothing to do: all that was told before is known when this is answered."""

    def _retract(self, _: Peer) -> None:
        self._archive.retract()

    def _refuse_writes(self, _: Peer, reason: str) -> None:
        self._archive.refuse_writes(reason)

    async def _prepare(self, _: Peer, with_active: bool) -> None:
        await self._archive.share.prepare(with_active=with_active)

    async def _capture(self, _peer: Peer, with_active: bool) -> tuple[int, bytes]:
        """When the capture began, and all partitions, encoded."""
        # All messages that are stored up to this time are captured, and some later ones.
        time = self._broker.clock.now()
        captured = await self._archive.capture(with_active=with_active)
        # Not on the event loop: there may be many.
        return time, await asyncio.get_running_loop().run_in_executor(self._broker.pool, pickle.dumps, captured)

    async def _damages(self, _: Peer, damages: Sequence[FoundDamage]) -> None:
        await self._archive.share.report_damages(damages)

    async def _ask_for(self, _: Peer, addresses: Sequence[TopicAddress]) -> list[AwaitedSegment]:
        return await self._archive.share.ask_for(map(self._broker.partitions.at, addresses))
