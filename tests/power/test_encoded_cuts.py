"""Real power cuts of a server that compresses, encrypts, drops duplicates and condenses: each, and all together.

A producer sends messages with ids and keys of its own at ``synced``, in order, until the power goes. The next life
sends the last of them again, as a client does that got no reply. Run with ``-s`` for the figures, with
``COURSER_CUTS=100`` for more cuts.
"""

import base64
import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

import courser
from courser.client.messages import PollingStrategy
from courser.client.sync import SyncClient
from courser.errors import ConnectionFailed
from tests.children.evidence import PromiseBroken
from tests.power.disks import Disk
from tests.servers import PATIENCE, ROOT_NAME, ROOT_PASSWORD, RunningServer

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

TOPIC = "s/t"
BATCH_SIZE = 20
KEY_COUNT = 7
BATCH_COUNT_MAX = 60
"""Acknowledged batches before a cut: some segments."""
DELAY_MAX = 0.05
REPEATED_COUNT = 5
"""Batches that are sent again."""
ENCRYPTION = {
    "system.encryption.enabled": "true",
    "system.encryption.key": base64.b64encode(bytes(range(32))).decode(),
}
DEDUPLICATION = {"system.message_deduplication.enabled": "true", "system.message_deduplication.expiry": "1h"}
CONDENSING = {"data_maintenance.messages.interval": "100ms", "data_maintenance.condensing.percent": "1"}


@dataclass(frozen=True)
class Case:
    """What is switched on."""

    settings: dict[str, str]
    compression: str = "none"
    keeps_latest: bool = False
    repeats: bool = False
    """Whether messages are sent again: their ids are remembered for long enough."""


CASES = {
    "nothing": Case({}),
    "compression": Case({}, compression="gzip"),
    "encryption": Case(ENCRYPTION),
    "deduplication": Case(DEDUPLICATION, repeats=True),
    "condensing": Case(CONDENSING, keeps_latest=True),
    "all but condensing": Case(ENCRYPTION | DEDUPLICATION, compression="gzip", repeats=True),
    # Messages whose ids are remembered are not condensed.
    "all": Case(
        ENCRYPTION | DEDUPLICATION | CONDENSING | {"system.message_deduplication.expiry": "1s"},
        compression="gzip",
        keeps_latest=True,
    ),
}


def message(number: int) -> courser.SendMessage:
    """The same whenever it is asked for."""
    padding = random.Random(number).randbytes(100) * 3
    return courser.SendMessage(b"%d " % number + padding, id=number + 1, key=key_of(number))


def key_of(number: int) -> str:
    return f"key {number % KEY_COUNT}"


class Cuts:
    """Rounds of cuts on one disk, judged after each."""

    def __init__(self, disk: Disk, directory: Path, case: Case) -> None:
        self._disk = disk
        self._case = case
        fixed = {
            "system.path": disk.path / "data",
            "system.partition.enforce_fsync": "true",
            "system.partition.messages_required_to_save": "1",
            "system.segment.size": "16 KiB",
            "system.logging.file_enabled": "false",
        }
        self.server = RunningServer(directory, settings=fixed | case.settings)
        self.server.data = disk.path / "data"
        self.acked_count = 0
        """Messages, from the first on."""
        self.repeated_count = self.condensed_count = 0

    def begin(self) -> None:
        with self._client() as client:
            client.create_stream("s")
            client.create_topic(
                "s",
                "t",
                1,
                compression_algorithm=self._case.compression,
                keep_latest_by_key=True if self._case.keeps_latest else None,
            )

    def round(self, source: random.Random) -> None:
        """One life, one cut, one judgement."""
        before = self.acked_count
        with Producer(self) as producer:
            if self._case.keeps_latest and not self.condensed_count:
                self._wait_until_condensed()
            producer.wait_for(source.randint(1, BATCH_COUNT_MAX), source.random() * DELAY_MAX)
            self.server.freeze()
            os.waitid(os.P_PID, self.server.process.pid, os.WSTOPPED)
            self._disk.cut_power()
            self.server.kill()
        assert self.acked_count > before, "a round in which nothing was acknowledged proves nothing"
        self._disk.restore_power()
        self.server.start()
        with self._client() as client:
            self._judge(list(numbers_in(client)))

    def _wait_until_condensed(self) -> None:
        deadline = time.monotonic() + PATIENCE
        with self._client() as client:
            while len(found := list(numbers_in(client))) > (found[-1] if found else 0):
                assert time.monotonic() < deadline, "nothing is condensed"

    def _judge(self, found: list[int]) -> None:
        """In order, each once, and none missing but those that a later one of their key replaces."""
        if found != sorted(set(found)):
            raise PromiseBroken("messages came twice, or out of order")
        end = max(found[-1] + 1, self.acked_count) if found else self.acked_count
        missing = set(range(end)) - set(found)
        if self._case.keeps_latest:
            self.condensed_count = len(missing)
            missing = {number for number in missing if number + KEY_COUNT >= end}
        if missing:
            raise PromiseBroken(f"{len(missing)} of {end} acknowledged messages are missing, from {min(missing)} on")
        if not self._case.repeats:
            # What nobody acknowledged may be there, and would be stored again.
            self.acked_count = end

    @property
    def first_number(self) -> int:
        """From which on the next life sends."""
        if not self._case.repeats:
            return self.acked_count
        self.repeated_count += min(self.acked_count, REPEATED_COUNT * BATCH_SIZE)
        return max(0, self.acked_count - REPEATED_COUNT * BATCH_SIZE)

    def _client(self) -> SyncClient:
        return courser.connect_sync(self.url)

    @property
    def url(self) -> str:
        return f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{self.server.address}"


