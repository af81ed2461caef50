"""Figures of known runs, what is saved of them, and two runs side by side."""

import dataclasses
import json
import re
from typing import Any

import msgspec
import pytest

from courser.bench.actors import ActorReport, Part
from courser.bench.conducting import Moment, PhaseResult
from courser.bench.latencies import Latencies
from courser.bench.plan import ActorTask, Mode, Plan, Role, Spread
from courser.bench.results import (
    MeasuredServer,
    Measurements,
    Result,
    UnreadableResult,
    as_plain,
    compare,
    decode_result,
    differences,
    encode_result,
    machine_facts,
    make_result,
)

SECOND = 1_000_000_000
PLAN = Plan(mode=Mode.BOTH, producers=2, consumers=1, topics=1, seconds=2.0)


def latencies(*microseconds: int) -> Latencies:
    found = Latencies()
    for time in microseconds:
        found.add(time * 1000)
    return found


def part(messages: int, size: int, begin: float, end: float, *microseconds: int, empty: int = 0) -> Part:
    return Part(
        messages=messages,
        size=size,
        requests=len(microseconds),
        empty=empty,
        begin=int(begin * SECOND),
        end=int(end * SECOND),
        latencies=latencies(*microseconds),
    )


def task(role: Role, number: int) -> ActorTask:
    return ActorTask(number=number, role=role, topic=0, partition_id=0)


REPORTS = [
    ActorReport(task=task(Role.PRODUCER, 0), sent=part(1000, 2_000_000, 10.0, 11.0, 1, 2, 3, 4, 5)),
    ActorReport(task=task(Role.PRODUCER, 1), sent=part(3000, 6_000_000, 10.5, 12.0, 6, 7, 8, 9, 1000)),
    ActorReport(
        task=task(Role.CONSUMER, 0),
        received=part(4000, 8_000_000, 11.0, 13.0, 10, 20, empty=3),
        end_to_end=latencies(100, 200),
    ),
]


def result_of(plan: Plan = PLAN, reports: list[ActorReport] = REPORTS, machine: dict[str, str] | None = None) -> Result:
    return make_result(
        plan,
        PhaseResult(reports, [Moment(1.0, 2000, 1000)]),
        started_at="2026-01-31T12:00:00+00:00",
        server=MeasuredServer(address="127.0.0.1:8090"),
        machine=machine or {"cores": "2", "load": "1.0"},
    )


def figures_of(result: Result) -> dict[str, Measurements]:
    return {figures.name: figures for figures in (*result.groups, *result.actors)}


def test_throughput_counts_from_the_first_request_to_the_last() -> None:
    producers = figures_of(result_of())["producers"]
    assert (producers.actors, producers.messages, producers.bytes, producers.requests) == (2, 4000, 8_000_000, 10)
    assert producers.seconds == 2.0
    assert producers.messages_per_second == 2000.0
    assert producers.megabytes_per_second == 4.0


def test_latencies_of_a_kind_of_actors_are_those_of_all_of_them() -> None:
    latency = figures_of(result_of())["producers"].latency_us
    assert latency is not None
    assert (latency.min, latency.max, latency.mean) == (1.0, 1000.0, 104.5)
    assert latency.p50 == pytest.approx(5.0, rel=0.002)
    assert latency.p90 == pytest.approx(9.0, rel=0.002)
    assert latency.p95 == latency.p99_99 == 1000.0


def test_every_actor_has_its_own_figures() -> None:
    found = figures_of(result_of())
    assert found["producer 1"].messages_per_second == 2000.0
    assert found["consumer 0"].empty_polls == 3
    assert found["consumer 0"].seconds == 2.0


def test_all_is_requests_of_both_kinds_without_ages() -> None:
    everything = figures_of(result_of())["all"]
    assert (everything.actors, everything.messages, everything.requests) == (3, 8000, 12)
    assert everything.seconds == 3.0


def test_ages_have_no_throughput() -> None:
    ages = figures_of(result_of())["end to end"]
    assert (ages.requests, ages.messages, ages.messages_per_second) == (2, None, None)
    assert ages.latency_us is not None
    assert ages.latency_us.max == 200.0


def test_actors_that_did_nothing_do_not_stretch_the_time() -> None:
    idle = ActorReport(task=task(Role.PRODUCER, 2), sent=part(0, 0, 0, 0))
    found = figures_of(result_of(reports=[*REPORTS, idle]))
    assert found["producers"].seconds == 2.0
    assert (found["producer 2"].latency_us, found["producer 2"].messages_per_second) == (None, 0.0)


