"""Small replies to several connections are sent together; nobody notices but by its speed."""

import asyncio
from collections.abc import Sequence

import pytest

from courser.model.buffers import Buffer
from courser.transports.held_replies import SIZE_MAX, HeldReplies
from tests.transports.echo import frame
from tests.transports.tcp_servers import GRACE, serving

Sent = list[tuple[str, bytes]]
"""Which connection handed what to the kernel, in order."""


class Connection:
    """Notes what it hands to the kernel, in a list that all share."""

    def __init__(self, name: str, sent: Sent) -> None:
        self.is_held = False
        self.is_broken = self.is_aborted = False
        self._name = name
        self._sent = sent

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self.is_broken:
            raise RuntimeError("a defect")
        self._sent.append((self._name, b"".join(buffers)))

    def abort(self) -> None:
        self.is_aborted = True


async def test_replies_of_one_turn_are_sent_at_its_end_in_order() -> None:
    replies, sent = HeldReplies(), Sent()
    one, other = Connection("one", sent), Connection("other", sent)
    assert replies.hold(one, (b"1",))
    assert replies.hold(other, (b"2", b"3"))
    assert sent == []
    assert [one.is_held, other.is_held] == [True, True]
    await asyncio.sleep(0)
    assert sent == [("one", b"1"), ("other", b"23")]
    assert [one.is_held, other.is_held] == [False, False]


async def test_a_reply_that_is_too_large_to_be_held_does_not_overtake_those_that_are() -> None:
    replies, sent = HeldReplies(), Sent()
    one, other = Connection("one", sent), Connection("other", sent)
    assert replies.hold(one, (b"1",))
    assert not replies.hold(other, (bytes(SIZE_MAX), b"2"))
    assert sent == [("one", b"1")]
    await asyncio.sleep(0)
    assert sent == [("one", b"1")]


async def test_a_copy_is_held() -> None:
    replies, sent = HeldReplies(), Sent()
    memory = bytearray(b"messages")
    replies.hold(Connection("one", sent), (memoryview(memory),))
    memory[:] = b"reused, "
    await asyncio.sleep(0)
    assert sent == [("one", b"messages")]


async def test_many_replies_do_not_wait_for_the_end_of_the_turn() -> None:
    replies, sent = HeldReplies(), Sent()
    for number in range(100):
        replies.hold(Connection(str(number), sent), (b"x",))
    assert [name for name, _ in sent] == [str(number) for number in range(96)]
    await asyncio.sleep(0)
    assert len(sent) == 100


async def test_a_connection_that_cannot_send_is_closed_and_the_others_get_their_replies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replies, sent = HeldReplies(), Sent()
    one, broken, other = (Connection(name, sent) for name in ("one", "broken", "other"))
    broken.is_broken = True
    for connection in (one, broken, other):
        replies.hold(connection, (b"x",))
    await asyncio.sleep(0)
    assert [name for name, _ in sent] == ["one", "other"]
    assert [connection.is_held for connection in (one, broken, other)] == [False] * 3
    assert [connection.is_aborted for connection in (one, broken, other)] == [False, True, False]
    assert "a defect" in caplog.text
    replies.hold(other, (b"y",))
    await asyncio.sleep(0)
    assert sent[-1] == ("other", b"y")


async def test_connections_that_send_ahead_get_their_replies_in_order() -> None:
    async with serving() as server:
        clients = [await server.connect() for _ in range(4)]
        for client in clients:
            await client.say(b"login")
        for number in range(300):
            for index, client in enumerate(clients):
                client.writer.write(frame(f"{number}-{index}".encode()))
        for index, client in enumerate(clients):
            expected = "".join(f"<{number}-{index}>" for number in range(300)).encode()
            assert await asyncio.wait_for(client.reader.readexactly(len(expected)), GRACE) == expected


async def test_a_held_reply_is_sent_before_its_connection_is_closed() -> None:
    async with serving() as server:
        one, other = await server.connect(), await server.connect()
        assert await one.say(b"hello") == b"hello"
        # It is not the one that was answered last: its reply is held when it is closed.
        other.writer.write(frame(b"?close"))
        assert await other.end() == b"what?"
