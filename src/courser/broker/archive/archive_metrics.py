"""The figures of the archive: what is written, read and removed. Without an archive, they are zero.

Apart from the code that they are about: a server without an archive does not import that.
"""

from typing import TYPE_CHECKING

from courser.model import metric_table as m
from courser.model.metrics import Metric, Registry

if TYPE_CHECKING:
    from courser.broker.archive.archive_pruning import ArchivePruner
    from courser.broker.archive.archive_share import ArchiveShare
    from courser.broker.partition.tiered_reads import TieredReads


def register_archive_metrics(registry: Registry, share: "ArchiveShare | None") -> None:
    """Name the figures of uploads."""
    if share is None:
        _register_zeros(
            registry,
            m.ARCHIVE_UPLOADS,
            m.ARCHIVE_UPLOADED_BYTES,
            m.ARCHIVE_FAILURES,
            m.ARCHIVE_BACKLOG,
            m.ARCHIVE_OLDEST_AGE,
            m.ARCHIVE_GONE,
        )
        return
    counters = share.counters
    registry.value_of(m.ARCHIVE_UPLOADS, lambda: counters.upload_count)
    registry.value_of(m.ARCHIVE_UPLOADED_BYTES, lambda: counters.upload_size)
    registry.value_of(m.ARCHIVE_FAILURES, lambda: counters.failure_count)
    registry.surveys.append(share.survey)
    registry.value_of(m.ARCHIVE_BACKLOG, lambda: share.backlog.size)
    registry.value_of(m.ARCHIVE_OLDEST_AGE, share.oldest_age)
    registry.value_of(m.ARCHIVE_GONE, lambda: int(share.is_gone))


def register_read_metrics(registry: Registry, past: "TieredReads | None") -> None:
    """Name the figures of reads from the archive."""
    if past is None:
        _register_zeros(
            registry,
            m.ARCHIVE_READS,
            m.ARCHIVE_CACHE_HITS,
            m.ARCHIVE_CACHE_MISSES,
            m.ARCHIVE_FETCHED_BYTES,
            m.ARCHIVE_FETCH_FAILURES,
        )
        return
    counters = past.counters
    registry.value_of(m.ARCHIVE_READS, lambda: past.read_count)
    registry.value_of(m.ARCHIVE_CACHE_HITS, lambda: counters.hit_count)
    registry.value_of(m.ARCHIVE_CACHE_MISSES, lambda: counters.miss_count)
    registry.value_of(m.ARCHIVE_FETCHED_BYTES, lambda: counters.fetch_size)
    registry.value_of(m.ARCHIVE_FETCH_FAILURES, lambda: counters.failure_count)


def register_prune_metrics(registry: Registry, pruner: "ArchivePruner | None") -> None:
    """Name the figures of removed objects."""
    if pruner is None:
        _register_zeros(registry, m.ARCHIVE_PRUNED, m.ARCHIVE_PRUNED_BYTES)
        return
    counters = pruner.counters
    registry.value_of(m.ARCHIVE_PRUNED, lambda: counters.object_count)
    registry.value_of(m.ARCHIVE_PRUNED_BYTES, lambda: counters.size)


def _register_zeros(registry: Registry, *metrics: Metric) -> None:
    for metric in metrics:
        registry.value_of(metric, lambda: 0)
