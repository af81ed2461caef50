"""Functions that walk over the messages of a batch: compiled if available, otherwise in Python.

The only place that knows both implementations. ``COURSER_PURE=1`` in the environment selects Python. The functions are
documented in ``frame_walk_pure``.
"""

import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from courser.records import frame_walk_pure
from courser.records.known_batch import find_failure

if TYPE_CHECKING:
    # Both have the same functions, so one declares their types.
    from courser.records import frame_walk_pure as _chosen

TakenSend: TypeAlias = tuple[Any, ...]

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


if not TYPE_CHECKING:
    _chosen = choose()
is_compiled = _chosen is not frame_walk_pure

survey = _chosen.survey
first_in_cells = _chosen.first_in_cells
check_batch = _chosen.check_batch
stamp_header = _chosen.stamp_header
survey_classic = _chosen.survey_classic
frames_from_classic = _chosen.frames_from_classic
classic_from_frames = _chosen.classic_from_frames
take_classic_send = _chosen.take_classic_send
take_vsr_send = _chosen.take_vsr_send
spread_ids = _chosen.spread_ids
write_frames = _chosen.write_frames
fill_checksums = _chosen.fill_checksums
cut_frames = _chosen.cut_frames
good_batches = _chosen.good_batches
