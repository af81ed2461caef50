"""What commands that run Spark install: nothing without a question or ``--install``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from courser.cli import job_support, terminal
from courser.cli.demo_commands import demo_command
from courser.cli.failures import Failure
from courser.cli.job_commands import export_command
from courser.cli.pipeline_commands import check_command, run_command
from courser.spark.installing import NotInstalled, Requirement

PIPELINE = '[pipeline]\nname = "p"\n[source]\ntype = "files"\nformat = "text"\npath = "in"\n[sink]\ntype = "console"\n'
MISSING = Requirement("pyspark", "pyspark<5,>=4.0", (4, 0))


class Installed(Exception):
    """Somebody agreed."""


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(
        environment: Mapping[str, str], say: object, *, extras: Sequence[str], agrees: Any, **_: object
    ) -> None:
        if agrees("install pyspark (about 450 MB) into /there"):
            raise Installed
        raise NotInstalled([MISSING])

    monkeypatch.setattr(job_support, "prepare", prepare)


def outcome(command: click.Command, *arguments: str) -> BaseException | None:
    return CliRunner().invoke(command, arguments, standalone_mode=False).exception


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "p.toml"
    path.write_text(PIPELINE)
    return str(path)


@pytest.mark.usefixtures("without_spark")
def test_without_a_terminal_an_error_names_the_command(file: str) -> None:
    for failure in (
        outcome(demo_command),
        outcome(export_command, "shop/orders", "lake"),
        outcome(run_command, file),
        outcome(check_command, file),
    ):
        assert isinstance(failure, Failure)
        assert "-m pip install 'pyspark<5,>=4.0'" in str(failure)


@pytest.mark.usefixtures("without_spark")
def test_the_option_agrees_and_check_does_not_have_it(file: str) -> None:
    assert isinstance(outcome(demo_command, "--install"), Installed)
    assert isinstance(outcome(export_command, "shop/orders", "lake", "--install"), Installed)
    assert isinstance(outcome(run_command, file, "--install"), Installed)
    assert isinstance(outcome(check_command, file, "--install"), click.NoSuchOption)


@pytest.mark.usefixtures("without_spark")
def test_at_a_terminal_the_user_is_asked_except_by_check(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def ask(question: str) -> bool:
        questions.append(question)
        return True

    monkeypatch.setattr(job_support, "confirmed", ask)
    assert isinstance(outcome(run_command, file), Installed)
    assert questions == ["install pyspark (about 450 MB) into /there"]
    assert isinstance(outcome(check_command, file), Failure)
    assert len(questions) == 1


def test_no_terminal_is_no() -> None:
    @click.command()
    def ask() -> None:
        click.echo(terminal.confirmed("install it"))

    assert CliRunner().invoke(ask, input="y\n").stdout == "False\n"
