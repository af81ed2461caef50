"""How connections share the turns of the event loop."""

import asyncio
from functools import partial

from courser.transports.turns import (
    REQUEST_COUNT_MAX,
    REQUEST_COUNT_PAUSE,
    STRANGER_COUNT_MAX,
    TIME_MAX,
    Turns,
)
from tests.transports.echo import GONE, Peer, frame, settle


async def test_a_client_that_sends_ahead_has_its_share_of_a_turn_and_no_more() -> None:
    peer, other = Peer(), Peer()
    peer.receive(frame(b"x") * 1000)
    assert len(peer.seen) == REQUEST_COUNT_MAX
    rounds = 0
    while len(peer.seen) < 1000:
        before = len(peer.seen)
        await asyncio.sleep(0)
        other.receive(frame(b"y"))
        rounds += 1
        assert len(other.seen) == rounds, "it is answered in every turn"
        assert len(peer.seen) - before <= REQUEST_COUNT_MAX
    assert peer.wire.sent == b"<x>" * 1000


async def test_who_is_read_from_several_times_in_a_turn_has_one_share_all_the_same() -> None:
    peer = Peer()
    for _ in range(100):
        peer.receive(frame(b"x") * 10)
    assert len(peer.seen) < 2 * REQUEST_COUNT_PAUSE
    await settle(30)
    assert len(peer.seen) == 1000


async def test_requests_that_take_long_end_a_turn_sooner() -> None:
    peer = Peer()
    peer.on_request = lambda: peer.clock.advance(TIME_MAX // 3)
    peer.receive(frame(b"x") * 20)
    assert len(peer.seen) <= 6
    await settle(20)
    assert len(peer.seen) == 20


async def test_a_client_that_goes_while_others_come_first_is_forgotten() -> None:
    peer = Peer()
    peer.receive(frame(b"x") * 1000)
    peer.loop.lost()
    await settle()
    assert len(peer.seen) == REQUEST_COUNT_MAX


async def test_a_session_that_the_server_ends_while_others_come_first_is_told_and_closed() -> None:
    peer = Peer()
    peer.receive(frame(b"x") * 1000)
    peer.session.end(GONE)
    await settle()
    assert peer.wire.sent == b"<x>" * REQUEST_COUNT_MAX + b"bye"
    assert peer.wire.is_closed


def strangers_of(turns: Turns, count: int) -> list[Peer]:
    strangers = [Peer(turns=turns) for _ in range(count)]
    for stranger in strangers:
        stranger.session.user_id = None
    return strangers


async def test_strangers_share_one_allowance_and_have_their_turns_one_after_another() -> None:
    turns = Turns()
    strangers = strangers_of(turns, 100)
    for stranger in strangers:
        stranger.receive(frame(b"x") * 5)
    assert sum(len(stranger.seen) for stranger in strangers) == STRANGER_COUNT_MAX
    waiting = [stranger for stranger in strangers if not stranger.seen]
    assert {stranger.wire.flow for stranger in waiting} == {"paused"}, "they are not even read from"
    while turns.waiting_count:
        counts = [len(stranger.seen) for stranger in waiting]
        assert max(counts) - min(counts) <= 1
        await asyncio.sleep(0)
    assert {bytes(stranger.wire.sent) for stranger in strangers} == {b"<x>" * 5}
    assert {stranger.wire.flow for stranger in strangers} == {"open"}


async def test_strangers_that_send_byte_by_byte_have_no_more_than_others() -> None:
    turns = Turns()
    (stranger,) = strangers_of(turns, 1)
    for position in range(STRANGER_COUNT_MAX + 1):
        stranger.receive(frame(b"x" * 100)[position : position + 1])
    assert stranger.wire.flow == "paused"


async def test_a_stranger_whose_request_fails_leaves_the_others_their_turns() -> None:
    turns = Turns()
    seen: list[int] = []

    def go_on(number: int) -> bool:
        seen.append(number)
        if number == 0:
            raise RuntimeError("a defect")
        return True

    failures: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    while turns.admit(lambda: go_on(0)):
        pass
    for number in range(1, 5):
        assert not turns.admit(partial(go_on, number))
    async with asyncio.timeout(30):
        while turns.waiting_count:  # noqa: ASYNC110 - a timer of the loop, without an event
            await asyncio.sleep(0)
    assert seen == list(range(5))
    assert [str(failure) for failure in failures] == ["a defect"]


async def test_whoever_has_logged_in_does_not_wait_for_strangers() -> None:
    turns = Turns()
    for stranger in strangers_of(turns, 100):
        stranger.receive(frame(b"x") * 5)
    peer = Peer(turns=turns)
    peer.receive(frame(b"hello"))
    assert peer.seen == [b"hello"]


async def test_a_stranger_that_goes_is_no_longer_waited_for() -> None:
    turns = Turns()
    strangers = strangers_of(turns, 100)
    for stranger in strangers:
        stranger.receive(frame(b"x") * 5)
    for stranger in strangers:
        stranger.loop.lost()
    while turns.waiting_count:  # noqa: ASYNC110 - it ends in a moment
        await asyncio.sleep(0)
    assert sum(len(stranger.seen) for stranger in strangers) == STRANGER_COUNT_MAX
