"""Requests that are cut, changed and mixed up, over TCP, beside somebody who must not notice.

The codecs meet every cut and every changed byte in ``tests/wire``. Here a sample of them goes the whole way.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from courser.api import commands as c
from tests.torture.clients import WIRES
from tests.torture.conftest import Target
from tests.torture.damage import LOGINS, PAYLOADS, REQUESTS, Damage, damages, judge, judge_stranger

every_wire = pytest.mark.parametrize("wire", WIRES)
AT_ONCE = 6


def meet(target: Target, wire: str, damage: Damage, address: str = "127.0.0.1") -> None:
    client = target.connect(wire, address)
    judge(client, damage.applied(client.request(damage.command, PAYLOADS), wire))


def meet_all(target: Target, wire: str, cases: Sequence[Damage]) -> None:
    with target.watch() as witness, ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(partial(meet, target, wire), cases):
            witness.check()
    target.restore()


@every_wire
def test_damaged_requests(target: Target, wire: str, seed: int) -> None:
    meet_all(target, wire, list(damages(seed, 6 * len(REQUESTS))))


@pytest.mark.slow
@every_wire
def test_very_many_damaged_requests(target: Target, wire: str, seed: int) -> None:
    meet_all(target, wire, list(damages(seed, 100 * len(REQUESTS))))


@every_wire
def test_requests_at_every_cut_of_the_head(target: Target, wire: str) -> None:
    """Cut without putting the length right: the server has to wait, and to close when there is no more."""
    requests = (c.GetStream("s"), c.SendMessages("s", "t", REQUESTS[-2].partitioning, []))  # type: ignore[attr-defined]
    for command in requests:
        for size in (1, 3, 4, 7, 8, 9, 47, 48, 51, 52, 60, 61, 255, 256, 257):
            client = target.connect(wire)
            request = client.request(command, PAYLOADS)
            client.send(request[:size])
            client.finish()
            if size < len(request):
                assert client.fate() is None
            client.close()


@every_wire
def test_damaged_logins(target: Target, wire: str, seed: int) -> None:
    """Before a login, from an address of their own: whoever guesses is slowed down."""
    address = f"127.0.1.{list(WIRES).index(wire) + 1}"

    def meet_one(damage: Damage) -> None:
        client = WIRES[wire](target.port, address)
        judge(client, damage.applied(client.request(damage.command), wire))

    with target.watch(), ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(meet_one, damages(seed, 40, LOGINS)))


@every_wire
@settings(max_examples=60)
@given(data=st.binary(min_size=1, max_size=400))
def test_anything_at_all(target: Target, wire: str, data: bytes) -> None:
    judge(target.connect(wire), data)
    judge_stranger(target.port, data)


shares = st.floats(0, 1)


@every_wire
@settings(max_examples=60)
@given(choice=st.lists(st.tuples(st.sampled_from(REQUESTS), shares, shares, st.booleans()), min_size=1, max_size=3))
def test_pieces_of_requests_mixed(
    target: Target, wire: str, choice: list[tuple[c.Command, float, float, bool]]
) -> None:
    client = target.connect(wire)
    pieces = []
    for command, first, second, is_inside in choice:
        request = client.request(command, PAYLOADS)
        start, end = sorted(round(share * len(request)) for share in (first, second))
        pieces.append(request[start:end] if is_inside else request[:start] + request[end:])
    judge(client, b"".join(pieces))
    target.restore()