class Producer:
    """Sends batch after batch, in a thread, until the server is gone."""

    def __init__(self, cuts: Cuts) -> None:
        self._cuts = cuts
        self._is_over = False
        self._new_count = 0
        """Acknowledged batches that are not repeated ones."""
        self._acked = threading.Condition()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._life = self._thread.submit(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.shutdown()
        self._life.result()

    def wait_for(self, count: int, seconds_behind: float) -> None:
        with self._acked:
            assert self._acked.wait_for(lambda: self._life.done() or self._new_count >= count, PATIENCE)
            self._acked.wait_for(self._life.done, seconds_behind)
        assert not self._life.done(), self._life.exception()

    def _live(self) -> None:
        cuts = self._cuts
        first = cuts.first_number
        with contextlib.suppress(ConnectionFailed), courser.connect_sync(cuts.url, reconnect=False) as client:
            while not self._is_over:
                numbers = range(first, first + BATCH_SIZE)
                client.send_messages(TOPIC, partitioning=0, messages=[message(number) for number in numbers])
                first = numbers.stop
                with self._acked:
                    self._new_count += first > cuts.acked_count
                    cuts.acked_count = max(cuts.acked_count, first)
                    self._acked.notify()


def numbers_in(client: SyncClient) -> Iterator[int]:
    """Of all messages, which are as they were sent."""
    (partition,) = client.get_partition_bounds(TOPIC).partitions
    offset = partition.first_offset
    while offset < partition.next_offset:
        polled = client.poll_batches(TOPIC, None, 0, PollingStrategy.Offset(offset))
        for each in polled.messages():
            number = int(bytes(each.payload).split(b" ", 1)[0])
            sent = message(number)
            assert (bytes(each.payload), each.id, each.key) == (sent.payload, sent.id, key_of(number).encode())
            yield number
        offset = partition.next_offset if polled.next_offset is None else polled.next_offset


@pytest.mark.parametrize("name", CASES)
def test_synced_loses_nothing_whatever_is_switched_on(
    disk: Disk, tmp_path: Path, seed: int, cut_count: int, name: str
) -> None:
    source = random.Random(seed)
    cuts = Cuts(disk, tmp_path / "server", CASES[name])
    with cuts.server:
        cuts.begin()
        for _ in range(cut_count):
            cuts.round(source)
    print(
        f"\n{disk.kind}, {name}: 0 lost / {cuts.acked_count} messages acked over {cut_count} cuts; "
        f"{cuts.repeated_count} were sent again, {cuts.condensed_count} were condensed away"
    )
    assert not CASES[name].keeps_latest or cuts.condensed_count, "nothing was condensed before a cut"
