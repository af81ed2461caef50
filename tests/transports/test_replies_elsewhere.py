"""Requests whose replies another process sends: the session loop is not told, and must not get ahead of them."""

from collections.abc import Callable
from typing import Any, cast

from courser.api.commands import Command
from courser.api.replies import Sent
from courser.broker.sessions import Session
from courser.errors import CourserError
from courser.transports.reply_elsewhere import ReplyElsewhere
from tests.transports.echo import GONE, Peer, Said, frame, settle


class FakeElsewhere(ReplyElsewhere):
    """The other process does what the test says."""

    def __init__(self, text: bytes, peer: Peer) -> None:
        super().__init__()
        self.text = text
        self.peer = peer
        self.facts: bytes | None = b"not begun"
        self.is_sent = self.is_begun = self.is_watched = False
        self.error: Exception | None = None

    def begin(self, facts: bytes | None) -> None:
        self.facts = facts

    def look(self) -> bool:
        return self.is_sent

    def result(self) -> Sent:
        if self.error is not None:
            raise self.error
        return cast("Sent", Said(self.text))

    @property
    def is_being_sent(self) -> bool:
        return self.is_begun

    def watch(self) -> None:
        self.is_watched = True

    def receive_into(self, room: Callable[[int], memoryview]) -> None:
        self.peer.loop.room = room

    # --- what the other process does ---

    def send(self, *, is_noted: bool = True) -> None:
        """Reply to the client."""
        self.is_begun = True
        self.peer.wire.sent += b"<%s>" % self.text
        self.is_sent = is_noted

    def tell(self) -> None:
        """Wake the process that has the connection."""
        assert self.on_done is not None
        self.on_done()


class Forwarding(Peer):
    """Requests that begin with ``far`` are carried out elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.far: list[FakeElsewhere] = []

    def _begin(self, session: Session, command: Command) -> Any:
        text = getattr(command, "text", b"")
        if text.startswith(b"far"):
            self.far.append(FakeElsewhere(text, self))
            return self.far[-1]
        return super()._begin(session, command)


async def test_the_next_request_shows_that_the_reply_is_sent() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    assert peer.far[0].facts == b"facts"
    peer.far[0].send()
    peer.receive(frame(b"near"))
    peer.receive(frame(b"far 2"))
    peer.far[1].send()
    assert peer.wire.sent == b"<far 1><near><far 2>"
    assert peer.replies_sent == 2
    assert peer.loop.is_idle
    assert peer.replies_sent == 3
    assert not any(reply.is_watched for reply in peer.far)


async def test_a_request_sent_ahead_waits_for_the_reply_before_it() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.receive(frame(b"near"))
    assert peer.far[0].is_watched
    await settle()
    assert peer.wire.sent == b""
    peer.far[0].send()
    peer.far[0].tell()
    assert peer.wire.sent == b"<far 1><near>"


async def test_requests_that_came_together_are_answered_from_here() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1") + frame(b"near"))
    assert peer.far[0].facts is None
    peer.far[0].tell()
    assert peer.wire.sent == b"<far 1><near>"


async def test_a_reply_that_is_just_being_sent_is_looked_for_again() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.far[0].send(is_noted=False)
    peer.receive(frame(b"near"))
    assert peer.wire.sent == b"<far 1>"
    peer.far[0].is_sent = True
    await settle(2)
    assert peer.wire.sent == b"<far 1><near>"
    assert not peer.far[0].is_watched


async def test_a_sender_that_never_notes_its_reply_is_asked() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.far[0].send(is_noted=False)
    peer.receive(frame(b"near"))
    await settle(10)
    assert peer.far[0].is_watched
    assert peer.wire.sent == b"<far 1>"


async def test_the_rest_of_a_reply_is_sent_from_here() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.wire.sent += b"<far"
    peer.far[0].sent_size = 4
    peer.wire.is_stuck = True
    peer.far[0].tell()
    peer.receive(frame(b"near"))
    assert peer.wire.sent == b"<far 1>"
    peer.wire.is_stuck = False
    peer.loop.sent()
    assert peer.wire.sent == b"<far 1><near>"


async def test_a_failure_is_answered_from_here() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.far[0].error = CourserError("no")
    peer.far[0].tell()
    assert peer.wire.sent == b"failed: no"
    peer.receive(frame(b"near"))
    assert peer.wire.sent == b"failed: no<near>"


async def test_a_session_that_ends_waits_for_the_reply() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.session.end(GONE)
    assert (peer.far[0].is_watched, peer.wire.is_closed) == (True, False)
    peer.far[0].send()
    peer.far[0].tell()
    assert (bytes(peer.wire.sent), peer.wire.is_closed) == (b"<far 1>", True)


async def test_a_session_that_ends_after_the_reply_says_goodbye() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.far[0].send()
    peer.session.end(GONE)
    assert peer.wire.sent == b"<far 1>bye"
    assert peer.wire.is_closed


async def test_a_lost_connection_asks_what_became_of_its_request() -> None:
    peer = Forwarding()
    peer.receive(frame(b"far 1"))
    peer.loop.lost()
    assert peer.far[0].is_watched
    peer.far[0].tell()
    assert peer.replies_sent == 1


async def test_the_buffer_is_at_rest_before_the_next_large_request() -> None:
    peer = Forwarding()
    size = 300_000
    for number in range(3):
        peer.receive(frame(b"far" + bytes(size)))
        peer.far[number].send()
        # All of the buffer is there for the next one.
        assert len(peer.loop.room()) > size
