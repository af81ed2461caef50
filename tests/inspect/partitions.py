"""Small partitions on the real disk, and ways to hurt them."""

from pathlib import Path

from courser.catalog import entities
from courser.catalog.directories import Directories
from courser.catalog.entities import Stream, Topic, UsedIds
from courser.catalog.state import CatalogState
from courser.catalog.store import make_metadata_directory
from courser.model.identifiers import ConsumerKind
from courser.model.topic_options import TopicOptions
from courser.records import layout
from courser.records.batch import Batch, NewMessage, batch_of, build_batch
from courser.records.checksum import xxh3
from courser.records.stored_header import PartitionIdentity, blank_header, stamp
from courser.records.user_headers import UserHeader, build_user_headers
from courser.storage.durable_files import replace_file
from courser.storage.jobs import perform
from courser.storage.journal_entries import SnapshotMark
from courser.storage.local_files import LocalFileSystem
from courser.storage.offset_table import ConsumerKey
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import JOURNAL, LEDGER, METADATA, METADATA_SNAPSHOT, OFFSETS, partition_directory
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import begin_session, end_session
from courser.storage.settings import LogSettings
from courser.storage.snapshot import Snapshot, write_snapshot
from courser.storage.upkeep import close, plan_reservation, plan_sync, plan_upkeep
from tests.fakes.clocks import ManualClock

IDENTITY = PartitionIdentity(bytes(range(16)), 0, 7)
PER_BATCH = 3
SETTINGS = LogSettings(
    segment_size=4096,
    index_interval=256,
    allocation_min=512,
    allocation_max=1024,
    recovery_point_size=1024,
    reservation_min=16,
    reservation_max=64,
)


def payload_of(offset: int) -> bytes:
    return f"message {offset}".encode().ljust(40, b".")


def batch_at(offset: int, count: int = PER_BATCH) -> Batch:
    headers = build_user_headers([UserHeader.of_text("number", f"{offset:06}")])
    return build_batch(
        [
            NewMessage(payload_of(offset + number), offset + number + 1, 1_700_000_000_000_000 + number, headers)
            for number in range(count)
        ]
    )


def lying_batch(offset: int) -> Batch:
    """Its second message has a checksum that was never right."""
    good = batch_at(offset)
    body = bytearray(good.body)
    body[int(good.frames.starts[1])] ^= 1
    return batch_of(good.origin_timestamp, good.count, memoryview(body))


def plant_metadata(data_directory: Path) -> None:
    """A snapshot, an empty journal and descriptors that know the one partition."""
    files = LocalFileSystem()
    entity = entities.Partition(IDENTITY.partition_id, IDENTITY.incarnation, 1)
    topic = Topic(2, IDENTITY.topic_uuid, "orders", 1, TopicOptions(), [entity], {}, UsedIds(), 0)
    stream = Stream(1, bytes(16), "shop", 1, {2: topic}, UsedIds(3, [(0, 2)]))
    state = CatalogState()
    state.streams[1], state.stream_ids = stream, UsedIds(2, [(0, 1)])
    make_metadata_directory(files, data_directory / METADATA)
    mark = SnapshotMark(IDENTITY.incarnation, bytes(16))
    snapshot = Snapshot(mark, state.hash(), 1, state.encode())
    write_snapshot(files, data_directory / METADATA / METADATA_SNAPSHOT, snapshot)
    replace_file(files, data_directory / METADATA / JOURNAL, b"")
    directories = Directories(files, data_directory)
    directories.make_stream(stream)
    directories.make_topic(stream, topic)


class Partition:
    """A data directory with one partition, driven as its owner drives it."""

    def __init__(self, data_directory: Path) -> None:
        self.data_directory = data_directory
        self.files = LocalFileSystem()
        self.clock = ManualClock()
        self.directory = partition_directory(data_directory, 1, 2, IDENTITY.partition_id, IDENTITY.incarnation)
        data_directory.mkdir(0o700, exist_ok=True)
        PartitionLog.create(self.files, self.directory, IDENTITY, below=data_directory)
        plant_metadata(data_directory)
        self.open(StopKind.CLEAN)

    def open(self, stop: StopKind) -> None:
        self.log = PartitionLog.open(
            self.files, self.directory, IDENTITY, settings=SETTINGS, clock=self.clock, stop=stop
        )
        begin_session(self.files, self.data_directory)

    def append(self, batch: Batch | None = None) -> None:
        batch = batch or batch_at(self.log.next_offset)
        if self.log.needs_reservation(batch.count) and (job := plan_reservation(self.log, batch.count)) is not None:
            perform(job)
        self.log.append(batch)
        self.clock.advance(10)

    def fill(self, batch_count: int) -> None:
        """Append and let upkeep do what it will: segments are sealed, the open one is allocated ahead."""
        for _ in range(batch_count):
            self.append()
            self.work()

    def work(self) -> None:
        if (job := plan_sync(self.log)) is not None:
            perform(job)
        while (job := plan_upkeep(self.log)) is not None:
            perform(job)

    def store(self, name: str, offset: int) -> None:
        self.log.store_offset(ConsumerKey(ConsumerKind.GROUP, name.encode()), offset)

    def close(self) -> None:
        close(self.log)
        end_session(self.files, self.data_directory)

    @property
    def ledger(self) -> Path:
        return self.directory / LEDGER

    @property
    def offsets(self) -> Path:
        return self.directory / OFFSETS

    @property
    def logs(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    @property
    def indexes(self) -> list[Path]:
        return sorted(self.directory.glob("*.index"))


def full_partition(data_directory: Path, *, is_closed: bool = True) -> Partition:
    """Several sealed segments, an open one, and stored offsets."""
    partition = Partition(data_directory)
    partition.fill(30)
    partition.store("readers", 5)
    partition.store("writers", 7)
    partition.store("readers", 9)
    assert len(partition.logs) >= 4
    if is_closed:
        partition.close()
    return partition


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def stored(batch: Batch, *, offset: int, time: int, identity: PartitionIdentity = IDENTITY) -> bytes:
    """A batch as it lies on disk."""
    return bytes(stamp(batch, blank_header(identity), base_offset=offset, base_timestamp=time)) + bytes(batch.body)


def with_wrong_wire_checksum(data: bytes) -> bytes:
    """The same batch, its stored hashes right and the checksum that clients see wrong."""
    header = bytearray(data[: layout.BATCH_HEADER_SIZE])
    header[layout.BATCH_CHECKSUM_POSITION] ^= 1
    header[layout.HEADER_CHECKSUM_POSITION :] = xxh3(header[: layout.HEADER_CHECKSUM_POSITION]).to_bytes(8, "little")
    return bytes(header) + data[layout.BATCH_HEADER_SIZE :]
