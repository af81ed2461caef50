"""What a simulation does to the disk behind the server's back, and what it looks for there after a start."""

import errno
import random
from pathlib import Path

from courser.records.layout import STORED_HEADER
from courser.records.stored_header import StoredHeader
from courser.storage.paths import INDEX_SUFFIX, LOG_SUFFIX, QUARANTINE, base_offset_of
from tests.fakes.faults import FaultPlan
from tests.fakes.files import FakeFileSystem
from tests.simulator.partition_model import PartitionModel, SentBatch, promise

_SYNCS = ("sync", "sync_directory")


class RecordingPlan(FaultPlan):
    """A fault plan that remembers which failures it has caused."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: list[str] = []
        self._full: list[Path] = []
        """Where the disk had no room."""

    def failure(self, operation: str, path: Path) -> int | None:
        """As the plan says."""
        error = super().failure(operation, path)
        if error is not None:
            self.fired.append(operation)
        if error == errno.ENOSPC and operation not in _SYNCS:
            self._full.append(path)
        return error

    @property
    def has_failed_sync(self) -> bool:
        """Whether what the kernel shows may not be what the disk has."""
        return any(operation in _SYNCS for operation in self.fired)

    @property
    def has_failed_names(self) -> bool:
        """Whether names are shown that the disk does not have: a kernel goes on only after a new mount."""
        return "sync_directory" in self.fired

    def was_full_below(self, directory: Path) -> bool:
        """Whether a call in this directory, or the creation of the directory, failed because the disk was full."""
        return any(path.is_relative_to(directory) for path in self._full)


def logs_below(file_system: FakeFileSystem, directory: Path) -> dict[Path, bytes]:
    """The log files of all partitions, and their bytes."""
    return {
        path: file_system.contents(path)
        for path in file_system.files()
        if path.suffix == LOG_SUFFIX and directory in path.parents and path.parent.name != QUARANTINE
    }


def check_nothing_vanished(
    file_system: FakeFileSystem, before: dict[Path, bytes], directory: Path, start_offset: int
) -> None:
    """(l) What a recovery took out of a partition's logs lies in its quarantine, unless it was zeros or trimmed."""
    after = logs_below(file_system, directory)
    kept = [file_system.contents(path) for path in file_system.files() if path.parent == directory / QUARANTINE]
    for path, data in before.items():
        if path.parent != directory:
            continue
        left = after.get(path, b"")
        removed = data[len(left) :].rstrip(b"\0")
        base_offset = base_offset_of(path.name, LOG_SUFFIX)
        if not removed or (base_offset is not None and base_offset < start_offset):
            continue
        is_kept = any(removed in copy for copy in kept)
        promise(is_kept, f"(l) {len(removed)} bytes of {path.name} behind byte {len(left)} are in no quarantine")
        promise(data.startswith(left), f"(l) bytes of {path.name} have changed")


def hurt_an_index(file_system: FakeFileSystem, source: random.Random, directory: Path) -> str | None:
    """Delete, cut, damage or exchange an index: it is derived, so nothing may change. Say what was done."""
    paths = [path for path in file_system.files() if path.suffix == INDEX_SUFFIX and directory in path.parents]
    if not paths:
        return None
    path = source.choice(paths)
    data = bytearray(file_system.contents(path))
    match source.randrange(4):
        case 0:
            file_system.unlink(path)
            file_system.sync_directory(path.parent)
            return f"delete {path.name}"
        case 1:
            file_system.plant(path, data[: source.randint(0, len(data))])
            return f"cut {path.name}"
        case 2:
            if data:
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
            file_system.plant(path, data)
            return f"damage {path.name}"
        case _:
            other = source.choice(paths)
            file_system.plant(path, file_system.contents(other))
            return f"put {other.name} in the place of {path.name}"


def let_a_batch_rot(
    file_system: FakeFileSystem, source: random.Random, directory: Path, model: PartitionModel
) -> SentBatch | None:
    """Flip one bit of a batch, the last one of a file included: no crash explains that."""
    sent = {batch.base_offset: batch for batch in model.batches if batch not in model.rotten}
    places: list[tuple[Path, int, int, SentBatch]] = []
    for path, data in logs_below(file_system, directory).items():
        position = 0
        found: list[tuple[Path, int, int, SentBatch]] = []
        while position + STORED_HEADER.size <= len(data):
            header = StoredHeader._make(STORED_HEADER.unpack_from(data, position))
            batch = sent.get(header.base_offset)
            if batch is None or batch.size != header.stored_length:
                break
            found.append((path, position, batch.size, batch))
            position += batch.size
        places += found
    if not places:
        return None
    path, position, size, batch = source.choice(places)
    data_now = bytearray(file_system.contents(path))
    data_now[position + source.randrange(size)] ^= 1 << source.randrange(8)
    file_system.plant(path, data_now)
    return batch
