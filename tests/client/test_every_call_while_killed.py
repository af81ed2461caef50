"""Every call of the client while its server is killed: a result or an error of ours, in time, and nothing left open."""

import asyncio
import inspect
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from courser.api import commands as c
from courser.client.client import Client, connect
from courser.client.messages import PollingStrategy
from courser.client.sync import connect_sync
from courser.errors import ConnectionFailed, CourserError, ErrorCode, RequestFailed, Uncertain
from tests.servers import RunningServer

T, G, SINK = "demo/orders", "app", "a sink"
FIRST = PollingStrategy.First()
PATIENCE = 120.0
REQUEST_TIMEOUT = 20.0
KILL_COUNT = 3
SHARE = 60
"""Calls that are over, on average, before the server is killed again."""

CALLS: dict[str, Callable[[Any], Any]] = {
    "change_password": lambda client: client.change_password("other", "password-1", "password-1"),
    "create_consumer_group": lambda client: client.create_consumer_group(T, name="new", if_not_exists=True),
    "create_one_time_token": lambda client: client.create_one_time_token(),
    "create_partitions": lambda client: client.create_partitions("demo/spare"),
    "create_personal_access_token": lambda client: client.create_personal_access_token("token"),
    "create_stream": lambda client: client.create_stream("new", if_not_exists=True),
    "create_topic": lambda client: client.create_topic("demo/new", if_not_exists=True),
    "create_user": lambda client: client.create_user("new", "password-1", if_not_exists=True),
    "delete_consumer_group": lambda client: client.delete_consumer_group(T, consumer_group="new"),
    "delete_consumer_offset": lambda client: client.delete_consumer_offset(T, consumer="me"),
    "delete_partitions": lambda client: client.delete_partitions("demo/spare"),
    "delete_personal_access_token": lambda client: client.delete_personal_access_token("token"),
    "delete_segments": lambda client: client.delete_segments("demo/spare"),
    "delete_stream": lambda client: client.delete_stream("new"),
    "delete_topic": lambda client: client.delete_topic("demo/new"),
    "delete_user": lambda client: client.delete_user("new"),
    "describe_options": lambda client: client.describe_options(),
    "discard_staged": lambda client: client.discard_staged(SINK),
    "end_session": lambda client: client.end_session(2**31),
    "find_messages": lambda client: client.find_messages(T),
    "finish_stage": lambda client: client.finish_stage(SINK, 0, 0, 1, 1),
    "flush_messages": lambda client: client.flush_messages(T),
    "get_access": lambda client: client.get_access(),
    "get_client": lambda client: client.get_client(1),
    "get_clients": lambda client: client.get_clients(),
    "get_cluster_metadata": lambda client: client.get_cluster_metadata(),
    "get_configuration": lambda client: client.get_configuration(),
    "get_consumer_group": lambda client: client.get_consumer_group(T, consumer_group=G),
    "get_consumer_group_lag": lambda client: client.get_consumer_group_lag(T, consumer_group=G),
    "get_consumer_groups": lambda client: client.get_consumer_groups(T),
    "get_consumer_offset": lambda client: client.get_consumer_offset(T, consumer="me"),
    "get_history": lambda client: client.get_history(),
    "get_log_lines": lambda client: client.get_log_lines(),
    "get_me": lambda client: client.get_me(),
    "get_metrics": lambda client: client.get_metrics(),
    "get_offsets_at_time": lambda client: client.get_offsets_at_time(T, timestamp=1),
    "get_partition_bounds": lambda client: client.get_partition_bounds(T),
    "get_personal_access_tokens": lambda client: client.get_personal_access_tokens(),
    "get_pipelines": lambda client: client.get_pipelines(),
    "get_retention_plan": lambda client: client.get_retention_plan(2**50),
    "get_segments": lambda client: client.get_segments(T),
    "get_sessions": lambda client: client.get_sessions(),
    "get_sink": lambda client: client.get_sink(SINK),
    "get_sinks": lambda client: client.get_sinks(),
    "get_snapshot": lambda client: client.get_snapshot("test"),
    "get_staged_parts": lambda client: client.get_staged_parts(SINK),
    "get_start_report": lambda client: client.get_start_report(),
    "get_stats": lambda client: client.get_stats(),
    "get_stream": lambda client: client.get_stream("demo"),
    "get_streams": lambda client: client.get_streams(),
    "get_topic": lambda client: client.get_topic(T),
    "get_topic_durability": lambda client: client.get_topic_durability(T),
    "get_topic_figures": lambda client: client.get_topic_figures(),
    "get_topic_maintenance": lambda client: client.get_topic_maintenance(T),
    "get_topics": lambda client: client.get_topics("demo"),
    "get_user": lambda client: client.get_user("other"),
    "get_users": lambda client: client.get_users(),
    "join_consumer_group": lambda client: client.join_consumer_group(T, consumer_group=G),
    "leave_consumer_group": lambda client: client.leave_consumer_group(T, consumer_group=G),
    "login_user": lambda client: client.login_user("iggy", "iggy"),
    "login_with_personal_access_token": lambda client: client.login_with_personal_access_token("no token"),
    "logout_user": lambda client: client.logout_user(),
    "ping": lambda client: client.ping(),
    "poll_batches": lambda client: client.poll_batches(T, None, 0, FIRST, consumer="me"),
    "poll_messages": lambda client: client.poll_messages(T, None, 0, consumer="me", wait=0.2),
    "publish_staged": lambda client: client.publish_staged(SINK, 0, {0: 1}),
    "purge_stream": lambda client: client.purge_stream("spare"),
    "purge_topic": lambda client: client.purge_topic("demo/spare"),
    "report_pipeline": lambda client: client.report_pipeline("pipe", "running"),
    "request": lambda client: client.request(c.GetStats()),
    "reset_consumer_group": lambda client: client.reset_consumer_group(T, consumer_group="idle", to="first"),
    "send_messages": lambda client: client.send_messages(T, None, 0, ["one"]),
    "stage": lambda client: client.stage(SINK, 0, 0, 1, 0, T, None, 0, ["one"]),
    "store_consumer_offset": lambda client: client.store_consumer_offset(T, offset=0, consumer="me"),
    "sync_consumer_group": lambda client: client.sync_consumer_group(T, consumer_group=G),
    "update_permissions": lambda client: client.update_permissions("other", None),
    "update_stream": lambda client: client.update_stream("spare", "spare"),
    "update_topic": lambda client: client.update_topic("demo/spare", message_expiry="7 days"),
    "update_user": lambda client: client.update_user("other", is_active=True),
    "verify_segment": lambda client: client.verify_segment(T, first_offset=0),
    "wait_for_arrivals": lambda client: client.wait_for_arrivals(T, positions={0: 2**40}, consumer="me", wait=0.2),
    "wait_for_topics": lambda client: client.wait_for_topics({T: {0: 2**40}}, wait=0.2),
}
"""One call of each kind, for either client. What it finds differs: others create, delete and purge at the same time."""
NO_CALLS = {"close"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "server") as server:
        with connect_sync(url(server)) as client:
            client.create_stream("demo")
            client.create_stream("spare")
            for topic in (T, "demo/spare"):
                client.create_topic(topic, partitions_count=1)
            for group in (G, "idle"):
                client.create_consumer_group(T, name=group)
            client.create_user("other", "password-1")
            client.send_messages(T, None, 0, ["first"])
        yield server


