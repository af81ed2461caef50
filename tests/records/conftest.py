"""Every test of records runs twice, unless ``walks`` says otherwise: with the compiled walk, and with Python's."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from courser.records import batch, classic, frame_walk, stored_header
from courser.storage import index_entries
from tests.records.walks import BOTH


@pytest.fixture(autouse=True, scope="module", params=BOTH)
def walk(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Who walks over the frames."""
    module: ModuleType = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_walk, "survey", module.survey)
        patch.setattr(index_entries, "first_in_cells", module.first_in_cells)
        patch.setattr(batch, "check_batch", module.check_batch)
        patch.setattr(stored_header, "stamp_header", module.stamp_header)
        patch.setattr(classic, "survey_classic", module.survey_classic)
        patch.setattr(classic, "frames_from_classic", module.frames_from_classic)
        patch.setattr(classic, "classic_from_frames", module.classic_from_frames)
        yield module
