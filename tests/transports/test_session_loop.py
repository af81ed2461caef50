import asyncio
import gc
import random
from typing import Any, ClassVar

import pytest

from courser.transports.session_loop import SessionLoop, State
from courser.wire.codec import QUICK_SIZE_MAX
from tests.transports.echo import GONE, REFUSED_SIZE, Peer, frame, settle


async def test_a_request_that_waits_for_nothing_is_answered_before_received_returns() -> None:
    peer = Peer()
    peer.receive(frame(b"hello"))
    assert peer.wire.sent == b"<hello>"
    assert peer.replies_sent == 1


async def test_bytes_may_come_one_by_one() -> None:
    peer = Peer()
    for byte in frame(b"hello") + frame(b"world"):
        peer.receive(bytes([byte]))
    assert peer.wire.sent == b"<hello><world>"


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    peer = Peer()
    peer.receive(b"".join(frame(b"%d" % number) for number in range(1000)))
    await settle(20)
    assert peer.wire.sent == b"".join(b"<%d>" % number for number in range(1000))


async def test_a_request_that_waits_holds_the_ones_behind_it() -> None:
    peer = Peer()
    peer.receive(frame(b"wait") + frame(b"next"))
    assert peer.wire.sent == b""
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == b"<wait><next>"


async def test_a_reply_that_is_known_is_given_when_what_it_waits_for_is_done() -> None:
    peer = Peer()
    peer.receive(frame(b"pend") + frame(b"next"))
    await settle()
    assert peer.wire.sent == b""
    assert peer.seen == [b"pend"]
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == b"<pend><next>"


async def test_what_a_known_reply_waits_for_may_fail() -> None:
    peer = Peer()
    peer.receive(frame(b"pend") + frame(b"next"))
    assert peer.gate is not None
    peer.gate.set_exception(OSError("no disk"))
    await settle()
    assert peer.wire.sent == b"failed: explained: no disk<next>"


