"""Memory for replies: used again, bounded, never shared."""

import asyncio

from courser.broker.access.sessions import Session
from courser.broker.partition.read_buffers import ReadBuffers
from courser.model.memory_ledger import MemoryLedger
from courser.model.messaging import Transport
from courser.storage.read_result import ReadBuffer

MIB = 1024 * 1024


def session(number: int) -> Session:
    return Session(number, Transport.TCP, "127.0.0.1:1", now=0)


def lease(buffers: ReadBuffers, one: Session, size: int) -> ReadBuffer:
    buffer, leased_size = buffers.lease(one, size)
    assert buffer is not None
    assert leased_size == size
    return buffer


def test_a_buffer_is_used_again_once_its_reply_is_sent() -> None:
    buffers, one, two = ReadBuffers(MemoryLedger(512 * MIB)), session(1), session(2)
    first, _ = buffers.lease(one, MIB)
    second, _ = buffers.lease(two, MIB)
    assert second is not first
    buffers.give_back(one)
    buffers.give_back(one)
    assert buffers.lease(one, MIB)[0] is first


def test_a_buffer_that_may_still_be_written_is_not_used_again() -> None:
    buffers, one = ReadBuffers(MemoryLedger(512 * MIB)), session(1)
    first, _ = buffers.lease(one, MIB)
    buffers.drop(one)
    buffers.give_back(one)
    assert buffers.lease(one, MIB)[0] is not first
    assert buffers.ledger.size == MIB


async def test_replies_get_smaller_when_many_are_on_their_way_and_in_the_end_have_to_wait() -> None:
    buffers = ReadBuffers(MemoryLedger(16 * MIB))
    sizes: list[int] = []
    while True:
        buffer, size = buffers.lease(session(len(sizes) + 1), MIB)
        if buffer is None:
            break
        sizes.append(size)
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1], size) == (MIB, 256 * 1024, 16 * 1024)
    waits = [asyncio.create_task(buffers.lease_later(session(1000 + number), size)) for number in range(300)]
    await asyncio.sleep(0)
    assert 2 * 64 <= sum(wait.done() for wait in waits) < 300, "there is a share for those"
    assert 16 * MIB - 16 * 1024 < buffers.ledger.size <= 16 * MIB
    for wait in waits:
        wait.cancel()


def test_only_what_a_reply_has_counts() -> None:
    buffers, one = ReadBuffers(MemoryLedger(100 * MIB)), session(1)
    buffers.lease(one, 8 * MIB)
    buffers.settle(one, 100)
    assert buffers.ledger.size == 100
    assert buffers.lease(session(2), 8 * MIB)[1] == 8 * MIB
    buffers.give_back(one)
    assert buffers.ledger.size == 8 * MIB


def test_large_buffers_are_not_kept_beyond_a_bound() -> None:
    buffers = ReadBuffers(MemoryLedger(512 * MIB), kept_size_max=3 * MIB)
    sessions = [session(number) for number in range(1, 5)]
    for one in sessions:
        lease(buffers, one, 2 * MIB).take(2 * MIB)
    for one in sessions:
        buffers.give_back(one)
    assert buffers.kept_size <= 3 * MIB
    assert buffers.ledger.size == 0


