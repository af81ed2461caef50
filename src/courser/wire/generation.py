"""Detect the protocol generation of a client from the first bytes of its connection.

A classic frame starts with its length, which is never 0, because it includes the code. A frame of SDK 0.9 starts with
48 zero bytes. So four bytes are nearly always enough. If they are zero, the next four are checked too: if they are not
zero, they are the code of a classic frame with the invalid length 0, which gets an error reply.
"""

from enum import Enum, auto

from courser.wire.codec import FrameRefused

_DECIDING_SIZE = 4
_DOUBTFUL_SIZE = 8
_TLS_HELLO = b"\x16\x03"
_HTTP_WORDS = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI "})


class Generation(Enum):
    """The protocol generations, one codec each."""

    CLASSIC = auto()
    """SDKs 0.5 to 0.8."""
    VSR = auto()
    """SDK 0.9."""


def generation_of(head: memoryview) -> Generation | None:
    """The generation of a connection that starts like this; None if more bytes are needed to tell.

    Raises:
        FrameRefused: it starts like another known protocol.
    """
    if len(head) < _DECIDING_SIZE:
        return None
    first = bytes(head[:_DECIDING_SIZE])
    if any(first):
        _refuse_strangers(first)
        return Generation.CLASSIC
    if any(head[_DECIDING_SIZE:_DOUBTFUL_SIZE]):
        return Generation.CLASSIC
    return Generation.VSR if len(head) >= _DOUBTFUL_SIZE else None


def _refuse_strangers(first: bytes) -> None:
    """Report another protocol, instead of taking its first bytes for the length of a huge frame."""
    if first.startswith(_TLS_HELLO):
        raise FrameRefused("the client uses TLS, but TLS is disabled (tcp.tls.enabled)")
    if first in _HTTP_WORDS:
        raise FrameRefused("the client uses HTTP, but this port serves the binary protocol")
