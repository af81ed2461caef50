"""A partition on the fake disk, driven as its owner drives it: the tests say what happens, this does the steps."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from courser.model.durability import Durability, DurabilityPolicy
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.encryption import EncryptionKey, KeyRing
from courser.records.layout import Compression
from courser.records.stored_body import PLAIN, Encoding, Encryption, encode
from courser.records.stored_header import PartitionIdentity
from courser.storage.jobs import perform
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import Appended, PartitionLog
from courser.storage.paths import LEDGER, OFFSETS, QUARANTINE, index_path, log_path
from courser.storage.read_result import ReadResult
from courser.storage.recovery_cases import StopKind
from courser.storage.settings import LogSettings
from courser.storage.upkeep import close, plan_reservation, plan_sync, plan_trim, plan_upkeep
from tests.fakes.clocks import ManualClock
from tests.fakes.files import FakeFileSystem
from tests.records.reference import WireMessage, read_wire

IDENTITY = PartitionIdentity(bytes(range(16)), 3, 7)
DIRECTORY = Path("/data/partition")
ALL = 2**40
"""More messages and bytes than any test has."""
SMALL = LogSettings(
    segment_size=4096,
    index_interval=256,
    allocation_min=512,
    allocation_max=1024,
    recovery_point_size=2048,
    reservation_min=16,
    reservation_max=64,
)
"""Everything happens after a few messages."""
KEY = EncryptionKey(bytes(range(32)))
ENCRYPTION = Encryption(KEY, random.Random(7).randbytes)
ENCODINGS = {
    "plain": PLAIN,
    "gzip": Encoding(Compression.GZIP),
    "zstd": Encoding(Compression.ZSTD),
    "encrypted": Encoding(encryption=ENCRYPTION),
    "lz4, encrypted": Encoding(Compression.LZ4, ENCRYPTION),
}
"""Ways to store a batch, each of which the others must not notice."""


def encoded(settings: LogSettings, name: str) -> LogSettings:
    """The same settings for batches that are stored in this way."""
    return replace(settings, encoding=ENCODINGS[name], keys=KeyRing([KEY]))


def durability(level: Durability) -> DurabilityPolicy:
    return DurabilityPolicy(level=level)


def batch_of(*payloads: bytes) -> Batch:
    return build_batch([NewMessage(payload, message_id=number) for number, payload in enumerate(payloads, 1)])


def numbered(first: int, count: int, *, size: int = 20, mixed: bool = False) -> Batch:
    """Messages that say their own number; same-sized, or each of another size."""
    return batch_of(*(payload_of(number, size=size, mixed=mixed) for number in range(first, first + count)))


def payload_of(number: int, *, size: int = 20, mixed: bool = False) -> bytes:
    wanted = size + number % 7 * 3 if mixed else size
    return f"message {number} ".encode().ljust(wanted, b".")[: max(wanted, 12)]


def payloads(messages: Iterable[WireMessage]) -> list[bytes]:
    return [message.payload for message in messages]


def messages_of(result: ReadResult) -> list[WireMessage]:
    """What a strict client makes of a read: every rule of the wire is checked on the way."""
    messages = read_wire(b"".join(result.pieces))
    assert len(messages) == result.message_count
    assert sum(len(piece) for piece in result.pieces) == result.size
    if messages:
        assert messages[0].offset == result.first_offset
        assert messages[-1].offset < result.next_offset
    else:
        assert result.first_offset == result.next_offset
    return messages


@dataclass
class Engine:
    """One partition, through any number of lives."""

    settings: LogSettings = SMALL
    clock: ManualClock = field(default_factory=ManualClock)
    disk: FakeFileSystem = field(default_factory=lambda: FakeFileSystem(random.Random(1)))
    directory: Path = DIRECTORY
    identity: PartitionIdentity = IDENTITY

    def __post_init__(self) -> None:
        self.disk.plant_directory(self.directory.parent)
        PartitionLog.create(self.disk, self.directory, self.identity, below=self.directory.parent)
        self.log = self.opened(StopKind.CLEAN)

    def opened(self, stop: StopKind) -> PartitionLog:
        return PartitionLog.open(
            self.disk, self.directory, self.identity, settings=self.settings, clock=self.clock, stop=stop
        )

    # --- one life after the other ---

    def open(self, stop: StopKind) -> PartitionLog:
        self.log = self.opened(stop)
        return self.log

    def restart(self, stop: StopKind = StopKind.CLEAN) -> PartitionLog:
        """End this life in the given way, and begin the next one."""
        self.stop(stop)
        return self.open(stop)

    def stop(self, stop: StopKind = StopKind.CLEAN) -> None:
        if stop is StopKind.CLEAN:
            close(self.log)
        if stop is StopKind.CRASHED:
            self.disk.power_cut()
        else:
            self.disk.kill()

    # --- writing ---

    def append(self, batch: Batch) -> Appended:
        if self.log.needs_reservation(batch.count) and (job := plan_reservation(self.log, batch.count)) is not None:
            assert perform(job)
        return self.log.append(encode(batch, self.settings.encoding))

    def append_numbered(self, count: int, *, size: int = 20, mixed: bool = False) -> Appended:
        return self.append(numbered(self.log.next_offset, count, size=size, mixed=mixed))

    def fill(self, batch_count: int, per_batch: int = 3, *, size: int = 20, mixed: bool = False) -> None:
        for _ in range(batch_count):
            self.append_numbered(per_batch, size=size, mixed=mixed)
            self.clock.advance(10)

    def sync(self) -> None:
        if (job := plan_sync(self.log)) is not None:
            assert perform(job)

    def upkeep(self) -> None:
        while (job := plan_upkeep(self.log)) is not None:
            assert perform(job)

    def roll(self) -> None:
        """Close the open segment and seal it."""
        self.log.roll()
        self.upkeep()

    def trim(self, before_offset: int) -> None:
        job = plan_trim(self.log, before_offset)
        assert job is not None
        assert perform(job)

    # --- reading ---

    @property
    def reader(self) -> LogReader:
        """One for each life."""
        known: tuple[PartitionLog, LogReader] | None = self.__dict__.get("_reader")
        if known is None or known[0] is not self.log:
            known = self.__dict__["_reader"] = self.log, LogReader(self.log)
        return known[1]

    def read(self, offset: int, *, count: int = ALL, size_max: int = ALL) -> list[WireMessage]:
        return messages_of(self.reader.read(offset, count=count, size_max=size_max))

    def read_all(self, offset: int = 0) -> tuple[list[WireMessage], list[ReadResult]]:
        """Read on until nothing more comes, as a consumer does."""
        messages: list[WireMessage] = []
        results: list[ReadResult] = []
        while True:
            result = self.reader.read(offset, count=ALL, size_max=ALL)
            results.append(result)
            messages += messages_of(result)
            if result.next_offset == offset:
                return messages, results
            assert result.next_offset > offset
            offset = result.next_offset

    # --- the files ---

    def log_path(self, base_offset: int = 0) -> Path:
        return log_path(self.directory, base_offset)

    def index_path(self, base_offset: int = 0) -> Path:
        return index_path(self.directory, base_offset)

    @property
    def ledger_path(self) -> Path:
        return self.directory / LEDGER

    @property
    def offsets_path(self) -> Path:
        return self.directory / OFFSETS

    def log_paths(self) -> list[Path]:
        return [path for path in self.disk.files() if path.parent == self.directory and path.suffix == ".log"]

    def quarantined(self) -> dict[str, bytes]:
        place = self.directory / QUARANTINE
        return {path.name: self.disk.contents(path) for path in self.disk.files() if path.parent == place}

    def batch_starts(self, base_offset: int = 0) -> list[int]:
        """Where each batch of a segment begins, and where the last one ends."""
        data = self.disk.contents(self.log_path(base_offset))
        starts = [0]
        while starts[-1] + 256 <= len(data) and (
            length := int.from_bytes(data[starts[-1] + 72 : starts[-1] + 80], "little")
        ):
            starts.append(starts[-1] + length)
        return starts

    def letters(self) -> list[str]:
        return [finding.letter for finding in self.log.findings]


def flipped(data: bytes, position: int, mask: int = 0x01) -> bytes:
    changed = bytearray(data)
    changed[position] ^= mask
    return bytes(changed)
