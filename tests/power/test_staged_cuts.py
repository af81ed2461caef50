"""Real power cuts of a server that holds staged writes: what is finished is whole, what is published is there, once.

Tasks stage parts and a driver publishes them, batch after batch, until the power goes; the next life goes on with the
batch that nobody said was published. Run with ``-s`` for the figures, with ``COURSER_CUTS=100`` for more cuts.
"""

import contextlib
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

import courser
from courser.api.replies import StagedPartInfo
from courser.client.messages import PollingStrategy
from courser.client.sync import SyncClient
from courser.errors import ConnectionFailed, ErrorCode, RequestFailed, ServerFailure
from tests.children.evidence import PromiseBroken
from tests.power.disks import Disk
from tests.servers import PATIENCE, ROOT_NAME, ROOT_PASSWORD, RunningServer

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

SINK = "a query"
TOPIC = "s/t"
PARTITION_COUNT = 3
STEP_COUNT_MAX = 60
"""Answers before a cut: about three batches."""
DELAY_MAX = 0.02
"""Seconds behind the last of them."""
CONTROL_CUTS = 3
WITHOUT_SYNCS = """
from courser.cli.main import main
from courser.storage import staged_file
staged_file.sync_file = lambda file: None
main()
"""
"""A server that finishes a part as soon as it is written."""


@dataclass(frozen=True)
class Part:
    """What one task writes: the same whenever it is asked."""

    batch: int
    number: int

    @property
    def chunks(self) -> list[tuple[int, list[bytes]]]:
        """Of each chunk, the partition and the messages."""
        source = random.Random(f"{self.batch}/{self.number}")
        # Some parts stay below the size from which space is allocated ahead, some pass it several times.
        padding = b"." * source.choice((10, 1000, 30_000))
        return [
            (
                chunk % PARTITION_COUNT,
                [f"{self.batch}/{self.number}/{chunk}/{n} ".encode() + padding for n in range(20)],
            )
            for chunk in range(source.randint(1, 10))
        ]

    @property
    def messages(self) -> Counter[bytes]:
        return Counter(name_of(message) for _, messages in self.chunks for message in messages)


def parts_of(batch: int) -> list[Part]:
    return [Part(batch, number) for number in range(random.Random(batch).randint(1, 3))]


def name_of(payload: bytes) -> bytes:
    return payload[: payload.index(b" ")]


@dataclass
class Promises:
    """What the server said, and was heard to say before the cut."""

    finished: dict[Part, int] = field(default_factory=dict)
    """By part, the attempt."""
    published: int = -1
    """The highest batch."""


