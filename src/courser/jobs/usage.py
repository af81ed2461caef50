"""Usage: how large topics are, how fast they grow, how large messages are, and when retention will take effect.

Reads the batch headers in the segment files in parallel. Needs neither a server nor the payloads.
"""

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pyspark.sql import SparkSession

from courser.errors import ClientFailure
from courser.inspect.metadata_check import examine_metadata, read_metadata_files
from courser.jobs.segment_figures import SegmentFigures, figures_of
from courser.jobs.tasks import run_in_tasks
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from courser.records.stored_header import PartitionIdentity
from courser.storage.files import FileSystem
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import LOG_SUFFIX, base_offset_of, log_path, partition_directory

WINDOW_HOURS = 24
"""Hours over which rates are averaged: a day includes quiet and busy times."""

_READ_SHARE = 10
"""About one byte in this many is read: some batches are read as a whole, of others only headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Messages of similar size."""

    size_min: int
    size_max: int
    """Bytes of payload and user headers, both included."""
    message_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUsage:
    """The measurements of one topic."""

    stream: str
    topic: str
    partition_count: int
    segment_count: int
    message_count: int
    size: int
    """Bytes of the logs."""
    message_size: int
    """Bytes of payloads and user headers alone."""
    first_timestamp: int | None
    last_timestamp: int | None
    """Microseconds since 1970; None without messages."""
    bytes_per_second: float
    messages_per_second: float
    largest_partition_share: float
    """Share of all bytes; 1 / partition_count means perfectly even."""
    sizes: tuple[SizeClass, ...]
    expiry_seconds: float | None
    """Age at which messages are deleted; None: never, or the server's default."""
    size_max: int | None
    """Bytes from which the oldest segments are deleted; None: no limit, or the server's default."""
    kept_size: int | None
    """Bytes that the topic will level off at with this rate, if its own options limit it."""
    seconds_to_limit: float | None
    """Seconds until ``size_max`` is reached at this rate; 0 if it already is, None if it never will be."""
    damaged_count: int
    """Segments that could not be read to the end; ``audit`` tells why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """All topics, and the disk that they are on."""

    topics: tuple[TopicUsage, ...]
    disk_free: int
    """Bytes."""
    seconds_to_full_disk: float | None
    """At this rate, if nothing is deleted; None if nothing grows."""
    window_hours: int
    read_size: int
    """Bytes that were read."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Partition:
    """The files of one partition."""

    stream: str
    topic: str
    options: TopicOptions
    identity: PartitionIdentity
    segments: tuple[tuple[Path, int], ...]
    """The logs, oldest first, with their bytes including preallocated space."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A segment to measure."""

    identity: PartitionIdentity
    path: Path
    size: int
    is_open: bool
    """Whether the server may be writing to it."""


class NotADataDirectory(ClientFailure):
    """The directory has no readable metadata."""


class NoSuchTopic(ClientFailure):
    """No stream or topic has the name."""


