"""Memory for large requests that several processes see."""

import gc
import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from courser.api.commands import SendMessages
from courser.model.messaging import ToPartition
from courser.processes.encoding import CALL, COMMAND, decode, encode
from courser.processes.shared_memory import ForeignRegion, RequestRegion
from courser.records.batch import Batch, NewMessage, build_batch

PAGE = os.sysconf("SC_PAGE_SIZE")


def foreign(region: RequestRegion) -> ForeignRegion:
    return ForeignRegion(os.dup(region.descriptor))


def test_another_process_reads_what_was_put_there() -> None:
    region = RequestRegion(100 * PAGE)
    theirs = foreign(region)
    one, other = region.allocate(5000), region.allocate(10)
    one[:5], other[:5] = b"hello", b"world"
    position = region.position_of(other)
    assert position is not None
    assert bytes(theirs.at(position, 5)) == b"world"
    start = region.position_of(one[3:])
    assert start is not None
    assert bytes(theirs.at(start, 2)) == b"lo"


def test_memory_from_elsewhere_is_not_in_the_region() -> None:
    region = RequestRegion(2 * PAGE)
    assert region.position_of(memoryview(bytearray(10))) is None
    first = region.allocate(2 * PAGE)
    assert region.position_of(first) == 0
    # Nothing is refused: what does not fit comes from elsewhere.
    second = region.allocate(100)
    assert len(second) == 100
    assert region.position_of(second) is None


def test_memory_stays_lent_as_long_as_a_part_of_it_is_referred_to() -> None:
    region = RequestRegion(2 * PAGE)
    part = region.allocate(2 * PAGE)[100:200]
    part[:] = bytes(range(100))
    assert region.position_of(region.allocate(PAGE)) is None
    assert bytes(part) == bytes(range(100))
    del part
    assert region.position_of(region.allocate(PAGE)) == 0


def test_the_last_user_may_be_another_thread() -> None:
    region = RequestRegion(2 * PAGE)
    memory = [region.allocate(2 * PAGE)]
    thread = threading.Thread(target=memory.clear)
    thread.start()
    thread.join()
    assert region.lent_size == 0
    assert region.position_of(region.allocate(2 * PAGE)) == 0


@given(st.lists(st.one_of(st.integers(1, 5 * PAGE), st.integers(-5, -1)), max_size=60))
def test_no_memory_is_lent_twice_or_lost(steps: list[int]) -> None:
    region = RequestRegion(16 * PAGE)
    lent: list[memoryview] = []
    memory = memoryview(b"")
    for number, step in enumerate(steps):
        if step > 0:
            memory = region.allocate(step)
            memory[:] = bytes([number % 251]) * step
            lent.append(memory)
        elif lent:
            lent.pop(step % len(lent))
    assert all(len(set(each)) == 1 for each in lent)
    inside = [len(each) for each in lent if region.position_of(each) is not None]
    del memory
    assert region.lent_size == sum(-(-size // PAGE) * PAGE for size in inside)
    lent.clear()
    gc.collect()
    assert region.lent_size == 0
    assert region.position_of(region.allocate(16 * PAGE)) == 0


def test_a_large_send_is_referred_to_and_a_small_one_is_copied() -> None:
    region = RequestRegion(64 * PAGE)
    theirs = foreign(region)
    for payload_size, is_shared in ((100, False), (100_000, True)):
        batch = build_batch([NewMessage(os.urandom(payload_size))])
        memory = region.allocate(len(batch.body))
        memory[:] = batch.body
        lying_there = Batch(batch.origin_timestamp, 1, memory, batch.frames, batch.checksums)
        message = (CALL, 5, COMMAND, (17, 1, SendMessages("a", "b", ToPartition(0), [lying_there])))
        data, buffers = encode(message, region)
        assert (not buffers) == is_shared
        assert decode(memoryview(data), buffers, theirs) == message
        # As long as the other process has not mapped the region, everything is copied.
        assert encode(message)[1]
