"""The command line in the process that has Spark, pointed at the server of the module."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cli.commands import Cli, in_this_process
from tests.servers import RunningServer


@pytest.fixture
def cli(
    spark: SparkSession,
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Cli:
    """Runs a command in this process, which leaves the session alone."""
    monkeypatch.setenv("COURSER_URL", f"iggy://iggy:iggy@{server.address}")
    monkeypatch.setenv("COURSER_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COURSER_CONFIG_HOME", str(tmp_path / "config"))
    return in_this_process(capsys)
