"""Clients that ask once and say what became of it: done, refused, or nobody knows. One class for each way to speak."""

import contextlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import courser
from courser.api import commands as c
from courser.api.replies import Reply, Sent
from courser.client.messages import SendMessage
from courser.client.messaging import make_batch
from courser.client.sync import SyncClient
from courser.errors import ClientFailure, CourserError, ErrorCode
from courser.records.batch import Batch
from courser.records.classic import Dialect
from tests.chaos.history import Outcome
from tests.torture.clients import ClassicClient, Client

REQUEST_TIMEOUT = 20.0
"""Seconds without an answer after which a client gives up. A server that lives answers sooner, whatever is wrong."""

_IN_DOUBT = frozenset(
    {
        ErrorCode.ERROR,
        ErrorCode.DISK_FULL,
        ErrorCode.PARTITION_READ_ONLY,
        ErrorCode.STORAGE_FAILURE,
        ErrorCode.METADATA_READ_ONLY,
        ErrorCode.JOURNAL_FULL,
        ErrorCode.PUBLISH_UNFINISHED,
        ErrorCode.DISCONNECTED,
    }
)
"""The server tried and failed: perhaps only after the change had become durable. All other numbers are refusals."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a client knows after it has asked."""

    outcome: Outcome
    text: str = ""
    is_over: bool = True
    """False: there was no answer, and the server may still be at it."""
    code: int = 0
    reply: Reply | None = None
    offset: int | None = None
    """Of the first message of a send, if the protocol tells it."""
    was_not_asked: bool = False
    """There was no connection."""

    @property
    def is_done(self) -> bool:
        return self.outcome is Outcome.DONE


def refused(code: int, text: str, command: c.Command) -> Told:
    """What an error number says about a command."""
    # A send that finds the disk full is undone: nothing of it is kept.
    is_in_doubt = code in _IN_DOUBT and not (code == ErrorCode.DISK_FULL and isinstance(command, c.SendMessages))
    return Told(Outcome.UNKNOWN if is_in_doubt else Outcome.REFUSED, text, code=code)


class Speaker(ABC):
    """One user of the server, who connects anew whenever the last connection is gone."""

    @abstractmethod
    def ask(self, command: c.Command, payloads: Sequence[str] = ()) -> Told:
        """Ask once. ``payloads`` are the messages of a send or of a chunk."""

    @abstractmethod
    def close(self) -> None:
        """Leave."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OwnSpeaker(Speaker):
    """Courser's own client: the wire of SDK 0.9."""

    def __init__(self, address: str, user: str, password: str) -> None:
        self._target = f"iggy://{user}:{password}@{address}"
        self._client: SyncClient | None = None

    def client(self) -> SyncClient:
        """For what needs more than a command. Raises ``CourserError`` if nobody listens."""
        if self._client is None or not self._client.is_connected:
            self.close()
            self._client = courser.connect_sync(
                self._target, request_timeout=REQUEST_TIMEOUT, connect_timeout=REQUEST_TIMEOUT, reconnect=False
            )
        return self._client

    def ask(self, command: c.Command, payloads: Sequence[str] = ()) -> Told:
        try:
            client = self.client()
        except CourserError as error:
            return Told(Outcome.REFUSED, f"no connection: {error}", was_not_asked=True)
        if isinstance(command, c.SendMessages):
            command = c.SendMessages(command.stream, command.topic, command.partitioning, [packed(payloads)])
        try:
            reply = client.request(command)
        except ClientFailure as error:
            return Told(Outcome.UNKNOWN, str(error), is_over=False, code=int(error.code))
        except CourserError as error:
            return refused(int(error.code), f"{int(error.code)} {error}", command)
        offset = reply.base_offset if isinstance(reply, Sent) else None
        return Told(Outcome.DONE, reply=reply, offset=offset)

    def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(CourserError):
                self._client.close(failed=True)
            self._client = None


def packed(payloads: Sequence[str]) -> Batch:
    return make_batch([SendMessage(payload.encode()) for payload in payloads])


class ClassicSpeaker(Speaker):
    """The wire of SDK 0.5 to 0.8, byte by byte."""

    def __init__(self, port: int, user: str, password: str, dialect: Dialect) -> None:
        self._port, self._user, self._password, self._dialect = port, user, password, dialect
        self._client: Client | None = None

    def ask(self, command: c.Command, payloads: Sequence[str] = ()) -> Told:
        try:
            client = self._connected()
        except (OSError, AssertionError) as error:
            return Told(Outcome.REFUSED, f"no connection: {error}", was_not_asked=True)
        try:
            answer = client.ask(command, [payload.encode() for payload in payloads])
        except (OSError, struct.error) as error:
            self.close()
            return Told(Outcome.UNKNOWN, f"{type(error).__name__}: {error}", is_over=False)
        if answer.status:
            return refused(answer.status, str(answer.status), command)
        return Told(Outcome.DONE)

    def _connected(self) -> Client:
        if self._client is None:
            client = ClassicClient(self._port, dialect=self._dialect)
            client.socket.settimeout(REQUEST_TIMEOUT)
            self._client = client.login(self._user, self._password)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