async def test_a_known_reply_to_a_client_that_is_gone_is_dropped() -> None:
    peer = Peer()
    peer.receive(frame(b"pend") + frame(b"next"))
    peer.loop.lost()
    peer.wire.is_closed = True
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.replies_sent == 1
    assert peer.seen == [b"pend"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_known_reply_may_come_of_a_request_that_takes_long_to_decode(fails: bool) -> None:
    peer = Peer()
    text = b"slow" + b"x" * QUICK_SIZE_MAX + b" pend"
    peer.receive(frame(text))
    await settle()
    peer.slow_work.work()
    await settle()
    assert peer.gate is not None
    peer.gate.set_exception(OSError("no disk")) if fails else peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent == (b"failed: explained: no disk" if fails else b"<" + text + b">")


async def test_the_memory_of_a_request_is_untouched_while_it_waits() -> None:
    peer = Peer()
    peer.receive(frame(b"wait" + b"x" * 1000))
    room_before = len(peer.loop.room())
    peer.receive(b"y" * 500)
    assert len(peer.loop.room()) == room_before - 500
    assert peer.gate is not None


async def test_a_client_that_sends_ahead_without_end_is_held_up_and_loses_nothing() -> None:
    peer = Peer()
    peer.receive(frame(b"wait"))
    small = frame(b"x" * 997)
    ahead = small * (len(peer.loop.room()) // len(small) + 1)
    first = ahead[: len(peer.loop.room())]
    peer.receive(first)
    assert peer.wire.flow == "paused"
    assert peer.gate is not None
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.flow == "open"
    peer.receive(ahead[len(first) :])
    await settle()
    assert peer.wire.sent == b"<wait>" + (b"<" + b"x" * 997 + b">") * (len(ahead) // len(small))


async def test_a_client_that_does_not_read_is_not_served() -> None:
    peer = Peer()
    peer.wire.is_stuck = True
    peer.receive(frame(b"one") + frame(b"two"))
    assert peer.wire.sent == b"<one>"
    assert peer.replies_sent == 0, "its memory is still being read from"
    peer.wire.is_stuck = False
    peer.loop.sent()
    assert peer.wire.sent == b"<one><two>"
    assert peer.replies_sent == 2


@pytest.mark.parametrize("request_text", [b"refuse me", b"break it"])
async def test_a_failure_is_an_answer_and_the_connection_lives_on(request_text: bytes) -> None:
    peer = Peer()
    peer.receive(frame(request_text) + frame(b"next"))
    assert peer.wire.sent.startswith(b"failed: ")
    assert peer.wire.sent.endswith(b"<next>")
    assert b"a defect" not in peer.wire.sent, "a client learns nothing about the inside"


async def test_what_the_codec_answers_itself_reaches_no_handler() -> None:
    peer = Peer()
    peer.receive(frame(b"?hm") + frame(b"next"))
    assert peer.wire.sent == b"what?<next>"
    assert peer.seen == [b"next"]


async def test_an_answer_may_be_the_last() -> None:
    peer = Peer()
    peer.receive(frame(b"?close") + frame(b"next"))
    assert peer.wire.sent == b"what?"
    assert peer.wire.is_closed


async def test_a_hopeless_frame_is_answered_and_the_connection_closed() -> None:
    peer = Peer()
    peer.receive(b"!!!")
    assert (bytes(peer.wire.sent), peer.wire.is_closed) == (b"no!", True)


# --- what takes long ---

SLOW = b"slow" + b"s" * QUICK_SIZE_MAX


async def test_a_request_that_takes_long_to_decode_is_decoded_elsewhere() -> None:
    peer = Peer()
    peer.receive(frame(SLOW) + frame(b"next"))
    await settle()
    assert (peer.slow_work.count, peer.seen) == (1, [])
    peer.slow_work.work()
    await settle()
    assert peer.seen == [SLOW, b"next"]
    assert peer.wire.sent == b"<" + SLOW + b"><next>"


async def test_a_small_request_is_never_slow() -> None:
    peer = Peer()
    peer.receive(frame(b"slow?"))
    assert peer.seen == [b"slow?"]


async def test_a_request_that_takes_long_to_decode_may_have_to_wait_too() -> None:
    peer = Peer()
    peer.receive(frame(SLOW + b" wait"))
    await settle()
    peer.slow_work.work()
    await settle()
    assert peer.gate is not None
    assert peer.wire.sent == b""
    peer.gate.set_result(None)
    await settle()
    assert peer.wire.sent.startswith(b"<slow")


@pytest.mark.parametrize("ending", [b" refuse", b" break"])
async def test_a_request_that_takes_long_to_decode_may_fail(ending: bytes) -> None:
    peer = Peer()
    peer.receive(frame(SLOW + ending) + frame(b"next"))
    await settle()
    peer.slow_work.work()
    await settle()
    assert peer.wire.sent.startswith(b"failed: ")
    assert peer.wire.sent.endswith(b"<next>")


async def test_a_reply_that_takes_long_to_encode_is_encoded_elsewhere() -> None:
    peer = Peer()
    peer.receive(frame(b"epic") + frame(b"next"))
    await settle()
    assert (peer.slow_work.count, bytes(peer.wire.sent), peer.replies_sent) == (1, b"", 0)
    peer.slow_work.work()
    await settle()
    assert peer.wire.sent == b"<epic><next>"
    assert peer.replies_sent == 2


@pytest.mark.parametrize("text", [b"epic", SLOW])
async def test_slow_work_that_a_stopping_server_does_not_take_is_dropped(text: bytes) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    peer = Peer()
    peer.slow_work.shutdown()
    peer.receive(frame(text))
    await settle()
    gc.collect()
    assert problems == []
    assert peer.wire.sent == b""


async def test_nothing_is_decoded_for_a_client_that_went_away() -> None:
    peer = Peer()
    peer.receive(frame(SLOW))
    await settle()
    peer.loop.lost()
    peer.session.end(GONE)
    assert peer.memory.size > len(SLOW), "it is not free before it is let go of"
    peer.slow_work.work()
    await settle()
    assert peer.seen == []
    assert peer.memory.size == 0


@pytest.mark.parametrize("text", [b"riddle", SLOW + b" riddle"])
async def test_a_defect_in_a_codec_ends_one_connection(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()
    peer.receive(frame(text))
    await settle()
    if peer.slow_work.count:
        peer.slow_work.work()
        await settle()
    assert peer.wire.is_closed
    assert peer.wire.sent == b""
    assert "a defect" in caplog.text


# --- states ---

TRANSITIONS: dict[State, frozenset[State]] = {
    # A whole request has arrived; the connection has used its share of the turn; the request is too large; the
    # connection is closed or lost.
    State.RECEIVING: frozenset({State.ANSWERING, State.YIELDING, State.DISCARDING, State.CLOSED}),
    # Its turn has come; it is closed or lost.
    State.YIELDING: frozenset({State.RECEIVING, State.CLOSED}),
    # The kernel has accepted the reply, or only part of it; the connection is to be closed or is lost; the reply was
    # the last one.
    State.ANSWERING: frozenset({State.RECEIVING, State.SENDING, State.FINISHING, State.CLOSED}),
    # The kernel has accepted the rest; the connection is closed or lost.
    State.SENDING: frozenset({State.RECEIVING, State.CLOSED}),
    # All of the frame has arrived; the connection is closed or lost.
    State.DISCARDING: frozenset({State.CLOSED}),
    # The reply is sent, or the client is gone.
    State.FINISHING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}
"""All transitions between states. The loop does not check them, because that would slow down every request."""


class WatchedLoop(SessionLoop):
    """A loop whose changes of state are noted."""

    changes: ClassVar[set[tuple[State, State]]] = set()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_state":
            before = getattr(self, name, value)
            if before is not value:
                self.changes.add((before, value))
        super().__setattr__(name, value)


def do_anything(peer: Peer, source: random.Random) -> None:
    """Something that may happen to a connection."""
    texts = [b"hello", b"wait", b"pend", b"refuse", b"?hm", b"epic", SLOW, b"@1 one", b"@2 two", b"#1"]
    match source.choice(
        ["send", "send", "send", "ahead", "stuck", "sent", "open", "work", "end", "stop", "lose", "flood"]
    ):
        case "send":
            peer.offer(frame(source.choice(texts))[: source.choice([2, 1 << 20])])
        case "flood":
            for _ in range(REFUSED_SIZE // 50_000):
                peer.offer(frame(b"x" * 49_997))
        case "ahead":
            peer.offer(frame(b"x") * 200)
        case "stuck":
            peer.wire.is_stuck = True
        case "sent":
            peer.wire.is_stuck = False
            peer.loop.sent()
        case "open":
            peer.open_gate()
            peer.release_all()
        case "work" if peer.slow_work.count:
            peer.slow_work.work()
        case "end":
            peer.session.end(GONE)
        case "stop":
            peer.offer(source.choice([frame(b"?close"), b"!!!", b"~"]))
        case "lose":
            peer.loop.lost()
            peer.wire.is_closed = True


async def test_every_change_of_state_is_in_the_table_and_everything_in_the_table_happens() -> None:
    WatchedLoop.changes.clear()
    for seed in range(300):
        source = random.Random(seed)
        peer = Peer(kind=WatchedLoop)
        if source.random() < 0.3:
            peer.session.user_id = None
        for _ in range(30):
            if peer.wire.is_closed:
                break
            do_anything(peer, source)
            if source.random() < 0.5:
                await settle(2)
        peer.open_gate()
        while peer.slow_work.count:
            peer.slow_work.work()
            await settle()
        await settle()
        # Reads may still wait.
        peer.loop.lost()
        await settle()
    assert WatchedLoop.changes == {(before, after) for before, those in TRANSITIONS.items() for after in those}
