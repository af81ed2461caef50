"""Messages that are sent again, however connections and servers behave: stored once, in order, with right receipts."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from courser.api.commands import SendMessages
from courser.api.replies import Reply, Sent
from courser.client.connection import Connection
from courser.client.delivery import BatchDelivery, ProducerSettings
from courser.client.link import Link
from courser.client.numbering import PartitionNumbers
from courser.client.pending_batches import PendingBatch
from courser.client.targets import Target
from courser.errors import CommandRejected, ConnectionFailed, ErrorCode, InvalidRequest, RequestFailed
from courser.model.messaging import ToPartition
from courser.records.batch import Batch, NewMessage, build_batch
from courser.records.frames import iterate_frames
from courser.records.producers import EPOCH_MAX, BatchProducer
from courser.storage.producer_table import ProducerLimits, ProducerTable


@dataclass
class FakePartition:
    """Stores batches as a server does: in memory."""

    table: ProducerTable = field(default_factory=lambda: ProducerTable(ProducerLimits()))
    log: list[bytes] = field(default_factory=list)

    def append(self, batch: Batch) -> int:
        assert batch.producer is not None
        offset = self.table.find_repeat(batch.producer, 0)
        if offset is None:
            offset = len(self.log)
            self.table.remember(batch.producer, offset, 0)
            self.log += [bytes(frame.payload) for frame in iterate_frames(batch.body, batch.count)]
        return offset


class FakeConnection:
    """Requests that a server takes when the test says so, also after the client has given the connection up."""

    is_writable = True
    address = "here"

    def __init__(self, partitions: list[FakePartition]) -> None:
        self.partitions = partitions
        self.waiting: list[tuple[SendMessages, BatchProducer, asyncio.Future[Reply | None]]] = []
        self.is_open = True

    def begin(self, command: SendMessages) -> "asyncio.Future[Reply | None]":
        if not self.is_open:
            raise ConnectionFailed("here", "it broke")
        answer: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        (batch,) = command.batches
        assert batch.producer is not None
        self.waiting.append((command, batch.producer, answer))
        return answer

    def fail(self, error: ConnectionFailed) -> None:
        self.is_open = False
        for _, _, answer in self.waiting:
            if not answer.done():
                answer.set_exception(error)

    def take(self, refusal: ErrorCode | None = None) -> None:
        """The server takes the next request. It answers, if anybody still listens."""
        command, producer, answer = self.waiting.pop(0)
        assert isinstance(command.partitioning, ToPartition)
        partition_id = command.partitioning.partition_id
        sent = command.batches[0]
        # As it was when it was sent: the client may have numbered it anew since.
        batch = Batch(sent.origin_timestamp, sent.count, sent.body, sent.frames, sent.checksums, producer)
        outcome: Sent | RequestFailed
        try:
            if refusal is not None:
                raise CommandRejected(refusal, "not now")
            outcome = Sent(0, 0, partition_id, self.partitions[partition_id].append(batch))
        except CommandRejected as error:
            outcome = RequestFailed(error.code, str(error))
        if answer.done():
            return
        if isinstance(outcome, Sent):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)


class FakeLink:
    """A client whose connections the test breaks."""

    is_courser = True
    gave_up = False
    last_error = None
    target = Target(reconnect_interval=0, reconnect_interval_max=0)

    def __init__(self, partitions: list[FakePartition]) -> None:
        self.partitions = partitions
        self.connections = [FakeConnection(partitions)]
        self.id_count = 0

    @property
    def current(self) -> FakeConnection | None:
        return self.connections[-1] if self.connections[-1].is_open else None

    async def connection(self, *, patient: bool) -> FakeConnection:
        assert patient
        if self.current is None:
            self.connections.append(FakeConnection(self.partitions))
        return self.connections[-1]

    def logs_in_again(self, error: Exception) -> bool:
        return False

    def draw_producer_id(self) -> int:
        self.id_count += 1
        return self.id_count


def delivery_over(link: FakeLink, **settings: Any) -> BatchDelivery:
    return BatchDelivery(cast("Link", link), ("s", "t"), ProducerSettings(**settings), None, lambda: None)


def batch_of(partition: int, *payloads: bytes) -> PendingBatch:
    batch = PendingBatch(ToPartition(partition))
    for payload in payloads:
        batch.add(payload)
    return batch


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Trial:
    """A producer, two partitions, and what happens to the connections between them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.partitions = [FakePartition(), FakePartition()]
        self.link = FakeLink(self.partitions)
        self.delivery = delivery_over(self.link, max_in_flight=self.dice.choice([1, 2, 4, 20]))
        self.batches: list[tuple[PendingBatch, list[bytes]]] = []

    def send(self) -> None:
        payloads = [b"%d.%d" % (len(self.batches), number) for number in range(self.dice.randint(1, 3))]
        batch = batch_of(self.dice.randrange(2), *payloads)
        self.batches.append((batch, payloads))
        self.delivery.put(batch)

    def take(self) -> None:
        """The server takes a request: mostly of the newest connection, at times of one that it believes to be there."""
        busy = [connection for connection in self.link.connections if connection.waiting]
        if busy:
            connection = busy[-1] if self.dice.random() < 0.8 else self.dice.choice(busy)
            connection.take(ErrorCode.DISK_FULL if self.dice.random() < 0.1 else None)

    def cut(self) -> None:
        if self.link.current is not None:
            self.link.current.fail(ConnectionFailed("here", "it broke"))

    def expire(self) -> None:
        """The time of the oldest batch is over."""
        if self.delivery.pending:
            self.delivery.pending[0].deadline = 0
            self.delivery._expire()

    def forget(self) -> None:
        """The server is restarted, and a partition does not know what it has stored."""
        self.dice.choice(self.partitions).table = ProducerTable(ProducerLimits())
        for connection in self.link.connections:
            connection.fail(ConnectionFailed("here", "it broke"))
            connection.waiting.clear()

    async def run(self, *, forgets: bool) -> None:
        for _ in range(150):
            actions = self.send, self.take, self.cut, self.expire, self.forget
            self.dice.choices(actions, (40, 40, 7, 2, int(forgets)))[0]()
            await turn()
        while self.delivery.pending:
            if self.link.current is not None and self.link.current.waiting:
                self.link.current.take()
            await turn()
        for connection in self.link.connections:
            while connection.waiting:
                connection.take()
        self.delivery.abandon()

    def check_receipts(self) -> None:
        for batch, payloads in self.batches:
            if batch.sent is not None:
                log = self.partitions[batch.sent.partition_id].log
                assert log[batch.sent.base_offset :][: len(payloads)] == payloads

    def check_logs(self) -> None:
        """Nothing is stored twice, what was acknowledged is stored in order, and what was refused is not."""
        for number, partition in enumerate(self.partitions):
            assert len(set(partition.log)) == len(partition.log)
            own = [(batch, payloads) for batch, payloads in self.batches if batch.target == ToPartition(number)]
            acknowledged = [payload for batch, payloads in own if batch.sent is not None for payload in payloads]
            assert [payload for payload in partition.log if payload in acknowledged] == acknowledged
            assert {batch.error.code for batch, _ in own if isinstance(batch.error, RequestFailed)} <= {
                ErrorCode.DISK_FULL
            }


