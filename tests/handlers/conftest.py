"""What tests of handlers share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.handlers.scenes import Scene, opened


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(tmp_path / "data") as scene:
        yield scene
