"""The first bytes of a connection decide which protocol generation it speaks."""

import os
from collections.abc import Callable, Sequence

from courser.api.replies import LoggedIn, Reply
from courser.model.buffers import Buffer
from courser.transports.settings import ConnectionSettings
from courser.wire.classic import ClassicCodec
from courser.wire.codec import Codec, FrameRefused, Incoming
from courser.wire.vsr import VsrCodec

_DECIDING_SIZE = 4
_ID_SIZE = 16
_TLS_HELLO = b"\x16\x03"
_HTTP_WORDS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI ")


class ConfiguredClassicCodec(ClassicCodec):
    """A classic codec that looks up, after a login, what the operator says about that user's client."""

    __slots__ = ("_chooser",)

    def __init__(self, chooser: "CodecChooser") -> None:
        super().__init__(chooser.settings.classic_dialect, _random_ids)
        self._chooser = chooser

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        """See ``Codec``."""
        if isinstance(reply, LoggedIn):
            dialect = self._chooser.settings.classic_dialects.get(self._chooser.user_name(reply.user_id) or "")
            if dialect is not None:
                self.assume(dialect)
        return super().encode_reply(incoming, reply)


class CodecChooser:
    """Makes the codec of each new connection.

    Args:
        settings: what old clients are taken for.
        verify_frames: whether the checksum of each message that is sent is verified.
        user_name: the name of a user, by number.
    """

    def __init__(
        self, settings: ConnectionSettings, *, verify_frames: bool, user_name: Callable[[int], str | None]
    ) -> None:
        self.settings = settings
        self.user_name = user_name
        self._verify_frames = verify_frames

    def choose(self, head: memoryview) -> Codec | None:
        """The codec for a connection that begins like this; None if four bytes are not there yet.

        Raises:
            FrameRefused: it is no client of ours.
        """
        if len(head) < _DECIDING_SIZE:
            return None
        first = bytes(head[:_DECIDING_SIZE])
        if not any(first):
            # A classic frame begins with its length, which is never 0; a frame of SDK 0.9 with 48 zeros.
            return VsrCodec(verify_frames=self._verify_frames)
        if first.startswith(_TLS_HELLO):
            raise FrameRefused("the client speaks TLS, and TLS is off here: set tcp.tls.enabled")
        if first in _HTTP_WORDS:
            raise FrameRefused("the client speaks HTTP, and this port is for the binary protocol")
        if self.settings.classic_dialects:
            return ConfiguredClassicCodec(self)
        return ClassicCodec(self.settings.classic_dialect, _random_ids)


def _random_ids(count: int) -> bytes:
    return os.urandom(count * _ID_SIZE)
