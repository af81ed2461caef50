"""The archive, as a process knows it that does not write it: the first process tells it what is archived.

It begins with nothing: until it is told, nothing may be deleted or condensed, and reads of archived messages fail. A
process that is started again is told everything again.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import msgspec

from courser.archive.capture import CapturedPartition
from courser.archive.errors import StoreRefused
from courser.archive.keys import ArchiveKeys
from courser.archive.objects import Manifest
from courser.archive.reader import PartitionArchive, open_store
from courser.archive.settings import ArchiveSettings
from courser.archive.store import StoppableStore
from courser.archive.writer import ArchiveCounters, Confirmed, ConfirmedLog
from courser.broker.archive.archive_share import ArchiveShare
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.errors import StartRefused
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory

_log = logging.getLogger(__name__)

_NO_NONCE = bytes(16)
"""Who only reads writes no objects that need one."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Manifest).decode


@dataclass(frozen=True, slots=True)
class PartitionNews:
    """What the archive has of a partition."""

    identity: PartitionIdentity
    manifest: bytes
    """Encoded."""
    is_confirmed: bool
    """Whether a root of this server names it: only then may anything be deleted because of it. What may is below."""
    segments: frozenset[tuple[int, int]] = frozenset()
    ends: tuple[tuple[int, int], ...] = ()
    """See ``ConfirmedLog``."""


@dataclass(frozen=True, slots=True)
class ArchiveNews:
    """What the archive has of some partitions."""

    cluster: bytes
    partitions: tuple[PartitionNews, ...]


def news_of(identity: PartitionIdentity, manifest: Manifest) -> PartitionNews:
    """The archive has this, but it is not confirmed."""
    return PartitionNews(identity, _encode(manifest), is_confirmed=False)


def confirmed_news(identity: PartitionIdentity, log: ConfirmedLog) -> PartitionNews:
    """The archive has this, and it is confirmed."""
    ends = tuple(log.ends.items())
    return PartitionNews(identity, _encode(log.manifest), is_confirmed=True, segments=log.segments, ends=ends)


class FollowedArchive:
    """Of one process, for its own partitions."""

    def __init__(
        self,
        data: DataDirectory,
        registry: PartitionRegistry,
        settings: ArchiveSettings,
        hurry: Callable[[], None],
    ) -> None:
        """``hurry`` begins the next run of the archiver now.

        Raises:
            StartRefused: the store cannot be used.
        """
        self._stop = Event()
        try:
            store = open_store(settings.store, data.file_system, _NO_NONCE)
        except StoreRefused as refusal:
            raise StartRefused(data.path, str(refusal), "check data_maintenance.archiver") from refusal
        self._store = StoppableStore(store, self._stop)
        self._keys: ArchiveKeys | None = None
        """None: nothing was told yet."""
        self._manifests: dict[PartitionIdentity, Manifest] = {}
        self._confirmed: Confirmed = {}
        self._hurry = hurry
        self._is_hurried = False
        self.counters = ArchiveCounters()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self.share = ArchiveShare(data, registry, settings, self, thread=self._thread)
        """The partitions of this process."""
        self.share.guard.confirm(self._confirmed)

    # --- what is known ---

    @property
    def is_known(self) -> bool:
        """Whether anything was told."""
        return self._keys is not None

    @property
    def is_gone(self) -> bool:
        """The first process knows it."""
        return False

    @property
    def failure(self) -> str | None:
        """The first process knows it."""
        return None

    def find(self, identity: PartitionIdentity) -> PartitionArchive | None:
        """What the archive has of a partition; None if nothing."""
        manifest = self._manifests.get(identity)
        if manifest is None or self._keys is None:
            return None
        return PartitionArchive(self._store, self._keys, manifest)

    def hurry(self) -> None:
        """Have the first process begin the next run now. It is told once for each capture."""
        if not self._is_hurried:
            self._is_hurried = True
            self._hurry()

    # --- what the first process says ---

    def learn(self, news: ArchiveNews) -> None:
        """More is archived, or all that was archived before this process was started."""
        self._keys = ArchiveKeys(news.cluster)
        for found in news.partitions:
            manifest = self._manifests[found.identity] = _decode(found.manifest)
            if found.is_confirmed:
                self._confirmed[found.identity] = ConfirmedLog(found.segments, dict(found.ends), manifest)

    def retract(self) -> None:
        """The archive is gone: nothing counts as archived until it is confirmed again."""
        self._confirmed.clear()

    async def capture(self, *, with_active: bool) -> tuple[CapturedPartition, ...]:
        """All partitions of this process."""
        self._is_hurried = False
        captured = await self.share.capture(with_active=with_active)
        known = {partition.identity for partition in captured}
        for identity in self._manifests.keys() - known:
            del self._manifests[identity]
            self._confirmed.pop(identity, None)
        return captured

    def refuse_writes(self, reason: str) -> None:
        """Another server has taken over the archive."""
        _log.error("refusing all writes: %s", reason)
        self.share.refuse_writes(reason)

    def close(self) -> None:
        """Stop at once."""
        self._stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
