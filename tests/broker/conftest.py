"""What tests of the broker share."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from tests.broker.open_partitions import DIRECTORY, GatedFileSystem


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture
def disk() -> GatedFileSystem:
    disk = GatedFileSystem()
    disk.plant_directory(DIRECTORY.parent)
    return disk
