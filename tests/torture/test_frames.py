"""Frames as nobody should send them: sizes, pieces, interruptions, other protocols. Somebody looks on, undisturbed."""

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from tests.torture.clients import HEADER_SIZE, PATIENCE, WIRES, Answer, ClassicClient, Client, VsrClient
from tests.torture.conftest import Target
from tests.torture.damage import judge_stranger
from tests.torture.process import until
from tests.torture.witness import Witness

MIB = 1024 * 1024
EVERY_WIRE = tuple(WIRES)
every_wire = pytest.mark.parametrize("wire", EVERY_WIRE)
PING = c.Ping()
SEND = c.SendMessages("s", "t", ToPartition(0), [])
POLL = c.PollMessages(Consumer(ConsumerKind.CONSUMER, 1), "s", "t", 0, PollingKind.LAST, 0, 1, False)


@pytest.fixture(autouse=True, scope="module")
def witness(target: Target) -> Iterator[Witness]:
    with target.watch() as witness:
        yield witness


@pytest.fixture(autouse=True)
def undisturbed(witness: Witness) -> Iterator[None]:
    yield
    witness.check()


def classic_frame(length: int, code: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", length, code) + payload


# --- sizes, classic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_classic_length_below_that_of_a_code_is_an_error_and_no_end(target: Target, length: int) -> None:
    with ClassicClient(target.port) as client:
        client.send(classic_frame(length, 1))
        assert client.receive() == Answer(ErrorCode.INVALID_COMMAND)
        client.do(PING)


@pytest.mark.parametrize("length", [16 * 1024, 10 * MIB + 5, 66 * MIB, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("code", [1, 38, 101, 12345])
def test_a_long_classic_frame_of_a_stranger_is_refused_at_once(target: Target, length: int, code: int) -> None:
    with ClassicClient(target.port) as client:
        client.send(classic_frame(length, code))
        answer = client.fate()
        assert answer is None or (answer.status and answer.is_declared and client.fate() is None)


@pytest.mark.parametrize(
    ("code", "payload_size_max", "status"),
    [
        (200, 10 * MIB, ErrorCode.INVALID_COMMAND),
        (101, 65 * MIB, ErrorCode.INVALID_MESSAGES_SIZE),
    ],
)
@pytest.mark.parametrize("length", [1, 100 * MIB, 2**31, 2**32 - 1])
def test_a_classic_frame_above_the_limit_is_refused_at_once_and_the_connection_closed(
    target: Target, code: int, payload_size_max: int, status: ErrorCode, length: int
) -> None:
    with target.connect("classic") as client:
        client.send(classic_frame(4 + payload_size_max + length if length == 1 else length, code))
        assert client.receive() == Answer(status)
        assert client.fate() is None


@pytest.mark.parametrize(("code", "payload_size_max"), [(200, 10 * MIB), (101, 65 * MIB)])
def test_a_classic_frame_at_the_limit_is_read_to_its_end(target: Target, code: int, payload_size_max: int) -> None:
    with target.connect("classic") as client:
        client.send(classic_frame(4 + payload_size_max, code, bytes(payload_size_max)))
        answer = client.receive()
        assert answer.status
        assert answer.is_declared
        client.do(PING)


# --- sizes, 0.9 ---------------------------------------------------------------------------------------


def vsr_frame(client: VsrClient, size: int) -> bytes:
    frame = bytearray(client.frame(2, code=1))
    struct.pack_into("<I", frame, 48, size)
    return bytes(frame)


@pytest.mark.parametrize("size", [0, 1, 3, 255])
def test_an_impossible_size_ends_a_connection_of_0_9(target: Target, size: int) -> None:
    client = target.connect("vsr")
    with client:
        assert isinstance(client, VsrClient)
        client.send(vsr_frame(client, size))
        assert client.fate() is None


@pytest.mark.parametrize("size", [64 * MIB + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_frame_of_0_9_above_the_limit_is_refused_at_once_and_the_connection_closed(target: Target, size: int) -> None:
    client = target.connect("vsr")
    with client:
        assert isinstance(client, VsrClient)
        client.send(vsr_frame(client, size))
        assert client.receive() == Answer(ErrorCode.INVALID_COMMAND)
        assert client.fate() is None


@every_wire
def test_a_client_that_sends_all_of_a_frame_above_the_limit_gets_the_answer(target: Target, wire: str) -> None:
    client = target.connect(wire)
    with client:
        if isinstance(client, VsrClient):
            frame, status = vsr_frame(client, 64 * MIB + 1), ErrorCode.INVALID_COMMAND
            rest_size = 64 * MIB + 1 - len(frame)
        else:
            frame, status = classic_frame(4 + 65 * MIB + 1, 101), ErrorCode.INVALID_MESSAGES_SIZE
            rest_size = 65 * MIB + 1
        client.send(frame + bytes(rest_size))
        assert client.receive() == Answer(status)
        assert client.fate() is None


@pytest.mark.parametrize("size", [256, 257, 64 * MIB])
def test_a_possible_size_does_not(target: Target, size: int) -> None:
    client = target.connect("vsr")
    with client:
        assert isinstance(client, VsrClient)
        client.send(vsr_frame(client, size) + bytes(size - HEADER_SIZE))
        assert client.receive() == Answer(0)
        client.do(PING)


def test_before_a_login_a_large_frame_of_0_9_ends_the_connection(target: Target) -> None:
    with VsrClient(target.port) as client:
        client.send(vsr_frame(client, 16 * 1024 + 1))
        assert client.fate() is None


# --- pieces -------------------------------------------------------------------------------------------


@every_wire
def test_requests_may_come_byte_by_byte(target: Target, wire: str) -> None:
    with target.connect(wire) as client:
        for command in (PING, SEND, POLL, c.GetMe()):
            for byte in client.request(command, [b"hello"]):
                client.send(bytes((byte,)))
            assert not client.receive().status


@every_wire
def test_requests_may_come_in_any_pieces(target: Target, wire: str, seed: int) -> None:
    dice = random.Random(seed)
    with target.connect(wire) as client:
        commands = [dice.choice((PING, SEND, POLL, c.GetMe(), c.GetStream("s"))) for _ in range(200)]
        data = b"".join(client.request(command, [dice.randbytes(dice.randrange(2_000))]) for command in commands)
        with ThreadPoolExecutor(1) as pool:
            statuses = pool.submit(lambda: [client.receive().status for _ in commands])
            while data:
                size = dice.choice((1, 7, 100, 3_000, 70_000))
                client.send(data[:size])
                data = data[size:]
            assert statuses.result() == [0] * len(commands)


@every_wire
@pytest.mark.parametrize("tail", [b"\xff" * 300, bytes(300), b"GET / HTTP/1.1\r\n\r\n" + bytes(300)])
def test_a_good_request_before_garbage_is_answered(target: Target, wire: str, tail: bytes) -> None:
    with target.connect(wire) as client:
        client.send(client.request(c.GetStream("s")) + tail)
        assert client.receive().body
        client.finish()
        while (answer := client.fate()) is not None:
            assert answer.is_declared


@every_wire
def test_a_message_before_garbage_is_kept_and_nothing_of_the_garbage(target: Target, wire: str) -> None:
    with target.connect(wire) as client:
        before = next_offset(client)
        client.send(client.request(SEND, [b"kept"]) + b"\xfe" * 1000)
        assert not client.receive().status
    with target.connect(wire) as client:
        assert next_offset(client) == before + 1


def next_offset(client: Client) -> int:
    body = client.do(POLL)
    current_offset, count = struct.unpack_from("<QI", body, 4)
    return current_offset + 1 if count else 0


@every_wire
@pytest.mark.parametrize("is_rude", [False, True], ids=["closed", "reset"])
def test_half_a_send_is_nothing(target: Target, wire: str, is_rude: bool, seed: int) -> None:
    dice = random.Random(seed)
    with target.connect(wire) as watcher:
        before = next_offset(watcher)
        for _ in range(30):
            client = target.connect(wire)
            request = client.request(SEND, [b"half"] * 1000)
            client.send(request[: dice.randrange(1, len(request))])
            client.reset() if is_rude else client.close()
        assert next_offset(watcher) == before


@every_wire
def test_connections_that_are_reset_while_they_are_answered(target: Target, wire: str) -> None:
    with target.connect(wire) as watcher:
        before = next_offset(watcher)
        for number in range(60):
            client = target.connect(wire)
            commands = (SEND, POLL, c.GetStream("s"), c.UpdateStream("s", "s"), c.CreateConsumerGroup("s", "t", "g"))
            client.send(b"".join(client.request(command, [b"sent"]) for command in commands))
            if number % 2:
                client.receive()
            client.reset()
        # Some of the sends were read before the end, some not; each is there once or not at all.
        assert before + 30 <= next_offset(watcher) <= before + 60
        watcher.do(PING)


def test_a_connection_that_says_nothing_and_goes(target: Target) -> None:
    for _ in range(50):
        socket.create_connection(("127.0.0.1", target.port), PATIENCE).close()
    assert judge_stranger(target.port, b"") == b""


# --- other protocols ----------------------------------------------------------------------------------


def test_a_tls_hello_on_the_plain_port_is_turned_away_at_once(target: Target) -> None:
    context = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", target.port), PATIENCE) as connection,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(connection, server_hostname="localhost")


def is_said(target: Target, greeting: bytes, line: str) -> bool:
    """Whether the log says why this is turned away: not at once, nor each time, if much else is turned away."""

    def is_there() -> bool:
        assert judge_stranger(target.port, greeting) == b""
        return line in target.server.output

    until(is_there, line)
    return True


@pytest.mark.parametrize("verb", ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_http_on_the_binary_port_is_turned_away_at_once(target: Target, verb: str) -> None:
    assert is_said(target, f"{verb} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), "the client uses HTTP")


@pytest.mark.parametrize(
    "greeting",
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-OpenSSH\r\n", b"\x00\x00\x00\x2f\x00\x03", b"\n", b"*1\r\n"],
)
def test_other_greetings(target: Target, greeting: bytes) -> None:
    judge_stranger(target.port, greeting)


def test_a_classic_request_behind_requests_of_0_9_ends_the_connection(target: Target) -> None:
    with target.connect("vsr") as client, ClassicClient(target.port) as other:
        client.do(PING)
        client.send(other.request(PING) * 40)
        assert client.fate() is None


def test_a_request_of_0_9_behind_classic_ones_gets_declared_errors_or_the_end(target: Target) -> None:
    with target.connect("classic") as client, VsrClient(target.port) as other:
        client.do(PING)
        client.send(other.request(PING))
        client.finish()
        while (answer := client.fate()) is not None:
            assert answer.is_declared


def test_the_classic_login_is_none_of_0_9_and_the_other_way_round(target: Target) -> None:
    with VsrClient(target.port) as client:
        client.send(client.frame(2, b"\4iggy\4iggy" + bytes(8), code=38))
        assert client.receive() == Answer(15, is_eviction=True)
    with ClassicClient(target.port) as client:
        client.send(classic_frame(4 + 10, 45, bytes(10)))
        assert client.receive() == Answer(ErrorCode.INVALID_COMMAND)


@every_wire
def test_a_login_on_a_connection_that_is_logged_in(target: Target, wire: str) -> None:
    with WIRES[wire](target.port) as client:
        client.login("target", "password")
        assert client.ask(c.GetUsers()).status == ErrorCode.UNAUTHORIZED
        assert not client.login_with_token(target.token).status
        assert not client.ask(c.GetUsers()).status
        client.login("target", "password")
        assert client.ask(c.GetUsers()).status == ErrorCode.UNAUTHORIZED


@every_wire
def test_a_logout_then_use(target: Target, wire: str) -> None:
    with target.connect(wire) as client:
        client.do(c.LogoutUser())
        answer = client.ask(SEND, [b"no"])
        assert answer.status == (1 if answer.is_eviction else ErrorCode.UNAUTHENTICATED)
        assert client.ask(c.GetStreams()).status == ErrorCode.UNAUTHENTICATED
        assert not client.login_with_token(target.token).status
        client.do(SEND, [b"yes"])


@every_wire
def test_unknown_commands(target: Target, wire: str) -> None:
    codes = (0, 2, 9, 14, 99, 103, 199, 206, 404, 500, 607, 9_999, 59_999, 60_000, 60_099, 2**31, 2**32 - 1)
    with target.connect(wire) as client:
        for code in codes:
            frame = client.frame(2, b"?", code=code) if isinstance(client, VsrClient) else classic_frame(5, code, b"?")
            client.send(frame)
            assert client.receive() == Answer(ErrorCode.INVALID_COMMAND), code
        client.do(PING)
