"""Who walks over the frames in the tests of records: both walks, unless a module says otherwise with a mark.

A module without such a mark runs twice: with the compiled walk, if it was built, and with Python's.
"""

from types import ModuleType, SimpleNamespace

import pytest

from courser.records import frame_walk, frame_walk_pure

_NAMES = (
    "survey",
    "first_in_cells",
    "check_batch",
    "stamp_header",
    "survey_classic",
    "frames_from_classic",
    "classic_from_frames",
)
"""The functions that the tests replace by those of a walk: see ``conftest``."""

compiled: ModuleType | None
try:
    compiled = frame_walk.find_compiled()
except ImportError:
    compiled = None


def _unexpected(*_arguments: object) -> object:
    raise AssertionError("this module walks over frames: without the mark NO_WALK, it is tested with both walks")


_COMPILED = pytest.param(compiled, id="compiled", marks=pytest.mark.skipif(compiled is None, reason="it was not built"))
_NONE = SimpleNamespace(**dict.fromkeys(_NAMES, _unexpected))

BOTH = [_COMPILED, pytest.param(frame_walk_pure, id="pure")]
COMPILED_ONLY = pytest.mark.parametrize("walk", [_COMPILED], indirect=True)
"""For tests of functions that only the compiled walk has."""
NO_WALK = pytest.mark.parametrize("walk", [pytest.param(_NONE, id=pytest.HIDDEN_PARAM)], indirect=True)
"""For tests of code that walks over no frames: a second round would prove nothing. A walk fails them."""
