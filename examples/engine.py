"""The log engine without a server: three durability levels, a killed process, a flipped bit.

``make engine-demo``, or ``python examples/engine.py``. It takes about two seconds, in a temporary directory that it
deletes. It is also the smallest program that uses the engine as a server does: ``Owner`` has all that it takes.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from courser.inspect.findings import Severity
from courser.inspect.log_file import BatchRow, LogInspection
from courser.inspect.verify import Verification
from courser.model.durability import Durability, DurabilityPolicy
from courser.records import layout
from courser.records.batch import NewMessage, build_batch
from courser.records.frames import iterate_frames
from courser.records.stored_header import PartitionIdentity
from courser.storage.acknowledgements import Acknowledgements
from courser.storage.jobs import Job, perform
from courser.storage.local_files import LocalFileSystem, lock_directory
from courser.storage.log_reader import LogReader
from courser.storage.partition_log import PartitionLog
from courser.storage.paths import LOG_SUFFIX, partition_directory
from courser.storage.read_result import ReadResult, SkippedRange
from courser.storage.session_file import begin_session, check_format, end_session, how_it_stopped
from courser.storage.settings import LogSettings
from courser.storage.upkeep import close, plan_reservation, plan_sync, plan_upkeep
from courser.storage.watched_clock import SystemClock

IDENTITY = PartitionIdentity(bytes.fromhex("c0ffee00c0ffee00c0ffee00c0ffee00"), 0, 1)
BATCH_COUNT = 100
PAYLOAD_SIZE = 200
SEGMENT_SIZE = 256 * 1024
LEVEL_MESSAGE_COUNT = 3_000
LEVEL_TIME_MAX = 0.5
ACKNOWLEDGED_MIN = 5_000

PROMISES = {
    Durability.WRITTEN: "a kill loses nothing",
    Durability.BOUNDED: "a power cut loses at most 1,024 messages",
    Durability.SYNCED: "a power cut loses nothing",
}


def payload_of(offset: int) -> bytes:
    """The payload of the message with this offset, so that a reader can check it."""
    return f"message {offset} ".encode().ljust(PAYLOAD_SIZE, b".")


class Owner:
    """Owns a data directory with one partition, from taking its lock to the last sync."""

    def __init__(self, data_directory: Path, level: Durability) -> None:
        self._data_directory = data_directory
        self._file_system = LocalFileSystem()
        self._clock = SystemClock()
        check_format(self._file_system, data_directory)
        self._lock = lock_directory(data_directory)
        stop = how_it_stopped(self._file_system, data_directory)
        directory = partition_directory(data_directory, 1, 1, IDENTITY.partition_id, IDENTITY.incarnation)
        if not directory.exists():
            PartitionLog.create(self._file_system, directory, IDENTITY, below=data_directory)
        policy = DurabilityPolicy(level=level)
        settings = LogSettings(segment_size=SEGMENT_SIZE, durability=policy)
        self.log = PartitionLog.open(
            self._file_system, directory, IDENTITY, settings=settings, clock=self._clock, stop=stop
        )
        self._acknowledgements: Acknowledgements[int] = Acknowledgements(policy)
        begin_session(self._file_system, data_directory)

    def send(self) -> int | None:
        """Append one batch. Return the offset after the last acknowledged message, if one was acknowledged now."""
        log, waiting = self.log, self._acknowledgements
        first = log.next_offset
        batch = build_batch([NewMessage(payload_of(first + number)) for number in range(BATCH_COUNT)])
        self._do(plan_reservation(log, BATCH_COUNT) if log.needs_reservation(BATCH_COUNT) else None)
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

    def read(self) -> tuple[set[int], list[SkippedRange]]:
        """Read everything: the offsets of all messages that are as they were sent, and what was skipped."""
        offsets: set[int] = set()
        skipped: list[SkippedRange] = []
        reader, offset = LogReader(self.log), self.log.start_offset
        while offset < self.log.next_offset:
            result = reader.read(offset, count=10 * BATCH_COUNT, size_max=1024 * 1024)
            skipped += result.skipped
            offsets |= {number for number, payload in messages(result) if payload == payload_of(number)}
            offset = result.next_offset
        return offsets, skipped

    def close(self) -> None:
        """Stop cleanly."""
        close(self.log)
        end_session(self._file_system, self._data_directory)
        self._lock.close()


def messages(result: ReadResult) -> Iterator[tuple[int, bytes]]:
    """Offsets and payloads of the messages that were read."""
    data = memoryview(b"".join(result.pieces))
    while data:
        _, base_offset, _, _, size, _, count = layout.WIRE_HEADER.unpack_from(data)
        for frame in iterate_frames(data[layout.BATCH_HEADER_SIZE : size], count):
            yield base_offset + frame.offset_delta, bytes(frame.payload)
        data = data[size:]


def measure(directory: Path, level: Durability) -> None:
    """How fast are appends at one durability level? A slow disk gets fewer messages, not more time."""
    directory.mkdir()
    owner = Owner(directory, level)
    began = time.monotonic()
    while owner.log.next_offset < LEVEL_MESSAGE_COUNT and time.monotonic() - began < LEVEL_TIME_MAX:
        owner.send()
    count, seconds = owner.log.next_offset, time.monotonic() - began
    owner.close()
    print(f"  {level.value:<8} {count:>6,} messages, {count / seconds:>9,.0f} per second: {PROMISES[level]}")


def be_a_victim(directory: Path) -> None:
    """The process to be killed: it appends, prints the acknowledged offset, and never stops by itself."""
    owner = Owner(directory, Durability.WRITTEN)
    while True:
        if (acknowledged := owner.send()) is not None:
            print(acknowledged, flush=True)


def kill(directory: Path) -> None:
    """Kill a process while it writes. What it had acknowledged is there."""
    directory.mkdir()
    command = [sys.executable, __file__, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        try:
            acknowledged = next(count for line in victim.stdout if (count := int(line)) >= ACKNOWLEDGED_MIN)
        finally:
            victim.kill()
        # What it printed before it died counts, except for an incomplete last line.
        rest = victim.stdout.read().rpartition("\n")[0].split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    owner = Owner(directory, Durability.SYNCED)
    found, _ = owner.read()
    owner.close()
    recovered = sum(offset < acknowledged for offset in found)
    print(f"  process {victim.pid} had acknowledged {acknowledged:,} messages when it was killed (kill -9)")
    print(f"  recovery found {recovered:,} of them, and {len(found) - recovered:,} that had not been acknowledged yet")
    assert recovered == acknowledged, "acknowledged messages are lost: please report this"


def flip(directory: Path) -> None:
    """Flip one bit on the disk. It is found, and costs one batch."""
    path = min(directory.rglob(f"*{LOG_SUFFIX}"))
    batches = [row for row in LogInspection(LocalFileSystem(), path).rows() if isinstance(row, BatchRow)]
    position = batches[len(batches) // 2].position + layout.BATCH_HEADER_SIZE + BATCH_COUNT
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    findings = Verification(LocalFileSystem(), directory).findings()
    damage = next(finding for finding in findings if finding.severity is Severity.DAMAGE)
    assert damage.first_offset is not None
    assert damage.end_offset is not None
    owner = Owner(directory, Durability.SYNCED)
    found, skipped = owner.read()
    owner.close()
    last = damage.end_offset - 1
    print(f"  courser inspect verify reports: {path.name}, offsets {damage.first_offset} to {last}: {damage.reason}")
    reasons = ", ".join(f"{skip.first_offset} to {skip.end_offset - 1} {skip.reason.value}" for skip in skipped)
    print(f"  reads skip it ({reasons}) and return the other {len(found):,} messages")


def main() -> None:
    """Show all of it."""
    with TemporaryDirectory(prefix="courser-engine-") as name:
        directory = Path(name)
        print("Courser's log engine, in a temporary directory\n\nDurability levels")
        for level in Durability:
            measure(directory / level.value, level)
        print("\nA process is killed while it writes")
        kill(directory / "killed")
        print("\nOne bit flips on the disk")
        flip(directory / "killed")


if __name__ == "__main__":
    if sys.argv[1:]:
        be_a_victim(Path(sys.argv[1]))
    main()
