"""Condense a partition on this thread, as the broker does it in the pool; and batches of messages with keys."""

from collections.abc import Sequence

from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.message_keys import key_header
from courser.records.user_headers import build_user_headers
from courser.storage.condensing import (
    CondensedCopy,
    KeySlice,
    KeySurvey,
    TooManyKeys,
    condensable_segments,
    plan_replacement,
)
from courser.storage.jobs import perform
from courser.storage.partition_log import PartitionLog

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
    slice_count = 1
    while True:
        try:
            return sum(
                _condense_slice(log, KeySlice(number, slice_count), tombstones_before, end_offset)
                for number in range(slice_count)
            )
        except TooManyKeys:
            slice_count *= 2


def _condense_slice(log: PartitionLog, key_slice: KeySlice, tombstones_before: int, end_offset: int) -> int:
    segments = condensable_segments(log, end_offset=end_offset, stored_before=FAR)
    survey = KeySurvey(log, segments, key_slice, tombstones_before=tombstones_before)
    for _ in survey.steps():
        pass
    count = 0
    for segment in filter(survey.is_worthwhile, segments):
        copy = CondensedCopy(log, segment, survey)
        for _ in copy.steps():
            pass
        job = plan_replacement(log, copy)
        count += job is not None and perform(job)
    return count