@pytest.mark.parametrize("seed", range(150))
async def test_whatever_breaks_messages_are_stored_once_and_in_order(seed: int) -> None:
    trial = Trial(seed)
    await trial.run(forgets=False)
    trial.check_receipts()
    trial.check_logs()


@pytest.mark.parametrize("seed", range(50))
async def test_a_server_that_forgets_is_survived(seed: int) -> None:
    trial = Trial(seed)
    await trial.run(forgets=True)
    trial.check_receipts()


async def test_what_follows_a_batch_that_was_given_up_waits_for_those_on_their_way() -> None:
    link = FakeLink([FakePartition()])
    delivery = delivery_over(link)
    batches = [batch_of(0, b"%d" % number) for number in range(4)]
    for batch in batches[:3]:
        delivery.put(batch)
    (connection,) = link.connections
    connection.take(ErrorCode.DISK_FULL)
    await turn()
    delivery.put(batches[3])
    await turn()
    assert [producer.epoch for _, producer, _ in connection.waiting] == [0, 0]
    connection.take()
    await turn()
    assert len(connection.waiting) == 1, "the third is on its way still"
    connection.take()
    await turn()
    assert [(producer.epoch, producer.sequence) for _, producer, _ in connection.waiting] == [(1, 0), (1, 1), (1, 2)]
    while connection.waiting:
        connection.take()
    await delivery.drained()
    assert link.partitions[0].log == [b"1", b"2", b"3"]
    assert [batch.sent is not None for batch in batches] == [False, True, True, True]


async def test_a_batch_that_is_refused_at_the_start_is_not_sent_for_ever() -> None:
    link = FakeLink([FakePartition()])
    delivery = delivery_over(link)
    batch = batch_of(0, b"x")
    delivery.put(batch)
    link.connections[0].take(ErrorCode.PRODUCER_UNKNOWN)
    await delivery.drained()
    assert isinstance(batch.error, RequestFailed)
    assert not link.connections[0].waiting


async def test_no_more_are_on_their_way_to_a_partition_than_it_remembers() -> None:
    link = FakeLink([FakePartition(), FakePartition()])
    delivery = delivery_over(link, max_in_flight=100)
    for number in range(9):
        delivery.put(batch_of(0, b"%d" % number))
    assert len(link.connections[0].waiting) == ProducerLimits().batch_count_max == 5
    delivery.abandon()


def numbered(numbers: PartitionNumbers) -> tuple[int, int, int]:
    batch = build_batch([NewMessage(b"a"), NewMessage(b"b")])
    numbers.number(batch)
    assert batch.producer is not None
    return batch.producer[:3]


def test_after_the_last_epoch_a_new_id_is_drawn() -> None:
    ids = iter([7, 8])
    numbers = PartitionNumbers(lambda: next(ids))
    assert [numbered(numbers), numbered(numbers)] == [(7, 0, 0), (7, 0, 2)]
    for epoch in range(EPOCH_MAX):
        numbers.renew(BatchProducer(7, epoch, 0, 1))
    assert numbered(numbers) == (7, EPOCH_MAX, 0)
    numbers.renew(BatchProducer(7, EPOCH_MAX - 1, 0, 1))
    assert numbered(numbers) == (7, EPOCH_MAX, 2)
    numbers.renew(BatchProducer(7, EPOCH_MAX, 0, 1))
    assert numbered(numbers) == (8, 0, 0)


def test_a_login_has_a_limited_number_of_producers() -> None:
    link = Link(Target())
    link._session, link._producer_count = 101, 2**20 - 1
    assert link.draw_producer_id() == 102 * 2**20 - 1
    with pytest.raises(InvalidRequest, match="connect again") as caught:
        link.draw_producer_id()
    assert caught.value.code == ErrorCode.PRODUCER_IDS_EXHAUSTED


def test_connections_of_tests_are_like_real_ones() -> None:
    assert all(hasattr(Connection, name) for name in ("begin", "fail", "is_writable", "is_open"))
