"""Memory that is received into again and again, but never while somebody looks at it."""

import numpy as np

from courser.client.receiving import ReceiveMemory


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_that_nobody_looks_at_is_used_again() -> None:
    memory = ReceiveMemory()
    first = memory.take(1000)
    where = address(first)
    assert len(first) == 1000
    del first
    assert address(memory.take(5000)) == where


def test_memory_that_somebody_looks_at_is_left_alone() -> None:
    memory = ReceiveMemory()
    first = memory.take(1000)
    first[:] = b"x" * 1000
    for look in (first[10:20], np.frombuffer(first, np.uint8)[5:6], bytes(first[:1])):
        kept = look
        for _ in range(10):
            other = memory.take(1000)
            other[:] = bytes(1000)
            assert bytes(kept)[:1] == b"x"


def test_two_pieces_go_round_in_a_loop() -> None:
    memory = ReceiveMemory()
    seen = set()
    view = memory.take(1000)
    for _ in range(20):
        following = memory.take(1000)
        seen.add(address(following))
        view = following
    assert len(view) == 1000
    assert len(seen) <= 3


def test_very_large_memory_is_not_kept() -> None:
    memory = ReceiveMemory()
    memory.take(100 * 1024 * 1024)
    assert memory._spares == []


def test_memory_that_is_too_small_makes_room() -> None:
    memory = ReceiveMemory()
    kept = [memory.take(size) for size in (1, 300_000, 600_000, 900_000)]
    assert [len(view) for view in kept] == [1, 300_000, 600_000, 900_000]
    assert len(memory._spares) == 3
