"""Choose the codec of a connection: its first bytes show which protocol generation the client speaks."""

import os
from collections.abc import Callable, Sequence

from courser.api.replies import LoggedIn, Reply
from courser.model.buffers import Buffer
from courser.transports.settings import ConnectionSettings
from courser.wire.classic import USUAL_LIMITS, ClassicCodec, ClassicWireLimits
from courser.wire.classic_requests import HEADER_SIZE as CLASSIC_HEADER_SIZE
from courser.wire.codec import Codec, Incoming
from courser.wire.generation import Generation, generation_of
from courser.wire.vsr import VsrCodec

_ID_SIZE = 16
_EVERYBODY = "*"
"""Stands for all users that are not named. It cannot be a user's name, because it is too short."""


class ConfiguredClassicCodec(ClassicCodec):
    """A classic codec that applies, after a login, the SDK release configured for that user."""

    __slots__ = ("_chooser",)

    def __init__(self, chooser: "CodecChooser") -> None:
        super().__init__(chooser.settings.classic_dialect, _random_ids, chooser.classic_limits)
        self._chooser = chooser

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        """See ``Codec``."""
        if isinstance(reply, LoggedIn):
            dialects = self._chooser.settings.classic_dialects
            name = self._chooser.user_name(reply.user_id)
            dialect = dialects.get(name or _EVERYBODY, dialects.get(_EVERYBODY))
            if dialect is not None:
                self.assume(dialect)
        return super().encode_reply(incoming, reply)


class CodecChooser:
    """Creates the codec of each new connection.

    Args:
        settings: which SDK release to assume for old clients.
        verify_frames: whether to verify the checksum of each message that is sent.
        user_name: returns the name of a user, given the id.
    """

    def __init__(
        self, settings: ConnectionSettings, *, verify_frames: bool, user_name: Callable[[int], str | None]
    ) -> None:
        self.settings = settings
        self.user_name = user_name
        self._verify_frames = verify_frames
        size_max = settings.frame_size_max - CLASSIC_HEADER_SIZE
        self.classic_limits = ClassicWireLimits(
            payload_size_max=min(USUAL_LIMITS.payload_size_max, size_max),
            send_size_max=min(USUAL_LIMITS.send_size_max, size_max),
        )

    def choose(self, head: memoryview) -> Codec | None:
        """The codec for a connection whose first bytes are ``head``; None if more bytes are needed.

        Raises:
            FrameRefused: the client speaks another protocol.
        """
        generation = generation_of(head)
        if generation is None:
            return None
        if generation is Generation.VSR:
            return VsrCodec(verify_frames=self._verify_frames, frame_size_max=self.settings.frame_size_max)
        if self.settings.classic_dialects:
            return ConfiguredClassicCodec(self)
        return ClassicCodec(self.settings.classic_dialect, _random_ids, self.classic_limits)


def _random_ids(count: int) -> bytes:
    return os.urandom(count * _ID_SIZE)
