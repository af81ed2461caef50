"""The commands for jobs: what people see, what programs get, and how each failure is told."""

import asyncio
import json
from pathlib import Path

import polars
import pytest

from tests.archive.brokers import archiver_of, fill, running, settings_of
from tests.cli.commands import Cli
from tests.inspect.partitions import flip, full_partition
from tests.jobs.topics import all_messages, connected, fill_topic, make_topic
from tests.lake.rows import ask_duckdb
from tests.servers import RunningServer

COUNT = 100


@pytest.fixture
def orders(server: RunningServer, request: pytest.FixtureRequest) -> str:
    # A comma is nothing special in the name of a topic.
    topic: str = f"{request.node.name[:150]}, all"
    with connected(server) as client:
        make_topic(client, topic)
        fill_topic(client, topic, COUNT)
    return topic


def test_export_and_merge(cli: Cli, orders: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    result = cli("export", f"shop/{orders}", lake, "--headers", "--to", '{"0": 40, "1": 0}')
    assert (result.code, result.out) == (0, "")
    assert "exported 40 messages to 1 files" in result.err
    record = json.loads(cli("export", f"shop/{orders}", lake, "--headers", "-o", "json").out)
    assert (record["row_count"], record["ends"]) == (2 * COUNT - 40, {"0": COUNT, "1": COUNT})
    merged = cli("merge", lake)
    assert merged.code == 0
    assert "merged 2 files" in merged.err
    assert ask_duckdb(lake, "select count(*), count(headers) from lake") == [(2 * COUNT, 68)]


def test_replay_and_compact(cli: Cli, server: RunningServer, orders: str, tmp_path: Path) -> None:
    copy = f"{orders} copy"
    record = json.loads(cli("replay", f"shop/{orders}", f"shop/{copy}", "--create", 2, "-o", "json").out)
    assert (record["message_count"], record["job"]) == (2 * COUNT, f"shop/{orders} to shop/{copy}")
    assert "replayed 0 messages" in cli("replay", f"shop/{orders}", f"shop/{copy}").err
    with connected(server) as client:
        assert len(all_messages(client, copy, 0)) == COUNT
    compacted = cli("compact", f"shop/{copy}", "--folder", tmp_path / "latest")
    assert compacted.code == 0
    assert "wrote the latest messages of 5 keys" in compacted.err
    assert polars.read_parquet(tmp_path / "latest" / "*.parquet").height == 5


def test_jobs_read_an_archive(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(_archive(tmp_path))
    configuration = tmp_path / "server.toml"
    configuration.write_text(f'[data_maintenance.archiver]\npath = "{tmp_path / "archive"}"\n')
    given = ("--archive", configuration)
    record = json.loads(cli("export", "shop/orders", tmp_path / "lake", *given, "-o", "json").out)
    assert (record["row_count"], record["ends"]) == (3, {"0": 3})
    copied = cli("replay", "shop/orders", "shop/from the archive", *given, "--create", 1)
    assert "replayed 3 messages" in copied.err
    assert (
        "wrote the latest messages of 0 keys" in cli("compact", "shop/orders", "--folder", tmp_path / "f", *given).err
    )
    both = cli("export", "shop/orders", tmp_path / "lake", *given, "--data", tmp_path)
    assert (both.code, "--data and --archive exclude each other" in both.err) == (2, True)
    missing = cli("export", "shop/nothing", tmp_path / "lake", *given)
    assert (missing.code, "does not exist in the archive" in missing.err) == (5, True)


async def _archive(directory: Path) -> None:
    async with running(directory / "data", settings_of(directory / "archive")) as (broker, client):
        await fill(broker, client, "a", "b", "c")
        assert await archiver_of(broker).run_once()


def test_backfill(cli: Cli, server: RunningServer, orders: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,name\n1,one\n2,two\n")
    topic = f"{orders} rows"
    result = cli("backfill", f"shop/{topic}", path, "--key", "name", "--create", 1, "--order", "id")
    assert result.code == 0
    assert "sent 2 messages of 1 files" in result.err
    with connected(server) as client:
        found = all_messages(client, topic, 0)
    assert [(one.key, one.json()) for one in found] == [
        (b"one", {"id": "1", "name": "one"}),
        (b"two", {"id": "2", "name": "two"}),
    ]


def test_audit_says_what_is_damaged_and_exits_with_2(cli: Cli, tmp_path: Path) -> None:
    partition = full_partition(tmp_path / "data")
    sound = cli("audit", partition.data_directory)
    assert (sound.code, "no damage" in sound.err) == (0, True)
    flip(partition.logs[1], 300)
    damaged = cli("audit", partition.data_directory, "-o", "json")
    report = json.loads(damaged.out)
    assert damaged.code == 2
    assert [finding["path"] for finding in report["findings"]] == [str(partition.logs[1])]
    assert report["summary"]["damage_count"] == 1


def test_usage(cli: Cli, server: RunningServer, orders: str) -> None:
    table = cli("usage", server.data, "--topic", f"shop/{orders}")
    assert table.code == 0
    assert orders in table.out
    assert "free on the disk" in table.err
    [topic] = json.loads(cli("usage", server.data, "--topic", f"shop/{orders}", "-o", "json").out)["topics"]
    assert topic["message_count"] == 2 * COUNT == sum(row["message_count"] for row in topic["sizes"])


FAILURES = [
    ("export nonsense {tmp}", 2, "is not of the form STREAM/TOPIC"),
    ("export shop/nothing {tmp}", 5, "topic shop/nothing does not exist"),
    ("export shop/nothing {tmp} --data {data}", 5, "topic shop/nothing does not exist"),
    ("export shop/{topic} {tmp} --to earliest", 2, "nothing would be read"),
    ("export shop/{topic} {tmp} -u 127.0.0.1:1 --user iggy --password iggy", 3, "127.0.0.1:1"),
    ("export shop/{topic} {tmp} --user iggy --password wrong", 4, "login to "),
    ("replay shop/{topic} shop/{topic}", 2, "into itself"),
    ("replay shop/{topic} shop/nowhere", 5, "topic shop/nowhere does not exist\nhint:  pass --create "),
    ("compact shop/{topic}", 2, "either --into or --folder"),
    ("compact shop/{topic} --into shop/{topic}", 2, "has 200 messages"),
    ("backfill shop/{topic} {tmp}/missing.csv", 5, "does not exist"),
    ("merge {tmp}/missing", 5, "does not exist"),
    ("audit {tmp}", 5, "no partitions found below"),
    ("usage {tmp}", 5, "not a readable data directory"),
    ("usage {data} --topic shop/nothing", 5, "has no topic shop/nothing"),
]


@pytest.mark.parametrize(("line", "code", "words"), FAILURES, ids=[line for line, *_ in FAILURES])
def test_a_failure_is_a_sentence_a_hint_and_an_exit_code(
    cli: Cli, server: RunningServer, tmp_path: Path, line: str, code: int, words: str
) -> None:
    topic = "failures"
    with connected(server) as client:
        streams = {stream.name for stream in client.get_streams()}
        if "shop" not in streams or topic not in {found.name for found in client.get_topics("shop")}:
            make_topic(client, topic)
            fill_topic(client, topic, COUNT)
    names = {"tmp": str(tmp_path), "data": str(server.data), "topic": topic}
    result = cli(*(word.format_map(names) for word in line.split()))
    lines = result.err.splitlines()
    assert (result.code, result.out) == (code, ""), result.err
    assert lines[-2].startswith("error: ")
    assert lines[-1].startswith("hint:  ")
    assert words in result.err
