"""The session loop and the memory that all connections share for requests."""

import asyncio
import random

from courser.model.memory_ledger import MemoryLedger
from courser.transports.frame_buffer import BASE_SIZE
from tests.transports.echo import Peer, frame, settle


async def test_a_large_frame_gets_memory_and_gives_it_back() -> None:
    peer = Peer()
    text = random.Random(1).randbytes(5_000_000)
    peer.receive(frame(text))
    assert peer.wire.sent == b"<" + text + b">"
    assert peer.memory.size == 0
    assert len(peer.loop.room()) == BASE_SIZE


async def test_a_large_frame_is_received_in_small_pieces() -> None:
    """The kernel may hold many megabytes, and copying all of them at once would hold others up."""
    peer = Peer()
    data = frame(bytes(5_000_000))
    peer.receive(data[: BASE_SIZE + 1])
    assert peer.memory.size > 5_000_000
    assert len(peer.loop.room()) == 64 * 1024
    peer.receive(data[BASE_SIZE + 1 :])
    assert len(peer.wire.sent) > 5_000_000


async def test_a_buffer_of_usual_size_is_kept_for_the_next_request_until_somebody_needs_it() -> None:
    memory = MemoryLedger(3_000_000)
    first, second = Peer(memory=memory), Peer(memory=memory)
    first.receive(frame(b"a" * 1_000_000))
    assert memory.size > 1_000_000
    second.receive(frame(b"b" * 2_000_000))
    assert second.seen == [b"b" * 2_000_000]
    first.receive(frame(b"c" * 1_000_000))
    assert first.seen[1] == b"c" * 1_000_000


def filled_memory() -> tuple[MemoryLedger, list[Peer]]:
    """A budget that is spent: by a request that is carried out, and by one that overdraws it and is not all there."""
    memory = MemoryLedger(3_000_000)
    first, second = Peer(memory=memory), Peer(memory=memory)
    first.receive(frame(b"wait" + b"a" * 2_500_000))
    second.receive(frame(b"b" * 2_000_000)[:1_000_000])
    assert memory.size > memory.size_max
    return memory, [first, second]


async def test_a_frame_waits_for_memory_that_other_connections_use() -> None:
    memory, (first, second) = filled_memory()
    third, request = Peer(memory=memory), frame(b"c" * 2_000_000)
    third.receive(request[:BASE_SIZE])
    assert third.wire.flow == "paused"
    assert first.gate is not None
    first.gate.set_result(None)
    await settle()
    assert third.wire.flow == "open"
    second.loop.lost()
    await third.receive_all(request[BASE_SIZE:])
    assert third.seen == [b"c" * 2_000_000]


async def test_one_that_is_gone_waits_for_memory_no_longer() -> None:
    memory, (first, second) = filled_memory()
    third, fourth = Peer(memory=memory), Peer(memory=memory)
    for peer in (third, fourth):
        peer.receive(frame(b"c" * 2_000_000)[:BASE_SIZE])
    third.loop.lost()
    first.loop.lost()
    assert fourth.wire.flow == "paused", "the request of the first one is still being read"
    assert first.gate is not None
    first.gate.set_result(None)
    await settle()
    assert fourth.wire.flow == "open"
    fourth.loop.lost()
    second.loop.lost()
    assert memory.size == 0


async def test_memory_is_lent_for_what_has_arrived_and_a_step_more() -> None:
    memory = MemoryLedger(16_000_000)
    peer, request = Peer(memory=memory), frame(b"x" * 12_000_000)
    peer.receive(request[: BASE_SIZE - 1])
    assert memory.size == 0, "what is declared is not lent"
    for position in range(BASE_SIZE - 1, len(request) - 1, 10_000):
        peer.receive(request[position : position + 10_000])
        arrived_size = min(position + 10_000, len(request))
        assert memory.size <= 2 * arrived_size + 256 * 1024
    assert peer.seen == [b"x" * 12_000_000]
    assert memory.size == 0


async def test_a_small_request_gets_through_while_large_ones_wait() -> None:
    memory = MemoryLedger(16_000_000)
    liars = [Peer(memory=memory) for _ in range(80)]
    request = frame(b"x" * 12_000_000)
    for liar in liars:
        liar.receive(request[:BASE_SIZE])
    assert sum(liar.wire.flow == "paused" for liar in liars) > 10, "the memory is not filled: this proves nothing"
    honest = Peer(memory=memory)
    for _ in range(3):
        honest.receive(frame(b"y" * 1_000_000))
    assert honest.seen == [b"y" * 1_000_000] * 3


async def test_the_request_that_lacks_least_gets_memory_first() -> None:
    memory, (first, second) = filled_memory()
    sizes = (2_000_000, 1_800_000, 1_900_000)
    others = [Peer(memory=memory) for _ in sizes]
    for peer, size in zip(others, sizes, strict=True):
        peer.receive(frame(b"c" * size)[:BASE_SIZE])
        assert peer.wire.flow == "paused"
    # Now exactly one may overdraw.
    second.loop.lost()
    assert [peer.wire.flow for peer in others] == ["paused", "open", "paused"]
    assert first.gate is not None


async def test_requests_that_hold_a_part_each_do_not_wait_for_each_other_for_ever() -> None:
    memory = MemoryLedger(4_000_000)
    peers = [Peer(memory=memory) for _ in range(12)]
    texts = [b"%02d" % number * 1_000_000 for number in range(12)]
    await asyncio.gather(*(peer.receive_all(frame(text)) for peer, text in zip(peers, texts, strict=True)))
    assert [peer.seen for peer in peers] == [[text] for text in texts]
    assert memory.waiting_count == 0


async def test_a_frame_larger_than_the_whole_budget_gets_its_turn_alone() -> None:
    peer = Peer(memory=MemoryLedger(1_000_000))
    peer.receive(frame(b"a" * 2_000_000))
    assert peer.seen == [b"a" * 2_000_000]
