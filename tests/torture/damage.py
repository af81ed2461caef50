"""Requests that are wrong, and what a server may do about them: answer with a declared error, or close. Never hang."""

import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey
from courser.model.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from courser.model.topic_options import TopicOptions
from tests.handlers.samples import SAMPLES
from tests.torture.clients import PATIENCE, Answer, Client, VsrClient

SILENCE = 0.15
"""Seconds after which a server is taken to wait for the rest of a frame."""

PERMISSIONS = Permissions(
    GlobalPermissions(read_servers=True),
    {3: StreamPermissions(read_stream=True, topics={4: TopicPermissions(poll_messages=True)})},
)
_OPTIONS = TopicOptions(compression=1)
_GROUP = Consumer(ConsumerKind.GROUP, "g")
_LOGINS = (c.LoginUser, c.LoginWithToken)

REQUESTS: tuple[c.Command, ...] = (
    *(sample for sample in SAMPLES if not isinstance(sample, (*_LOGINS, c.CreateTopic, c.UpdateTopic))),
    c.CreateTopic("s", "new-topic", 1, _OPTIONS),
    c.UpdateTopic("s", "t", "t", _OPTIONS, is_patch=True),
    c.CreateUser("another", "password", True, PERMISSIONS),
    c.UpdatePermissions("target", PERMISSIONS),
    c.SendMessages(0, 0, Balanced(), []),
    c.SendMessages("s", "t", ByKey(b"key"), []),
    c.GetConsumerOffset(_GROUP, "s", "t", 1),
)
"""Everything that can be said on a connection that is logged in, but another login: guesses are slowed down."""
LOGINS: tuple[c.Command, ...] = (c.LoginUser("iggy", "iggy"), c.LoginWithToken("x" * 60))

PAYLOADS = (b"hello", b"", b"world" * 20)


@dataclass(frozen=True)
class Damage:
    """One change of one request."""

    command: c.Command
    kind: str
    """cut, changed or inserted"""
    position: int
    """Modulo the size of the request; below 0 it is one of the last bytes, since most of a 0.9 request is header."""
    value: int

    def applied(self, request: bytes, wire: str) -> bytes:
        position = self.position % len(request) if self.position >= 0 else max(len(request) + self.position, 0)
        if self.kind == "cut":
            return _with_size(request[:position], wire)
        if self.kind == "inserted":
            return _with_size(request[:position] + bytes((self.value,)) + request[position:], wire)
        changed = request[position] ^ (self.value or 1)
        return request[:position] + bytes((changed,)) + request[position + 1 :]


def _with_size(request: bytes, wire: str) -> bytes:
    """The request with its length field put right, if there is one: as if the client had meant it."""
    if wire == "classic":
        return (len(request) - 4).to_bytes(4, "little") + request[4:] if len(request) >= 8 else request
    return request[:48] + len(request).to_bytes(4, "little") + request[52:] if len(request) >= 256 else request


def damages(seed: int, count: int, commands: Sequence[c.Command] = REQUESTS) -> Iterator[Damage]:
    """So many different ones: every command in turn, positions and values at random."""
    dice = random.Random(seed)
    for number in range(count):
        kind = dice.choice(("cut", "changed", "changed", "inserted"))
        yield Damage(
            commands[number % len(commands)],
            kind,
            dice.choice((dice.randrange(2**16), dice.randrange(-60, 0))),
            dice.randrange(1, 256),
        )


_PING_NUMBER = 1 << 62


def judge(client: Client, data: bytes) -> list[Answer]:
    """Send anything on a connection, with a ping behind it, and close it. Return the answers.

    A server that waits for the rest of a frame is told that there is none: it has to close then.
    """
    with client:
        client.send(data + _ping(client))
        answers: list[Answer] = []
        is_finished = False
        while not _is_pong(client, answers):
            if not is_finished and client.is_silent(SILENCE):
                client.finish()
                is_finished = True
            answer = client.fate()
            if answer is None:
                break
            assert answer.is_declared, answer
            answers.append(answer)
    return answers


def judge_stranger(port: int, data: bytes) -> bytes:
    """Send anything on a connection of its own and nothing more: the server closes. Return what it says before."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        said = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65_536):
                said += piece
        except (ConnectionResetError, BrokenPipeError):
            # It did not even want to hear all of it.
            return said
        return said


def _ping(client: Client) -> bytes:
    if isinstance(client, VsrClient):
        return client.frame(2, code=1, number=_PING_NUMBER)
    return client.request(c.Ping())


def _is_pong(client: Client, answers: list[Answer]) -> bool:
    """Whether the last answer is the ping's. Classic answers do not say what they answer: the second one may be it."""
    if isinstance(client, VsrClient):
        return bool(answers) and answers[-1].number == _PING_NUMBER
    return len(answers) == 2
