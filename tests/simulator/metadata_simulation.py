"""A broker on a fake disk that runs full, has no descriptors left, loses power: metadata commands among sends.

``MetadataWorld`` asks one thing after the other of a real broker, with purges among the sends, and lets steps on the
disk fail meanwhile. It notes what was acknowledged. Every start has to show all of that, and nothing of what an
acknowledged purge or deletion took. Beside threads of the broker's pool, a seed decides what happens.
"""

import errno
import random
import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from courser.broker.broker import Broker, RootUser
from courser.broker.partition.partition import Partition
from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.catalog import changes
from courser.errors import CourserError
from courser.model.identifiers import ConsumerKind
from courser.model.topic_options import TopicOptions
from courser.records.batch import NewMessage, build_batch
from courser.storage.data_directory import DataDirectory
from courser.storage.local_files import DirectoryLock
from courser.storage.offset_table import ConsumerKey
from courser.storage.session_file import how_it_stopped
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem, FaultPlan
from tests.simulator.partition_model import BrokenPromise

_DATA = Path("/data")
_ROOT = RootUser("root", "$argon2id$made up")
_OPTIONS = TopicOptions(durability="persisted")
_READER = ConsumerKey(ConsumerKind.CONSUMER, b"\x01\x00\x00\x00")
_STREAM_ID = 0
_MARK = re.compile(rb"<message (\d+)>")
_FAULTS: tuple[tuple[str, int, str | None], ...] = (
    ("open", errno.EMFILE, None),
    ("open", errno.EMFILE, "descriptor*"),
    ("open", errno.EMFILE, "ledger*"),
    ("open", errno.ENOSPC, "descriptor*"),
    # Not the journal: where it has room reserved, a full disk does not refuse it.
    ("write_at", errno.ENOSPC, "[!j]*"),
    ("write_at", errno.ENOSPC, "ledger*"),
    ("write_at", errno.ENOSPC, "offsets*"),
    ("rename", errno.ENOSPC, "descriptor*"),
    ("make_directory", errno.ENOSPC, None),
    ("unlink", errno.EIO, "*.log"),
)
"""Steps that fail: the call, its error, and the files. None is a failed sync: those have a simulation of their own."""


class _NoLock:
    """There is nobody else on a disk that exists only here."""

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(slots=True)
class _PartitionModel:
    """What is known of the messages of a partition, by their numbers."""

    must: set[int] = field(default_factory=set)
    """Acknowledged, and no purge was asked for since."""
    may: set[int] = field(default_factory=set)
    """Not acknowledged, or sent before a purge that was not acknowledged."""
    stored: int | None = None
    """The offset that a consumer stored last, if the store was acknowledged, and no purge was asked for since."""

    def purge_begins(self) -> None:
        self.may |= self.must
        self.must = set()
        self.stored = None

    def purge_ends(self) -> None:
        self.may = set()


@dataclass(slots=True)
class _TopicModel:
    partitions: list[_PartitionModel]
    possible_counts: set[int]
    """How many partitions it may have after a restart."""
    may_be_gone: bool = False


@dataclass(slots=True)
class Tally:
    """How much was acknowledged and refused."""

    sent: int = 0
    purged: int = 0
    refused_purges: int = 0
    sent_behind_refused: int = 0
    """Messages acknowledged by a partition that was behind a purge."""
    crashes: int = 0


