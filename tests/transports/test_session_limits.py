"""The session loop at its limits: frames that are too large, sessions that the server ends, clients that go."""

import random

from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.settings import ConnectionSettings
from tests.transports.echo import GONE, Peer, frame, settle


async def test_before_a_login_frames_are_tiny() -> None:
    peer = Peer(ConnectionSettings(login_frame_size_max=100))
    peer.session.user_id = None
    peer.receive(frame(b"x" * 97))
    assert peer.seen == [b"x" * 97]
    peer.receive(frame(b"x" * 98))
    assert peer.wire.is_closed
    assert len(peer.seen) == 1


async def test_an_operator_may_allow_smaller_frames_than_the_protocol() -> None:
    peer = Peer(ConnectionSettings(frame_size_max=100))
    peer.receive(frame(b"x" * 97) + frame(b"x" * 98))
    assert peer.seen == [b"x" * 97]
    assert peer.wire.is_closed


async def test_a_frame_that_is_too_large_is_answered_and_dropped_before_the_connection_is_closed() -> None:
    peer = Peer()
    peer.receive(b"~" * 1000)
    assert peer.wire.sent == b"too large!"
    assert peer.wire.is_finished
    for _ in range(998):
        peer.receive(b"~" * 1000)
        assert not peer.wire.is_closed, "the client has not sent all of it, and may not have read the answer"
    assert peer.loop.room().nbytes == BASE_SIZE, "no memory is lent for it"
    peer.receive(b"~" * 1000)
    assert peer.wire.is_closed
    assert (peer.seen, bytes(peer.wire.sent)) == ([], b"too large!")


async def test_a_frame_that_is_too_large_has_a_deadline() -> None:
    settings = ConnectionSettings(frame_deadline=1_000_000, frame_rate_min=1000)
    peer = Peer(settings)
    peer.receive(b"~")
    peer.receive(b"~" * 2000)
    now = peer.clock.monotonic()
    assert not peer.loop.is_frame_overdue(now + 2_900_000)
    assert peer.loop.is_frame_overdue(now + 3_100_000)


async def test_nothing_is_dropped_for_strangers() -> None:
    peer = Peer()
    peer.session.user_id = None
    peer.receive(b"~~~~")
    assert (bytes(peer.wire.sent), peer.wire.is_closed) == (b"too large!", True)


async def test_an_idle_session_that_the_server_ends_is_told_and_closed() -> None:
    peer = Peer()
    peer.receive(frame(b"hello"))
    peer.session.end(GONE)
    assert peer.wire.sent == b"<hello>bye"
    assert peer.wire.is_closed


async def test_a_busy_session_that_the_server_ends_gets_its_answer_first() -> None:
    peer = Peer()
    peer.receive(frame(b"wait"))
    peer.session.end(GONE)
    assert not peer.wire.is_closed
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == b"<wait>"
    assert peer.wire.is_closed


async def test_a_session_that_the_server_ends_while_its_answer_is_unread_is_closed_behind_it() -> None:
    peer = Peer()
    peer.wire.is_stuck = True
    peer.receive(frame(b"one"))
    peer.session.end(GONE)
    peer.wire.is_stuck = False
    peer.loop.sent()
    await settle()
    assert peer.wire.sent == b"<one>"
    assert peer.wire.is_closed


async def test_what_was_begun_is_finished_though_the_client_is_gone() -> None:
    peer = Peer()
    peer.receive(frame(b"wait"))
    peer.loop.lost()
    assert peer.gate is not None
    assert not peer.gate.cancelled()
    peer.gate.set_result(None)
    await settle()
    assert peer.replies_sent == 1


async def test_a_wait_is_cut_short_when_the_client_is_gone() -> None:
    peer = Peer()
    peer.receive(frame(b"wait"))
    peer.session.waiting = peer.gate
    peer.loop.lost()
    await settle()
    assert peer.gate is not None
    assert peer.gate.cancelled()
    assert peer.replies_sent == 1


async def test_a_wait_ends_when_the_client_asks_for_something_else() -> None:
    peer = Peer()
    peer.receive(frame(b"wait"))
    peer.session.waiting = peer.gate
    peer.receive(frame(b"next"))
    assert peer.gate is not None
    assert peer.gate.result() is False


async def test_a_wait_is_cut_short_when_the_server_ends_the_connection() -> None:
    peer = Peer()
    peer.receive(frame(b"wait"))
    peer.session.waiting = peer.gate
    peer.loop.end(GONE)
    await settle()
    assert peer.gate is not None
    assert peer.gate.cancelled()


async def test_the_time_of_the_last_request_is_kept() -> None:
    peer = Peer()
    peer.clock.advance(5_000)
    peer.receive(frame(b"hello"))
    assert peer.session.last_seen == peer.clock.monotonic()


async def test_since_when_a_frame_is_unfinished_is_known() -> None:
    peer = Peer()
    peer.receive(frame(b"hello")[:2])
    begin = peer.clock.monotonic()
    peer.clock.advance(1_000)
    peer.receive(frame(b"hello")[2:-1])
    assert peer.loop.frame_since == begin
    peer.receive(frame(b"hello")[-1:])
    assert peer.loop.frame_since is None


async def test_whatever_the_pieces_the_answers_are_the_same() -> None:
    source = random.Random(11)
    texts = [source.randbytes(source.choice([1, 10, 1000, 100_000, 300_000])).replace(b"?", b".") for _ in range(60)]
    data = b"".join(frame(text) for text in texts)
    peer, position = Peer(), 0
    while position < len(data):
        size = source.choice([1, 2, 3, 50, 5_000, 70_000, 400_000])
        await peer.receive_all(data[position : position + size])
        position += size
    await settle()
    assert peer.seen == texts
