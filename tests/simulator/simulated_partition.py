"""One partition of a simulated server: random operations on a real ``PartitionLog``, each checked against the model.

It does what the broker does, without an event loop. Jobs are planned, run and completed in separate steps, so that
anything may happen between them; at most one large append, one sync and one upkeep job are under way.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from courser.errors import DiskFull, InvalidOffset, PartitionReadOnly, StorageFailure
from courser.model.identifiers import ConsumerKind
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.stored_body import encode
from courser.records.stored_header import NO_PRODUCER, PartitionIdentity
from courser.storage import upkeep
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.jobs import Job
from courser.storage.log_reader import LogReader
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import Appended, PartitionLog
from courser.storage.segment import SegmentState
from tests.fakes.clocks import ManualClock
from tests.simulator.partition_model import (
    ConsumerHistory,
    PartitionModel,
    SentBatch,
    StoredValue,
    promise,
)
from tests.simulator.simulated_producers import SimulatedProducers

UNKNOWN_TIME = -1
"""The time of a batch whose append did not return."""

_JOB_COUNT_MAX = 10
"""Jobs that one look at what is due leads to."""

_KEYS = (
    ConsumerKey(ConsumerKind.CONSUMER, b"\1\0\0\0"),
    ConsumerKey(ConsumerKind.GROUP, b"\1\0\0\0"),
    ConsumerKey(ConsumerKind.CONSUMER, b"a name that takes more than one granule"),
)


@dataclass(slots=True)
class Flight:
    """A job under way."""

    job: Job
    stores: list[tuple[ConsumerHistory, StoredValue]] = field(default_factory=list)
    """The last store of each consumer when a sync was planned."""
    start_offset: int | None = None
    """Where a removal will put the start."""
    has_run: bool = False
    failure: StorageFailure | None = None


class SimulatedPartition:
    """A partition and what the world knows of it. The model stays when the process dies."""

    def __init__(
        self,
        identity: PartitionIdentity,
        source: random.Random,
        clock: ManualClock,
        note: Callable[[str, str], None],
    ) -> None:
        self.identity = identity
        self.model = PartitionModel()
        self.is_created = False
        self.is_damaged = False
        """Rot or a failed sync has left holes: a read may stop at them."""
        self.was_cut_refused = False
        """The last start could not cut what it had to: the next one counts as one after a power cut."""
        self._source = source
        self._clock = clock
        self._note = note
        self._identifier = identity.partition_id << 32
        self._producers = SimulatedProducers(identity)
        self._log: PartitionLog | None = None
        self._reader: LogReader | None = None
        self._acknowledgements: Acknowledgements[SentBatch] | None = None
        self._large_append: Flight | None = None
        self._sync: Flight | None = None
        self._upkeep: Flight | None = None

    @property
    def log(self) -> PartitionLog:
        """The open log."""
        assert self._log is not None
        return self._log

    @property
    def reader(self) -> LogReader:
        """Reads from the open log."""
        assert self._reader is not None
        return self._reader

    def open(self, log: PartitionLog) -> None:
        """A new process has recovered it."""
        self._log = log
        self._reader = LogReader(log)
        self._acknowledgements = Acknowledgements(log.settings.durability)
        self._large_append = self._sync = self._upkeep = None

    def die(self) -> None:
        """The process is gone, and all that it had in memory."""
        self._producers.die()
        self._log = self._reader = self._acknowledgements = self._large_append = self._sync = self._upkeep = None

    @property
    def is_purging(self) -> bool:
        """Whether appends and stores have to wait."""
        return self._upkeep is not None and self._upkeep.job.name == "purge"

    @property
    def may_store(self) -> bool:
        """Whether stores and deletes need not wait, and are accepted."""
        return not self.is_purging and not self.log.offsets.is_rewriting and self.log.failure is None

    # --- sends ---

    def append(self) -> bool:
        """Send one to six messages, or take a large append that is under way a step further: others wait for it.

        Return whether messages were appended that have the time of this moment.
        """
        if self._large_append is not None:
            self._step_append(self._large_append)
            return False
        if self.is_purging or not self._reserve(6):
            return False
        if self.log.failure is not None:
            self._check_refused()
            return False
        log, source = self.log, self._source
        batch, sent = self._random_batch()
        if not self.is_damaged and not self.model.rotten:
            self._producers.number(batch, sent, self.model, self.reader)
        next_offset = log.next_offset
        self._note("append", f"{batch.count} messages, {batch.size} bytes at {next_offset}")
        self.model.in_flight = sent
        appended: Appended | None = None
        try:
            if len(batch.body) > log.settings.limits.inline_size:
                job = log.plan_append(batch, NO_PRODUCER, 0, 0, partial(self._large_appended, sent))
                self._large_append = Flight(job)
                return False
            appended = log.append(batch)
        except StorageFailure as failure:
            self._check_refusal(failure, next_offset)
        if appended is not None:
            self._appended(sent, appended)
            if source.random() < 0.002:
                # As retention does with a segment whose messages have expired.
                log.roll()
        self.model.in_flight = None
        return appended is not None

    def _appended(self, sent: SentBatch, appended: Appended) -> None:
        sent.timestamp = appended.timestamp
        self.model.append(sent)
        self._producers.stored(sent)
        self.model.in_flight = None
        self._admit(sent)

    def check_producers(self) -> None:
        """See ``SimulatedProducers.check``. Where messages are damaged, nothing is promised."""
        if not self.is_damaged and not self.model.rotten:
            self._producers.check(self.model, self.reader)

    def _large_appended(self, sent: SentBatch, appended: Appended) -> None:
        assert self._acknowledgements is not None
        self._acknowledgements.write_began(sent.written_at)
        self._appended(sent, appended)

    def _check_refused(self) -> None:
        """Check that a partition that has failed takes nothing more. A batch of before may still be in flight."""
        batch, _ = self._random_batch()
        try:
            self.log.append(batch)
        except PartitionReadOnly:
            return
        promise(False, "(i) a partition that has failed took more")

    def _check_refusal(self, failure: StorageFailure, next_offset: int) -> None:
        """Check what is left of a send that failed when the next offset was ``next_offset``."""
        log = self.log
        if isinstance(failure, DiskFull):
            promise(log.next_offset == next_offset, "(j) a refused append moved the next offset")
            self._note("disk full", "append refused")
        else:
            self._note("append failed", str(failure))
            refused_at_open = failure.operation in ("create", "open")
            promise(refused_at_open or log.failure is not None, "(i) a failed write did not end the writing")

    def _step_append(self, flight: Flight) -> None:
        if not flight.has_run:
            self._run(flight)
            return
        next_offset = self.log.next_offset
        self._large_append = None
        self._finish(flight)
        if flight.failure is not None:
            self._check_refusal(flight.failure, next_offset)
            self.model.in_flight = None
        # If a sync has failed meanwhile, the batch stays in flight: the next start finds it or not.

    def finish_append(self) -> None:
        """Take the large append under way to its end."""
        while self._large_append is not None:
            self._step_append(self._large_append)

    def _admit(self, sent: SentBatch) -> None:
        acknowledgements, marks, now = self._acknowledgements, self.log.marks, self._clock.monotonic()
        assert acknowledgements is not None
        if acknowledgements.is_free(marks.written, now) or acknowledgements.admits(marks.written, marks.synced, now):
            self._acknowledge(sent)
        else:
            acknowledgements.wait(marks.written, sent)

    def _acknowledge(self, sent: SentBatch) -> None:
        self._note("acknowledge", f"{sent.base_offset}..{sent.end_offset - 1}")
        self.model.acknowledge(sent, self._clock.monotonic())

    def release(self) -> None:
        """Acknowledge what may be acknowledged, as the broker does after every job."""
        assert self._acknowledgements is not None
        if self.log.failure is not None:
            self._acknowledgements.drain()
            return
        for sent in self._acknowledgements.releasable(self.log.marks.synced, self._clock.monotonic()):
            self._acknowledge(sent)

    def _random_batch(self) -> tuple[Batch, SentBatch]:
        source = self._source
        count = source.choice((1, 1, 2, 3, 6))
        if source.random() < 0.5:
            sizes = [source.choice((0, 1, 20, 100, 500))] * count
        else:
            sizes = [source.choice((0, 1, 7, 30, 130, 700)) for _ in range(count)]
        messages = []
        for size in sizes:
            self._identifier += 1
            payload = source.randbytes(size)
            messages.append(NewMessage(payload, message_id=self._identifier, origin_timestamp=self._clock.now()))
        batch = encode(build_batch(messages), self.log.settings.encoding)
        sent = SentBatch(
            self.log.next_offset,
            tuple(message.message_id for message in messages),
            tuple(bytes(message.payload) for message in messages),
            batch.size,
            UNKNOWN_TIME,
            self.log.settings.durability,
            self._clock.monotonic(),
        )
        return batch, sent

    def _reserve(self, count: int) -> bool:
        """Have offsets reserved; say whether to go on. A partition that has failed refuses the append itself."""
        if self._needs_reservation(count):
            self.finish_upkeep()
        if self._needs_reservation(count):
            job = upkeep.plan_reservation(self.log, count)
            assert job is not None
            self._upkeep = Flight(job)
            self.finish_upkeep()
        return not self._needs_reservation(count)

    def _needs_reservation(self, count: int) -> bool:
        return self.log.failure is None and self.log.needs_reservation(count)

    # --- jobs ---

    def step_sync(self) -> None:
        """Plan a sync, or take the one under way a step further."""
        flight = self._sync
        if flight is None:
            job = upkeep.plan_sync(self.log)
            if job is not None:
                assert self._acknowledgements is not None
                self._acknowledgements.sync_began(self.log.marks.written)
                stores = [(history, history.values[-1]) for history in self.model.consumers.values()]
                self._sync = Flight(job, stores)
                self._note("plan sync", f"to {self.log.marks.written.offset}")
        elif not flight.has_run:
            self._run(flight)
        else:
            self._sync = None
            self._finish(flight)

    def step_upkeep(self) -> None:
        """Plan upkeep, or take the job under way a step further."""
        flight = self._upkeep
        if flight is None:
            job = upkeep.plan_upkeep(self.log) or upkeep.plan_writeback(self.log)
            if job is not None:
                self._upkeep = Flight(job)
                self._note(f"plan {job.name}", "")
        elif not flight.has_run:
            self._run(flight)
        else:
            self._upkeep = None
            self._finish(flight)

    def finish_upkeep(self) -> None:
        """Take the job under way to its end."""
        while self._upkeep is not None:
            self.step_upkeep()

    def catch_up(self) -> None:
        """Do all that is due, the least urgent things too; on a full disk the same job comes up again and again."""
        for _ in range(_JOB_COUNT_MAX):
            self.step_upkeep()
            self.finish_upkeep()

    def finish_sync(self) -> None:
        """Take the sync under way to its end."""
        while self._sync is not None:
            self.step_sync()

    def _run(self, flight: Flight) -> None:
        flight.has_run = True
        self._note(f"run {flight.job.name}", "")
        if flight.start_offset is not None:
            self.model.possible_starts.add(flight.start_offset)
            self.model.is_purging = flight.job.name == "purge"
        try:
            flight.job.run()
        except StorageFailure as failure:
            self._note(f"failed {flight.job.name}", str(failure))
            flight.failure = failure

    def _finish(self, flight: Flight) -> None:
        log, model = self.log, self.model
        self._note(f"finish {flight.job.name}", "")
        if flight.failure is not None:
            flight.job.fail(flight.failure)
            if flight.start_offset is not None and log.failure is None:
                promise(log.start_offset == model.start_offset, "(j) a removal that failed left its start behind")
                model.possible_starts = set()
                model.is_purging = False
        else:
            synced_before = log.marks.synced.offset
            flight.job.complete()
            promise(log.marks.synced.offset >= synced_before, "(k) the synced mark went back")
            model.synced_offset = log.marks.synced.offset
            if flight.job.name == "sync" and log.failure is None:
                _settle(flight.stores)
            elif flight.start_offset is not None:
                self._removed(flight)
        self.release()

    def _removed(self, flight: Flight) -> None:
        assert flight.start_offset is not None
        self.model.remove_below(flight.start_offset)
        self.model.possible_starts = set()
        self.model.is_purging = False
        if flight.job.name == "purge":
            self.model.consumers = {}

    # --- removing ---

    def trim(self) -> None:
        """Delete sealed segments below a random offset."""
        log = self.log
        if self._upkeep is not None or log.failure is not None:
            return
        before = self._source.randint(log.start_offset, log.next_offset)
        job = upkeep.plan_trim(log, before)
        if job is not None:
            self._note("plan trim", f"below {before}: start {log.start_offset}")
            self._upkeep = Flight(job, start_offset=log.start_offset)

    def purge(self) -> None:
        """Delete everything."""
        self.finish_append()
        log = self.log
        if self._upkeep is None and log.failure is None:
            job = upkeep.plan_purge(log)
            self._note("plan purge", f"start {log.start_offset}")
            self._upkeep = Flight(job, start_offset=log.start_offset)

    def roll(self) -> None:
        """Close the open segment."""
        self.finish_append()
        self._note("roll", "")
        self.log.roll()

    # --- consumers ---

    def store(self) -> None:
        """Store an offset that the consumer could have read, or once in a while one that it could not."""
        log, source = self.log, self._source
        if not self.may_store:
            return
        key = source.choice(_KEYS)
        if source.random() < 0.05:
            try:
                log.store_offset(key, log.visible_end)
            except InvalidOffset:
                return
            promise(False, f"(g) offset {log.visible_end} was stored, which nobody has seen")
        if log.visible_end == 0:
            return
        value = source.randrange(max(log.visible_end - 12, 0), log.visible_end)
        self._change_consumer(key, value, lambda: log.store_offset(key, value))

    def delete(self) -> None:
        """Forget a consumer."""
        key = self._source.choice(_KEYS)
        log = self.log
        if not self.may_store or log.offsets.get(key) is None:
            return

        def delete() -> bool:
            log.delete_offset(key)
            return True

        self._change_consumer(key, None, delete)

    def _change_consumer(self, key: ConsumerKey, value: int | None, change: Callable[[], bool]) -> None:
        self._note("store" if value is not None else "delete", f"{key.kind.name} {key.identifier[:4]!r} {value}")
        log, history = self.log, self.model.consumers.setdefault(key, ConsumerHistory())
        stored = StoredValue(value, is_acknowledged=False)
        history.values.append(stored)
        try:
            must_sync = change()
        except StorageFailure as failure:
            self._note("store failed", str(failure))
            # A cut is synced before the failure is reported. The sync that is under way may have begun before the cut.
            history.values.pop()
            self.finish_sync()
            self.step_sync()
            self.finish_sync()
            if log.offsets.has_unsynced:
                history.values.insert(0, stored)
            return
        stored.is_acknowledged = not must_sync

    # --- stopping ---

    def close(self) -> bool:
        """Stop cleanly. Return whether that worked."""
        self.finish_append()
        self.finish_upkeep()
        self.finish_sync()
        log, model = self.log, self.model
        stores = [(history, history.values[-1]) for history in model.consumers.values()]
        upkeep.close(log)
        if log.failure is not None:
            return False
        promise(log.marks.synced.offset == log.next_offset, "(k) closed, and not all is synced")
        model.synced_offset = log.marks.synced.offset
        _settle(stores)
        self.release()
        return True

    def check_marks(self) -> None:
        """(k) The marks are in order."""
        marks = self.log.marks
        in_order = marks.synced.offset <= marks.written.offset
        promise(in_order, f"(k) synced {marks.synced}, written {marks.written}")

    def check_totals(self) -> None:
        """(o) The totals are what a walk over the segments finds."""
        log = self.log
        totals = log.size, log.message_count, log.closing_count
        walked = (
            sum(segment.size for segment in log.segments),
            sum(segment.message_count for segment in log.segments),
            sum(segment.state is SegmentState.CLOSING for segment in log.segments),
        )
        promise(totals == walked, f"(o) the totals are {totals}, a walk finds {walked}")
        unsealed = [segment for segment in log.segments if segment.state is not SegmentState.SEALED]
        promise(log.unsealed == unsealed, f"(o) {len(log.unsealed)} segments count as unsealed, {len(unsealed)} are")


def _settle(stores: list[tuple[ConsumerHistory, StoredValue]]) -> None:
    """A sync that began after these stores is done: what was before them is history."""
    for history, stored in stores:
        if any(value is stored for value in history.values):
            number = next(number for number, value in enumerate(history.values) if value is stored)
            history.values = history.values[number:]
            stored.is_acknowledged = True
