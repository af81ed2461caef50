"""The broker: a data directory at work, from the opening of its files to a clean stop.

It holds what handlers need and decides nothing itself. Everything here runs on one event loop; what waits for the disk
runs in a pool of threads.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from courser.api.replies import Node
from courser.archive.restore_need import may_need_restore
from courser.broker.access.access import AccessControl
from courser.broker.access.authentication import Authentication
from courser.broker.access.connectionless import ConnectionlessMembers
from courser.broker.access.credentials import Passwords
from courser.broker.access.password_pool import THREAD_COUNT, PasswordPool
from courser.broker.access.sessions import Sessions
from courser.broker.access.tokens import Tokens
from courser.broker.archive.archive_metrics import (
    register_archive_metrics,
    register_prune_metrics,
    register_read_metrics,
)
from courser.broker.catalog.catalog_service import CatalogService
from courser.broker.catalog.finding import Finder
from courser.broker.catalog.purging import AnyPurge
from courser.broker.figures.diagnosis import Diagnosis
from courser.broker.figures.figures import Figures
from courser.broker.figures.history import FigureHistory
from courser.broker.figures.lag import Lags
from courser.broker.figures.metrics import CountingParts, MachineSurvey, RequestMetrics, register_broker_metrics
from courser.broker.figures.pipeline_reports import PipelineReports
from courser.broker.figures.scraping import Scrapes
from courser.broker.figures.start_report import StartFindings
from courser.broker.figures.statistics import Machine
from courser.broker.figures.topic_figures import TopicFigureTable
from courser.broker.groups.groups import ConsumerGroups
from courser.broker.messages.consuming import Polls
from courser.broker.messages.fetching import Fetches
from courser.broker.messages.producing import Sends
from courser.broker.messages.scan_pieces import ScanPieces
from courser.broker.messages.stored_offsets import StoredOffsets
from courser.broker.partition.disk_pool import DiskPool
from courser.broker.partition.disk_watch import DiskWatch
from courser.broker.partition.partition_metrics import PartitionMetrics
from courser.broker.partition.partition_registry import PartitionRegistry
from courser.broker.partition.partition_survey import PartitionSurvey
from courser.broker.partition.peers import FirstProcess, Owns, Peers, owns_all
from courser.broker.partition.read_buffers import ReadBuffers
from courser.broker.publishing.archived_purge import purge_archived
from courser.broker.publishing.publishing import Publishing
from courser.broker.publishing.staging import Staging
from courser.broker.settings import BrokerSettings
from courser.broker.upkeep.condenser import Condenser
from courser.broker.upkeep.retention import Retention
from courser.broker.upkeep.scrubbing import Scrubber
from courser.catalog.changes import UserCreation
from courser.catalog.entities import User
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.catalog.state import CatalogState
from courser.errors import StorageFailure
from courser.model import metric_table as m
from courser.model.memory_ledger import MemoryLedger
from courser.model.metrics import Registry, Sample
from courser.model.permissions import ALL_PERMISSIONS, Action
from courser.records.stored_header import PartitionIdentity
from courser.storage.data_directory import DataDirectory
from courser.storage.recovery_cases import StopKind

if TYPE_CHECKING:
    # Most servers have no archive: they do not import it.
    from courser.archive.store import Store
    from courser.broker.archive.archive_pruning import ArchivePruner
    from courser.broker.archive.archive_share import ArchiveShare
    from courser.broker.archive.archiving import Archiver

_log = logging.getLogger(__name__)


class ManagedPeers(Peers, Protocol):
    """The other processes, and when they start and stop."""

    @property
    def count(self) -> int:
        """The number of processes of the server, the first one included."""

    def answering(self) -> tuple[int, ...]:
        """The numbers of the processes that answered the last scrape, the first one included."""

    async def open_all(self, broker: "Broker", lost: AbstractSet[Path]) -> frozenset[PartitionIdentity]:
        """Have all other partitions opened. Return those that have no files."""

    async def close(self) -> bool:
        """Have all other partitions closed. Return whether every one is, or is open here."""


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a server's work that its broker in this process does (docs/adr/0021)."""

    owns: Owns = owns_all
    share: str = ""
    """Part of the names of files that tell about the topics of this process alone; empty if it has all topics."""
    peers: ManagedPeers | None = None
    """The other processes, for the first one."""
    first: FirstProcess | None = None
    """The first process, for the others."""
    make_catalog: type[CatalogService] = CatalogService
    draw_client_id: Callable[[], int] | None = None
    """Draws the numbers of connections. No two processes draw the same one."""


