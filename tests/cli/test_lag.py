"""``courser lag`` and ``courser top``: how far groups are behind, and what the server does now."""

import json

import pytest

from courser.cli.lag import as_age
from courser.cli.top_commands import MetricChange, MetricValues, figures
from courser.model import metric_table as m
from courser.model.metrics import Labels
from tests.cli.commands import PATIENCE, Cli, at_terminal, start


@pytest.fixture
def place(stream: str, cli: Cli) -> str:
    """Three messages; group ``fast`` has committed all of them, ``slow`` the first."""
    place = f"{stream}/orders"
    cli("send", place, *"abc")
    for group, offset in (("fast", 2), ("slow", 0)):
        cli("consumer-group", "create", place, group)
        cli("consumer-group", "reset", place, group, "--to", str(offset + 1), "--force", "--yes")
    return place


def test_the_lag_of_all_groups_or_of_one(place: str, cli: Cli) -> None:
    rows = json.loads(cli("lag", place, "-o", "json").out)
    assert [(row["group"], row["lag"], row["members"]) for row in rows] == [("fast", 0, 0), ("slow", 2, 0)]
    assert rows[0]["lag_seconds"] == 0 < rows[1]["lag_seconds"]
    stream = place.split("/", maxsplit=1)[0]
    everything = json.loads(cli("lag", "-o", "json").out)
    for row in json.loads(cli("lag", stream, "--group", "slow", "--partitions", "-o", "json").out):
        assert (row["partition_id"], row["stored_offset"], row["next_offset"], row["lag"]) == (0, 0, 3, 2)
    assert {(row["stream"], row["group"]) for row in everything} >= {(stream, "fast"), (stream, "slow")}
    assert "BEHIND" in cli("lag", place).out


def test_a_limit_for_scripts(place: str, cli: Cli) -> None:
    assert cli("lag", place, "--max", "2", "--max-age", "1h").code == 0
    for limit in (("--max", "1"), ("--max-age", "1us")):
        found = cli("lag", place, *limit)
        assert found.code == 1
        assert "slow" in found.out
        assert f'group "slow" of "{place}" is ' in found.err
    assert cli("lag", place, "--group", "fast", "--max", "0").code == 0
    missing = cli("lag", place, "--group", "slwo")
    assert (missing.code, 'did you mean "slow"' in missing.err) == (5, True)


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0"), (0.25, "0.250s"), (90.4, "1m 30s"), (None, "-")])
def test_ages(seconds: float | None, text: str) -> None:
    assert as_age(seconds) == text


# --- top ---


def reading(seconds: float, **values: float) -> MetricValues:
    """Values by the name of the constant."""
    return MetricValues(seconds, {(getattr(m, name).name, ()): value for name, value in values.items()})


def test_rates_are_differences_and_never_negative() -> None:
    before = reading(10, APPENDED_MESSAGES=100, APPENDED_BYTES=5000, DISK_USED=1)
    after = reading(12, APPENDED_MESSAGES=300, APPENDED_BYTES=1000, DISK_USED=7, DISK_SIZE=10)
    found = figures(MetricChange(before, after))
    assert found["messages_in_per_second"] == 100
    assert found["bytes_in_per_second"] == 0
    assert (found["disk_used"], found["disk_size"]) == (7, 10)
    assert found["sync_milliseconds"] is None


def series(name: str, value: float, **labels: str) -> tuple[tuple[str, Labels], float]:
    return (name, tuple(labels.items())), value


def test_lag_by_group_with_its_trend() -> None:
    def lags(seconds: float, *values: tuple[str, str, float]) -> MetricValues:
        rows = [
            series(m.GROUP_LAG.name, value, stream="s", topic="t", group=group, partition=partition)
            for group, partition, value in values
        ]
        ages = [
            series(m.GROUP_LAG_SECONDS.name, 5, stream="s", topic="t", group="slow", partition="0"),
            series(m.GROUP_LAG_SECONDS.name, 9, stream="s", topic="t", group="slow", partition="1"),
        ]
        return MetricValues(seconds, dict(rows + ages))

    before = lags(0, ("slow", "0", 10), ("slow", "1", 0), ("fast", "0", 9))
    after = lags(2, ("slow", "0", 20), ("slow", "1", 30), ("fast", "0", 3))
    groups = figures(MetricChange(before, after))["groups"]
    assert isinstance(groups, list)
    assert [(row["group"], row["lag"], row["lag_seconds"], row["growth_per_second"]) for row in groups] == [
        ("slow", 50, 9, 20),
        ("fast", 3, None, -3),
    ]


def test_the_slowest_commands_come_first() -> None:
    name = m.REQUEST_DURATION.name

    def counts(*commands: tuple[str, int, int, int]) -> dict[tuple[str, Labels], float]:
        rows = []
        for command, low, high, above in commands:
            rows += [
                series(f"{name}_bucket", low, command=command, le="0.001"),
                series(f"{name}_bucket", low + high, command=command, le="0.1"),
                series(f"{name}_bucket", low + high + above, command=command, le="+Inf"),
                series(f"{name}_count", low + high + above, command=command),
                series(f"{name}_sum", (low + high + above) * 0.5, command=command),
            ]
        return dict(rows)

    before = MetricValues(0, counts(("Ping", 1000, 0, 0), ("SendMessages", 5, 5, 0), ("GetStats", 0, 0, 1)))
    after = MetricValues(
        10, counts(("Ping", 2000, 1, 0), ("SendMessages", 100, 10, 0), ("GetStats", 0, 0, 2), ("GetMe", 0, 0, 0))
    )
    commands = figures(MetricChange(before, after))["commands"]
    assert isinstance(commands, list)
    assert [(row["command"], row["per_second"], row["p99_milliseconds"]) for row in commands] == [
        ("GetStats", 0.1, None),
        ("SendMessages", 10, 100),
        ("Ping", 100.1, 1),
    ]
    assert commands[0]["mean_milliseconds"] == 500


def test_a_page_is_drawn_again_until_it_is_interrupted(place: str) -> None:
    terminal = at_terminal(["top", "--interval", "0.1"])
    for _ in range(3):
        terminal.read_until("event loop delay")
        terminal.read_until("bytes in")
        terminal.text = ""
    terminal.read_until("\x1b[2J")
    terminal.interrupt()
    assert terminal.end() == 130


def test_a_line_for_each_reading(place: str) -> None:
    with start("top", "--interval", "0.1", "-o", "jsonl") as process:
        assert process.stdout is not None
        records = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.stdout.close()
        process.wait(PATIENCE)
    assert all("GetMetrics" in [row["command"] for row in record["commands"]] for record in records)
    assert place.split("/", maxsplit=1)[0] in [row["stream"] for row in records[0]["groups"]]
