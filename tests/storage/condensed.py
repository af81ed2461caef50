"""Condense a partition on this thread, as the broker does it in the pool; and batches of messages with keys."""

from collections.abc import Sequence

from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.message_keys import key_header
from courser.records.user_headers import build_user_headers
from courser.storage.condensing import (
    CondensedCopy,
    KeySlice,
    KeySurvey,
    Removals,
    TooManyKeys,
    condensable_segments,
    plan_condensed,
)
from courser.storage.jobs import perform
from courser.storage.partition_log import PartitionLog
from courser.storage.segment import Segment

FAR = 2**62
"""An offset and a time after all others."""


def keyed(messages: Sequence[tuple[bytes | None, bytes]]) -> Batch:
    """A batch of messages, each with a key or without."""
    return build_batch(
        [
            NewMessage(payload, number, user_headers=build_user_headers([key_header(key)]) if key else b"")
            for number, (key, payload) in enumerate(messages, 1)
        ]
    )


def condense(log: PartitionLog, *, tombstones_before: int = 0, end_offset: int = FAR) -> int:
    """Condense all that may be condensed, in as many passes as it takes. Returns how many files were replaced."""
    segments = condensable_segments(log, end_offset=end_offset, stored_before=FAR)
    removals = survey(log, segments, tombstones_before)
    count = 0
    for segment in filter(removals.concern, segments):
        copy = CondensedCopy(log, segment, removals)
        for _ in copy.steps():
            pass
        job = plan_condensed(log, copy)
        count += job is not None and perform(job)
    return count


def survey(log: PartitionLog, segments: Sequence[Segment], tombstones_before: int = 0) -> Removals:
    """What can be removed from segments."""
    slice_count = 1
    while True:
        removals = Removals(log, segments)
        try:
            for number in range(slice_count):
                key_slice = KeySlice(number, slice_count)
                for _ in KeySurvey(log, removals, key_slice, tombstones_before=tombstones_before).steps():
                    pass
        except TooManyKeys:
            slice_count *= 2
        else:
            return removals