def test_a_reply_that_is_larger_than_what_was_leased_needs_room() -> None:
    buffers, one, two = ReadBuffers(MemoryLedger(10 * MIB)), session(1), session(2)
    buffers.lease(one, MIB)
    buffers.lease(two, MIB // 2)
    assert buffers.settle(one, 8 * MIB)
    assert not buffers.settle(two, 2 * MIB)
    assert buffers.settle(two, MIB // 2), "so much was leased"
    assert buffers.ledger.size == 8 * MIB + MIB // 2


async def test_a_reply_that_is_larger_than_all_memory_goes_alone() -> None:
    buffers, one, two = ReadBuffers(MemoryLedger(10 * MIB)), session(1), session(2)
    buffers.lease(one, MIB)
    assert buffers.settle(one, 20 * MIB)
    assert buffers.lease(two, MIB)[0] is None
    buffers.give_back(one)
    buffers.lease(one, MIB)
    buffers.lease(two, MIB)
    assert not buffers.settle(two, 20 * MIB)


async def test_large_replies_wait_in_their_order_until_there_is_room() -> None:
    buffers, one = ReadBuffers(MemoryLedger(10 * MIB)), session(1)
    buffers.lease(one, MIB)
    buffers.settle(one, 8 * MIB)
    later = [session(number) for number in (2, 3, 4)]
    waits = [asyncio.create_task(buffers.lease_later(other, 6 * MIB)) for other in later]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    assert buffers.lease(session(5), 256 * 1024)[1] == 256 * 1024, "small ones do not wait"
    buffers.give_back(one)
    assert buffers.ledger.size == 256 * 1024 + 6 * MIB
    await waits[0]
    waits[1].cancel()
    buffers.drop(later[0])
    await waits[2]
    assert waits[1].cancelled()
    assert buffers.ledger.size == 256 * 1024 + 6 * MIB


async def test_polls_wait_when_replies_fill_their_memory_and_unread_ones_are_cut_off_for_them() -> None:
    buffers, unread, one = ReadBuffers(MemoryLedger(MIB)), session(1), session(2)
    missing: list[tuple[int, Session | None]] = []

    def cut_off(size: int, session: Session | None) -> None:
        missing.append((size, session))
        buffers.drop(unread)

    buffers.unread(unread, MIB, is_copied=False)
    assert buffers.lease(one, MIB) == (None, 16 * 1024)
    buffers.on_shortage = cut_off
    await buffers.lease_later(one, 16 * 1024)
    assert missing == [(16 * 1024, None)]
    assert buffers.ledger.size == 16 * 1024


async def test_polls_that_wait_go_before_those_that_come() -> None:
    buffers, one = ReadBuffers(MemoryLedger(MIB)), session(1)
    buffers.unread(one, MIB, is_copied=True)
    first = asyncio.create_task(buffers.lease_later(session(2), 16 * 1024))
    await asyncio.sleep(0)
    buffers.unread(one, MIB - 20 * 1024, is_copied=True)
    await first
    assert buffers.lease(session(3), MIB) == (None, 16 * 1024)


def test_a_reply_that_is_a_copy_counts_when_it_is_not_read_and_the_memory_it_came_from_is_free() -> None:
    buffers, one = ReadBuffers(MemoryLedger(100 * MIB)), session(1)
    first = lease(buffers, one, MIB)
    buffers.settle(one, MIB)
    buffers.unread(one, 1_400_000, is_copied=True)
    assert buffers.ledger.size == buffers.size_of(one) == 1_400_000
    assert buffers.lease(session(2), MIB)[0] is first
    buffers.give_back(one)
    assert buffers.ledger.size == MIB


def test_a_reply_that_nobody_leased_memory_for_counts_when_it_is_not_read() -> None:
    buffers, one, two = ReadBuffers(MemoryLedger(4 * MIB)), session(1), session(2)
    missing: list[tuple[int, Session | None]] = []
    buffers.on_shortage = lambda size, session: missing.append((size, session))
    buffers.unread(one, 3 * MIB, is_copied=False)
    assert missing == []
    buffers.unread(two, 3 * MIB, is_copied=False)
    assert missing == [(2 * MIB, two)]
    buffers.drop(one)
    buffers.give_back(two)
    assert buffers.ledger.size == 0


def test_a_large_buffer_counts_whole_while_a_small_reply_in_it_is_not_read() -> None:
    buffers, one = ReadBuffers(MemoryLedger(100 * MIB)), session(1)
    lease(buffers, one, 8 * MIB).take(8 * MIB)
    buffers.give_back(one)
    lease(buffers, one, 8 * MIB)
    buffers.settle(one, 100)
    assert buffers.ledger.size == 100
    buffers.unread(one, 50, is_copied=False)
    assert buffers.ledger.size == 8 * MIB
    buffers.give_back(one)
    assert buffers.ledger.size == 0


def test_a_shared_reply_counts_once_for_as_long_as_somebody_needs_it() -> None:
    buffers, one, two = ReadBuffers(MemoryLedger(MIB)), session(1), session(2)
    lease(buffers, one, 64 * 1024)
    held = buffers.hold(one)
    assert held is not None
    buffers.share(two, held)
    assert buffers.size_of(two) < 64 * 1024, "its share"
    for each in (one, two):
        buffers.give_back(each)
        assert buffers.ledger.size == 64 * 1024
    buffers.release(held)
    assert buffers.ledger.size == 0
    assert buffers.lease(one, 1)[0] is held


def test_readers_of_a_shared_reply_that_are_cut_off_free_its_memory_once() -> None:
    buffers, readers = ReadBuffers(MemoryLedger(MIB)), [session(number) for number in (1, 2, 3)]
    lease(buffers, readers[0], 128 * 1024)
    held = buffers.hold(readers[0])
    assert held is not None
    for reader in readers[1:]:
        buffers.share(reader, held)
    for reader in readers:
        assert buffers.ledger.size == 128 * 1024, "the others still need it"
        buffers.drop(reader)
    buffers.release(held)
    assert buffers.ledger.size == 0
    assert buffers.kept_size == 0, "the kernel may still read it"