class Driver:
    """Tasks and driver of one life, in a thread, until the server is gone."""

    def __init__(self, address: str, promises: Promises, *, attempt: int, first_batch: int) -> None:
        self._url = f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{address}"
        self._promises = promises
        self._attempt = attempt
        self._first_batch = first_batch
        self._is_over = False
        self._step_count = 0
        self._stepped = threading.Condition()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._life = self._thread.submit(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.shutdown()
        self._life.result()

    def wait_for_steps(self, count: int, seconds_behind: float) -> None:
        with self._stepped:
            assert self._stepped.wait_for(lambda: self._life.done() or self._step_count >= count, PATIENCE)
            self._stepped.wait_for(self._life.done, seconds_behind)
        assert not self._life.done(), self._life.exception()

    def _live(self) -> None:
        with contextlib.suppress(ConnectionFailed), courser.connect_sync(self._url, reconnect=False) as client:
            batch = self._first_batch
            while not self._is_over:
                self._write(client, batch)
                batch += 1

    def _write(self, client: SyncClient, batch: int) -> None:
        for part in parts_of(batch):
            chunks = part.chunks
            name = batch, part.number, self._attempt
            for number, (partition, messages) in enumerate(chunks):
                client.stage(SINK, *name, number, TOPIC, None, partition, messages)
                self._step()
            client.finish_stage(SINK, *name, len(chunks))
            self._promises.finished[part] = self._attempt
            self._step()
        client.publish_staged(SINK, batch, {part.number: self._attempt for part in parts_of(batch)})
        self._promises.published = batch
        self._step()

    def _step(self) -> None:
        with self._stepped:
            self._step_count += 1
            self._stepped.notify()


class StagedCuts:
    """Rounds of cuts on one disk, judged after each."""

    def __init__(self, disk: Disk, directory: Path, *, level: str, program: Path | None = None) -> None:
        self._disk = disk
        settings = {
            "system.path": disk.path / "data",
            "system.partition.enforce_fsync": str(level == "synced").lower(),
            "system.logging.file_enabled": "false",
        }
        self.server = RunningServer(directory, settings=settings, program=program)
        self.server.data = disk.path / "data"
        self.expected: Counter[bytes] = Counter()
        """What is published."""
        self.next_batch = 0
        self.round_count = 0
        self.batch_count = 0
        self.finished_count = 0
        self.unfinished_count = 0

    def begin(self) -> None:
        with self._client() as client:
            client.create_stream("s")
            client.create_topic("s", "t", PARTITION_COUNT)

    def rounds(self, source: random.Random, count: int) -> None:
        for _ in range(count):
            self._round(source)

    def _round(self, source: random.Random) -> None:
        """One life, one cut, one judgement."""
        promises = Promises(published=self.next_batch - 1)
        self.round_count += 1
        attempt = self.round_count
        with Driver(self.server.address, promises, attempt=attempt, first_batch=self.next_batch) as driver:
            driver.wait_for_steps(source.randint(1, STEP_COUNT_MAX), source.random() * DELAY_MAX)
            self._cut()
        self._disk.restore_power()
        self.server.start()
        with self._client() as client:
            self._judge_published(client, promises)
            self._judge_staged(client, promises)

    def _cut(self) -> None:
        """The power goes while the server stands still: nothing that it says afterwards could reach the driver."""
        self.server.freeze()
        os.waitid(os.P_PID, self.server.process.pid, os.WSTOPPED)
        self._disk.cut_power()
        self.server.kill()

    def _judge_published(self, client: SyncClient, promises: Promises) -> None:
        """Each published batch is there, whole and once; the last one is published, or nothing of it is there."""
        last = client.get_sink(SINK).batch
        last = -1 if last is None else last
        if last < promises.published:
            raise PromiseBroken(f"batch {promises.published} was published, and the sink stands at {last}")
        for batch in range(self.next_batch, last + 1):
            # A start need not wait for its end: asked for once more, as Spark does it.
            publish(client, batch, {})
            self.expected += sum((part.messages for part in parts_of(batch)), Counter())
            self.batch_count += 1
        self.next_batch = last + 1
        self._check_seen(client)

    def _judge_staged(self, client: SyncClient, promises: Promises) -> None:
        """A part that the server said is finished is; and whichever it calls finished is whole."""
        staged = {Part(info.batch, info.part): info for info in client.get_staged_parts(SINK)}
        assert all(part.batch == self.next_batch for part in staged), "staged for a batch that nobody began"
        finished = {part for part, info in staged.items() if info.is_finished}
        lost = {part for part in promises.finished if part.batch >= self.next_batch} - finished
        if lost:
            raise PromiseBroken(f"finished parts are gone, or not finished: {lost}")
        self.finished_count += len(finished)
        for part in staged.keys() - finished:
            self._check_refused(client, staged[part])
        if finished:
            publish(client, self.next_batch, {part.number: staged[part].attempt for part in finished})
            self.expected += sum((part.messages for part in finished), Counter())
            self._check_seen(client)
            self.next_batch += 1
        client.discard_staged(SINK)

    def _check_refused(self, client: SyncClient, info: StagedPartInfo) -> None:
        self.unfinished_count += 1
        with pytest.raises(RequestFailed) as refusal:
            client.publish_staged(SINK, info.batch, {info.part: info.attempt})
        assert refusal.value.code is ErrorCode.STAGED_PART_INCOMPLETE

    def _check_seen(self, client: SyncClient) -> None:
        seen = Counter(messages_in(client))
        if seen != self.expected:
            missing, surplus = self.expected - seen, seen - self.expected
            raise PromiseBroken(f"{missing.total()} messages are missing, {surplus.total()} are there too often")

    def _client(self) -> SyncClient:
        return courser.connect_sync(f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{self.server.address}")


def publish(client: SyncClient, batch: int, parts: dict[int, int]) -> None:
    """Of parts that are on the disk, as the server says."""
    try:
        client.publish_staged(SINK, batch, parts)
    except ServerFailure as failure:
        raise PromiseBroken(str(failure)) from failure


def messages_in(client: SyncClient) -> Iterator[bytes]:
    for partition in client.get_partition_bounds(TOPIC).partitions:
        offset = partition.first_offset
        while offset < partition.next_offset:
            polled = client.poll_batches(TOPIC, None, partition.partition_id, PollingStrategy.Offset(offset))
            yield from (name_of(bytes(message.payload)) for message in polled.messages())
            # None: offsets at the end that the cut took, and that are not given out again.
            offset = partition.next_offset if polled.next_offset is None else polled.next_offset


@pytest.mark.parametrize("level", ["written", "synced"])
def test_a_cut_takes_no_publish_and_no_finished_part(
    disk: Disk, tmp_path: Path, seed: int, cut_count: int, level: str
) -> None:
    source = random.Random(seed)
    cuts = StagedCuts(disk, tmp_path / "server", level=level)
    with cuts.server:
        cuts.begin()
        cuts.rounds(source, cut_count)
    print(
        f"\n{disk.kind}, {level}: 0 lost / {cuts.expected.total()} messages of {cuts.batch_count} published batches "
        f"over {cuts.round_count} cuts; {cuts.finished_count} parts were finished and not published, "
        f"{cuts.unfinished_count} were not finished"
    )
    assert cuts.batch_count, "nothing was published before a cut: these rounds prove nothing"
    assert cuts.finished_count, "no cut came between a finished part and its publish"


def test_the_cuts_notice_parts_that_are_finished_without_a_sync(disk: Disk, tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    program = tmp_path / "courser"
    program.write_text(f"#!{sys.executable}\n{WITHOUT_SYNCS}")
    program.chmod(0o755)
    cuts = StagedCuts(disk, tmp_path / "server", level="written", program=program)
    with cuts.server:
        cuts.begin()
        with pytest.raises(PromiseBroken) as caught:
            cuts.rounds(source, CONTROL_CUTS)
    print(f"\n{disk.kind}, parts that are not synced: {str(caught.value)[:200]}")
