"""``courser bench`` as users and programs see it."""

import asyncio
import contextlib
import csv
import io
import json
import signal
import subprocess
from pathlib import Path

import click
import pytest

from courser.bench.plan import Mode, Plan, Spread
from courser.bench.results import decode_result
from courser.cli.bench_options import mode_parameters, plan_of
from courser.cli.main import run
from courser.client.client import connect
from tests.cli.commands import COMMAND_WITH_INTERRUPTS, PATIENCE, Cli, in_this_process, on_a_terminal
from tests.servers import RunningServer

TINY = ("--messages", "200", "--batch", "5..20", "--message-size", "10..50")


@pytest.fixture
def cli(server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, against the server."""
    monkeypatch.setenv("COURSER_URL", f"iggy://iggy:iggy@{server.address}")
    return in_this_process(capsys, "bench")


def test_a_run_is_a_table_for_people(cli: Cli) -> None:
    result = cli("both", *TINY)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    titles = "WHO ACTORS MESSAGES MESSAGES/S MB/S MEAN P50 P90 P95 P99 P99.9 P99.99 MAX"
    assert " ".join(lines[0].split()) == titles
    assert [line.split("  ")[0] for line in lines[1:]] == ["producers", "consumers", "end to end", "all"]
    assert "both at 127.0.0.1:" in result.err
    assert "1 producer and 1 consumer, 200 messages, 5..20 x 10..50 B per request" in result.err


def test_each_actor_can_be_shown(cli: Cli) -> None:
    result = cli("send", *TINY, "--producers", 2, "--per-actor")
    assert [line.split("  ")[0] for line in result.out.splitlines()[1:]] == ["producer 0", "producer 1", "producers"]


def test_programs_get_the_whole_result(cli: Cli, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    result = cli("send", *TINY, "-o", "json", "--save", saved)
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert document == json.loads(saved.read_text())
    assert decode_result(saved.read_bytes()).plan.messages == 200
    assert document["groups"][0]["messages"] == 200
    assert document["server"]["address"].startswith("127.0.0.1:")
    assert "iggy" not in json.dumps(document["server"])


def test_json_lines_and_csv(cli: Cli) -> None:
    line = cli("send", *TINY, "-o", "jsonl")
    assert (line.code, line.err, line.out.count("\n")) == (0, "", 1)
    assert json.loads(line.out)["plan"]["mode"] == "send"
    rows = list(csv.DictReader(io.StringIO(cli("both", *TINY, "-o", "csv").out)))
    assert [row["name"] for row in rows] == ["producers", "consumers", "end to end", "all"]
    assert float(rows[0]["p99_99_us"]) > 0
    assert rows[2]["messages"] == ""


def test_a_server_of_its_own(cli: Cli, tmp_path: Path) -> None:
    arguments = ("--server", "--server-directory", tmp_path, "--set", "system.segment.size=8MiB")
    result = cli("send", *TINY, *arguments, "--durability", "persisted", "-o", "json")
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert document["server"]["is_private"]
    assert document["server"]["settings"] == ["system.segment.size=8MiB"]
    assert document["machine"]["file system"]
    assert list(tmp_path.iterdir()) == []


def test_two_saved_runs_are_compared(cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    cli("send", *TINY, "--save", first)
    cli("send", "--messages", 200, "--batch", 10, "--save", second)
    result = cli("compare", first, second)
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["WHO", "MEASURE", "UNIT", "A", "B", "B", "/", "A", "B", "IS"]
    assert "warning: batch differs: 5..20 and 10..10" in result.err
    same = json.loads(cli("compare", first, first, "-o", "json").out)
    assert {row["ratio"] for row in same} == {1.0}
    assert {row["verdict"] for row in same} == {"alike"}
    assert list(same[0]) == ["group", "measure", "unit", "first", "second", "ratio", "verdict"]


def test_better_and_worse_are_told_apart(cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    cli("send", *TINY, "--save", first)
    document = json.loads(first.read_text())
    document["groups"][0]["messages_per_second"] *= 2
    document["groups"][0]["latency_us"]["p50"] *= 2
    second.write_text(json.dumps(document))
    rows = json.loads(cli("compare", first, second, "-o", "json").out)
    verdicts = {row["measure"]: row["verdict"] for row in rows if row["group"] == "producers"}
    assert (verdicts["messages"], verdicts["p50"], verdicts["p99"]) == ("better", "worse", "alike")


def test_a_rate_that_was_not_reached_is_told(cli: Cli) -> None:
    result = cli("send", "--message-rate", 10**9, "--seconds", 0.3)
    assert "of the requested 1,000,000,000.0 messages/s" in result.err
    assert "of the requested" not in cli("send", "--message-rate", 10, "--batch", 1, "--messages", 3).err


FAILURES = [
    ("send --url 127.0.0.1:1", 3, "cannot connect", "courser dev"),
    ("send --user nobody --password wrong", 4, "login to ", "which comes from --password"),
    ("poll --context nowhere", 5, 'context "nowhere" not found', "courser context list"),
    ("send --name nothing --reuse", 5, "hint", "leave out --reuse"),
    ("send --reuse", 2, "--name", "--help"),
    ("send --set a=b", 2, "--server", "--help"),
    ("send --server --url 127.0.0.1:1", 2, "cannot be combined with --url", "--help"),
    ("send --server --set system.nothing=1", 1, "did not start", "courser serve"),
    ("send --messages 5 --seconds 5", 2, "either a number of messages or a duration", "--help"),
    ("send --messages 5 --bytes 5", 2, "cannot be combined", "--help"),
    ("send --message-size 5..1", 2, "smaller bound first", "--help"),
    ("send --seconds soon", 2, "a duration such as", "--help"),
    ("send --seconds=-1", 2, "expected a time", "--help"),
    ("balanced-producer", 2, "unknown command", "the commands are send, poll"),
    ("send --messages 1 --save /nowhere/at/all", 1, "cannot write", "--save"),
    ("e2e --actors 2 --topics 1", 2, "2 actors need a partition each", "--help"),
    ("compare missing.json missing.json", 1, "missing.json", "check the path"),
    ("compare one", 2, "missing B", "--help"),
    ("comprae", 2, "unknown command", 'did you mean "compare"?'),
]


@pytest.mark.parametrize(("line", "code", "first", "second"), FAILURES, ids=[failure[0] for failure in FAILURES])
def test_when_it_fails(line: str, code: int, first: str, second: str, cli: Cli) -> None:
    result = cli(*line.split())
    lines = result.err.splitlines()
    assert (result.code, result.out) == (code, ""), result.err
    assert lines[-2].startswith("error: ")
    assert lines[-1].startswith("hint:  ")
    assert first in result.err
    assert second in result.err


def test_a_file_that_is_no_result(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("{}")
    result = cli("compare", file, file)
    assert (result.code, result.out) == (1, "")
    assert "is not a result of courser bench" in result.err


def test_ctrl_c_removes_the_stream(server: RunningServer, cli: Cli) -> None:
    arguments = ["bench", "send", "--url", f"iggy://iggy:iggy@{server.address}", "--seconds", "1000"]
    command = [*COMMAND_WITH_INTERRUPTS, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # It has started when its stream exists.
        while not streams_of_runs(server):
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it ended with {process.wait(0.1)}")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    assert "interrupted" in errors
    assert streams_of_runs(server) == []


def streams_of_runs(server: RunningServer) -> list[str]:
    async def ask() -> list[str]:
        async with connect(f"iggy://iggy:iggy@{server.address}") as client:
            return [stream.name for stream in await client.get_streams() if stream.name.startswith("bench-")]

    return asyncio.run(ask())


def test_streams_of_others_are_left_alone(cli: Cli) -> None:
    assert run(["stream", "create", "precious"]) == 0
    result = cli("send", *TINY, "--name", "precious")
    assert result.code == 1
    assert "--reuse" in result.err
    assert run(["stream", "delete", "precious", "--yes"]) == 0


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_the_bar_is_for_terminals(columns: int, server: RunningServer) -> None:
    url = f"iggy://iggy:iggy@{server.address}"
    arguments = ["bench", "both", "--url", url, "--seconds", "0.5", "--batch", "10"]
    code, text = on_a_terminal(arguments, columns=columns)
    assert (code, "Traceback" in text) == (0, False), text
    assert "measuring" in text
    assert "producers" in text


# --- options ---


def plan_from(mode: Mode, *arguments: str) -> Plan:
    command = click.Command(mode.value, params=[*mode_parameters(mode)])
    with command.make_context(mode.value, list(arguments)) as context:
        return plan_of(mode, context.params)


@pytest.mark.parametrize("mode", Mode)
def test_without_options_every_mode_runs_five_seconds(mode: Mode) -> None:
    plan = plan_from(mode)
    assert (plan.seconds, plan.messages) == (5.0, None)
    assert plan.message_size == plan.batch == Spread(1000, 1000)
    assert plan.processes >= 1


def test_actors_have_a_topic_each() -> None:
    assert plan_from(Mode.SEND, "--producers", "3").topics == 3
    assert plan_from(Mode.POLL, "--consumers", "3").topics == 3
    assert plan_from(Mode.BOTH, "--producers", "3", "--consumers", "2").topics == 2
    assert plan_from(Mode.END_TO_END, "--actors", "3").topics == 3
    assert plan_from(Mode.SEND, "--producers", "3", "--topics", "1", "--partitions", "3").topics == 1


def test_bytes_are_as_many_messages() -> None:
    assert plan_from(Mode.SEND, "--bytes", "1 MB").messages == 1000
    assert plan_from(Mode.SEND, "--total-data", "1 MB", "-m", "100..300").messages == 5000


def test_options_are_spelled_as_in_iggy_bench_too() -> None:
    arguments = ("-m", "10", "--messages-per-batch", "5", "--warmup-time", "2s", "--rate-limit", "10MB", "-T", "1KB")
    plan = plan_from(Mode.SEND, *arguments)
    assert (plan.message_size, plan.batch) == (Spread(10, 10), Spread(5, 5))
    assert (plan.warm_up, plan.rate, plan.messages) == (2.0, 10_000_000.0, 100)


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("2s", 2.0), ("1m", 60.0), ("100ms", 0.1)])
def test_times_are_numbers_or_have_a_unit(text: str, seconds: float) -> None:
    assert plan_from(Mode.SEND, "--seconds", text).seconds == seconds