ALONE = Place()
"""The only process of a server."""


@dataclass(frozen=True, slots=True)
class RootUser:
    """The account that the first start makes."""

    name: str
    password_hash: str


@dataclass(frozen=True, slots=True)
class Operating:
    """What those who run the server ask for. No message passes through it."""

    start_findings: StartFindings
    machine: Machine
    lags: Lags
    scrapes: Scrapes
    history: FigureHistory
    topic_figures: TopicFigureTable
    diagnosis: Diagnosis
    pipeline_reports: PipelineReports


class Broker:
    """Everything that is shared by all connections. ``open`` makes it, ``close`` ends it."""

    def __init__(
        self,
        data: DataDirectory,
        settings: BrokerSettings,
        pool: Executor,
        opened: OpenedCatalog,
        draw: Callable[[int], bytes],
        archive_store: "Store | None" = None,
        place: Place = ALONE,
    ) -> None:
        self.data = data
        self._place = place
        self.settings = settings
        self.clock = data.clock
        self.pool = pool
        self.metrics = Registry()
        """Everything that is counted here; the server adds what it counts itself."""
        self.request_metrics = RequestMetrics(self.metrics)
        self.partitions = self._make_partitions(opened)
        limits = settings.limits
        self.groups = ConsumerGroups(partial(_partition_count, opened.store.state), data.clock, limits)
        self.catalog = self._make_catalog(opened)
        self.sessions = Sessions(self.clock, self.groups, place.draw_client_id)
        self.connectionless = ConnectionlessMembers(self.sessions, self.clock, limits, draw)
        self.access = AccessControl(self.catalog.state)
        self.finder = Finder(self.catalog, self.access, self.partitions)
        # Not the threads of the disk: strangers decide how much is hashed.
        self._password_threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="password")
        self.authentication = self._make_authentication(draw)
        self.retention = Retention(self.partitions, settings, self.clock)
        machine = Machine(self.clock, data.path)
        self.disk_watch, self.sends = self._make_sends(machine)
        self.staging, self.publishing = self._make_publishing(draw)
        self.archive_share = self._make_archive_share(draw, archive_store)
        self.archive_pruner = self._make_archive_pruner()
        self.condenser = self._make_condenser()
        self.buffers = ReadBuffers(MemoryLedger(settings.reply_memory))
        self.polls = Polls(self.catalog.state, self.partitions, self.groups, self.buffers, settings)
        self.scan_pieces = ScanPieces(self.partitions)
        self.fetches = Fetches(self.partitions, self.groups, self.polls, self.buffers, size_max=settings.poll_size_max)
        self.offsets = StoredOffsets(self.partitions, self.groups, self.polls)
        self.figures = Figures(self.partitions, self.retention, settings.topic_defaults, data.path)
        self.scrubber = self._make_scrubber()
        self.operating = self._make_operating(opened, machine)
        self.node = Node("iggy-node", "127.0.0.1", 0, 0, 0, 0)
        """Where clients find this server; the server says so once it listens."""

    def _make_operating(self, opened: OpenedCatalog, machine: Machine) -> Operating:
        start_findings = StartFindings(self.clock.now(), self.data.stop)
        start_findings.note_catalog(opened)
        lags, scrapes = self._make_scrapes(machine)
        return Operating(
            start_findings,
            machine,
            lags,
            scrapes,
            FigureHistory(scrapes, self.clock),
            TopicFigureTable(self.catalog.state, self.partitions, self.settings),
            Diagnosis(machine, self.data.path, self.pool),
            PipelineReports(self.clock),
        )

    def _make_catalog(self, opened: OpenedCatalog) -> CatalogService:
        return self._place.make_catalog(
            opened.store,
            opened.directories,
            self.partitions,
            self.pool,
            groups=self.groups,
            settings=self.settings,
            peers=self._place.peers,
        )

    def _make_authentication(self, draw: Callable[[int], bytes]) -> Authentication:
        tokens = Tokens(self.catalog, self.sessions, self.clock, count_max=self.settings.token_count_max)
        passwords = PasswordPool(Passwords(), self._password_threads)
        return Authentication(
            self.catalog,
            self.sessions,
            self.groups,
            tokens,
            passwords,
            self.clock,
            number_login=self.data.number_login,
            draw=draw,
        )

    def _make_condenser(self) -> Condenser:
        return Condenser(
            self.partitions,
            self.settings,
            self.clock,
            publishes=self.publishing,
            archive=self.archive_share.guard if self.archive_share is not None else None,
        )

    def _make_archive_share(self, draw: Callable[[int], bytes], store: "Store | None") -> "ArchiveShare | None":
        self.archiver: Archiver | None = None
        """Decides what is archived when, in the first process."""
        share, settings, place = None, self.settings.archive, self._place
        if settings is not None:
            from courser.broker.archive import archive_share, archiving  # noqa: PLC0415 -- only with an archive
            from courser.broker.partition import tiered_reads  # noqa: PLC0415 -- only with an archive

            if place.first is not None:
                share = archive_share.ArchiveShare(
                    self.data,
                    self.catalog.state,
                    self.partitions,
                    settings,
                    # Only for the keys of objects: nothing else is decided here.
                    draw=os.urandom,
                    hurry=place.first.hurry_archive,
                )
            else:
                self.archiver = archiving.Archiver(
                    self.data, self.catalog, self.partitions, settings, draw=draw, store=store, peers=place.peers
                )
                share = self.archiver.share
            self.retention.guard = share.guard
            self.catalog.purge_end_of = share.guard.purgeable_end
            self.partitions.past = tiered_reads.TieredReads(share.archive_of, settings.cache_size)
        register_archive_metrics(self.metrics, share)
        register_read_metrics(self.metrics, self.partitions.past)
        return share

    def _make_archive_pruner(self) -> "ArchivePruner | None":
        archiver, settings, pruner = self.archiver, self.settings.archive, None
        if archiver is not None and settings is not None and settings.retention:
            from courser.broker.archive.archive_pruning import ArchivePruner  # noqa: PLC0415 -- only with an archive

            pruner = ArchivePruner(archiver, self.clock, settings.retention, self.retention.expiry_time)
        register_prune_metrics(self.metrics, pruner)
        return pruner

    def _make_partitions(self, opened: OpenedCatalog) -> PartitionRegistry:
        return PartitionRegistry(
            self.data.file_system,
            opened.directories,
            self.pool,
            clock=self.clock,
            settings=self.settings,
            state=opened.store.state,
            metrics=PartitionMetrics(self.metrics, self.clock),
            owns=self._place.owns,
        )

    def _make_sends(self, machine: Machine) -> tuple[DiskWatch, Sends]:
        settings, retention = self.settings, self.retention
        disk_watch = DiskWatch(
            self.partitions,
            self.pool,
            machine.disk_space,
            free_space_min=settings.free_space_min,
            relieve=retention.relieve,
        )
        sends = Sends(
            self.partitions,
            self.pool,
            disk_watch=disk_watch,
            state=self.catalog.state,
            delete_oldest_segments=settings.delete_oldest_segments,
            retention=retention,
        )
        return disk_watch, sends

    def _make_scrubber(self) -> Scrubber:
        data = self.data
        scrubber = Scrubber(
            self.partitions,
            data.file_system,
            data.path,
            self.pool,
            self.clock,
            self.settings,
            share=self._place.share,
            copies=self.archive_share,
        )
        scrubber.register(self.metrics)
        if self.archive_share is not None:
            self.archive_share.on_damage = scrubber.repair
        return scrubber

    def _make_scrapes(self, machine: Machine) -> tuple[Lags, Scrapes]:
        state, series_count_max = self.catalog.state, self.settings.series_count_max
        survey = PartitionSurvey(self.partitions, state, series_count_max=series_count_max)
        parts = CountingParts(survey, self.polls.counters, self.retention.counters, self.staging, self.disk_watch)
        register_broker_metrics(self.metrics, parts)
        lags = Lags(self.partitions, state, self.clock, series_count_max=series_count_max)
        lags.register(self.metrics)
        MachineSurvey(machine, self.pool).register(self.metrics)
        self.metrics.collected(m.PROCESS_UP, self._ups)
        return lags, Scrapes(self.metrics)

    def _ups(self) -> list[Sample]:
        """Which processes answer."""
        peers = self._place.peers
        count, answering = (1, (0,)) if peers is None else (peers.count, peers.answering())
        return [Sample(m.PROCESS_UP.labeled(str(number)), int(number in answering)) for number in range(count)]

    def _make_publishing(self, draw: Callable[[int], bytes]) -> tuple[Staging, Publishing]:
        data, settings = self.data, self.settings
        staging = Staging(
            data.file_system,
            data.path,
            self.pool,
            data.clock,
            state=self.catalog.state,
            settings=settings,
        )
        publishing = Publishing(
            data.file_system,
            self.catalog,
            self.partitions,
            staging,
            self.pool,
            keys=settings.keys,
            draw=draw,
            take_room=self._take_room,
            peers=self._place.peers,
            first=self._place.first,
        )
        self.retention.settle = publishing.settle_below
        return staging, publishing

    @classmethod
    async def open(
        cls,
        data: DataDirectory,
        settings: BrokerSettings,
        *,
        make_root: Callable[[], RootUser],
        draw: Callable[[int], bytes] = os.urandom,
        archive_store: "Store | None" = None,
        place: Place = ALONE,
    ) -> "Broker":
        """Open all that a data directory holds.

        Args:
            data: The directory, locked.
            settings: What the operator wants.
            make_root: Asked for the root account if there are no users.
            draw: Gives so many random bytes.
            archive_store: Replaces the archive's store of the settings, for tests.
            place: The part of the work that is this process's, if the server has several.

        Raises:
            StartRefused: the directory cannot be opened as it is.
            StorageFailure: the disk cannot be read or written. The next start begins anew.
        """
        loop = asyncio.get_running_loop()
        pool = DiskPool(settings.disk_thread_count)
        try:
            await loop.run_in_executor(pool, partial(_prepare, data, settings, draw(16), archive_store))
            opened = await loop.run_in_executor(pool, partial(_open_catalog, data, settings))
            broker = cls(data, settings, pool, opened, draw, archive_store, place)
            await broker._begin(opened, make_root)
        except BaseException:
            pool.shutdown()
            data.close(is_clean=False)
            raise
        return broker

    async def _begin(self, opened: OpenedCatalog, make_root: Callable[[], RootUser]) -> None:
        loop = asyncio.get_running_loop()
        state = self.catalog.state
        lost = {partition.path for partition in opened.reconciliation.lost}
        try:
            if self.archiver is not None:
                # Before anything is written: another server may have taken over.
                await self.archiver.begin()
            await self.partitions.open_all(
                list(state.streams.values()), self.data.stop, lost=lost, unopened=self.data.unopened
            )
            self.operating.start_findings.note_partitions(self.partitions)
            self.disk_watch.skip_known()
            self.catalog.note_behind(opened.reconciliation.behind)
            unopened = self.partitions.unopened
            if self._place.peers is not None:
                unopened |= await self._place.peers.open_all(self, lost)
            # From here on this start is the last one: a crash before it is repeated with the same facts.
            await loop.run_in_executor(self.pool, partial(self.data.begin, unopened))
            await self.offsets.forget_unknown_groups(state)
            await self.staging.open(is_crashed=self.data.stop is StopKind.CRASHED)
            # Before the first client comes: it sees all of a publish, or nothing.
            await self.publishing.finish_open()
            if not state.users:
                root = await loop.run_in_executor(self.pool, make_root)
                await self.catalog.submit(UserCreation(root.name, root.password_hash, True, ALL_PERMISSIONS))
        except BaseException:
            self.partitions.abandon()
            opened.store.close()
            if self.archiver is not None:
                self.archiver.abandon()
            if self.partitions.past is not None:
                self.partitions.past.close()
            raise

    def _take_room(self, sizes: dict[tuple[int, int], int]) -> None:
        """Count a publish against the limits of its topics, as sends are."""
        for key, size in sizes.items():
            topic = self.partitions.topics[key]
            if topic.size_limit is not None:
                self.sends.take_room(topic, topic.size_limit, size)

    async def look_after_staging(self) -> None:
        """Finish publishes that the disk refused before, remove what nobody publishes. To be called now and then."""
        await self.publishing.finish_open()
        await self.staging.remove_expired()

    async def purge(self, change: AnyPurge) -> None:
        """Delete all messages of a topic or a stream, if there is an archive, after they are archived.

        Raises:
            CommandRejected: the rules forbid it. 20044: the archive does not take them.
            CourserError: the disk refuses.
        """
        if self.archiver is None:
            await self.catalog.submit(change)
        else:
            await purge_archived(change, self.catalog, self.publishing, self.archiver)

    def notices(self) -> list[str]:
        """What is wrong although clients get what they ask for."""
        return [self.archiver.failure or ""] if self.archiver is not None and self.archiver.is_gone else []

    def user_updated(self, user: User) -> None:
        """A user may be inactive now: then it leaves its groups, and others get its partitions."""
        if not user.is_active:
            for session in self.sessions.of_user(user.user_id):
                self.groups.drop_session(session)

    def permissions_updated(self, user: User) -> None:
        """A user leaves groups of topics that it may no longer read."""
        for session in self.sessions.of_user(user.user_id):
            for key in tuple(session.groups):
                if not self.access.allows(user.permissions, Action.READ_TOPIC, key[0], key[1]):
                    self.groups.leave(session, key)

    async def close(self) -> bool:
        """Stop: everything synced, files closed, the directory given back. Return whether it was a clean stop."""
        await self.operating.scrapes.close()
        self.scan_pieces.close()
        await self.publishing.close()
        await self.staging.close()
        if self._place.peers is not None:
            is_more_here = await self._place.peers.take_over()
            if is_more_here and self.archive_share is not None:
                self.archive_share.read_again()
        if self.archiver is not None:
            await self.archiver.close()
        elif self.archive_share is not None:
            self.archive_share.close()
        if self.partitions.past is not None:
            self.partitions.past.close()
        is_clean = await self.catalog.close()
        if self._place.peers is not None:
            # They have finished what the lines above asked them for. If one ends before it has closed its partitions,
            # they are opened here.
            is_clean = await self._place.peers.close() and is_clean
        is_clean = await self.partitions.close() and is_clean
        try:
            is_clean = await asyncio.get_running_loop().run_in_executor(self.pool, partial(_leave, self.data, is_clean))
        finally:
            self.pool.shutdown()
            self._password_threads.shutdown(cancel_futures=True)
        return is_clean


