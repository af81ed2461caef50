"""Clients for both protocol generations that say any command, or anything at all, over a real socket.

Requests are written from the protocol (``tests.wire.classic_client`` and the few layouts that SDK 0.9 changed), not by
the server's codecs.
"""

import contextlib
import select
import socket
import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.messaging import Partitioning
from courser.records.batch import NewMessage, build_batch, encode_batch
from courser.records.classic import Dialect
from courser.wire import writing as w
from tests.servers import ROOT_NAME, ROOT_PASSWORD
from tests.wire.classic_client import REPLY_HEAD_SIZE, VERSIONS, Message, frame, payload_of, reply_head, request

PATIENCE = 60.0
"""Seconds that an answer may take before the test gives up: this is how a hang is found."""

HEADER_SIZE = 256
_REGISTER, _NON_REPLICATED, _LOGOUT, _SEND = 1, 2, 3, 160
_EVICTION = 13
_OPERATIONS: dict[type[c.Command], int] = {
    c.LoginUser: _REGISTER,
    c.LoginWithToken: _REGISTER,
    c.LogoutUser: _LOGOUT,
    c.CreateStream: 128,
    c.UpdateStream: 129,
    c.DeleteStream: 130,
    c.PurgeStream: 131,
    c.CreateTopic: 132,
    c.UpdateTopic: 133,
    c.DeleteTopic: 134,
    c.PurgeTopic: 135,
    c.CreatePartitions: 136,
    c.DeletePartitions: 137,
    c.DeleteSegments: 138,
    c.CreateConsumerGroup: 139,
    c.DeleteConsumerGroup: 140,
    c.CreateUser: 141,
    c.UpdateUser: 142,
    c.DeleteUser: 143,
    c.ChangePassword: 144,
    c.UpdatePermissions: 145,
    c.CreateToken: 146,
    c.DeleteToken: 147,
    c.JoinConsumerGroup: 148,
    c.LeaveConsumerGroup: 149,
    c.SendMessages: _SEND,
    c.StoreConsumerOffset: 161,
    c.DeleteConsumerOffset: 162,
}
"""All other commands are read under their numbers."""
_FRAMED = frozenset({_REGISTER, *range(64, 69), *range(128, 138), *range(139, 150), 161, 162})
"""Operations of replies that begin with a result."""
_PROTOCOL_VERSION = 11 << 10


