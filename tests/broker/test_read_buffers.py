"""Memory for replies: used again, bounded, never shared."""

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
