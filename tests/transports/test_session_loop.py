import asyncio
import gc
import random
from typing import Any, ClassVar

import pytest

from courser.errors import CommandRejected, ErrorCode
from courser.transports.frame_buffer import BASE_SIZE
from courser.transports.request_memory import RequestMemory
from courser.transports.session_loop import TRANSITIONS, SessionLoop, State
from courser.transports.settings import ConnectionSettings
from courser.transports.turns import (
    REQUEST_COUNT_MAX,
    REQUEST_COUNT_PAUSE,
    STRANGER_COUNT_MAX,
    TIME_MAX,
    Turns,
)
from courser.wire.codec import QUICK_SIZE_MAX
from tests.transports.echo import REFUSED_SIZE, Peer, frame

GONE = CommandRejected(ErrorCode.STALE_CLIENT, "silent for too long")


async def settle(turns: int = 5) -> None:
    """Let callbacks run that are due."""
    for _ in range(turns):
        await asyncio.sleep(0)


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


async def test_a_large_frame_gets_memory_and_gives_it_back() -> None:
    peer = Peer()
    text = random.Random(1).randbytes(5_000_000)
    peer.receive(frame(text))
    assert peer.wire.sent == b"<" + text + b">"
    assert peer.memory.size == 0
    assert len(peer.loop.room()) == BASE_SIZE


async def test_a_buffer_of_usual_size_is_kept_for_the_next_request_until_somebody_needs_it() -> None:
    memory = RequestMemory(3_000_000)
    first, second = Peer(memory=memory), Peer(memory=memory)
    first.receive(frame(b"a" * 1_000_000))
    assert memory.size > 1_000_000
    second.receive(frame(b"b" * 2_000_000))
    assert second.seen == [b"b" * 2_000_000]
    first.receive(frame(b"c" * 1_000_000))
    assert first.seen[1] == b"c" * 1_000_000


def filled_memory() -> tuple[RequestMemory, list[Peer]]:
    """A budget that is spent: by a request that is carried out, and by one that overdraws it and is not all there."""
    memory = RequestMemory(3_000_000)
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
    memory = RequestMemory(16_000_000)
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
    memory = RequestMemory(16_000_000)
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
    memory = RequestMemory(4_000_000)
    peers = [Peer(memory=memory) for _ in range(12)]
    texts = [b"%02d" % number * 1_000_000 for number in range(12)]
    await asyncio.gather(*(peer.receive_all(frame(text)) for peer, text in zip(peers, texts, strict=True)))
    assert [peer.seen for peer in peers] == [[text] for text in texts]
    assert memory.waiting_count == 0


async def test_a_frame_larger_than_the_whole_budget_gets_its_turn_alone() -> None:
    peer = Peer(memory=RequestMemory(1_000_000))
    peer.receive(frame(b"a" * 2_000_000))
    assert peer.seen == [b"a" * 2_000_000]


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


# --- limits ---


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


# --- turns ---


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


# --- states ---


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
    texts = [b"hello", b"wait", b"pend", b"refuse", b"?hm", b"epic", SLOW]
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
        case "open" if peer.gate is not None and not peer.gate.done():
            peer.gate.set_result(None)
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
        if peer.gate is not None and not peer.gate.done():
            peer.gate.set_result(None)
        while peer.slow_work.count:
            peer.slow_work.work()
            await settle()
        await settle()
    assert WatchedLoop.changes == {(before, after) for before, those in TRANSITIONS.items() for after in those}
