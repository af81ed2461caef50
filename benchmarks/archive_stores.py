"""The stores that archives are measured on, and bare copies to and from them with the same library."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import obstore
from obstore.store import S3Store

from benchmarks.harness import MIB
from courser.archive.settings import StoreKind, StoreSettings
from tests.archive.seaweed import SeaweedServer

BUCKET = "benchmarks"
PART_SIZE = 16 * MIB
"""Bytes that a bare copy moves at a time: the size of the archive's parts."""
RANGE_SIZE = 8 * MIB
"""Bytes that a bare loop of range reads asks for at a time: the size of the archive's blocks."""
_UPLOADS_AT_ONCE = 4


class BareStore(Protocol):
    """What a script would do without an archive: copies, without checks. Keys are relative to a prefix."""

    def put(self, key: str, source: Path) -> None:
        """Copy a file to the store, and return when it is there to stay."""

    def get(self, key: str, target: Path) -> None:
        """Copy an object to a new file, and sync it."""

    def read_ranges(self, key: str, size: int) -> None:
        """Read an object from its first to its last byte."""


class BareDisk:
    """Files, through memory that is used again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory = memoryview(bytearray(PART_SIZE))

    def put(self, key: str, source: Path) -> None:
        target = self._directory / key
        target.parent.mkdir(parents=True, exist_ok=True)
        self._copy(source, target)

    def get(self, key: str, target: Path) -> None:
        self._copy(self._directory / key, target)

    def _copy(self, source: Path, target: Path) -> None:
        with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
            while size := reading.readinto(self._memory):
                writing.write(self._memory[:size])
            os.fdatasync(writing.fileno())

    def read_ranges(self, key: str, size: int) -> None:
        descriptor = os.open(self._directory / key, os.O_RDONLY)
        try:
            for position in range(0, size, RANGE_SIZE):
                os.preadv(descriptor, (self._memory[:RANGE_SIZE],), position)
        finally:
            os.close(descriptor)


class BareObjects:
    """Requests to S3, as obstore makes them."""

    def __init__(self, settings: StoreSettings) -> None:
        self._prefix = settings.key_prefix + "/"
        self._store = S3Store(
            settings.bucket,
            config={
                "access_key_id": settings.access_key_id,
                "secret_access_key": settings.secret_access_key,
                "region": settings.region,
                "endpoint": settings.endpoint,
            },
            client_options={"allow_http": True},
        )

    def put(self, key: str, source: Path) -> None:
        obstore.put(
            self._store,
            self._prefix + key,
            source,
            use_multipart=source.stat().st_size > PART_SIZE,
            chunk_size=PART_SIZE,
            max_concurrency=_UPLOADS_AT_ONCE,
        )

    def get(self, key: str, target: Path) -> None:
        with target.open("xb", buffering=0) as writing:
            for part in obstore.get(self._store, self._prefix + key).stream(min_chunk_size=PART_SIZE):
                writing.write(part)
            os.fdatasync(writing.fileno())

    def read_ranges(self, key: str, size: int) -> None:
        for position in range(0, size, RANGE_SIZE):
            length = min(RANGE_SIZE, size - position)
            obstore.get_range(self._store, self._prefix + key, start=position, length=length)


@dataclass(frozen=True, slots=True)
class MeasuredStore:
    """A store."""

    name: str
    directory: Path
    settings: StoreSettings

    def place(self, name: str) -> StoreSettings:
        """A place of its own in the store."""
        if self.settings.kind is StoreKind.DISK:
            return StoreSettings(path=self.directory / name)
        return self._at(name)

    def _at(self, prefix: str) -> StoreSettings:
        found = self.settings
        return StoreSettings(
            kind=found.kind,
            bucket=found.bucket,
            key_prefix=prefix,
            region=found.region,
            endpoint=found.endpoint,
            access_key_id=found.access_key_id,
            secret_access_key=found.secret_access_key,
        )

    def bare(self, place: StoreSettings) -> BareStore:
        """The bare way to the same place."""
        return BareDisk(place.path) if place.kind is StoreKind.DISK else BareObjects(place)


@contextmanager
def measured_stores(directory: Path) -> Iterator[list[MeasuredStore]]:
    """A directory, and a real S3 server on this machine, which needs its share of the cores."""
    with ExitStack() as stack:
        server = stack.enter_context(SeaweedServer(directory / "seaweed"))
        server.client.create_bucket(Bucket=BUCKET)
        yield [
            MeasuredStore("disk", directory, StoreSettings()),
            MeasuredStore("S3 (SeaweedFS)", directory, server.settings(BUCKET)),
        ]
