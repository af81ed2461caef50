"""Takes the facts about a partition that an archive run works from."""

from collections.abc import Sequence

from courser.archive.capture import CapturedPartition, CapturedSegment
from courser.storage.ledger import SegmentFacts
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment


def captured_partition(log: PartitionLog, sealed: Sequence[Segment], *, with_active: bool) -> CapturedPartition:
    """A partition as it is now, with these segments to archive, and the one that is still written if that is wanted."""
    segments = [_captured_segment(log, segment, segment.facts(), is_sealed=True) for segment in sealed]
    written, facts = log.open_segment, log.synced_facts
    is_known = written is not None and facts is not None and facts.base_offset == written.base_offset
    if with_active and is_known and written is not None and facts is not None and facts.size:
        segments.append(_captured_segment(log, written, facts, is_sealed=False))
    ledger = log.ledger.state
    return CapturedPartition(
        identity=log.identity,
        directory=log.directory,
        segments=tuple(segments),
        local_segments=tuple(
            (segment.base_offset, segment.end_offset) for segment in log.segments if segment.message_count
        ),
        start_offset=log.start_offset,
        next_offset=log.next_offset,
        reserved_end=log.reserved_end,
        last_timestamp=max([ledger.numbers.last_timestamp, *(segment.last_timestamp for segment in log.segments)]),
        purge_count=log.epoch,
        gaps=tuple(ledger.gaps),
        damages=tuple(
            dict.fromkeys([*ledger.damages, *(damage for segment in log.segments for damage in segment.damages)])
        ),
        corrections=tuple(ledger.corrections.items()),
        offsets=tuple(log.offsets.items()),
    )


def _captured_segment(log: PartitionLog, segment: Segment, facts: SegmentFacts, *, is_sealed: bool) -> CapturedSegment:
    recorded = tuple(damage for damage in log.ledger.state.damages if damage.base_offset == facts.base_offset)
    places = {damage.position for damage in recorded}
    is_doubtful = any(damage.position not in places for damage in segment.damages)
    return CapturedSegment(facts, is_sealed, recorded, is_doubtful)