def test_a_result_survives_being_saved() -> None:
    result = result_of()
    assert decode_result(encode_result(result)) == result


SCHEMA: dict[str, Any] = {
    "format": str,
    "courser": str,
    "started_at": str,
    "server": {"address": str, "is_private": bool, "settings": list},
    "plan": {
        "mode": str,
        "producers": int,
        "consumers": int,
        "topics": int,
        "partitions": int,
        "message_size": {"minimum": int, "maximum": int},
        "batch": {"minimum": int, "maximum": int},
        "messages": (int, type(None)),
        "seconds": (float, type(None)),
        "rate": (float, type(None)),
        "message_rate": (float, type(None)),
        "warm_up": float,
        "fill_size": int,
        "is_synced": bool,
        "processes": int,
        "seed": int,
    },
    "machine": dict,
    "groups": list,
    "actors": list,
    "timeline": list,
}
FIGURES: dict[str, Any] = {
    "name": str,
    "actors": int,
    "messages": (int, type(None)),
    "bytes": (int, type(None)),
    "requests": int,
    "empty_polls": (int, type(None)),
    "seconds": (float, type(None)),
    "messages_per_second": (float, type(None)),
    "megabytes_per_second": (float, type(None)),
    "latency_us": dict,
}
LATENCY = ["mean", "min", "p50", "p90", "p95", "p99", "p99_9", "p99_99", "max"]


def matches(value: object, expected: object) -> bool:
    if isinstance(expected, dict):
        assert isinstance(value, dict)
        assert list(value) == list(expected)
        return all(matches(value[key], expected[key]) for key in expected)
    assert isinstance(value, expected), (value, expected)  # type: ignore[arg-type]
    return True


def test_what_programs_find_in_a_saved_result() -> None:
    """A change here breaks them: give the format another number then."""
    document = json.loads(encode_result(result_of()))
    assert document["format"] == "courser-bench/2"
    assert matches(document, SCHEMA)
    for figures in (*document["groups"], *document["actors"]):
        assert matches(figures, FIGURES)
        assert list(figures["latency_us"]) == LATENCY
    assert document["timeline"] == [{"seconds": 1.0, "sent": 2000, "received": 1000}]
    assert as_plain(result_of()) == document


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b"{}", "missing required field"),
        (encode_result(result_of()).replace(b"courser-bench/2", b"courser-bench/9"), "courser-bench/9"),
        (encode_result(result_of()).replace(b'"both"', b'"neither"'), "Invalid enum"),
    ],
)
def test_files_that_are_no_result(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableResult, match=re.compile(reason, re.IGNORECASE)):
        decode_result(data)


def test_two_runs_are_compared_figure_by_figure() -> None:
    slower = [dataclasses.replace(report) for report in REPORTS]
    slower[0] = ActorReport(task=slower[0].task, sent=part(1000, 2_000_000, 8.0, 11.0, 2, 4, 6, 8, 10))
    rows = {(row.group, row.measure): row for row in compare(result_of(), result_of(reports=slower))}
    speed = rows["producers", "messages"]
    assert (speed.first, speed.second, speed.ratio, speed.is_more_better) == (2000.0, 1000.0, 0.5, True)
    assert rows["producers", "max"].ratio == 1.0
    assert not rows["producers", "p50"].is_more_better
    assert rows["consumers", "payload"].ratio == 1.0
    assert rows["end to end", "p99.99"].ratio == 1.0
    assert ("end to end", "messages") not in rows


def test_runs_of_other_modes_share_what_they_share() -> None:
    alone = result_of(plan=Plan(mode=Mode.SEND, seconds=2), reports=REPORTS[:2])
    assert {row.group for row in compare(alone, result_of())} == {"producers", "all"}


def test_settings_and_machines_that_differ_are_named() -> None:
    other = msgspec.structs.replace(PLAN, message_size=Spread(1, 9), warm_up=1.0)
    found = differences(result_of(), result_of(plan=other, machine={"cores": "64", "load": "0.1"}))
    assert found == [
        "message size differs: 1000..1000 and 1..9",
        "warm up differs: 0.0 and 1.0",
        "cores differs: 2 and 64",
    ]
    assert differences(result_of(), result_of()) == []


def test_machine_facts_say_what_figures_depend_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    facts = machine_facts(tmp_path_factory.mktemp("facts"))
    assert set(facts) == {
        "cores",
        "processor",
        "memory",
        "kernel",
        "python",
        "packages",
        "frame walk",
        "load",
        "file system",
    }
    assert all(facts.values())
    assert "file system" not in machine_facts()
