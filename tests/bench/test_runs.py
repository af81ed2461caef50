"""Whole runs against a real server, with next to nothing to do."""

import asyncio
import os
import secrets
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from courser.bench.actors import open_wire
from courser.bench.channel import Part, WorkerFailed
from courser.bench.conducting import Arrangement, Conductor
from courser.bench.plan import Mode, Plan, Spread, WireName
from courser.bench.private_server import ServerFailed, private_server
from courser.bench.watching import PhaseResult, RunState, Stillness
from courser.bench.wires import TopicName
from courser.client.client import connect
from courser.client.targets import Target
from courser.errors import AlreadyExists, AuthenticationFailed, ConnectionFailed, NotFound

SMALL = Plan(mode=Mode.PINNED_PRODUCER, message_size=Spread(10, 50), batch=Spread(5, 20))


def small(mode: Mode, **settings: object) -> Plan:
    """A plan with small messages."""
    return msgspec.structs.replace(SMALL, mode=mode, **settings)


def prefix() -> str:
    return f"run-{secrets.token_hex(4)}"


def run(plan: Plan, target: Target, arrangement: Arrangement | None = None) -> PhaseResult:
    return Conductor(plan, target, arrangement or Arrangement(prefix())).run()


def total(parts: list[Part | None]) -> int:
    return sum(part.messages for part in parts if part is not None)


def sent(outcome: PhaseResult) -> int:
    return total([report.sent for report in outcome.reports])


def received(outcome: PhaseResult) -> int:
    return total([report.received for report in outcome.reports])


def stream_names(target: Target) -> list[str]:
    """Asked with the names of the run: it removes only its own."""
    return [name for name in _streams(target) if name.startswith("run-")]


def _streams(target: Target) -> list[str]:
    async def ask() -> list[str]:
        async with connect(target) as client:
            return [stream.name for stream in await client.get_streams()]

    return asyncio.run(ask())


@pytest.mark.parametrize("wire", WireName, ids=lambda wire: wire.value)
@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_a_mode_sends_and_reads_what_it_should(mode: Mode, wire: WireName, target: Target) -> None:
    plan = small(
        mode,
        wire=wire,
        producers=2,
        consumers=2,
        streams=1 if mode.is_balanced else 2,
        partitions=4 if mode.is_balanced else 1,
        messages=501,
    )
    outcome = run(plan, target)
    assert sent(outcome) == (501 if mode.produces else 0)
    # What groups read is stored in equal parts.
    expected = 504 if mode is Mode.BALANCED_CONSUMER_GROUP else 501
    assert received(outcome) == (expected if mode.consumes else 0)
    has_ages = mode.produces and mode.consumes
    assert any(report.end_to_end is not None and report.end_to_end.count for report in outcome.reports) is has_ages
    assert stream_names(target) == []


def test_actors_are_spread_over_processes(target: Target) -> None:
    plan = small(Mode.PINNED_PRODUCER, producers=3, streams=3, messages=300, processes=2)
    outcome = run(plan, target)
    assert [report.task.number for report in outcome.reports] == [0, 1, 2]
    assert [report.sent.messages for report in outcome.reports if report.sent is not None] == [100, 100, 100]


@pytest.mark.parametrize(
    "mode", [Mode.PINNED_PRODUCER_AND_CONSUMER, Mode.BALANCED_CONSUMER_GROUP, Mode.END_TO_END_PRODUCING_CONSUMER_GROUP]
)
def test_a_warm_up_is_not_counted(mode: Mode, target: Target) -> None:
    plan = small(mode, messages=200, warm_up=0.1, partitions=2 if mode.is_balanced else 1)
    steps: list[str] = []
    conductor = Conductor(plan, target, Arrangement(prefix()), lambda state: steps.append(state.step))
    outcome = conductor.run()
    assert sent(outcome) == (200 if mode.produces else 0)
    assert received(outcome) == 200
    assert {"preparing", "warming up", "measuring", "removing"} <= set(steps)


def test_a_run_of_some_time_ends_in_time(target: Target) -> None:
    states: list[RunState] = []
    plan = small(Mode.PINNED_PRODUCER_AND_CONSUMER, seconds=3.0)
    outcome = Conductor(plan, target, Arrangement(prefix()), states.append).run()
    (producer, consumer) = outcome.reports
    assert producer.sent is not None
    assert consumer.received is not None
    for part in (producer.sent, consumer.received):
        assert part.messages > 0
        assert part.begin <= part.end
    shares = [state.share for state in states if state.step == "measuring" and state.share is not None]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    # At most one for each second. How many there are depends on how busy the machine is.
    assert outcome.moments
    assert all(moment.seconds > number for number, moment in enumerate(outcome.moments, 1))


