"""Functions that walk over the messages of a batch: compiled if available, otherwise in Python.

The only place that knows both implementations. ``COURSER_PURE=1`` in the environment selects Python. The functions are
documented in ``frame_walk_pure``.
"""

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from courser.model.buffers import Buffer
from courser.records import frame_walk_pure
from courser.records.known_batch import find_failure

Survey: TypeAlias = Callable[[Buffer, int], tuple[int, bytes, bytes, bool, bool] | None]
FirstInCells: TypeAlias = Callable[[Buffer, int, int, int, int, int, int], tuple[bytes, bytes, int]]
CheckBatch: TypeAlias = Callable[
    [Buffer], tuple[int, int, int, bytes, bytes] | tuple[int, int, int, bytes, bytes, bytes] | None
]
StampHeader: TypeAlias = Callable[[bytes, Buffer, Buffer, int, int, int, int, int], bytearray]
SurveyClassic: TypeAlias = Callable[[Buffer, int, int, int, int], tuple[int, int, int] | None]
FramesFromClassic: TypeAlias = Callable[[Buffer, Buffer, memoryview, int, int, int], tuple[int, bytes, bytes] | None]
ClassicFromFrames: TypeAlias = Callable[[Buffer, memoryview, int, int, int, int, int, int], int | None]
TakeClassicSend: TypeAlias = Callable[
    [memoryview, Callable[[int], bytes], int, int, int, int],
    tuple[bytes, int, int, memoryview, int, bytes, bytes] | None,
]
TakenSend: TypeAlias = tuple[Any, ...]
TakeVsrSend: TypeAlias = Callable[[memoryview], TakenSend | None]
SpreadIds: TypeAlias = Callable[[bytes, int, int], bytes]
WriteFrames: TypeAlias = Callable[[list[Buffer], list[Buffer] | None, Buffer, memoryview], None]
FillChecksums: TypeAlias = Callable[[Buffer, int], None]
CutFrames: TypeAlias = Callable[[Buffer, int, int, int], tuple[int, int, int]]
GoodBatches: TypeAlias = Callable[[Buffer, bytes, int], tuple[int, int]]


COMPILED_NAME = "_courser_frame_walk"
"""The compiled module. It is outside the package because an installation writes nothing into a checkout."""


def find_compiled() -> ModuleType | None:
    """The compiled functions; None if they were not compiled, or from other sources than these, as after a checkout.

    Raises:
        ImportError: they cannot be loaded.
    """
    try:
        compiled = import_module(COMPILED_NAME)
    except ModuleNotFoundError:
        return None
    return compiled if getattr(compiled, "INTERFACE", 1) == frame_walk_pure.INTERFACE else None


def choose() -> ModuleType:
    """The compiled functions if they are there and work, otherwise those in Python."""
    if os.environ.get("COURSER_PURE"):
        return frame_walk_pure
    try:
        compiled = find_compiled()
        if compiled is None:
            return frame_walk_pure
        failure = find_failure(compiled)
    except ImportError as error:
        failure = str(error)
    else:
        if failure is None:
            return compiled
    warnings.warn(
        f"the compiled part of courser does not work, using Python code instead: {failure}; reinstall courser",
        RuntimeWarning,
        stacklevel=2,
    )
    return frame_walk_pure


_chosen = choose()
is_compiled = _chosen is not frame_walk_pure

survey: Survey = _chosen.survey
first_in_cells: FirstInCells = _chosen.first_in_cells
check_batch: CheckBatch = _chosen.check_batch
stamp_header: StampHeader = _chosen.stamp_header
survey_classic: SurveyClassic = _chosen.survey_classic
frames_from_classic: FramesFromClassic = _chosen.frames_from_classic
classic_from_frames: ClassicFromFrames = _chosen.classic_from_frames
take_classic_send: TakeClassicSend = _chosen.take_classic_send
take_vsr_send: TakeVsrSend = _chosen.take_vsr_send
spread_ids: SpreadIds = _chosen.spread_ids
write_frames: WriteFrames = _chosen.write_frames
fill_checksums: FillChecksums = _chosen.fill_checksums
cut_frames: CutFrames = _chosen.cut_frames
good_batches: GoodBatches = _chosen.good_batches
