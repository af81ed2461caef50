"""Memory for replies: used again, bounded, never shared."""

import asyncio

from courser.broker.read_buffers import ReadBuffers
from courser.broker.sessions import Session
from courser.model.messaging import Transport

MIB = 1024 * 1024


def session(number: int) -> Session:
    return Session(number, Transport.TCP, "127.0.0.1:1", now=0)


def test_a_buffer_is_used_again_once_its_reply_is_sent() -> None:
    buffers, one, two = ReadBuffers(), session(1), session(2)
    first, _ = buffers.lease(one, MIB)
    second, _ = buffers.lease(two, MIB)
    assert second is not first
    buffers.give_back(one)
    buffers.give_back(one)
    assert buffers.lease(one, MIB)[0] is first


def test_a_buffer_that_may_still_be_written_is_not_used_again() -> None:
    buffers, one = ReadBuffers(), session(1)
    first, _ = buffers.lease(one, MIB)
    buffers.drop(one)
    buffers.give_back(one)
    assert buffers.lease(one, MIB)[0] is not first
    assert buffers.leased_size == MIB


def test_replies_get_smaller_when_many_are_on_their_way() -> None:
    buffers = ReadBuffers(leased_size_max=10 * MIB)
    sizes = [buffers.lease(session(number), 4 * MIB)[1] for number in range(1, 5)]
    assert sizes == [4 * MIB, 4 * MIB, 2 * MIB, 256 * 1024]


def test_only_what_a_reply_has_counts() -> None:
    buffers, one = ReadBuffers(leased_size_max=10 * MIB), session(1)
    buffers.lease(one, 8 * MIB)
    buffers.settle(one, 100)
    assert buffers.leased_size == 100
    assert buffers.lease(session(2), 8 * MIB)[1] == 8 * MIB
    buffers.give_back(one)
    assert buffers.leased_size == 8 * MIB


def test_large_buffers_are_not_kept_beyond_a_bound() -> None:
    buffers = ReadBuffers(kept_size_max=3 * MIB)
    sessions = [session(number) for number in range(1, 5)]
    for one in sessions:
        buffers.lease(one, 2 * MIB)[0].take(2 * MIB)
    for one in sessions:
        buffers.give_back(one)
    assert buffers.kept_size <= 3 * MIB
    assert buffers.leased_size == 0


def test_a_reply_that_is_larger_than_what_was_leased_needs_room() -> None:
    buffers, one, two = ReadBuffers(leased_size_max=10 * MIB), session(1), session(2)
    buffers.lease(one, 4 * MIB)
    buffers.lease(two, 4 * MIB)
    assert buffers.settle(one, 6 * MIB)
    assert not buffers.settle(two, 5 * MIB)
    assert buffers.settle(two, 4 * MIB), "so much was leased"
    assert buffers.leased_size == 10 * MIB


def test_a_reply_that_is_larger_than_all_memory_goes_alone() -> None:
    buffers, one, two = ReadBuffers(leased_size_max=10 * MIB), session(1), session(2)
    buffers.lease(one, MIB)
    assert buffers.settle(one, 20 * MIB)
    buffers.lease(two, MIB)
    assert not buffers.settle(two, 20 * MIB)


async def test_large_replies_wait_in_their_order_until_there_is_room() -> None:
    buffers, one = ReadBuffers(leased_size_max=10 * MIB), session(1)
    buffers.lease(one, 8 * MIB)
    later = [session(number) for number in (2, 3, 4)]
    waits = [asyncio.create_task(buffers.lease_later(other, 6 * MIB)) for other in later]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    assert buffers.lease(session(5), 8 * MIB)[1] == 2 * MIB, "small ones do not wait"
    buffers.give_back(one)
    assert buffers.leased_size == (2 + 6) * MIB
    await waits[0]
    waits[1].cancel()
    buffers.drop(later[0])
    await waits[2]
    assert waits[1].cancelled()
    assert buffers.leased_size == (2 + 6) * MIB