def url(server: RunningServer) -> str:
    return f"iggy://iggy:iggy@{server.address}"


def options() -> dict[str, Any]:
    return {"reconnect_interval": 0.01, "reconnect_interval_max": 0.1, "request_timeout": REQUEST_TIMEOUT}


def descriptors() -> Counter[str]:
    """What is open in this process."""
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[str(entry.readlink()).partition(":")[0]] += 1
        except OSError:
            continue
    return found


def test_the_table_has_every_call() -> None:
    calls = {
        name
        for name, function in inspect.getmembers(Client, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in NO_CALLS
    }
    assert calls == CALLS.keys()


class Outcomes:
    """What came of calls, and when the server is to be killed again."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self.count = 0
        self.answered: set[str] = set()
        """Calls that had a result, or an error of the server, at least once."""
        self.wrong: list[str] = []
        self.kills_left = KILL_COUNT
        self.due = threading.Event()
        self._next = self._source.randrange(1, 2 * SHARE)
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.kills_left <= 0

    def is_enough(self, name: str) -> bool:
        """Whether a call was made often enough."""
        return self.is_over and name in self.answered

    def note(self, name: str, error: BaseException | None) -> None:
        with self._lock:
            self.count += 1
            if error is None or isinstance(error, RequestFailed):
                self.answered.add(name)
            elif not isinstance(error, ConnectionFailed | Uncertain):
                self.wrong.append(f"{name}: {error!r}")
            if isinstance(error, CourserError) and error.code is ErrorCode.ERROR:
                self.wrong.append(f"{name}: {error!r}")
            if self.count >= self._next:
                self.due.set()

    def is_kill_due(self) -> bool:
        """Wait for the next one. False if there is none."""
        if self.is_over:
            return False
        assert self.due.wait(PATIENCE), "calls hang"
        # The test may have failed meanwhile.
        return not self.is_over

    def end(self) -> None:
        """Nothing more is killed."""
        self.kills_left = 0
        self.answered.update(CALLS)
        self.due.set()

    def killed(self) -> None:
        self.kills_left -= 1
        self.due.clear()
        with self._lock:
            self._next = self.count + self._source.randrange(1, 2 * SHARE)


def kill_again_and_again(server: RunningServer, outcomes: Outcomes) -> None:
    while outcomes.is_kill_due():
        server.kill()
        server.start()
        outcomes.killed()


async def test_no_call_hangs_or_leaks_while_the_server_is_killed(server: RunningServer, seed: int) -> None:
    outcomes = Outcomes(seed)

    async def repeat(name: str) -> None:
        while not outcomes.is_enough(name):
            error: BaseException | None = None
            try:
                async with asyncio.timeout(2 * REQUEST_TIMEOUT), connect(url(server), **options()) as client:
                    while not outcomes.is_enough(name):
                        await CALLS[name](client)
                        outcomes.note(name, None)
            except Exception as failure:  # noqa: BLE001 - it is judged
                error = failure
            outcomes.note(name, error)

    tasks, before = asyncio.all_tasks(), descriptors()
    async with asyncio.timeout(PATIENCE):
        killing = asyncio.to_thread(kill_again_and_again, server, outcomes)
        try:
            await asyncio.gather(killing, *(repeat(name) for name in CALLS))
        finally:
            outcomes.end()
    assert outcomes.wrong == []
    assert asyncio.all_tasks() == tasks
    assert descriptors()["socket"] == before["socket"]


def test_no_call_of_the_sync_client_hangs_or_leaks_while_the_server_is_killed(server: RunningServer, seed: int) -> None:
    outcomes = Outcomes(seed)

    def repeat(name: str) -> None:
        while not outcomes.is_enough(name):
            error: BaseException | None = None
            try:
                with connect_sync(url(server), **options()) as client:
                    while not outcomes.is_enough(name):
                        CALLS[name](client)
                        outcomes.note(name, None)
            except Exception as failure:  # noqa: BLE001 - it is judged
                error = failure
            outcomes.note(name, error)

    before, threads = descriptors(), threading.active_count()
    with ThreadPoolExecutor(len(CALLS) + 1) as pool:
        works = [pool.submit(kill_again_and_again, server, outcomes), *(pool.submit(repeat, name) for name in CALLS)]
        try:
            for work in works:
                work.result(PATIENCE)
        finally:
            outcomes.end()
    assert outcomes.wrong == []
    assert descriptors()["socket"] == before["socket"]
    assert threading.active_count() == threads


async def test_every_call_says_that_the_server_is_gone(server: RunningServer) -> None:
    """Within the time that a request may take, also if it never comes back."""
    short = {**options(), "request_timeout": 0.5}
    async with connect(url(server), **short) as client:
        await asyncio.to_thread(server.kill)

        async def outcome(call: Callable[[Any], Any]) -> BaseException | None:
            try:
                await call(client)
            except Exception as error:  # noqa: BLE001 - it is judged
                return error
            return None

        async with asyncio.timeout(PATIENCE):
            found = dict(zip(CALLS, await asyncio.gather(*map(outcome, CALLS.values())), strict=True))
    wrong = {call: error for call, error in found.items() if not isinstance(error, ConnectionFailed | Uncertain)}
    assert wrong == {}
    await asyncio.to_thread(server.start)
