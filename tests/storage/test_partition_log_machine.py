"""Any sequence of what an owner may do with a partition, against a list that remembers everything."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from courser.errors import InvalidOffset
from courser.model.durability import Durability
from courser.model.identifiers import ConsumerKind
from courser.storage.jobs import Job, perform
from courser.storage.offset_table import ConsumerKey
from courser.storage.read_result import SkipReason
from courser.storage.recovery_cases import StopKind
from courser.storage.segment import SegmentState
from courser.storage.segment_index import IndexCache
from courser.storage.settings import LogSettings
from courser.storage.upkeep import plan_purge, plan_sync, plan_trim, plan_upkeep
from tests.storage.engine import ALL, ENCODINGS, Engine, batch_of, durability, encoded, messages_of

KEYS = [ConsumerKey(kind, name) for kind in ConsumerKind for name in (b"one", b"two")]


@dataclass
class Stored:
    """A message that the model remembers."""

    offset: int
    payload: bytes
    timestamp: int


class PartitionLogMachine(RuleBasedStateMachine):
    """Clean stops and kills lose nothing; power cuts are the business of the crash rounds."""

    @initialize(
        level=st.sampled_from(Durability),
        cache=st.sampled_from(IndexCache),
        segment_size=st.sampled_from([600, 3000, 100_000]),
        interval=st.sampled_from([1, 200, 4096]),
        encoding=st.sampled_from(list(ENCODINGS)),
    )
    def begin(self, level: Durability, cache: IndexCache, segment_size: int, interval: int, encoding: str) -> None:
        settings = LogSettings(
            segment_size=segment_size,
            index_interval=interval,
            index_cache=cache,
            durability=durability(level),
            allocation_min=512,
            allocation_max=2048,
            recovery_point_size=1500,
            reservation_min=8,
            reservation_max=100,
        )
        self.engine = Engine(encoded(settings, encoding))
        self.messages: list[Stored] = []
        self.next_offset = 0
        self.synced = 0
        self.consumers: dict[ConsumerKey, int] = {}
        self.sync_under_way: tuple[Job, int] | None = None

    # --- writing ---

    @rule(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=6),
        large=st.sampled_from([0, 0, 0, 70_000]),
        # Less than a minute in all: such corrections of the clock are waited out. ``test_time`` has the others.
        jump=st.sampled_from([-1_000_000, -1, 0, 1, 50]),
    )
    def append(self, sizes: list[int], large: int, jump: int) -> None:
        self.engine.clock.jump(jump)
        payloads = [bytes([self.next_offset + number & 0xFF]) * (large + size) for number, size in enumerate(sizes)]
        appended = self.engine.append(batch_of(*payloads))
        assert (appended.base_offset, appended.message_count) == (self.next_offset, len(sizes))
        if self.messages:
            assert appended.timestamp >= self.messages[-1].timestamp
        for number, payload in enumerate(payloads):
            self.messages.append(Stored(self.next_offset + number, payload, appended.timestamp))
        self.next_offset += len(payloads)

    @rule()
    def one_piece_of_upkeep(self) -> None:
        if (job := plan_upkeep(self.engine.log)) is not None:
            assert perform(job)

    @rule()
    def all_upkeep(self) -> None:
        self.engine.upkeep()

    @rule()
    def sync(self) -> None:
        self.finish_sync()
        self.engine.sync()
        self.synced = self.next_offset

    @rule()
    def begin_sync(self) -> None:
        self.finish_sync()
        if (job := plan_sync(self.engine.log)) is not None:
            self.sync_under_way = job, self.next_offset

    @rule()
    def finish_sync(self) -> None:
        if self.sync_under_way is not None:
            job, end = self.sync_under_way
            self.sync_under_way = None
            assert perform(job)
            self.synced = max(self.synced, end)

    @rule()
    def roll(self) -> None:
        self.engine.log.roll()

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        before = int(self.next_offset * share)
        if (job := plan_trim(self.engine.log, before)) is not None:
            assert perform(job)
        start = self.engine.log.start_offset
        assert all(message.offset < before for message in self.messages if message.offset < start)
        self.messages = [message for message in self.messages if message.offset >= start]

    @rule()
    def purge(self) -> None:
        assert perform(plan_purge(self.engine.log))
        self.messages, self.consumers = [], {}
        self.synced = self.next_offset
        assert self.engine.log.start_offset == self.next_offset

    @rule(stop=st.sampled_from([StopKind.CLEAN, StopKind.KILLED]))
    def restart(self, stop: StopKind) -> None:
        self.finish_sync()
        self.engine.restart(stop)
        assert self.engine.letters() in ([], ["Q"])
        self.synced = self.next_offset

    # --- consumers ---

    @rule(key=st.sampled_from(KEYS), share=st.floats(0, 1, exclude_max=True))
    def store_offset(self, key: ConsumerKey, share: float) -> None:
        end = self.engine.log.visible_end
        offset = int(end * share)
        if offset >= end:
            with pytest.raises(InvalidOffset):
                self.engine.log.store_offset(key, offset)
            return
        before = self.consumers.get(key)
        must_sync = self.engine.log.store_offset(key, offset)
        assert must_sync or before is None or offset >= before
        self.consumers[key] = offset

    @rule(key=st.sampled_from(KEYS))
    def delete_offset(self, key: ConsumerKey) -> None:
        if self.consumers.pop(key, None) is not None:
            self.engine.log.delete_offset(key)

    # --- reading ---

    def visible(self) -> list[Stored]:
        is_synced = self.engine.settings.durability.level is Durability.SYNCED
        end = self.synced if is_synced else self.next_offset
        return [message for message in self.messages if message.offset < end]

    @rule(share=st.floats(0, 1.1), count=st.integers(0, 40), size_max=st.sampled_from([0, 500, 2000, 100_000, ALL]))
    def read(self, share: float, count: int, size_max: int) -> None:
        offset = int(self.next_offset * share)
        result = self.engine.reader.read(offset, count=count, size_max=size_max)
        found = messages_of(result)
        wanted = [message for message in self.visible() if message.offset >= offset]
        assert len(found) <= count
        assert bool(found) == bool(wanted and count)
        assert result.size <= size_max or len(found) == 1
        for message, expected in zip(found, wanted, strict=False):
            assert (message.offset, message.payload, message.timestamp) == (
                expected.offset,
                expected.payload,
                expected.timestamp,
            )
        assert all(skip.reason is SkipReason.TRIMMED for skip in result.skipped)

    @rule(share=st.floats(0, 1))
    def find_by_time(self, share: float) -> None:
        if self.messages:
            time = self.messages[int((len(self.messages) - 1) * share)].timestamp
            first = next(message.offset for message in self.messages if message.timestamp >= time)
            assert self.engine.reader.offset_at_time(time) == first

    @rule(count=st.integers(0, 20))
    def find_the_last(self, count: int) -> None:
        visible = self.visible()
        offset = self.engine.reader.offset_of_last(count)
        assert len([message for message in visible if message.offset >= offset]) == min(count, len(visible))

    # --- always ---

    @invariant()
    def the_numbers_agree(self) -> None:
        log = self.engine.log
        assert log.next_offset == self.next_offset
        assert log.marks.synced.offset <= log.marks.written.offset == log.next_offset
        assert self.synced <= log.marks.synced.offset
        assert log.message_count == len(self.messages) == sum(segment.message_count for segment in log.segments)
        assert log.size == sum(segment.size for segment in log.segments)
        assert log.unsealed == [segment for segment in log.segments if segment.state is not SegmentState.SEALED]
        assert log.failure is None
        assert dict(log.offsets.items()) == self.consumers
        assert {path.stem for path in self.engine.log_paths()} >= {
            f"{segment.base_offset:020d}" for segment in log.segments
        }


TestPartitionLog = PartitionLogMachine.TestCase
TestPartitionLog.settings = settings(stateful_step_count=40)
