"""What a large poll costs the server: readers that follow one partition together, and ways from a file to a socket.

Polls copy: a file is read, verified, and sent (ADR 0024). The rows of the second part compare this with ``sendfile``,
which copies nothing but verifies nothing either, on a bare socket. Its gain has to be large to pay for a proof that the
bytes are still those that were verified.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import xxhash

from benchmarks.harness import MIB, Bench, Bound, Row, Target
from benchmarks.processes import serving
from benchmarks.samples import SampleBatch, Shape, sample
from benchmarks.wires.requests import OFFSET, TopicName
from benchmarks.wires.vsr_wire import VsrWire

_READER_COUNT = 8
_BATCH_COUNT = 32
"""Batches in each partition. They are read again and again, in order."""


def _place(number: int) -> TopicName:
    return TopicName("bench", f"topic-{number}")


def _cpu_of_polls(bench: Bench, batch: SampleBatch, topic_count: int) -> float:
    """CPU time of the server for each poll, in microseconds. All readers are at the same offset of their topics."""
    with bench.fresh_directory() as path, serving(path, 1) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(VsrWire(server.target))) for _ in range(_READER_COUNT)]
        clients[0].create_stream("bench")
        for number in range(topic_count):
            clients[0].create_topic(_place(number), 1)
            request = clients[0].make_send(_place(number), 0, batch)
            for _ in range(_BATCH_COUNT):
                clients[0].send(request)
        polls = [client.make_poll(_place(number % topic_count), 0) for number, client in enumerate(clients)]

        def read_all() -> None:
            for step in range(_BATCH_COUNT):
                for client, poll in zip(clients, polls, strict=True):
                    assert client.poll(poll, OFFSET, step * batch.count, batch.count).message_count == batch.count

        read_all()
        round_count = max(bench.scale.append_size // (batch.stored_size * _BATCH_COUNT * _READER_COUNT), 1)
        before = server.cpu_seconds()
        for _ in range(round_count):
            read_all()
        return (server.cpu_seconds() - before) * 1e6 / (round_count * _BATCH_COUNT * _READER_COUNT)


def _followers(bench: Bench) -> Row:
    batch = sample(Shape.SAME, bench.scale.message_count)
    rounds = [(_cpu_of_polls(bench, batch, 1), _cpu_of_polls(bench, batch, 8)) for _ in range(bench.scale.rounds)]
    return Row(
        measure=f"{_READER_COUNT} readers of one partition, polls of {batch.stored_size / MIB:.1f} MiB: server CPU",
        unit="us",
        engine=[together for together, _ in rounds],
        bare=[alone for _, alone in rounds],
        bare_name="a partition each",
        target=Target(Bound.RATIO_AT_MOST, 1.0),
    )


# --- from a file to a socket --------------------------------------------------------------------------

_PIECE_SIZE = MIB
_HEADER_SIZE = 256
"""Bytes that are sent before the piece: a reply's header comes from memory."""


def _drain(connection: socket.socket) -> None:
    room = bytearray(_PIECE_SIZE)
    while connection.recv_into(room):
        pass


def _cpu_of_sends(path: Path, count: int, send: Callable[[socket.socket, int, int], None]) -> float:
    """CPU time of the sending thread for each piece, in microseconds."""
    with (
        path.open("rb") as file,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as far,
        listener.accept()[0] as near,
    ):
        reader = threading.Thread(target=_drain, args=(far,))
        reader.start()
        before = time.thread_time()
        for number in range(count):
            send(near, file.fileno(), number * _PIECE_SIZE)
        spent = time.thread_time() - before
        near.shutdown(socket.SHUT_WR)
        reader.join()
        return spent * 1e6 / count


def _by_reading(connection: socket.socket, file: int, position: int, room: bytearray) -> None:
    os.preadv(file, [memoryview(room)[_HEADER_SIZE:]], position)
    xxhash.xxh3_64_intdigest(memoryview(room)[_HEADER_SIZE:])
    connection.sendall(room)


def _by_sendfile(connection: socket.socket, file: int, position: int) -> None:
    connection.sendall(bytes(_HEADER_SIZE), socket.MSG_MORE)
    end = position + _PIECE_SIZE
    while position < end:
        position += os.sendfile(connection.fileno(), file, position, end - position)


def _ways(bench: Bench) -> Row:
    count, room = max(bench.scale.append_size // _PIECE_SIZE, 8), bytearray(_HEADER_SIZE + _PIECE_SIZE)
    copied, referred = [], []
    with bench.fresh_directory() as directory:
        path = directory / "file"
        with path.open("wb") as file:
            for _ in range(count):
                file.write(os.urandom(_PIECE_SIZE))
        for _ in range(bench.scale.rounds):
            copied.append(_cpu_of_sends(path, count, lambda to, file, at: _by_reading(to, file, at, room)))
            referred.append(_cpu_of_sends(path, count, _by_sendfile))
    return Row(
        measure="1 MiB from a file to a socket by sendfile, CPU of the sender",
        unit="us",
        engine=referred,
        bare=copied,
        bare_name="read, verify, send",
    )


def run(bench: Bench) -> Iterator[Row]:
    yield _followers(bench)
    yield _ways(bench)
