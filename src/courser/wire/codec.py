"""What a session needs of a protocol generation. ``classic`` and ``vsr`` implement it; the first bytes choose.

A codec belongs to one connection and may remember things about it: the client's dialect, the last request number.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.errors import CourserError
from courser.model.buffers import Buffer


class FrameRefused(Exception):
    """A frame that is not worth reading: the answer is sent, if there is one, and the connection is closed."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


class Incoming(msgspec.Struct, eq=False):
    """A request as a codec understood it. Codecs derive from it to remember what the reply needs."""

    command: Command | None
    """What to do; None if the codec has the answer already."""
    answer: Sequence[Buffer] | None = None
    """The reply to a request that cannot be decoded, that was answered before, or that came too early."""
    reason: str = ""
    """Why there is an answer already: for the log."""
    closes: bool = False
    """Whether the connection is closed after the answer."""
    is_copied: bool = False
    """Whether the answer is a copy of the messages that were read: their memory is not needed any more."""


QUICK_SIZE_MAX = 256 * 1024
"""Bytes of a frame that every codec decodes without holding other connections up: larger ones are asked about."""


class Codec(Protocol):
    """One connection's protocol. Its methods may be called from any thread, one at a time."""

    def frame_size(self, head: memoryview) -> int | None:
        """How many bytes the frame at the front has; None if that cannot be told from so few.

        Raises:
            FrameRefused: no good frame begins like this.
        """

    def is_slow(self, frame: memoryview) -> bool:
        """Whether decoding a whole frame may take so long that it must not be done on the event loop."""

    def decode(self, frame: memoryview, is_logged_in: bool) -> Incoming:
        """Understand one whole frame. Never raises: what is wrong with a frame is in the answer.

        The command may refer to the memory of the frame.
        """

    def encodes_slowly(self, reply: Reply) -> bool:
        """Whether encoding a reply may take so long that it must not be done on the event loop."""

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        """The bytes that answer a command that was carried out. They may refer to the memory of the reply."""

    def encode_failure(self, incoming: Incoming, error: CourserError) -> Sequence[Buffer]:
        """The bytes that answer a command that failed. Some failures are answered as "nothing there".

        May set ``incoming.closes``.
        """

    def farewell(self, error: CourserError) -> bytes:
        """What is sent to a client that did not ask, before the server closes the connection; may be empty."""
