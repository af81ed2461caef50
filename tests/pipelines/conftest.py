"""A scene for each test."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipelines.scenes import Scene
from tests.servers import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer, spark: "SparkSession") -> Scene:
    """A folder of this test's own, the server of the module, the session of the run."""
    return Scene(tmp_path, server, spark)
