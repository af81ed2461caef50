import pytest

from courser.transports.parked_reads import COUNT_MAX
from tests.transports.echo import GONE, Peer, frame, settle


async def arrive(peer: Peer, text: bytes) -> None:
    peer.arrivals[text].set_result(None)
    await settle()


async def test_requests_behind_a_read_that_waits_are_answered_at_once() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"next"))
    assert peer.wire.sent == b"<next>"
    assert peer.wire.acknowledged_count == 1, "no reply does so soon"
    await arrive(peer, b"one")
    assert peer.wire.sent == b"<next><one>"


async def test_a_read_that_has_nothing_to_wait_for_is_answered_at_once() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 there") + frame(b"next"))
    assert peer.wire.sent == b"<there><next>"
    assert peer.wire.acknowledged_count == 0


async def test_reads_are_answered_in_the_order_in_which_they_become_ready() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"@2 two") + frame(b"@3 three"))
    for text in (b"three", b"one", b"two"):
        await arrive(peer, text)
    assert peer.wire.sent == b"<three><one><two>"


async def test_the_result_of_a_wait_may_be_the_reply() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 arrived"))
    await arrive(peer, b"arrived")
    assert peer.wire.sent == b"<arrival arrived>"
    assert peer.seen == []
    peer.receive(frame(b"@1 arrived there"))
    await arrive(peer, b"arrived there")
    assert peer.wire.sent.endswith(b"<arrival arrived there>")


async def test_a_read_comes_back_behind_the_request_in_progress_and_before_those_after_it() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"wait") + frame(b"next"))
    await arrive(peer, b"one")
    assert peer.wire.sent == b""
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == b"<wait><one><next>"


async def test_a_read_that_has_waited_may_have_to_wait_in_the_line_too() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 wait"))
    await arrive(peer, b"wait")
    peer.receive(frame(b"next"))
    assert peer.wire.sent == b""
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == b"<wait><next>"


async def test_a_client_that_does_not_read_gets_nothing_that_has_arrived() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one"))
    peer.wire.is_stuck = True
    peer.receive(frame(b"next"))
    await arrive(peer, b"one")
    assert peer.wire.sent == b"<next>"
    assert peer.seen == [b"next"], "nothing is read before there is a place for it"
    peer.wire.is_stuck = False
    peer.loop.sent()
    await settle()
    assert peer.wire.sent == b"<next><one>"


async def test_a_wait_that_is_refused_is_the_answer() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 forbidden") + frame(b"next"))
    assert peer.wire.sent == b"failed: forbidden<next>"
    assert not peer.loop.has_parked_reads


async def test_a_wait_may_fail_later() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one"))
    peer.arrivals[b"one"].set_exception(GONE)
    await settle()
    assert peer.wire.sent == b"failed: " + str(GONE).encode()
    assert not peer.loop.has_parked_reads


# --- cancellations ---


async def test_a_read_that_is_cancelled_is_refused_once() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"@2 two") + frame(b"#1") + frame(b"#1") + frame(b"next"))
    await settle()
    assert peer.wire.sent == b"<next>failed: the client has cancelled the read"
    assert peer.arrivals.keys() == {b"two"}
    assert peer.seen == [b"next"]
    await arrive(peer, b"two")
    assert peer.wire.sent.endswith(b"<two>")
    assert not peer.loop.has_parked_reads


async def test_a_cancellation_of_a_read_that_was_answered_does_nothing() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 there") + frame(b"#1") + frame(b"#2") + frame(b"next"))
    await settle()
    assert peer.wire.sent == b"<there><next>"


async def test_a_cancellation_that_comes_when_messages_have_does_nothing() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one"))
    peer.arrivals[b"one"].set_result(None)
    await settle(1)
    peer.receive(frame(b"#1"))
    await settle()
    assert peer.wire.sent.count(b"<one>") + peer.wire.sent.count(b"cancelled") == 1
    assert not peer.loop.has_parked_reads


# --- limits ---


async def test_the_number_of_reads_that_wait_is_limited() -> None:
    peer = Peer()
    for number in range(COUNT_MAX):
        peer.receive(frame(b"@%d %d" % (number, number)))
    peer.receive(frame(b"@%d more" % COUNT_MAX) + frame(b"@%d there" % COUNT_MAX))
    await settle()
    assert peer.wire.sent == b"failed: %d reads of this connection wait already<there>" % COUNT_MAX
    assert b"more" not in peer.arrivals
    await arrive(peer, b"3")
    peer.receive(frame(b"@%d more" % COUNT_MAX))
    await arrive(peer, b"more")
    assert peer.wire.sent.endswith(b"<3><more>")


async def test_a_number_names_one_read() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"@1 other"))
    await settle()
    assert peer.wire.sent == b"failed: request number 1 is that of a read that still waits"
    await arrive(peer, b"one")
    assert peer.wire.sent.endswith(b"<one>")


async def test_reads_that_come_back_together_take_turns_with_other_connections() -> None:
    peer = Peer()
    for number in range(COUNT_MAX):
        peer.receive(frame(b"@%d %d" % (number, number)))
    peer.loop._turns.yielding_count = 1000
    for arrival in tuple(peer.arrivals.values()):
        arrival.set_result(None)
    answered: list[int] = []
    while peer.arrivals or len(peer.seen) < COUNT_MAX:
        await settle(1)
        answered.append(len(peer.seen))
    assert len(set(answered)) > 2, "not all of them in one turn"
    assert peer.wire.sent == b"".join(b"<%d>" % number for number in range(COUNT_MAX))


async def test_another_request_does_not_end_a_wait() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"wait") + frame(b"next"))
    await settle()
    assert not peer.arrivals[b"one"].done()


async def test_a_connection_knows_that_a_read_waits() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one"))
    assert (peer.loop.has_parked_reads, peer.loop.is_idle) == (True, True)
    await arrive(peer, b"one")
    assert not peer.loop.has_parked_reads


# --- the end ---


async def test_a_session_that_ends_refuses_its_reads_before_it_says_goodbye() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"@2 two"))
    peer.session.end(GONE)
    assert peer.wire.sent == b"failed: silent for too long" * 2 + b"bye"
    assert peer.wire.is_closed
    await settle()
    assert peer.arrivals == {}
    assert peer.wire.sent.endswith(b"bye"), "and nothing else"


async def test_reads_are_refused_behind_the_last_reply() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"wait"))
    peer.session.end(GONE)
    assert not peer.wire.sent
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == b"<wait>failed: silent for too long"
    assert peer.wire.is_closed
    assert peer.arrivals == {}


@pytest.mark.parametrize("text", [b"?close", b"next"])
async def test_a_client_that_does_not_read_is_not_told_more(text: bytes) -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one"))
    peer.wire.is_stuck = True
    peer.receive(frame(text))
    peer.session.end(GONE)
    assert bytes(peer.wire.sent) == (b"what?" if text == b"?close" else b"<next>")
    assert peer.wire.is_closed
    await settle()
    assert peer.arrivals == {}


async def test_nothing_waits_for_a_client_that_is_gone() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + frame(b"@2 two"))
    peer.arrivals[b"two"].set_result(None)
    peer.loop.lost()
    peer.wire.is_closed = True
    await settle()
    assert not peer.wire.sent
    assert not peer.arrivals
    assert not peer.seen


async def test_a_read_that_waits_ends_with_a_frame_that_is_refused() -> None:
    peer = Peer()
    peer.receive(frame(b"@1 one") + b"!!!")
    assert peer.wire.sent.endswith(b"no!")
    assert peer.wire.is_closed
    peer.loop.lost()
    await settle()
    assert peer.arrivals == {}
