"""Addresses never become folders that are named like them."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from courser.cli import audit_commands, demo_commands, job_commands, pipeline_commands
from courser.cli.audit_commands import audit_command
from courser.cli.demo_commands import demo_command
from courser.cli.job_commands import backfill_command, compact_command, export_command, merge_command
from courser.cli.job_support import LocalPath
from courser.cli.pipeline_commands import list_command
from courser.jobs.job_book import book_path, state_home
from courser.spark.addresses import AddressGiven, check_local, is_address
from courser.spark.options import OptionRefused, Use
from courser.spark.read_options import read_options


@pytest.mark.parametrize("place", ["s3a://lake/ck", "hdfs:/ck", "S3://x", "abfss://a@b.c/d", Path("gs://lake/ck")])
def test_addresses_are_refused(place: str | Path) -> None:
    assert is_address(place)
    with pytest.raises(AddressGiven, match=r"^the folder must be a local or mounted folder or file, not the address "):
        check_local(place, "the folder")


@pytest.mark.parametrize("place", ["lake", "/lake/a:b", "a:b", "./s3a:/x", Path("topic=a:b/c"), "~/lake"])
def test_paths_are_not(place: str | Path) -> None:
    assert not is_address(place)
    check_local(place, "the folder")


def test_the_sentence_shows_the_address_as_it_was_written() -> None:
    # A path has lost a slash.
    with pytest.raises(AddressGiven, match="not the address s3a://lake/ck;"):
        check_local(Path("s3a://lake/ck"), "the folder")
    with pytest.raises(AddressGiven, match=r"without file:, so write /a/b$"):
        check_local("file:///a/b", "the folder")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (export_command, ["shop/orders", "s3://lake/x"]),
        (export_command, ["shop/orders", "lake", "--data", "s3://lake/x"]),
        (merge_command, ["s3://lake/x"]),
        (compact_command, ["shop/orders", "--folder", "s3://lake/x"]),
        (backfill_command, ["shop/orders", "s3://lake/x"]),
        (backfill_command, ["shop/orders", "a.csv", "--books", "s3://lake/x"]),
        (audit_command, ["s3://lake/x"]),
        (demo_command, ["--keep", "s3://lake/x"]),
        (list_command, ["--state", "s3://lake/x"]),
    ],
)
def test_commands_refuse_addresses_before_they_do_anything(
    command: click.Command, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not the address s3://lake/x" in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_every_path_of_these_commands_is_one_that_refuses_addresses() -> None:
    commands = {
        name: found
        for module in (audit_commands, demo_commands, job_commands, pipeline_commands)
        for name, found in vars(module).items()
        if isinstance(found, click.Command)
    }
    paths = [
        (name, parameter.name, parameter.type)
        for name, command in commands.items()
        for parameter in command.params
        if isinstance(parameter.type, click.Path)
    ]
    assert len(paths) > len(commands)
    assert [(name, path) for name, path, kind in paths if not isinstance(kind, LocalPath)] == []


@pytest.mark.parametrize("option", ["path", "quarantinePath"])
def test_options_of_the_data_source_refuse_addresses(option: str) -> None:
    given = {"stream": "s", "topic": "t", "source": "segments", "path": "data", "onCorrupt": "quarantine"}
    given |= {"quarantinePath": "bad"} | {option: "s3://lake/x"}
    with pytest.raises(OptionRefused, match=f'option "{option}" must be a local or mounted folder'):
        read_options(given, Use.BATCH, {})


def test_the_state_is_on_this_machine() -> None:
    with pytest.raises(AddressGiven, match=r"^COURSER_STATE_HOME must be"):
        state_home({"COURSER_STATE_HOME": "s3://lake/x"})
    with pytest.raises(AddressGiven):
        book_path(Path("s3://lake/x"), "job")