class MetadataWorld:
    """A disk, one broker after the other on it, and what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.disk = FakeFileSystem(random.Random(seed))
        self.disk.plant_directory(_DATA)
        self.clock = ManualClock()
        self.tally = Tally()
        self._topics: dict[str, _TopicModel] = {}
        self._message_number = 0
        self._topic_number = 0
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        """The running one."""
        assert self._broker is not None, "nothing runs here"
        return self._broker

    async def live(self, life_count: int, step_count: int) -> Tally:
        """Processes that begin, do random things on a sick disk, and die.

        Raises:
            BrokenPromise: with the life and what is missing.
        """
        for life in range(life_count):
            try:
                await self._start()
                await self.check()
                for _ in range(step_count):
                    await self._step()
                await self._end()
            except BrokenPromise as error:
                raise BrokenPromise(f"life {life}: {error}") from error
        await self._start()
        await self.check()
        await self._close()
        return self.tally

    # --- lives ---

    async def _start(self) -> None:
        stop = how_it_stopped(self.disk, _DATA)
        data = DataDirectory(_DATA, self.disk, cast("DirectoryLock", _NoLock()), stop, self.clock)
        # Tries that fail follow one another at once.
        settings = BrokerSettings(disk_thread_count=1, limits=BrokerLimits(change_retry_delay=0))
        self._broker = await Broker.open(data, settings, make_root=lambda: _ROOT, draw=self._random.randbytes)
        if not self._broker.catalog.state.streams:
            await self._broker.catalog.submit(changes.StreamCreation("stream", bytes(16)))

    async def _end(self) -> None:
        broker = self.broker
        kind = self._random.randrange(4)
        if kind == 0:
            await self._close()
        elif kind == 1:
            # A stop on a disk that still refuses.
            await broker.close()
            self._heal()
            self.disk.kill()
        else:
            broker.pool.shutdown(cancel_futures=True)
            broker.catalog._is_closed = True
            self._heal()
            self.disk.power_cut() if kind == 2 else self.disk.kill()
            self.tally.crashes += 1

    async def _close(self) -> None:
        self._heal()
        await self.broker.close()

    def _heal(self) -> None:
        self.disk.plan = FaultPlan()
        self.disk.capacity = None

    # --- steps ---

    async def _step(self) -> None:
        name = self._random.choice(list(self._topics)) if self._topics else None
        steps = [self._change_disk(), self._create_topic()]
        weights = [12, 4]
        if name is not None:
            steps += [self._send(name), self._purge_topic(name), self._purge_stream(), self._store(name)]
            steps += [self._create_partitions(name), self._delete_partitions(name), self._delete_topic(name)]
            weights += [50, 8, 3, 10, 3, 3, 2]
        chosen = self._random.choices(range(len(steps)), weights)[0]
        for number, step in enumerate(steps):
            if number != chosen:
                step.close()
        await steps[chosen]

    async def _change_disk(self) -> None:
        self._heal()
        match self._random.randrange(4):
            case 0:
                return
            case 1:
                self.disk.capacity = self.disk.used
            case _:
                operation, error, name = self._random.choice(_FAULTS)
                self.disk.plan = FaultPlan().fail(operation, error, onwards=True, name=name)

    def _topic_id(self, name: str) -> int | None:
        return self.broker.catalog.state.topic_by_name.get((_STREAM_ID, name))

    def _partition_count(self, topic_id: int) -> int:
        return len(self.broker.catalog.state.streams[_STREAM_ID].topics[topic_id].partitions)

    def _partition(self, name: str, number: int) -> Partition | None:
        opened = self.broker.partitions.topics.get((_STREAM_ID, self._topic_id(name) or 0))
        is_there = self._topic_id(name) is not None and opened is not None and number < len(opened.partitions)
        return opened.partitions[number] if opened is not None and is_there else None

    async def _send(self, name: str) -> None:
        model = self._topics[name]
        number = self._random.randrange(len(model.partitions)) if model.partitions else 0
        partition = self._partition(name, number)
        if partition is None:
            return
        self._message_number += 1
        known = model.partitions[number]
        known.may.add(self._message_number)
        batch = build_batch([NewMessage(b"<message %d>" % self._message_number)])
        if await _works(partition.append(batch)):
            known.may.discard(self._message_number)
            known.must.add(self._message_number)
            self.tally.sent += 1
            topic = self.broker.catalog.state.topic(_STREAM_ID, self._topic_id(name) or 0)
            self.tally.sent_behind_refused += topic is not None and partition.log.epoch < topic.purge_count

    async def _store(self, name: str) -> None:
        model = self._topics[name]
        number = self._random.randrange(len(model.partitions)) if model.partitions else 0
        partition = self._partition(name, number)
        if partition is None or not model.partitions[number].must:
            return
        known = model.partitions[number]
        offset, known.stored = partition.log.visible_end - 1, None
        if await _works(partition.store_offset(_READER, offset, persisted=True)):
            known.stored = offset

    async def _purge_topic(self, name: str) -> None:
        topic_id = self._topic_id(name)
        if topic_id is not None:
            await self._purge([self._topics[name]], changes.TopicPurge(_STREAM_ID, topic_id))

    async def _purge_stream(self) -> None:
        await self._purge(list(self._topics.values()), changes.StreamPurge(_STREAM_ID))

    async def _purge(self, topics: list[_TopicModel], command: changes.AnyChange) -> None:
        partitions = [known for topic in topics for known in topic.partitions]
        for known in partitions:
            known.purge_begins()
        if await _works(self.broker.catalog.submit(command)):
            self.tally.purged += 1
            for known in partitions:
                known.purge_ends()
        else:
            self.tally.refused_purges += 1

    async def _create_topic(self) -> None:
        self._topic_number += 1
        name, count = f"topic {self._topic_number}", self._random.randint(1, 3)
        command = changes.TopicCreation(_STREAM_ID, name, self._random.randbytes(16), count, _OPTIONS)
        works = await _works(self.broker.catalog.submit(command))
        self._topics[name] = _TopicModel([_PartitionModel() for _ in range(count)], {count}, may_be_gone=not works)

    async def _create_partitions(self, name: str) -> None:
        model, topic_id = self._topics[name], self._topic_id(name)
        if topic_id is None:
            return
        before = self._partition_count(topic_id)
        works = await _works(self.broker.catalog.submit(changes.PartitionCreation(_STREAM_ID, topic_id, 1)))
        count = self._partition_count(topic_id)
        # A creation that the disk has no room for may be taken back later.
        model.possible_counts = {count} if works else {*model.possible_counts, before, before + 1}
        del model.partitions[count:]
        model.partitions += [_PartitionModel() for _ in range(max(count, before + 1) - len(model.partitions))]

    async def _delete_partitions(self, name: str) -> None:
        model, topic_id = self._topics[name], self._topic_id(name)
        if topic_id is None or not model.partitions or len(model.possible_counts) > 1:
            return
        before = self._partition_count(topic_id)
        if not before:
            return
        works = await _works(self.broker.catalog.submit(changes.PartitionDeletion(_STREAM_ID, topic_id, 1)))
        del model.partitions[before - 1 if works else before :]
        if not works:
            # It may be deleted, and it may not.
            model.partitions[-1].purge_begins()
        model.possible_counts = {before - 1} if works else {before - 1, before}

    async def _delete_topic(self, name: str) -> None:
        topic_id = self._topic_id(name)
        if topic_id is None:
            return
        works = await _works(self.broker.catalog.submit(changes.TopicDeletion(_STREAM_ID, topic_id)))
        if self.disk.capacity is not None and not works:
            raise BrokenPromise(f"{name} could not be deleted on a full disk")
        if works:
            del self._topics[name]
        else:
            self._topics[name].may_be_gone = True

    # --- what must be true ---

    async def check(self) -> None:
        """All that was acknowledged is there; afterwards what is there counts as known."""
        shown = {topic.name: topic for topic in self.broker.catalog.state.streams[_STREAM_ID].topics.values()}
        if unknown := shown.keys() - self._topics.keys():
            raise BrokenPromise(f"deleted, and there: {unknown}")
        for name, model in list(self._topics.items()):
            if name not in shown:
                if not model.may_be_gone:
                    raise BrokenPromise(f"{name} was acknowledged, and is gone")
                del self._topics[name]
                continue
            count = len(shown[name].partitions)
            if count not in model.possible_counts:
                raise BrokenPromise(f"{name} has {count} partitions, and not {model.possible_counts}")
            model.may_be_gone, model.possible_counts = False, {count}
            model.partitions = [*model.partitions, *(_PartitionModel() for _ in range(count))][:count]
            for number, known in enumerate(model.partitions):
                await self._check_partition(f"{name}, partition {number}", self._partition(name, number), known)

    async def _check_partition(self, where: str, partition: Partition | None, known: _PartitionModel) -> None:
        if partition is None:
            raise BrokenPromise(f"{where} is not open")
        found = await _messages(partition)
        if lost := known.must - set(found):
            raise BrokenPromise(f"{where}: messages {sorted(lost)} were acknowledged, and are gone")
        if back := set(found) - known.must - known.may:
            raise BrokenPromise(f"{where}: messages {sorted(back)} were purged, and are there")
        if found != sorted(found):
            raise BrokenPromise(f"{where}: the messages are out of order: {found}")
        if known.stored is not None and partition.log.offsets.get(_READER) != known.stored:
            raise BrokenPromise(f"{where}: the offset {known.stored} was stored, and is gone")


async def _works(work: Awaitable[object]) -> bool:
    try:
        await work
    except CourserError:
        return False
    return True


async def _messages(partition: Partition) -> list[int]:
    """The numbers of all messages of a partition, in order."""
    numbers: list[int] = []
    offset = 0
    while offset < partition.log.visible_end:
        result = await partition.reader.read(offset, count=1000, size_max=1 << 20)
        numbers += [int(number) for piece in result.pieces for number in _MARK.findall(bytes(piece))]
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return numbers