def usage(
    spark: SparkSession,
    data_directory: Path,
    *,
    stream: str | None = None,
    topic: str | None = None,
    window_hours: int = WINDOW_HOURS,
    now: int | None = None,
) -> UsageReport:
    """Measure the topics in a data directory. All workers must see the directory.

    Args:
        spark: The session to use.
        data_directory: The data directory of a server, which may be running.
        stream: Measure only this stream.
        topic: Measure only this topic of the stream.
        window_hours: Hours over which rates are averaged.
        now: End of that window in microseconds since 1970; None: the current time.

    Raises:
        NotADataDirectory: the directory has no readable metadata.
        NoSuchTopic: no stream or topic has this name.
    """
    began = time.monotonic()
    data_directory = data_directory.absolute()
    partitions = _find_partitions(LocalFileSystem(), data_directory, stream, topic)
    work = [
        _Work(partition.identity, path, size, is_open=path == partition.segments[-1][0])
        for partition in partitions
        for path, size in partition.segments
    ]
    found = run_in_tasks(spark, _measure, work, weight=lambda item: item.size // _READ_SHARE)
    by_path = {item.path: figures for item, figures in zip(work, found, strict=True)}
    clock = time.time_ns() // 1000 if now is None else now
    grouped = groupby(partitions, key=lambda partition: (partition.stream, partition.topic))
    topics = tuple(_topic(list(members), by_path, clock, window_hours) for _, members in grouped)
    free = shutil.disk_usage(data_directory).free
    rate = sum(each.bytes_per_second for each in topics)
    return UsageReport(
        topics=topics,
        disk_free=free,
        seconds_to_full_disk=free / rate if rate else None,
        window_hours=window_hours,
        read_size=sum(figures.read_size for figures in found),
        seconds=time.monotonic() - began,
    )


def _find_partitions(
    files: FileSystem, data_directory: Path, stream: str | None, topic: str | None
) -> list[_Partition]:
    """All partitions, or those of one stream or topic: names from the metadata, directories from the ids."""
    metadata = examine_metadata(read_metadata_files(files, data_directory), data_directory)
    if metadata.state is None:
        reason = metadata.findings[0].reason if metadata.findings else "it contains no metadata"
        raise NotADataDirectory(f"{data_directory} is not a readable data directory: {reason}")
    found = []
    for owner in metadata.state.streams.values():
        for entity in owner.topics.values():
            if stream not in (None, owner.name) or topic not in (None, entity.name):
                continue
            for partition in entity.partitions:
                ids = partition.partition_id, partition.incarnation
                place = partition_directory(data_directory, owner.stream_id, entity.topic_id, *ids)
                identity = PartitionIdentity(entity.uuid, *ids)
                found.append(_Partition(owner.name, entity.name, entity.options, identity, _segments(files, place)))
    if not found:
        name = "/".join(name for name in (stream, topic) if name is not None)
        raise NoSuchTopic(f"{data_directory} has no topic {name}" if name else f"{data_directory} has no topics")
    return sorted(found, key=lambda each: (each.stream, each.topic, each.identity.partition_id))


def _segments(files: FileSystem, directory: Path) -> tuple[tuple[Path, int], ...]:
    try:
        entries = files.list_directory(directory)
    except FileNotFoundError:
        # Just deleted, or not created yet.
        return ()
    sizes = {base: entry.size for entry in entries if (base := base_offset_of(entry.name, LOG_SUFFIX)) is not None}
    return tuple((log_path(directory, base), size) for base, size in sorted(sizes.items()))


def _measure(work: _Work) -> SegmentFigures:
    """Measure one segment; runs in a task."""
    try:
        file = LocalFileSystem().open(work.path)
    except FileNotFoundError:
        # Retention deleted it after the directory was listed.
        return SegmentFigures()
    try:
        figures = figures_of(file, work.identity)
    finally:
        file.close()
    if work.is_open:
        # A write in progress looks like damage here; an audit checks again.
        figures.damaged_count = 0
    return figures


def _topic(
    partitions: list[_Partition], by_path: dict[Path, SegmentFigures], now: int, window_hours: int
) -> TopicUsage:
    total, sizes = SegmentFigures(), []
    for partition in partitions:
        mine = _sum(by_path[path] for path, _ in partition.segments)
        sizes.append(mine.size)
        total.add(mine)
    byte_rate, message_rate = total.rate_since(now, window_hours)
    options = partitions[0].options
    expiry = options.message_expiry if options.message_expiry not in (None, NEVER) else None
    size_max = options.max_topic_size if options.max_topic_size not in (None, NEVER) else None
    bounds = [bound for bound in (expiry and byte_rate * expiry / 1e6, size_max) if bound is not None]
    return TopicUsage(
        stream=partitions[0].stream,
        topic=partitions[0].topic,
        partition_count=len(partitions),
        segment_count=sum(len(partition.segments) for partition in partitions),
        message_count=total.message_count,
        size=total.size,
        message_size=total.message_size,
        first_timestamp=total.first_timestamp,
        last_timestamp=total.last_timestamp,
        bytes_per_second=byte_rate,
        messages_per_second=message_rate,
        largest_partition_share=max(sizes) / total.size if total.size else 0.0,
        sizes=_size_classes(total),
        expiry_seconds=expiry / 1e6 if expiry is not None else None,
        size_max=size_max,
        kept_size=int(min(bounds)) if bounds else None,
        seconds_to_limit=_seconds_to_limit(total.size, size_max, byte_rate, expiry),
        damaged_count=total.damaged_count,
    )


def _sum(parts: Iterable[SegmentFigures]) -> SegmentFigures:
    total = SegmentFigures()
    for part in parts:
        total.add(part)
    return total


def _size_classes(figures: SegmentFigures) -> tuple[SizeClass, ...]:
    return tuple(
        SizeClass(size_min=2 ** (bits - 1) if bits else 0, size_max=2**bits - 1, message_count=count)
        for bits, count in sorted(figures.size_counts.items())
    )


def _seconds_to_limit(size: int, size_max: int | None, rate: float, expiry: int | None) -> float | None:
    if size_max is None:
        return None
    if size >= size_max:
        return 0.0
    # If messages expire by age first, the topic may never reach its size limit.
    if rate == 0 or (expiry is not None and rate * expiry / 1e6 < size_max):
        return None
    return (size_max - size) / rate