class Closed(ConnectionError):
    """The server closed the connection."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    """0, or the number of an error, wherever the reply has it."""
    body: bytes = b""
    is_eviction: bool = False
    """Then the status is a reason."""

    number: int = field(default=0, compare=False)
    """Of the request that is answered, if the protocol tells it."""

    @property
    def is_declared(self) -> bool:
        """Whether it is a success, or a failure that has a name, and no defect of the server."""
        if self.is_eviction:
            return 1 <= self.status <= 15
        return self.status != ErrorCode.ERROR and (not self.status or self.status in ErrorCode._value2member_map_)


class Client(ABC):
    """One connection. ``ask`` says a command; ``send`` and ``receive`` are for everything else."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        """``address``: where the client is; all of 127.0.0.0/8 is here."""
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE, (address, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self.socket.close()

    def reset(self) -> None:
        """Leave without a goodbye: the server's next look at the connection is an error."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # --- commands ---

    def ask(self, command: c.Command, messages: Sequence[bytes] = ()) -> Answer:
        """Say a command and wait for the answer. ``messages`` are the payloads of a send."""
        self.send(self.request(command, messages))
        return self.receive()

    def do(self, command: c.Command, messages: Sequence[bytes] = ()) -> bytes:
        """Say a command that must succeed; return the body of the answer."""
        answer = self.ask(command, messages)
        assert not answer.status, f"{type(command).__name__}: {answer}"
        return answer.body

    def login(self, name: str = ROOT_NAME, password: str = ROOT_PASSWORD) -> Self:
        """Log in, which must succeed. Whoever does not get in, because the server is on its way out, has left."""
        try:
            answer = self.ask(self.login_command(name, password))
            assert not answer.status, f"the login failed: {answer}"
        except BaseException:
            self.close()
            raise
        return self

    def login_command(self, name: str, password: str) -> c.LoginUser:
        """What such a client says first."""
        return c.LoginUser(name, password)

    @abstractmethod
    def login_with_token(self, token: str) -> Answer:
        """Log in by token."""

    @abstractmethod
    def request(self, command: c.Command, messages: Sequence[bytes] = ()) -> bytes:
        """The next request with this command."""

    @abstractmethod
    def request_with(self, kind: type[c.Command], body: bytes) -> bytes:
        """The next request of this kind, with any body."""

    def say(self, kind: type[c.Command], body: bytes) -> Answer:
        """Ask with any body."""
        self.send(self.request_with(kind, body))
        return self.receive()

    # --- bytes ---

    def send(self, data: bytes) -> None:
        """Send bytes. That the server may have closed already is seen when its answer is read."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    @abstractmethod
    def receive(self) -> Answer:
        """Wait for one answer. Raises ``Closed``."""

    def finish(self) -> None:
        """Send nothing more, but go on reading."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long, not even the end."""
        return not select.select([self.socket], [], [], seconds)[0]

    def fate(self) -> Answer | None:
        """One answer, or None if the server closes the connection instead."""
        try:
            return self.receive()
        except Closed:
            return None

    def receive_exactly(self, size: int) -> bytes:
        """So many bytes. Raises ``Closed``."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self.socket.recv_into(view)
            except ConnectionResetError:
                count = 0
            if not count:
                raise Closed(f"{len(view)} of {size} bytes are missing")
            view = view[count:]
        return bytes(data)


class ClassicClient(Client):
    """SDK 0.5 to 0.8."""

    def __init__(self, port: int, address: str = "127.0.0.1", *, dialect: Dialect = Dialect.SDK_0_8) -> None:
        super().__init__(port, address)
        self._dialect = dialect

    def login_command(self, name: str, password: str) -> c.LoginUser:
        return c.LoginUser(name, password, VERSIONS[self._dialect], "")

    def login_with_token(self, token: str) -> Answer:
        return self.ask(c.LoginWithToken(token))

    def request(self, command: c.Command, messages: Sequence[bytes] = ()) -> bytes:
        return request(command, self._dialect, [Message(payload) for payload in messages])

    def request_with(self, kind: type[c.Command], body: bytes) -> bytes:
        return frame(kind.row.code, body)

    def receive(self) -> Answer:
        status, size = reply_head(self.receive_exactly(REPLY_HEAD_SIZE))
        assert not (status and size), "a failure has no payload"
        return Answer(status, self.receive_exactly(size))


class VsrClient(Client):
    """SDK 0.9."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        super().__init__(port, address)
        self._client = uuid.uuid4().bytes
        self._session = 0
        self._number = 0

    def login_with_token(self, token: str) -> Answer:
        return self.ask(c.LoginWithToken(token))

    def request(self, command: c.Command, messages: Sequence[bytes] = ()) -> bytes:
        if isinstance(command, c.LoginUser | c.LoginWithToken):
            return self.frame(_REGISTER, _login_body(command), number=0, session=0)
        return self.request_with(type(command), _body(command, messages))

    def request_with(self, kind: type[c.Command], body: bytes) -> bytes:
        operation = _OPERATIONS.get(kind, _NON_REPLICATED)
        if operation not in (_NON_REPLICATED, _LOGOUT):
            self._number += 1
        return self.frame(operation, body, code=kind.row.code if operation == _NON_REPLICATED else 0)

    def frame(
        self, operation: int, body: bytes = b"", *, code: int = 0, number: int | None = None, session: int | None = None
    ) -> bytes:
        """Any request."""
        header = bytearray(HEADER_SIZE)
        struct.pack_into("<I", header, 48, HEADER_SIZE + len(body))
        header[60] = 5
        header[128:144] = self._client
        struct.pack_into("<Q", header, 168, self._number if number is None else number)
        header[176] = operation
        struct.pack_into("<QII", header, 184, self._session if session is None else session, 0, code)
        return bytes(header) + body

    def pretend_to_be_logged_in(self) -> None:
        """Claim a session that nobody gave."""
        self._session = 7

    def receive(self) -> Answer:
        header = self.receive_exactly(HEADER_SIZE)
        size, kind, operation = struct.unpack_from("<I", header, 48)[0], header[60], header[208]
        assert size >= HEADER_SIZE, "a frame is at least a header"
        body = self.receive_exactly(size - HEADER_SIZE)
        if kind == _EVICTION:
            return Answer(header[255], body, is_eviction=True)
        assert kind == 8, "there are replies and evictions"
        status, number = struct.unpack_from("<I", header, 216)[0], struct.unpack_from("<Q", header, 200)[0]
        if operation not in _FRAMED or status:
            return Answer(status, body, number=number)
        if struct.unpack_from("<I", body)[0]:
            return Answer(struct.unpack_from("<I", body, 8)[0], body[12:], number=number)
        if operation == _REGISTER:
            self._session, self._number = struct.unpack_from("<Q", header, 184)[0], 0
        return Answer(0, body[4:], number=number)


def _login_body(command: c.Command) -> bytes:
    head = struct.pack("<I", _PROTOCOL_VERSION) + w.text8("tests") + w.text8("1.0")
    if isinstance(command, c.LoginUser):
        return head + w.text8(command.name) + w.text8(command.password) + w.text32("")
    assert isinstance(command, c.LoginWithToken)
    return head + w.text8(command.token) + w.text32("")


def _body(command: c.Command, messages: Sequence[bytes]) -> bytes:
    match command:
        case c.CreateTopic():
            return w.identifier(command.stream) + struct.pack("<I", command.partition_count) + w.text8(command.name)
        case c.UpdateTopic():
            return w.identifier(command.stream) + w.identifier(command.topic) + w.text8(command.name)
        case c.SendMessages():
            return send_body(command, vsr_batch(messages), len(messages))
        case c.StoreConsumerOffset() | c.DeleteConsumerOffset():
            return payload_of(command, Dialect.SDK_0_8) + b"\0"
        case _:
            return payload_of(command, Dialect.SDK_0_8)


def vsr_batch(messages: Sequence[bytes]) -> bytes:
    """The batch that SDK 0.9 sends."""
    return bytes(encode_batch(build_batch([NewMessage(payload) for payload in messages])))


def send_body(command: c.SendMessages, batch: bytes, count: int) -> bytes:
    """A send of any batch to where the command says."""
    target = _target(command.stream, command.topic, command.partitioning) + struct.pack("<I", count)
    return struct.pack("<I", len(target)) + target + batch


def _target(stream: int | str, topic: int | str, partitioning: Partitioning) -> bytes:
    return w.identifier(stream) + w.identifier(topic) + w.partitioning(partitioning)


WIRES: dict[str, type[Client]] = {"classic": ClassicClient, "vsr": VsrClient}


class Crowd(list[Client]):
    """Many clients, who all leave at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self:
            client.close()
