"""A wire with the server in memory: what actors send and poll can be looked at."""

from collections import defaultdict
from threading import Event

from courser.bench.samples import SampleBatch
from courser.bench.wires import FIRST, NEXT, OFFSET, PollRequest, PollResult, SendRequest, TopicName


class FakeWire:
    """Partitions are lists of the times at which messages were made."""

    payload_size_of_one = 7

    def __init__(self, partition_count: int = 1) -> None:
        self.partitions: dict[int, list[int]] = {number: [] for number in range(partition_count)}
        self.sent_counts: list[int] = []
        self.polls: list[tuple[int | None, int, int, int]] = []
        """partition, kind, value, count"""
        self.committed: dict[int, int] = defaultdict(int)
        self.stalls: dict[int, float] = {}
        """Seconds that the send of this number takes."""
        self.stop = Event()
        self.stop_after: int | None = None
        """Messages sent or polled after which ``stop`` is set."""
        self.joined: list[str] = []
        self.is_closed = False
        self._turn = 0
        self._targets: dict[int, tuple[int | None, str | None]] = {}
        self._stamps: dict[int, int] = {}

    def make_send(self, place: TopicName, partition_id: int | None, sample: SampleBatch) -> SendRequest:
        request = SendRequest(bytearray(1), sample.count, sample.payload_size)
        self._targets[id(request)] = (partition_id, None)
        return request

    def stamp(self, request: SendRequest, microseconds: int) -> None:
        self._stamps[id(request)] = microseconds

    def send(self, request: SendRequest) -> None:
        Event().wait(self.stalls.get(len(self.sent_counts), 0.0))
        self.sent_counts.append(request.message_count)
        partition_id, _ = self._targets[id(request)]
        if partition_id is None:
            partition_id = self._turn % len(self.partitions)
            self._turn += 1
        self.partitions[partition_id] += [self._stamps.get(id(request), 0)] * request.message_count
        self._count(request.message_count)

    def make_poll(
        self, place: TopicName, partition_id: int | None, *, group: str | None = None, auto_commit: bool = False
    ) -> PollRequest:
        request = PollRequest(bytearray(1))
        self._targets[id(request)] = (partition_id, group)
        return request

    def poll(self, request: PollRequest, kind: int, value: int, count: int) -> PollResult:
        partition_id, group = self._targets[id(request)]
        self.polls.append((partition_id, kind, value, count))
        assert kind == (NEXT if group else kind)
        number = partition_id or 0
        begin = {OFFSET: value, FIRST: 0, NEXT: self.committed[number]}[kind]
        found = self.partitions[number][begin : begin + count]
        if group:
            self.committed[number] += len(found)
        self._count(len(found))
        return PollResult(len(found), 100, begin, found[0] if found else 0)

    def _count(self, messages: int) -> None:
        if self.stop_after is not None:
            self.stop_after -= messages
            if self.stop_after <= 0:
                self.stop.set()

    def payload_size(self, polled: PollResult) -> int:
        return self.payload_size_of_one * polled.message_count

    def join_group(self, place: TopicName, name: str) -> None:
        self.joined.append(name)

    def assigned(self, place: TopicName, name: str) -> list[int] | None:
        return list(self.partitions)

    def create_stream(self, name: str) -> None:
        raise AssertionError("actors make nothing")

    def delete_stream(self, name: str) -> None:
        raise AssertionError("actors remove nothing")

    def create_topic(self, place: TopicName, partition_count: int, *, is_synced: bool = False) -> None:
        raise AssertionError("actors make nothing")

    def topic_figures(self, place: TopicName) -> tuple[int, int]:
        raise AssertionError("actors do not ask")

    def create_group(self, place: TopicName, name: str) -> None:
        raise AssertionError("actors make nothing")

    def close(self) -> None:
        self.is_closed = True
