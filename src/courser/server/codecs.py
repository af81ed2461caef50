"""Choose the codec of a connection: its first bytes show which protocol generation the client speaks."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from courser.api.replies import LoggedIn, Reply
from courser.broker.access.sessions import Session
from courser.catalog.entities import User
from courser.model.buffers import Buffer
from courser.records.frame_walk import spread_ids
from courser.server.proven_dialects import ProvenDialects
from courser.transports.settings import ConnectionSettings
from courser.wire.classic import USUAL_LIMITS, ClassicCodec, ClassicWireLimits
from courser.wire.classic_dialect import DialectEvidence
from courser.wire.classic_requests import HEADER_SIZE as CLASSIC_HEADER_SIZE
from courser.wire.codec import Codec, Incoming
from courser.wire.generation import Generation, generation_of
from courser.wire.vsr import VsrCodec

_log = logging.getLogger(__name__)

_ID_SIZE = 16
_EVERYBODY = "*"
"""Stands for all users that are not named. It cannot be a user's name, because it is too short."""


class ServedClassicCodec(ClassicCodec):
    """A classic codec that knows its user: which release is configured for that user, and what others have proven."""

    __slots__ = ("_chooser", "_has_said", "_session")

    def __init__(self, chooser: "CodecChooser", session: Session) -> None:
        super().__init__(
            chooser.settings.classic_dialect,
            _MessageIds(),
            chooser.classic_limits,
            age=lambda: session.last_seen - session.connected_at,
        )
        self._chooser = chooser
        self._session = session
        self._has_said = False

    @property
    def facts(self) -> tuple[DialectEvidence, bool]:
        """What it knows about its client."""
        return self._evidence, self._has_said

    @facts.setter
    def facts(self, facts: tuple[DialectEvidence, bool]) -> None:
        self._evidence, self._has_said = facts

    def encode_reply(self, incoming: Incoming, reply: Reply | None) -> Sequence[Buffer]:
        if type(reply) is LoggedIn:
            chooser, evidence = self._chooser, self._evidence
            evidence.note_memory(chooser.proven.recall(reply.user_id, evidence.login))
            dialects = chooser.settings.classic_dialects
            user = chooser.users.get(reply.user_id)
            dialect = dialects.get(_EVERYBODY if user is None else user.name, dialects.get(_EVERYBODY))
            if dialect is not None:
                self.assume(dialect)
        return super().encode_reply(incoming, reply)

    def learned(self) -> None:
        """Remember what is proven. Log what is only guessed once it matters, which is when the client polls."""
        session, evidence = self._session, self._evidence
        if session.user_id is None:
            return
        self._chooser.proven.note(session.user_id, evidence.login, evidence.proof)
        if evidence.has_polled and evidence.is_header_guessed and not self._has_said:
            self._has_said = True
            _log.info(
                "client %d at %s does not identify its SDK (version %r), assuming %s; see tcp.classic_dialects",
                session.client_id,
                session.address,
                evidence.login.version,
                evidence.dialect.value,
            )


class CodecChooser:
    """Creates the codec of each new connection.

    Args:
        settings: which SDK release to assume for old clients.
        verify_frames: whether to verify the checksum of each message that is sent.
        users: by id.
        proven: what classic clients have proven about their release.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        verify_frames: bool,
        users: Mapping[int, User],
        proven: ProvenDialects,
    ) -> None:
        self.settings = settings
        self.users = users
        self.proven = proven
        self._verify_frames = verify_frames
        size_max = settings.frame_size_max - CLASSIC_HEADER_SIZE
        self.classic_limits = ClassicWireLimits(
            payload_size_max=min(USUAL_LIMITS.payload_size_max, size_max),
            send_size_max=min(USUAL_LIMITS.send_size_max, size_max),
        )

    def choose(self, head: memoryview, session: Session) -> Codec | None:
        """The codec for the connection of a session whose first bytes are ``head``; None if more bytes are needed.

        Raises:
            FrameRefused: the client speaks another protocol.
        """
        generation = generation_of(head)
        if generation is None:
            return None
        if generation is Generation.VSR:
            return self.vsr_codec(session)
        return ServedClassicCodec(self, session)

    def vsr_codec(self, session: Session) -> VsrCodec:
        """The codec of a client of SDK 0.9 or later."""

        def warn(words: str) -> None:
            _log.warning("client %d at %s: %s", session.client_id, session.address, words)

        size_max = self.settings.frame_size_max
        return VsrCodec(verify_frames=self._verify_frames, frame_size_max=size_max, warn=warn)


class CodecMoves:
    """Takes the codecs of connections to other processes. What belongs to this process stays here."""

    def __init__(self, chooser: CodecChooser) -> None:
        self._chooser = chooser

    def pack(self, codec: Codec) -> object:
        """What another process needs to go on."""
        assert isinstance(codec, ServedClassicCodec | VsrCodec), "the codecs of TCP connections"
        return codec.facts

    def unpack(self, facts: Any, session: Session) -> Codec:
        """The codec with which this process goes on."""
        codec: ServedClassicCodec | VsrCodec
        if isinstance(facts[0], DialectEvidence):
            codec = ServedClassicCodec(self._chooser, session)
        else:
            codec = self._chooser.vsr_codec(session)
        codec.facts = facts
        return codec


class _MessageIds:
    """Ids for messages that come without. They are no secret: the kernel's slow random numbers only start them."""

    __slots__ = ("_next", "_seed")

    def __init__(self) -> None:
        self._seed = os.urandom(_ID_SIZE)
        self._next = 0

    def __call__(self, count: int) -> bytes:
        first = self._next
        self._next = first + count
        return spread_ids(self._seed, first, count)
