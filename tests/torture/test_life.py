"""Stops, kills and restarts under load: everything that was acknowledged is there, and clients that come back go on."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.storage.local_files import LocalFileSystem
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import how_it_stopped
from tests.records.reference import WireMessage, read_wire
from tests.servers import PATIENCE, RunningServer
from tests.torture.clients import WIRES, Client, VsrClient
from tests.torture.process import until

CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)
GOING = (ErrorCode.DISCONNECTED, ErrorCode.SERVER_BUSY)
"""What a server may say that is about to stop."""
REPETITIONS, LONG_REPETITIONS = 2, 4
"""How often a server is ended under load: at least twice, because a start must leave what the next end needs."""
SYNCED = {"system.partition.enforce_fsync": "true", "system.partition.messages_required_to_save": "1"}


class Producer:
    """Sends numbered messages to a partition of its own, through restarts, and knows what was acknowledged."""

    def __init__(self, server: RunningServer, number: int) -> None:
        self._server = server
        self._wire = ("vsr", "classic")[number % 2]
        self._send = c.SendMessages("s", "t", ToPartition(number), [])
        self.partition_id = number
        self.acknowledged: list[int] = []
        self._next = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                with WIRES[self._wire](self._server.port).login() as client:
                    self._send_all(client)
            except (ConnectionError, TimeoutError):
                # The server is on its way.
                self.ended.wait(0.01)

    def _send_all(self, client: Client) -> None:
        while not self.ended.is_set():
            numbers = range(self._next, self._next + 5)
            # Whether it is acknowledged or not: no number is used twice.
            self._next = numbers.stop
            answer = client.ask(self._send, [b"%d" % number for number in numbers])
            if answer.is_eviction or answer.status in GOING:
                return
            assert not answer.status, answer
            self.acknowledged.extend(numbers)


@contextmanager
def producing(server: RunningServer, count: int = 4) -> Iterator[list[Producer]]:
    """Producers at work while the block lasts."""
    with VsrClient(server.port).login() as root:
        if not root.do(c.GetStream("s")):
            root.do(c.CreateStream("s"))
            root.do(c.CreateTopic("s", "t", count, TopicOptions()))
    producers = [Producer(server, number) for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(producer.run) for producer in producers]
        try:
            yield producers
        finally:
            for producer in producers:
                producer.ended.set()
        for future in running:
            future.result()


def wait_for_more(producers: list[Producer], count: int = 200) -> None:
    """Until each of them has so many more acknowledged messages."""
    wanted = [len(producer.acknowledged) + count for producer in producers]
    until(
        lambda: all(len(producer.acknowledged) >= size for producer, size in zip(producers, wanted, strict=True)),
        "acknowledged messages",
        60,
    )


def kept(server: RunningServer, partition_id: int) -> list[WireMessage]:
    """All messages of a partition."""
    messages: list[WireMessage] = []
    with VsrClient(server.port).login() as client:
        while True:
            offset = messages[-1].offset + 1 if messages else 0
            poll = c.PollMessages(CONSUMER, "s", "t", partition_id, PollingKind.OFFSET, offset, 10_000, False)
            more = read_wire(client.do(poll)[16:])
            if not more:
                return messages
            messages += more


def assert_all_there(server: RunningServer, producers: list[Producer]) -> None:
    """Everything acknowledged, once, in order; besides it at most what was under way."""
    for producer in producers:
        messages = kept(server, producer.partition_id)
        numbers = [int(message.payload) for message in messages]
        assert numbers == sorted(set(numbers)), "in order, and none twice"
        assert set(producer.acknowledged) <= set(numbers)
        offsets = [message.offset for message in messages]
        assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("settings", [{}, SYNCED], ids=["written", "synced"])
def test_a_stop_during_load_is_clean_and_takes_nothing(tmp_path: Path, settings: dict[str, str], is_long: bool) -> None:
    server = RunningServer(tmp_path, settings=settings)
    repetitions = LONG_REPETITIONS if is_long else REPETITIONS
    with server:
        with producing(server) as producers:
            for _ in range(repetitions):
                wait_for_more(producers)
                assert server.stop() == 0
                assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN
                # The producers go on by themselves.
                server.start()
            wait_for_more(producers)
        assert_all_there(server, producers)
        for producer in producers:
            offsets = [message.offset for message in kept(server, producer.partition_id)]
            assert offsets == list(range(len(offsets))), "after a clean stop no offset is left out"
        assert server.output.count("stopped clean=True") == repetitions
        assert "defect" not in server.output


@pytest.mark.parametrize("settings", [{}, SYNCED], ids=["written", "synced"])
def test_a_kill_during_load_takes_nothing(tmp_path: Path, settings: dict[str, str], is_long: bool) -> None:
    server = RunningServer(tmp_path, settings=settings)
    with server:
        with producing(server) as producers:
            for _ in range(LONG_REPETITIONS if is_long else REPETITIONS):
                wait_for_more(producers)
                server.kill()
                server.start()
            wait_for_more(producers)
        assert_all_there(server, producers)
        assert server.stop() == 0


def test_changes_of_metadata_during_a_kill(tmp_path: Path, is_long: bool) -> None:
    """What was acknowledged is there, what was not is there or not; and every topic that is there can be used."""
    server = RunningServer(tmp_path)
    acknowledged: list[str] = []
    is_ended = threading.Event()

    def change() -> None:
        number = 0
        while not is_ended.is_set():
            try:
                with VsrClient(server.port).login() as client:
                    client.ask(c.CreateStream("s"))
                    while not is_ended.is_set():
                        name = f"topic-{number}"
                        number += 1
                        answer = client.ask(c.CreateTopic("s", name, 3, TopicOptions()))
                        if answer.is_eviction or answer.status:
                            break
                        acknowledged.append(name)
            except (ConnectionError, TimeoutError):
                is_ended.wait(0.01)

    with server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(change)
        try:
            for _ in range(LONG_REPETITIONS if is_long else REPETITIONS):
                wanted = len(acknowledged) + 15
                until(lambda wanted=wanted: len(acknowledged) >= wanted, "acknowledged topics", 60)  # type: ignore[misc]
                server.kill()
                server.start()
        finally:
            is_ended.set()
        running.result()
        with VsrClient(server.port).login() as client:
            for name in acknowledged:
                client.do(c.SendMessages("s", name, ToPartition(2), []), [b"x"])
        assert server.stop() == 0


def test_the_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    """A stop waits for requests under way; whoever does not want to wait says so once more, and loses nothing."""
    server = RunningServer(tmp_path, settings={"system.shutdown_timeout": "1m"})
    with server:
        with producing(server) as producers:
            wait_for_more(producers)
        with VsrClient(server.port).login() as client:
            client.do(c.CreateTopic("s", "large", 1, TopicOptions()))
            for _ in range(6):
                client.do(c.SendMessages("s", "large", ToPartition(0), []), [bytes(8_000_000)])
            poll = c.PollMessages(CONSUMER, "s", "large", 0, PollingKind.FIRST, 0, 6, False)
            # A reply that nobody reads, larger than what the sockets hold, is a request under way.
            client.send(client.request(poll))
            until(lambda: not client.is_silent(0), "the beginning of the reply")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: "received SIGTERM, stopping" in server.output, "the beginning of the stop")
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM
        server.start()
        assert_all_there(server, producers)
        assert server.stop() == 0


def test_a_stop_ends_everybody_and_waits_for_nobody_for_ever(tmp_path: Path) -> None:
    """Idle clients are told, long polls end, and whoever does not read is cut off when its time is over."""
    server = RunningServer(tmp_path, settings={"system.shutdown_timeout": "1s"})
    with server, VsrClient(server.port).login() as stuck, VsrClient(server.port).login() as waiting:
        stuck.do(c.CreateStream("s"))
        stuck.do(c.CreateTopic("s", "t", 2, TopicOptions()))
        stuck.do(c.SendMessages("s", "t", ToPartition(0), []), [bytes(1_000_000)])
        poll = c.PollMessages(CONSUMER, "s", "t", 0, PollingKind.FIRST, 0, 10_000, False)
        stuck.send(stuck.request(poll) * 100)
        empty = c.PollMessages(CONSUMER, "s", "t", 1, PollingKind.FIRST, 0, 1, False)
        waiting.send(waiting.request(c.WaitForMessages(empty, 20_000_000, 1024)))
        with WIRES["classic"](server.port).login() as idle:
            began = time.monotonic()
            assert server.stop() == 0
            print(f"\nstopped in {time.monotonic() - began:.1f} s")
            assert idle.receive().status == ErrorCode.DISCONNECTED
            assert idle.fate() is None
        for client in (waiting, stuck):
            while client.fate() is not None:
                continue
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN


def test_groups_after_a_restart_are_empty_and_go_on_where_they_were(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    group = Consumer(ConsumerKind.GROUP, "g")
    read = c.PollMessages(group, "s", "t", 0, PollingKind.NEXT, 0, 3, True)
    with server:
        with VsrClient(server.port).login() as client:
            client.do(c.CreateStream("s"))
            client.do(c.CreateTopic("s", "t", 1, TopicOptions()))
            client.do(c.CreateConsumerGroup("s", "t", "g"))
            client.do(c.SendMessages("s", "t", ToPartition(0), []), [b"%d" % number for number in range(9)])
        for number, end in enumerate((server.stop, server.kill, server.stop)):
            with VsrClient(server.port).login() as member:
                details = member.do(c.GetConsumerGroup("s", "t", "g"))
                assert int.from_bytes(details[8:12], "little") == 0, "nobody is a member after a restart"
                member.do(c.JoinConsumerGroup("s", "t", "g"))
                found = [int(message.payload) for message in read_wire(member.do(read)[16:])]
                assert found == list(range(3 * number, 3 * number + 3))
                end()
            server.start()
