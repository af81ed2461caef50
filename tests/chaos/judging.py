"""A full reading of the server while nobody else asks anything, handed to the history."""

import threading
import time
from collections.abc import Callable

import courser
from courser.client.messages import PollingStrategy
from courser.client.sync import SyncClient
from courser.errors import AuthenticationFailed, NotFound
from courser.model.identifiers import Consumer, ConsumerKind
from tests.chaos.history import Found, History, Outcome, Path, Register, Value
from tests.servers import ROOT_NAME, ROOT_PASSWORD

PATIENCE = 30.0
"""Seconds that the server gets to finish, after a start, what was published before it."""
_POLL_COUNT = 5_000


class Judge:
    """Reads everything as root, over Courser's own client."""

    def __init__(
        self, history: History, address: str, *, ignored_streams: frozenset[str], where: str = "the server"
    ) -> None:
        """``where``: what was read, for the story."""
        self._history = history
        self._address = address
        self._ignored_streams = ignored_streams
        self._where = where
        self.message_count = 0
        """Messages that were read."""

    def judge(self) -> None:
        """Compare all of it. Raises ``CourserError`` if a server that should be well does not answer."""
        self._history.end(self._history.begin("judge", f"reading of {self._where}"), Outcome.DONE)
        target = f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{self._address}"
        with courser.connect_sync(target, request_timeout=60.0) as client:
            self._judge_sinks(client)
            counts = self._judge_metadata(client)
            self._judge_users(client)
            self._judge_positions(client, counts)
            for path in self._history.partitions:
                is_there = int(path[2]) < counts.get(path[:2], 0)
                self._history.judge_partition(path, self._read(client, path) if is_there else [])
            for path, count in counts.items():
                for partition in range(count):
                    if (*path, partition) not in self._history.partitions:
                        self._history.judge_partition((*path, partition), self._read(client, (*path, partition)))
        self._history.finish_judgement()

    # --- metadata -------------------------------------------------------------------------------------

    def _judge_metadata(self, client: SyncClient) -> dict[Path, int]:
        """Streams, topics and groups. Returns the partitions of each topic."""
        found: dict[tuple[Path, str], Value] = {}
        counts: dict[Path, int] = {}
        for stream in client.get_streams():
            if stream.name in self._ignored_streams:
                continue
            found[(stream.name,), "stream"] = 1
            for topic in client.get_topics(stream.name):
                path = (stream.name, topic.name)
                counts[path] = topic.partition_count
                found[path, "topic"] = topic.partition_count
                for group in client.get_consumer_groups(*path):
                    found[path, f"group {group.name}"] = 1
        self._compare(
            found, lambda register: register.name in ("stream", "topic") or register.name.startswith("group ")
        )
        return counts

    def _judge_sinks(self, client: SyncClient) -> None:
        deadline, pause = time.monotonic() + PATIENCE, threading.Event()
        while any(sink.is_open for sink in client.get_sinks()):
            if time.monotonic() > deadline:
                self._history.complain("unfinished", (), "a publish is not finished long after a start")
                break
            pause.wait(0.1)
        batches = {sink.name: sink.batch for sink in client.get_sinks()}
        known = self._history.registers(lambda register: register.name.startswith("sink "))
        self._history.judge_publishes({register.name: batches.get(register.name) for register in known})
        found: dict[tuple[Path, str], Value] = {
            ((), name): batch for name, batch in batches.items() if batch is not None
        }
        self._compare(found, lambda register: register.name.startswith("sink "))

    def _judge_users(self, client: SyncClient) -> None:
        """Who is there, and with which password they get in."""
        found: dict[tuple[Path, str], Value] = {}
        for user in client.get_users():
            if user.name.startswith("guest-"):
                register = f"user {user.name}"
                passwords = [str(p) for p in self._history.values((), register) if p is not None]
                found[(), register] = next(filter(lambda p: self._gets_in(user.name, p), passwords), "another password")
        self._compare(found, lambda register: register.name.startswith("user "))

    def _gets_in(self, name: str, password: str) -> bool:
        try:
            courser.connect_sync(self._address, username=name, password=password, request_timeout=60.0).close()
        except AuthenticationFailed:
            return False
        return True

    def _judge_positions(self, client: SyncClient, counts: dict[Path, int]) -> None:
        """Stored offsets."""
        found: dict[tuple[Path, str], Value] = {}
        known = self._history.registers(lambda register: register.is_position)
        for register in known:
            if int(register.path[2]) < counts.get(register.path[:2], 0):
                found[register.path, register.name] = _stored(client, register)
        self._compare(found, lambda register: register.is_position)

    def _compare(self, found: dict[tuple[Path, str], Value], wanted: Callable[[Register], bool]) -> None:
        for register in self._history.registers(wanted):
            self._history.judge_register(register.path, register.name, found.pop((register.path, register.name), None))
        for (path, name), value in found.items():
            self._history.judge_register(path, name, value)

    # --- messages -------------------------------------------------------------------------------------

    def _read(self, client: SyncClient, path: Path) -> list[Found]:
        stream, topic, partition = str(path[0]), str(path[1]), int(path[2])
        (bounds,) = [b for b in client.get_partition_bounds(stream, topic).partitions if b.partition_id == partition]
        found: list[Found] = []
        offset = bounds.first_offset
        while offset < bounds.next_offset:
            strategy = PollingStrategy.Offset(offset)
            messages = client.poll_messages(
                stream, topic, partition, strategy, _POLL_COUNT, auto_commit=False, consumer=0, skip_missing=True
            )
            if not messages:
                break
            found += [Found(m.offset, m.payload.decode(errors="replace"), m.timestamp) for m in messages]
            offset = messages[-1].offset + 1
        self.message_count += len(found)
        return found


def _stored(client: SyncClient, register: Register) -> int | None:
    who = register.name.removeprefix("offset of ")
    consumer = Consumer(ConsumerKind.CONSUMER, int(who)) if who.isdigit() else Consumer(ConsumerKind.GROUP, who)
    try:
        stored = client.get_consumer_offset(
            str(register.path[0]), str(register.path[1]), int(register.path[2]), consumer=consumer
        )
    except NotFound:
        return None
    return stored.stored_offset