def test_a_rate_limits_all_producers_together(target: Target) -> None:
    plan = small(Mode.PINNED_PRODUCER, producers=2, streams=2, messages=100, message_rate=200.0, batch=Spread(1, 1))
    outcome = run(plan, target)
    parts = [report.sent for report in outcome.reports if report.sent is not None]
    assert max(part.end for part in parts) - min(part.begin for part in parts) >= 0.48e9


def test_streams_can_stay_and_be_used_again(target: Target) -> None:
    name = prefix()
    plan = small(Mode.PINNED_PRODUCER, messages=100)
    run(plan, target, Arrangement(name, keeps=True))
    with closing(open_wire(WireName.VSR, target)) as wire:
        assert wire.topic_figures(TopicName(f"{name}-0", "topic-0")) == (1, 100)
        with pytest.raises(AlreadyExists):
            run(plan, target, Arrangement(name, keeps=True))
        group = small(Mode.BALANCED_CONSUMER_GROUP, seconds=200.0)
        begin = time.monotonic()
        assert received(run(group, target, Arrangement(name, reuses=True))) == 100
        # Done when all is read, and what was there before is still there.
        assert time.monotonic() - begin < 200
        assert wire.topic_figures(TopicName(f"{name}-0", "topic-0")) == (1, 100)
        wire.delete_stream(f"{name}-0")


def test_a_run_that_fails_leaves_nothing_behind(target: Target) -> None:
    plan = small(Mode.PINNED_PRODUCER, messages=100)
    with pytest.raises(AuthenticationFailed):
        run(plan, replace(target, password="wrong"))
    with pytest.raises(NotFound):
        run(plan, target, Arrangement(prefix(), reuses=True))
    assert stream_names(target) == []


def test_an_interrupted_run_leaves_nothing_behind(target: Target) -> None:
    def interrupt(state: RunState) -> None:
        if state.step == "measuring":
            raise KeyboardInterrupt

    plan = small(Mode.PINNED_PRODUCER, seconds=1000.0)
    with pytest.raises(KeyboardInterrupt):
        Conductor(plan, target, Arrangement(prefix()), interrupt).run()
    assert stream_names(target) == []


def test_a_server_that_goes_away_ends_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    with private_server(tmp_path_factory.mktemp("gone")) as server:

        def kill(state: RunState) -> None:
            if state.step == "measuring" and state.sent:
                os.kill(server.process_id, signal.SIGKILL)

        plan = small(Mode.PINNED_PRODUCER, seconds=1000.0)
        with pytest.raises(ConnectionFailed):
            Conductor(plan, server.target, Arrangement(prefix()), kill).run()


def test_a_worker_that_breaks_down_is_reported(target: Target) -> None:
    command = ("/bin/sh", "-c", "cat > /dev/null & echo oh no >&2; exit 3")
    plan = small(Mode.PINNED_PRODUCER, messages=1)
    with pytest.raises(WorkerFailed, match="a worker exited with status 3: oh no"):
        Conductor(plan, target, Arrangement(prefix()), worker_command=command).run()
    assert stream_names(target) == []


def test_a_private_server_is_gone_with_its_data_afterwards(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("private")
    with private_server(directory, ["system.segment.size=8MiB"]) as server:
        assert server.data.is_dir()
        assert server.target.is_local
        open_wire(WireName.VSR, server.target).close()
        process = Path(f"/proc/{server.process_id}")
        assert process.exists()
    assert not process.exists()
    assert list(directory.iterdir()) == []


def test_a_private_server_that_cannot_start_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        pytest.raises(ServerFailed, match="no_such_key"),
        private_server(tmp_path_factory.mktemp("private"), ["system.no_such_key=1"]),
    ):
        pass


def test_time_that_everybody_slept_is_no_stillness() -> None:
    times = iter([0.0, 0.5, 1.0, 1000.0, 1000.5, 1001.0])
    stillness = Stillness(lambda: next(times))
    assert [stillness.seconds() for _ in range(4)] == [0.5, 1.0, 2.0, 2.5]
    stillness.end()
    assert stillness.seconds() == 0.5
