"""The first bytes of a connection tell which protocol generation its client speaks.

A classic frame begins with its length, which is never 0: it counts the code behind it. A frame of SDK 0.9 begins with
48 zeros. So four bytes decide nearly always. If they are zero, the next four are looked at too: they are the code of a
classic frame that claims the impossible length 0, and it gets its answer.
"""

from enum import Enum, auto

from courser.wire.codec import FrameRefused

_DECIDING_SIZE = 4
_DOUBTFUL_SIZE = 8
_TLS_HELLO = b"\x16\x03"
_HTTP_WORDS = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI "})


class Generation(Enum):
    """Which codec understands a client."""

    CLASSIC = auto()
    """SDKs 0.5 to 0.8."""
    VSR = auto()
    """SDK 0.9."""


def generation_of(head: memoryview) -> Generation | None:
    """The generation of a connection that begins like this; None if the bytes are too few to tell.

    Raises:
        FrameRefused: it begins like no client of ours, but like one of a protocol that is spoken elsewhere.
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
    """Say what was meant, instead of taking a greeting for the length of a huge frame."""
    if first.startswith(_TLS_HELLO):
        raise FrameRefused("the client speaks TLS, which is off here (tcp.tls.enabled)")
    if first in _HTTP_WORDS:
        raise FrameRefused("the client speaks HTTP, and this port is for the binary protocol")
