"""``courser group reset``: where a consumer group continues to read."""

import asyncio
import json

import pytest

from courser.client.client import connect
from tests.cli.commands import Cli
from tests.servers import RunningServer


@pytest.fixture
def topic(stream: str, cli: Cli) -> str:
    """Two partitions with five messages each, all of them read by the group ``readers``."""
    place = f"{stream}/wide"
    assert cli("topic", "create", place, 2).code == 0
    for partition in range(2):
        assert cli("send", place, *(f"{partition}{number}" for number in range(5)), "-p", partition).code == 0
    assert cli("group", "create", place, "readers").code == 0
    assert len(read(cli, place)) == 10
    return place


def read(cli: Cli, topic: str) -> list[str]:
    """What the group reads next."""
    result = cli("tail", topic, "--group", "readers", "--raw")
    assert result.code == 0, result.err
    return sorted(result.out.split())


def test_a_group_continues_where_it_was_reset_to(topic: str, cli: Cli) -> None:
    def reset(where: str) -> str:
        result = cli("group", "reset", topic, "readers", "--to", where, "--yes")
        assert (result.code, result.out) == (0, ""), result.err
        return result.err

    assert reset("earliest") == f'reset group "readers" of "{topic}"; messages read again: 10, skipped: 0\n'
    assert len(read(cli, topic)) == 10
    reset("3")
    assert read(cli, topic) == ["03", "04", "13", "14"]
    reset("-1h")
    assert len(read(cli, topic)) == 10
    reset("2000-01-01T12:00")
    assert reset("latest") == f'reset group "readers" of "{topic}"; messages read again: 0, skipped: 10\n'
    assert read(cli, topic) == []


def test_one_partition(topic: str, cli: Cli) -> None:
    assert cli("group", "reset", topic, "readers", "--to", "4", "--partition", 1, "--yes").code == 0
    assert read(cli, topic) == ["14"]


def test_a_dry_run_shows_what_would_be_read_again(topic: str, cli: Cli) -> None:
    result = cli("group", "reset", topic, "readers", "--to", "3", "--dry-run")
    assert (result.code, result.err) == (0, "dry run: nothing was changed\n")
    assert [line.split() for line in result.out.splitlines()[-2:]] == [
        ["0", "4", "3", "2", "0"],
        ["1", "4", "3", "2", "0"],
    ]
    record = json.loads(cli("group", "reset", topic, "readers", "--to", "earliest", "--dry-run", "-o", "json").out)
    assert (record["is_dry_run"], record["reread_count"], record["skipped_count"]) == (True, 10, 0)
    assert record["partitions"][1] == {
        "partition_id": 1,
        "stored_offset": 4,
        "next_offset": 0,
        "reread_count": 5,
        "skipped_count": 0,
    }
    assert read(cli, topic) == []


def test_a_group_with_members_is_left_alone_unless_forced(topic: str, cli: Cli, server: RunningServer) -> None:
    def reset(*options: str) -> tuple[int, str]:
        result = cli("group", "reset", topic, "readers", "--to", "3", *options, "--yes")
        return result.code, result.err

    async def reset_while_joined() -> None:
        async with connect(f"iggy://iggy:iggy@{server.address}") as client:
            await client.join_consumer_group(topic, consumer_group="readers")
            code, err = await asyncio.to_thread(reset)
            assert code == 1
            assert "member" in err
            assert err.splitlines()[-1] == "hint:  stop the members, or pass --force to remove them from the group"
            note = "dry run: nothing was changed"
            refused = f"{note}; while the group has members, a reset requires --force\n"
            assert await asyncio.to_thread(reset, "--dry-run") == (0, refused)
            assert await asyncio.to_thread(reset, "--dry-run", "--force") == (0, f"{note}\n")
            assert (await asyncio.to_thread(reset, "--force"))[0] == 0

    asyncio.run(reset_while_joined())
    assert read(cli, topic) == ["03", "04", "13", "14"]


def test_it_asks_first(topic: str, cli: Cli) -> None:
    result = cli("group", "reset", topic, "readers", "--to", "earliest")
    assert (result.code, "pass --yes" in result.err) == (2, True), result.err
    assert read(cli, topic) == []


@pytest.mark.parametrize(
    ("options", "problem"), [([], "missing --to"), (["--to", "whenever"], "expected earliest, latest")]
)
def test_wrong_usage(options: list[str], problem: str, cli: Cli) -> None:
    result = cli("group", "reset", "a/b", "readers", *options)
    assert (result.code, problem in result.err) == (2, True), result.err
