"""A client of protocol 0.12 in tests: its frames, and what it reads of the replies. Written by hand."""

import struct
from collections.abc import Sequence

from courser.api import commands as c
from courser.api.replies import LoggedIn, Reply
from courser.errors import CommandRejected, ErrorCode
from courser.model.buffers import Buffer
from courser.wire.vsr import VsrCodec
from courser.wire.writing import text8
from tests.wire.vsr_captures import CLIENT, frame

SECRET = bytes(range(100, 132))
SESSION = 101
VERSIONS = (0x3000, 0x3001, 0x3002)
"""0.12.0, 0.12.1 and 0.12.2."""
UPDATE = 150


def register(version: int, credentials: bytes = b"\4iggy\4iggy" + bytes(4)) -> bytes:
    """A login; the checksum is a random number."""
    body = struct.pack("<I", version) + text8("rust-sdk") + text8("0.11.1-edge.5") + SECRET + credentials
    return frame(1, body, request=0, session=0, checksum=0x1234_5678_9ABC_DEF0_0F0F)


class Client12:
    """A codec with a client of 0.12 behind it that has logged in."""

    def __init__(self, version: int = 0x3002) -> None:
        self.codec = VsrCodec()
        self.number = 0
        incoming = self.codec.decode(memoryview(register(version)), is_logged_in=False)
        assert incoming.command is not None, incoming.reason
        self.codec.encode_reply(incoming, LoggedIn(0, SESSION))

    def request(self, operation: int, body: bytes = b"", *, code: int = 0, incarnation: int = 0) -> bytes:
        """The next request. Those that change something have a number of their own instead of a checksum."""
        self.number += 1
        is_change = 128 <= operation <= UPDATE or operation == 3
        checksum = 2**100 + self.number if is_change else 0
        made = bytearray(
            frame(operation, body, code=code, request=self.number, session=SESSION, checksum=checksum, client=CLIENT)
        )
        struct.pack_into("<QQQ", made, 200, incarnation, 0, incarnation)
        return bytes(made)

    def read(self, code: int, body: bytes = b"", *, incarnation: int = 0) -> bytes:
        return self.request(2, body, code=code, incarnation=incarnation)

    def command(self, request: bytes) -> c.Command:
        """What the server understands."""
        incoming = self.codec.decode(memoryview(request), is_logged_in=True)
        assert incoming.command is not None, incoming.reason
        return incoming.command

    def answer(self, request: bytes, reply: Reply | ErrorCode | None = None) -> bytes:
        """The answer, if the command is carried out with this result, or refused with this number."""
        incoming = self.codec.decode(memoryview(request), is_logged_in=True)
        parts: Sequence[Buffer]
        if incoming.answer is not None:
            parts = incoming.answer
        elif isinstance(reply, ErrorCode):
            parts = self.codec.encode_failure(incoming, CommandRejected(reply, "for the test"))
        else:
            parts = self.codec.encode_reply(incoming, reply)
        answer = b"".join(parts)
        check_header(request, answer)
        return answer

    def body(self, request: bytes, reply: Reply) -> bytes:
        """The body of the reply to a command that is carried out."""
        answer = self.answer(request, reply)
        assert answer[216:220] == bytes(4)
        return answer[256:]


KNOWN_OPERATIONS = {
    *range(4), *range(64, 69), *range(70, 76), 128, 130, 132, 134, *range(136, 142), *range(143, 151), 160, 161, 162
}  # fmt: skip


def check_header(request: bytes, answer: bytes) -> None:
    """What the client of 0.12 checks in every reply; an eviction has none of it."""
    if answer[60] == 13:
        return
    assert answer[60] == 8
    assert struct.unpack_from("<I", answer, 48)[0] == len(answer)
    assert answer[200:208] == request[168:176], "a reply is found by the number of its request"
    assert answer[208] in KNOWN_OPERATIONS, "any other operation closes the connection"
    assert answer[220] == 0, "no reply claims to be final: nothing is sent again after it"
    assert answer[184:192] == bytes(8), "no metadata is newer than the context of a partition"
