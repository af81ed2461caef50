"""``courser archive``: list, verify, restore and prune."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.archive.brokers import archiver_of, fill, running, settings_of, texts
from tests.cli.commands import Cli, forget_settings_of_others, in_this_process


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, with the archive of the test."""
    forget_settings_of_others(monkeypatch, tmp_path)
    monkeypatch.setenv("COURSER_DATA_MAINTENANCE_ARCHIVER_PATH", str(tmp_path / "archive"))
    return in_this_process(capsys)


async def archive(tmp_path: Path) -> None:
    """An archive with two segments, and pieces of a third that was then sealed."""
    async with running(tmp_path / "old", settings_of(tmp_path / "archive")) as (broker, client):
        await fill(broker, client, "a", "b")
        await client.send_messages("shop/orders", partitioning=0, messages=["c"])
        assert await archiver_of(broker).run_once(with_active=True)
        await fill(broker, client, "d")
        assert await archiver_of(broker).run_once()


async def restored(tmp_path: Path) -> list[bytes]:
    async with running(tmp_path / "new", settings_of(tmp_path / "other")) as (_, client):
        return [payload for _, payload in await texts(client)]


def test_list_verify_restore_and_prune(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(archive(tmp_path))
    listed = json.loads(cli("archive", "ls", "-o", "json").out)
    assert [(row["topic"], row["first_offset"], row["end_offset"], row["message_count"]) for row in listed] == [
        ("shop/orders", 0, 4, 4)
    ]
    assert "restores are possible from" in cli("archive", "ls").err
    assert cli("archive", "verify").code == 0
    removals = json.loads(cli("archive", "prune", "--keep", "0s", "--dry-run", "-o", "json").out)
    assert any(row["key"].endswith(".log") for row in removals), "the piece was merged"
    pruned = cli("archive", "prune", "--keep", "0s", "--yes")
    assert (pruned.code, f"removed {len(removals)} objects" in pruned.out + pruned.err) == (0, True)
    assert cli("archive", "verify").code == 0
    done = cli("archive", "restore", str(tmp_path / "new" / "data"), "-o", "json")
    assert (done.code, json.loads(done.out)["message_count"]) == (0, 4)
    assert asyncio.run(restored(tmp_path)) == [b"a", b"b", b"c", b"d"]
    refused = cli("archive", "restore", str(tmp_path / "new" / "data"))
    assert (refused.code, "--force" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (["kind=s3"], "s3.bucket"),
        (["kind=gcs"], "gcs.bucket"),
        (["kind=azure", "azure.container=x"], "azure.account"),
        (["kind=s3", "s3.bucket=x", "s3.secret_access_key=y"], "s3.access_key_id"),
    ],
)
def test_what_is_missing_to_find_the_archive_is_said(
    cli: Cli, tmp_path: Path, settings: list[str], missing: str
) -> None:
    given = [word for text in settings for word in ("--set", f"data_maintenance.archiver.{text}")]
    for command in (["ls"], ["verify"], ["restore", str(tmp_path / "new")]):
        refused = cli("archive", *command, *given)
        assert (refused.code, f"data_maintenance.archiver.{missing} is required" in refused.err) == (2, True)


def test_damage_is_found(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(archive(tmp_path))
    logs = sorted((tmp_path / "archive").rglob("*.log"))
    logs[0].write_bytes(bytes(logs[0].stat().st_size))
    logs[1].unlink()
    assert cli("archive", "verify", "--quick").code == 2
    found = cli("archive", "verify", "-o", "json")
    assert (found.code, sorted(row["kind"] for row in json.loads(found.out))) == (2, ["damaged", "missing"])


def test_an_archive_that_is_not_there(cli: Cli) -> None:
    for command in (("ls",), ("verify",), ("restore", "new"), ("prune", "--yes")):
        refused = cli("archive", *command)
        assert (refused.code, "there is no archive" in refused.err) == (1, True)


def test_a_restore_that_cannot_be(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(archive(tmp_path))
    assert "no such topic" in cli("archive", "restore", str(tmp_path / "x"), "--topic", "none/*").err
    assert "after that time" in cli("archive", "restore", str(tmp_path / "x"), "--until", "2001-01-01T00:00:00Z").err
    assert cli("archive", "restore", str(tmp_path / "x"), "--until", "soon").code == 2
    assert cli("archive", "restore", str(tmp_path / "x"), "--follow", "--until", "1h ago").code == 2


def test_a_standby_follows_until_it_is_interrupted(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(archive(tmp_path))
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt
        (tmp_path / "other").mkdir()
        asyncio.run(_send_more(tmp_path))

    monkeypatch.setattr("courser.cli.archive_commands.time.sleep", pause)
    followed = cli("archive", "restore", str(tmp_path / "new" / "data"), "--follow", "--interval", "7s", "-o", "jsonl")
    assert (followed.code, looks) == (130, [7.0, 7.0])
    assert [json.loads(line)["message_count"] for line in followed.out.splitlines()] == [4, 5]
    assert asyncio.run(restored(tmp_path)) == [b"a", b"b", b"c", b"d", b"e"]


async def _send_more(tmp_path: Path) -> None:
    async with running(tmp_path / "old", settings_of(tmp_path / "archive")) as (_, client):
        await client.send_messages("shop/orders", partitioning=0, messages=["e"])
