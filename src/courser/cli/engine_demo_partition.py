"""One partition for ``courser engine-demo``: the smallest program that uses the log engine as a server does.

Run as a program it is the process to be killed: it appends, prints the acknowledged offset, and never stops by itself.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from courser.model.durability import Durability, DurabilityPolicy
from courser.records import layout
from courser.records.batch import NewMessage, build_batch
from courser.records.frames import iterate_frames
from courser.records.stored_header import PartitionIdentity
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.jobs import Job, perform
from courser.storage.local_clock import SystemClock
from courser.storage.local_files import LocalFileSystem, lock_directory
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import partition_directory
from courser.storage.read_result import ReadResult, SkippedRange
from courser.storage.session_file import begin_session, check_format, end_session, how_it_stopped
from courser.storage.settings import LogSettings
from courser.storage.syncing import plan_sync
from courser.storage.upkeep import close, plan_reservation, plan_upkeep

IDENTITY = PartitionIdentity(bytes.fromhex("c0ffee00c0ffee00c0ffee00c0ffee00"), 0, 1)
BATCH_COUNT = 100
"""Messages in a batch."""
_PAYLOAD_SIZE = 200
_SEGMENT_SIZE = 256 * 1024
_READ_SIZE = 1024 * 1024


def payload_of(offset: int) -> bytes:
    """The payload of the message with this offset, so that a reader can check it."""
    return f"message {offset} ".encode().ljust(_PAYLOAD_SIZE, b".")


class Owner:
    """Owns a data directory with one partition, from taking its lock to the last sync."""

    def __init__(self, data_directory: Path, level: Durability) -> None:
        self._data_directory = data_directory
        self._file_system = LocalFileSystem()
        self._clock = SystemClock()
        check_format(self._file_system, data_directory)
        self._lock = lock_directory(data_directory)
        self.stop = how_it_stopped(self._file_system, data_directory)
        self.directory = partition_directory(data_directory, 1, 1, IDENTITY.partition_id, IDENTITY.incarnation)
        if not self.directory.exists():
            PartitionLog.create(self._file_system, self.directory, IDENTITY, below=data_directory)
        policy = DurabilityPolicy(level=level)
        settings = LogSettings(segment_size=_SEGMENT_SIZE, durability=policy)
        self.log = PartitionLog.open(
            self._file_system, self.directory, IDENTITY, settings=settings, clock=self._clock, stop=self.stop
        )
        self._acknowledgements: Acknowledgements[int] = Acknowledgements(policy)
        begin_session(self._file_system, data_directory)

    def send(self) -> int | None:
        """Append one batch. Return the offset after the last acknowledged message, if one was acknowledged now."""
        log, waiting = self.log, self._acknowledgements
        first = log.next_offset
        batch = build_batch([NewMessage(payload_of(first + number)) for number in range(BATCH_COUNT)])
        reservation = plan_reservation(log, BATCH_COUNT) if log.needs_reservation(BATCH_COUNT) else None
        self._do(reservation)
        appended = log.append(batch)
        end_offset = appended.base_offset + appended.message_count
        now = self._clock.monotonic()
        acknowledged = end_offset if waiting.admits(log.marks.written, log.marks.synced, now) else None
        if acknowledged is None:
            waiting.wait(log.marks.written, end_offset)
        if waiting.is_sync_due(log.marks.synced, log.marks.written, now):
            waiting.sync_began(log.marks.written)
            self._do(plan_sync(log))
        while (job := plan_upkeep(log)) is not None:
            self._do(job)
        released = waiting.releasable(log.marks.synced, self._clock.monotonic())
        return released[-1] if released else acknowledged

    def _do(self, job: Job | None) -> None:
        if job is not None and not perform(job):
            raise OSError(f"{job.name} failed: {self.log.failure or 'the disk is full'}")

    def read(self, offset: int) -> ReadResult:
        """Read some messages, starting at ``offset``."""
        return self.log.read(offset, count=10 * BATCH_COUNT, size_max=_READ_SIZE)

    def close(self) -> None:
        """Stop cleanly."""
        close(self.log)
        end_session(self._file_system, self._data_directory)
        self._lock.close()


class Inventory(NamedTuple):
    """The contents of a partition."""

    offsets: set[int]
    """Offsets of the messages with the expected payload."""
    skipped: list[SkippedRange]


def take_inventory(owner: Owner) -> Inventory:
    """Read everything from the beginning and compare it with the messages that were sent."""
    offsets: set[int] = set()
    skipped: list[SkippedRange] = []
    offset = owner.log.start_offset
    while offset < owner.log.next_offset:
        result = owner.read(offset)
        skipped += result.skipped
        offsets |= {number for number, payload in _messages(result) if payload == payload_of(number)}
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return Inventory(offsets, skipped)


def _messages(result: ReadResult) -> Iterator[tuple[int, bytes]]:
    data = memoryview(b"".join(result.pieces))
    position = 0
    while position < len(data):
        _, base_offset, _, _, size, _, count = layout.WIRE_HEADER.unpack_from(data, position)
        body = data[position + layout.BATCH_HEADER_SIZE : position + size]
        for frame in iterate_frames(body, count):
            yield base_offset + frame.offset_delta, bytes(frame.payload)
        position += size


def _be_a_victim(data_directory: Path) -> None:
    owner = Owner(data_directory, Durability.WRITTEN)
    while True:
        acknowledged = owner.send()
        if acknowledged is not None:
            sys.stdout.write(f"{acknowledged}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _be_a_victim(Path(sys.argv[1]))
