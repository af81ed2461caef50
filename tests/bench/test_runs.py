"""Whole runs against a real server, with next to nothing to do."""

import asyncio
import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from courser.bench.actors import Actor, Part, Phase, RunProgress
from courser.bench.conducting import Arrangement, Conductor, PhaseResult, RunState
from courser.bench.plan import Mode, Plan, Spread, tasks_of
from courser.bench.private_server import ServerFailed, private_server
from courser.bench.workers import WorkerFailed
from courser.client.client import Client
from courser.client.sync import connect_sync
from courser.client.targets import Target
from courser.errors import AlreadyExists, AuthenticationFailed, ConnectionFailed, NotFound

SMALL = Plan(mode=Mode.SEND, message_size=Spread(10, 50), batch=Spread(5, 20))


def small(mode: Mode, **settings: object) -> Plan:
    """A plan with small messages."""
    return msgspec.structs.replace(SMALL, mode=mode, **settings)


def own_name() -> str:
    return f"run-{secrets.token_hex(4)}"


def run(plan: Plan, target: Target, arrangement: Arrangement | None = None) -> PhaseResult:
    return Conductor(plan, target, arrangement or Arrangement(own_name())).run()


def total(parts: list[Part | None]) -> int:
    return sum(part.messages for part in parts if part is not None)


def sent(outcome: PhaseResult) -> int:
    return total([report.sent for report in outcome.reports])


def received(outcome: PhaseResult) -> int:
    return total([report.received for report in outcome.reports])


def streams_of_runs(target: Target) -> list[str]:
    with connect_sync(target) as client:
        return [stream.name for stream in client.get_streams() if stream.name.startswith("run-")]


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_a_mode_sends_and_reads_what_it_should(mode: Mode, target: Target) -> None:
    outcome = run(small(mode, producers=2, consumers=2, topics=2, messages=501, processes=2), target)
    assert sent(outcome) == (501 if mode.produces else 0)
    assert received(outcome) == (501 if mode.consumes else 0)
    has_ages = mode.produces and mode.consumes
    assert any(report.end_to_end is not None and report.end_to_end.count for report in outcome.reports) is has_ages
    assert streams_of_runs(target) == []


def test_a_consumer_alone_reads_its_partition_again_from_the_start(target: Target) -> None:
    outcome = run(small(Mode.POLL, messages=95, batch=Spread(10, 10), fill_size=30 * 40), target)
    (part,) = (report.received for report in outcome.reports)
    assert part is not None
    assert part.messages == 95
    # 40 messages, nothing, 40 messages, nothing, and the 15 that are missing.
    assert (part.requests, part.empty) == (10, 2)


def test_actors_are_spread_over_processes(target: Target) -> None:
    plan = small(Mode.SEND, producers=3, topics=3, messages=300, processes=2)
    outcome = run(plan, target)
    assert [report.task.number for report in outcome.reports] == [0, 1, 2]
    assert [report.sent.messages for report in outcome.reports if report.sent is not None] == [100, 100, 100]


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_a_warm_up_is_not_counted(mode: Mode, target: Target) -> None:
    steps: list[str] = []
    plan = small(mode, messages=200, warm_up=0.1)
    outcome = Conductor(plan, target, Arrangement(own_name()), lambda state: steps.append(state.step)).run()
    assert sent(outcome) == (200 if mode.produces else 0)
    assert received(outcome) == (200 if mode.consumes else 0)
    assert {"preparing", "warming up", "measuring", "removing"} <= set(steps)


def test_a_run_of_some_time_ends_in_time(target: Target) -> None:
    states: list[RunState] = []
    plan = small(Mode.BOTH, seconds=3.0)
    outcome = Conductor(plan, target, Arrangement(own_name()), states.append).run()
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
    plan = small(Mode.SEND, producers=2, topics=2, messages=100, message_rate=200.0, batch=Spread(1, 1))
    outcome = run(plan, target)
    parts = [report.sent for report in outcome.reports if report.sent is not None]
    assert max(part.end for part in parts) - min(part.begin for part in parts) >= 0.48e9


async def test_with_a_rate_a_stall_counts_for_every_request_that_it_delayed(target: Target) -> None:
    # A request every 2 ms, one of them takes 50 ms: those behind it were due long before they went out.
    plan = small(Mode.SEND, messages=40, message_rate=500, batch=Spread(1, 1))

    class Stalling(Client):
        count = 0

        async def request(self, command):  # type: ignore[no-untyped-def]
            self.count += 1
            if self.count == 5:
                await asyncio.sleep(0.05)
            return await super().request(command)

    name = own_name()
    async with Stalling(target) as client:
        await client.create_stream(name)
        await client.create_topic(name, "topic")
        actor = Actor(client, name, "topic", tasks_of(plan)[0], plan)
        await actor.prepare()
        report = await actor.run(Phase(begin=time.monotonic_ns(), end=None, is_counted=True), RunProgress([0] * 4))
        await client.delete_stream(name)
    assert report.sent is not None
    found = report.sent.latencies
    assert found.maximum >= 50_000_000
    assert found.percentile(0.75) >= 10_000_000


def test_a_stream_can_stay_and_be_used_again(target: Target) -> None:
    name = own_name()
    plan = small(Mode.SEND, messages=100)
    run(plan, target, Arrangement(name, keeps=True))
    with connect_sync(target) as client:
        assert client.get_topic(name, "topic-0").topic.message_count == 100
        with pytest.raises(AlreadyExists):
            run(plan, target, Arrangement(name, keeps=True))
        assert received(run(small(Mode.POLL, messages=150), target, Arrangement(name, reuses=True))) == 150
        # What was there before is still there.
        assert client.get_topic(name, "topic-0").topic.message_count == 100
        client.delete_stream(name)


def test_a_run_that_fails_leaves_nothing_behind(target: Target) -> None:
    plan = small(Mode.SEND, messages=100)
    with pytest.raises(AuthenticationFailed):
        run(plan, replace(target, password="wrong"))
    with pytest.raises(NotFound):
        run(plan, target, Arrangement(own_name(), reuses=True))
    assert streams_of_runs(target) == []


def test_an_interrupted_run_leaves_nothing_behind(target: Target) -> None:
    def interrupt(state: RunState) -> None:
        if state.step == "measuring":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Conductor(small(Mode.SEND, seconds=1000.0), target, Arrangement(own_name()), interrupt).run()
    assert streams_of_runs(target) == []


def killing(process_id: Callable[[], int]) -> Callable[[RunState], None]:
    def kill(state: RunState) -> None:
        if state.step == "measuring" and state.totals.sent:
            os.kill(process_id(), signal.SIGKILL)

    return kill


def test_a_server_that_goes_away_ends_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    with private_server(tmp_path_factory.mktemp("gone")) as server:
        plan = small(Mode.SEND, seconds=1000.0)
        with pytest.raises(ConnectionFailed):
            Conductor(plan, server.target, Arrangement(own_name()), killing(lambda: server.process_id)).run()


def child() -> int:
    """The only child of this process that is a worker."""
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    return worker.pid


def test_a_worker_that_breaks_down_is_reported(target: Target) -> None:
    plan = small(Mode.SEND, seconds=1000.0)
    with pytest.raises(WorkerFailed, match="a worker exited with status -9"):
        Conductor(plan, target, Arrangement(own_name()), killing(child)).run()
    assert streams_of_runs(target) == []


def test_a_private_server_is_gone_with_its_data_afterwards(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("private")
    with private_server(directory, ["system.segment.size=8MiB"]) as server:
        assert server.data.is_dir()
        assert server.target.is_local
        connect_sync(server.target).close()
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
