"""The interface of a protocol generation. ``classic`` and ``vsr`` implement it; the first bytes of a connection choose.

A codec belongs to one connection and may have state: the client's dialect, the last request number.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from courser.api.commands import Command
from courser.api.replies import Polled, Reply
from courser.errors import CourserError
from courser.model.buffers import Buffer


class FrameRefused(Exception):
    """A frame that is refused unread: the reply is sent, if there is one, and the connection is closed."""

    def __init__(self, reason: str, answer: bytes = b"", size: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        self.size = size
        """The bytes of the frame, if the client must be allowed to send them all before it reads the answer."""


class Incoming(msgspec.Struct, eq=False, gc=False):
    """A decoded request. Codecs use subclasses to keep what the reply needs."""

    command: Command | None
    """The command; None if the codec already has the reply."""
    answer: Sequence[Buffer] | None = None
    """The reply to a request that cannot be decoded, is a repeat, or was sent too early."""
    reason: str = ""
    """Why the codec has a reply, for the log."""
    closes: bool = False
    """Whether the connection is closed after the reply."""
    is_copied: bool = False
    """Whether the reply is a copy of the messages that were read, so that their memory is no longer needed."""


class Deferral(Incoming, eq=False, gc=False, kw_only=True):
    """A read that may have to wait. It leaves the line of requests: those behind it are answered meanwhile."""

    number: int
    """What the client calls it in a cancellation."""
    wait: Command
    """What is done first. It changes nothing, and needs no memory that is counted."""
    request: Incoming
    """What follows, in the line. If its command is ``wait``, nothing does: the reply to that is the reply."""


class Cancellation(Incoming, eq=False, gc=False, kw_only=True):
    """The client does not want a read any more that waits. It is not answered; the read is, as any other."""

    number: int
    """Of the read."""


QUICK_SIZE_MAX = 256 * 1024
"""Bytes of a frame that every codec decodes without delaying other connections; for larger ones call ``is_slow``."""
QUICK_REPLY_SIZE_MAX = 128 * 1024
"""Bytes of messages that every codec encodes without delaying other connections; for more call ``encodes_slowly``."""


class Codec(Protocol):
    """One connection's protocol. Its methods may be called from any thread, one at a time."""

    def frame_size(self, head: memoryview) -> int | None:
        """The size of the first frame in bytes; None if more bytes are needed to tell.

        Raises:
            FrameRefused: no valid frame starts like this.
        """

    def is_slow(self, frame: memoryview) -> bool:
        """Whether decoding a whole frame may take too long for the event loop."""

    def decode(self, frame: memoryview, is_logged_in: bool) -> Incoming:
        """Decode one whole frame. Never raises: the reply says what is wrong with a frame.

        The command may refer to the memory of the frame.
        """

    def encodes_slowly(self, reply: Polled) -> bool:
        """Whether encoding a reply with messages may take too long for the event loop."""

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        """The reply to a command that was carried out. It may refer to the memory of ``reply``."""

    def encode_failure(self, incoming: Incoming, error: CourserError) -> Sequence[Buffer]:
        """The reply to a command that failed. For some failures it is "not found".

        May set ``incoming.closes``.
        """

    def farewell(self, error: CourserError) -> bytes:
        """The unsolicited bytes that are sent before the server closes the connection; may be empty."""
