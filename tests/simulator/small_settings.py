"""What a simulated server is made of: random settings, and limits so small that every path is taken."""

import random

from courser.model.durability import Durability, DurabilityPolicy
from courser.storage.segment_index import IndexCache
from courser.storage.settings import EngineLimits, LogSettings
from tests.storage.engine import ENCODINGS, encoded

SMALL_LIMITS = EngineLimits(
    index_block_size=256,
    index_flush_block_count=1,
    offsets_rewrite_size=64,
    offsets_mark_size=64,
    ledger_garbage_count_max=8,
    large_batch_size=700,
    verified_count_max=4,
    cursor_count_max=4,
    scan_window_size=1024,
    copy_size=512,
    inline_size=900,
    read_buffer_size=512,
)
"""With these a few dozen operations reach code that takes gigabytes in production."""


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
    settings = LogSettings(
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
        limits=SMALL_LIMITS,
    )
    # Drawn from the others, so that a seed leads to the same run as before there were encodings.
    return encoded(settings, random.Random(repr(settings)).choice(list(ENCODINGS)))
