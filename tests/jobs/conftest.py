"""The command line in the process that has Spark, pointed at the server of the module."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from courser.cli.main import run
from tests.servers import RunningServer


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


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

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(code), captured.out, captured.err)

    return call
