"""What a simulated server is made of: random settings, and constants made so small that every path is taken."""

import contextlib
import random
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

from courser.model.durability import Durability, DurabilityPolicy
from courser.storage import (
    durable_files,
    index_file,
    ledger,
    offset_table,
    quarantine,
    read_result,
    reading,
    scan,
    sealed_files,
    segment_index,
    upkeep,
)
from courser.storage.index_entries import ROW
from courser.storage.segment_index import IndexCache
from courser.storage.settings import LogSettings

_BLOCK_SIZE = 256
_ENTRIES_PER_BLOCK = (_BLOCK_SIZE - index_file.BLOCK_HEADER.size) // ROW.itemsize

_SMALL: tuple[tuple[ModuleType, str, int], ...] = (
    (index_file, "BLOCK_SIZE", _BLOCK_SIZE),
    (segment_index, "BLOCK_SIZE", _BLOCK_SIZE),
    (sealed_files, "BLOCK_SIZE", _BLOCK_SIZE),
    (upkeep, "BLOCK_SIZE", _BLOCK_SIZE),
    (index_file, "ENTRIES_PER_BLOCK", _ENTRIES_PER_BLOCK),
    (segment_index, "ENTRIES_PER_BLOCK", _ENTRIES_PER_BLOCK),
    (upkeep, "_INDEX_FLUSH_BLOCK_COUNT", 1),
    (offset_table, "_REWRITE_SIZE", 64),
    (upkeep, "_OFFSETS_MARK_SIZE", 64),
    (ledger, "_GARBAGE_COUNT_MAX", 8),
    (reading, "_LARGE_BATCH_SIZE", 700),
    (reading, "_VERIFIED_COUNT_MAX", 4),
    (reading, "_CURSOR_COUNT_MAX", 4),
    (scan, "_WINDOW_SIZE", 1024),
    (quarantine, "_STEP_SIZE", 512),
    (durable_files, "_COPY_SIZE", 512),
    (read_result, "_FIRST_SIZE", 512),
)
"""Module, constant, and the value at which a few dozen operations reach what takes gigabytes in life."""


@contextlib.contextmanager
def small_numbers() -> Iterator[None]:
    """Run the engine with tiny blocks, windows and thresholds."""
    with contextlib.ExitStack() as stack:
        for module, name, value in _SMALL:
            assert isinstance(getattr(module, name), int), name
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def random_policy(source: random.Random) -> DurabilityPolicy:
    """Any level, with bounds that a handful of sends reach."""
    return DurabilityPolicy(
        level=source.choice(tuple(Durability)),
        message_count_max=source.choice((1, 3, 8, 20, 60)),
        size_max=source.choice((300, 1_000, 3_000, 20_000)),
        interval=source.choice((1_000, 100_000, 1_000_000)),
    )


def random_settings(source: random.Random) -> LogSettings:
    """Settings of one start of one partition. They may differ from those of the start before."""
    return LogSettings(
        segment_size=source.choice((1_024, 2_048, 4_096, 8_192)),
        segment_age_max=source.choice((50_000, 5_000_000, 10**12)),
        index_interval=source.choice((1, 64, 256, 1_000)),
        index_cache=source.choice(tuple(IndexCache)),
        durability=random_policy(source),
        allocation_min=source.choice((64, 512, 4_096)),
        allocation_max=source.choice((1_024, 8_192)),
        writeback_size=source.choice((512, 8_192)),
        recovery_point_size=source.choice((300, 1_000, 3_000, 100_000)),
        reservation_min=source.choice((4, 16, 64)),
        reservation_max=source.choice((64, 256)),
        open_file_count_max=source.choice((1, 2, 8)),
    )