def _leave(data: DataDirectory, is_clean: bool) -> bool:
    try:
        data.close(is_clean=is_clean)
    except StorageFailure as failure:
        # Everything is safe; only the next start does not know, and looks at more than it had to.
        _log.error("could not record the clean stop reason=%s", failure)
        data.close(is_clean=False)
        return False
    return is_clean


def _partition_count(state: CatalogState, stream_id: int, topic_id: int) -> int:
    topic = state.topic(stream_id, topic_id)
    return 0 if topic is None else len(topic.partitions)


def _prepare(data: DataDirectory, settings: BrokerSettings, nonce: bytes, store: "Store | None") -> None:
    """Fill a directory from an archive, if that is wanted."""
    if not may_need_restore(data.file_system, data.path, settings.archive):
        return
    from courser.archive.restoring import prepare_directory  # noqa: PLC0415 -- only for a restore

    prepare_directory(
        data.file_system,
        data.path,
        settings.archive,
        nonce,
        recreate_missing_state=settings.recreate_missing_state,
        store=store,
    )


def _open_catalog(data: DataDirectory, settings: BrokerSettings) -> OpenedCatalog:
    return open_catalog(
        data.file_system,
        data.path,
        clock=data.clock,
        stop=data.stop,
        recreate_missing_state=settings.recreate_missing_state,
    )
