"""The comparison with other servers runs, without any of them: a program that only claims to be a load generator."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from benchmarks.generating import Speed
from benchmarks.peers import kafka, nats, redis
from benchmarks.peers.__main__ import main
from benchmarks.peers.contenders import Contender, Role
from benchmarks.peers.generator import IggyGenerator, parse
from benchmarks.peers.loads import CPU_8, LOADS, MEASURES, SEND_8, SINGLE_8, Measure
from benchmarks.peers.report import goals_table, peers_table, with_spread
from benchmarks.peers.servers import PeerFailed, Running, family

SUMMARY = (
    "Producers Results: Total throughput: 1331.25 MB/s, 1331250 messages/s, average throughput per Producer: 1331.25 "
    "MB/s, p50 latency: 0.70 ms, total time: 1.50 s"
)

GENERATOR = f"""\
#!{sys.executable}
import socket, sys
host, _, port = sys.argv[sys.argv.index("--server-address") + 1].rpartition(":")
socket.create_connection((host, int(port))).close()
with open({{log!r}}, "a") as log:
    print(*sys.argv[1:], file=log)
print("{SUMMARY}")
"""


@pytest.fixture(autouse=True)
def no_sync_of_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    program = tmp_path / "iggy-bench"
    program.write_text(GENERATOR.format(log=str(tmp_path / "log")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_the_summary_of_the_generator_is_read() -> None:
    assert parse(f"2026-11-18 INFO starting\n\n{SUMMARY}\n") == Speed(1331.25, 1331250)


def test_a_run_without_a_summary_has_failed() -> None:
    with pytest.raises(PeerFailed, match="cannot connect"):
        parse("starting\nerror: cannot connect\n")


def test_a_generator_that_fails_is_no_figure(tmp_path: Path) -> None:
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho the server went away\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(PeerFailed, match="code 3: the server went away"):
        IggyGenerator(program).measure(LOADS[0], Running(1, os.getpid()))


def test_servers_take_turns_and_leave_nothing_behind(
    generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGGY_BENCH_08", str(generator))
    monkeypatch.delenv("IGGY_BENCH_09", raising=False)
    place = tmp_path / "place"
    place.mkdir()
    # Other tests of this process may have started some, too.
    children = set(family(os.getpid()))
    arguments = ["--rounds", "2", "--quick", "--load", "single-8", "--only", "courser", "--directory", str(place)]
    main([*arguments, "--json", str(tmp_path / "figures.json")])
    said = capsys.readouterr()
    assert "| 8 producers, single messages, requests/s | 1,331,250 (1,331,250..1,331,250) |" in said.out
    turns = [line.split("  ")[0] for line in said.err.splitlines()]
    assert turns == [
        "Courser, classic wire",
        "Courser, 2 processes, classic wire",
        "Courser, 2 processes, classic wire",
        "Courser, classic wire",
    ]
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert figures["Courser, classic wire"][str(SINGLE_8)] == [1331250, 1331250]
    assert len(figures["Courser, classic wire"][str(CPU_8)]) == 2
    assert not list(place.iterdir())
    asked = (tmp_path / "log").read_text().splitlines()
    assert len(asked) == 4 * 3
    assert all("--messages-per-batch 1 " in line and "pinned-producer -p 8 tcp" in line for line in asked)
    assert set(family(os.getpid())) <= children


def test_what_redis_reports_is_read() -> None:
    output = '"test","rps","avg_latency_ms"\n"XADD bench:__rand_int__ * m xxx","6159.53","35.670"\n'
    assert redis.parse(output) == 6159.53
    with pytest.raises(PeerFailed, match="refused"):
        redis.parse("Could not connect: refused\n")


def test_what_nats_reports_is_read() -> None:
    several = (
        "13:39:53 [2] Starting JetStream durable consumer (fetch), expecting 50,000 messages\n\n"
        "NATS JetStream durable consumer (fetch) aggregated stats: 129,962 msgs/sec ~ 16 MiB/sec\n"
        "  [1] 69,281 msgs/sec ~ 8.5 MiB/sec ~ 14.43us (50,000 msgs)\n"
    )
    assert nats.parse(several) == 129_962
    one = "NATS JetStream synchronous publisher stats: 17,293 msgs/sec ~ 16 MiB/sec ~ 57.10us\n"
    assert nats.parse(one) == 17_293
    with pytest.raises(PeerFailed):
        nats.parse("nats: error: no servers available for connection\n")


def test_what_kafka_reports_is_read() -> None:
    output = (
        "1000 records sent, 900.5 records/sec (0.9 MB/sec), 5.0 ms avg latency, 9.0 ms max latency.\n"
        "20000 records sent, 15432.1 records/sec (14.72 MB/sec), 5.43 ms avg latency, 210.00 ms max latency, "
        "5 ms 50th, 9 ms 95th, 12 ms 99th, 30 ms 99.9th.\n"
    )
    assert kafka.parse_sent(output) == 15432.1
    polled = "2026-11-18 10:00:00:000, 2026-11-18 10:00:01:000, 100.0, 100.0, 1000, 1000.0, 500, 500, 200.0, 2000.0\n"
    assert kafka.parse_polled(polled) == pytest.approx(209.7152)
    with pytest.raises(PeerFailed):
        kafka.parse_polled(polled.replace("200.0", "0.0000"))
    for parse_output in (kafka.parse_sent, kafka.parse_polled):
        with pytest.raises(PeerFailed, match="no broker"):
            parse_output("no broker\n")


def test_what_a_tool_cannot_do_is_left_out() -> None:
    program = Path("none")
    covered = {load.name for load in LOADS if redis.RedisGenerator(program).covers(load)}
    assert {load.name for load in LOADS} - covered == {"mixed"}
    assert {load.name for load in LOADS if kafka.KafkaGenerator(program).covers(load)} == {
        "batches-1",
        "small",
        "single-1",
    }


def test_without_any_program_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IGGY_BENCH_08", raising=False)
    monkeypatch.delenv("IGGY_BENCH_09", raising=False)
    with pytest.raises(SystemExit, match="no load generator"):
        main([])


def test_a_wrong_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGGY_BENCH_08", "/nowhere/iggy-bench")
    with pytest.raises(SystemExit, match="IGGY_BENCH_08=/nowhere/iggy-bench is not a program"):
        main([])


def contender(name: str, role: Role) -> Contender:
    def start(_: Path) -> object:
        raise AssertionError("nobody starts it")

    generator = IggyGenerator(Path("none"))
    return Contender(name=name, role=role, wire="0.9 wire", start=start, generator=generator, acknowledged="written")  # type: ignore[arg-type]


OLD, NEW = contender("old", Role.OLD), contender("new", Role.NEW)


def test_the_new_version_is_judged_by_the_median_of_the_ratios() -> None:
    rounds: dict[tuple[str, Measure], list[float | None]] = {
        ("old", SEND_8): [1000, 1000, 1000, None],
        ("new", SEND_8): [1100, 1160, 1200, 5000],
        ("old", CPU_8): [27, 27, 27],
        ("new", CPU_8): [25, 24, 23],
    }
    table = goals_table(rounds, [OLD, NEW])
    assert "| 1.16 (1.10..1.20) |  | 1.15 | 1.40 | 1 process: met |" in table
    assert "| 0.89 (0.85..0.93) |  | 0.85 | 0.75 | 1 process: MISSED |" in table


def test_a_failed_round_is_not_a_figure() -> None:
    assert with_spread([None, 10, 20, 30]) == "20 (10..30)"
    assert with_spread([None, None]) == "failed"
    assert with_spread([]) == ""


def test_the_table_has_a_row_for_each_measure_and_says_what_an_acknowledgement_means() -> None:
    rounds: dict[tuple[str, Measure], list[float | None]] = {("new", measure): [1.0] for measure in MEASURES}
    lines = peers_table(rounds, [NEW]).splitlines()
    assert len(lines) == 2 + len(MEASURES) + 1
    assert lines[-1] == "| an acknowledgement means | written |"


def test_each_measure_comes_from_one_load() -> None:
    found = [measure for load in LOADS for measure in (load.sent, load.polled, load.cpu) if measure is not None]
    assert sorted(map(str, found)) == sorted(map(str, MEASURES))
