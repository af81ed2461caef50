"""Chooses who walks over the frames: the compiled functions if they were built, else the same in Python.

The only place that knows there are two. ``COURSER_PURE=1`` in the environment asks for Python.
"""

import os
from collections.abc import Callable
from typing import TypeAlias

from courser.model.buffers import Buffer
from courser.records import frame_walk_pure

Survey: TypeAlias = Callable[[Buffer, int], tuple[int, bytes, bytes, bool, bool] | None]
FirstInCells: TypeAlias = Callable[[Buffer, int, int, int, int, int, int], tuple[bytes, bytes, int]]


def _choose() -> tuple[Survey, FirstInCells, bool]:
    if not os.environ.get("COURSER_PURE"):
        try:
            from courser.records import _frame_walk  # noqa: PLC0415 -- not there if nothing could compile it
        except ImportError:
            return frame_walk_pure.survey, frame_walk_pure.first_in_cells, False
        return _frame_walk.survey, _frame_walk.first_in_cells, True
    return frame_walk_pure.survey, frame_walk_pure.first_in_cells, False


survey, first_in_cells, is_compiled = _choose()
