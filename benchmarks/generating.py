"""``python -m benchmarks.generating``: connections that send or poll without a pause, spread over processes.

Each connection has a topic of its own and waits for each reply before its next request. The program is one of the
processes: it connects, prints a line, waits for a line, and prints what it has sent or received.
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import cycle

from benchmarks.samples import SampleBatch, make_sample
from benchmarks.wires.classic_wire import ClassicWire
from benchmarks.wires.requests import OFFSET, TopicName, Wire
from benchmarks.wires.vsr_wire import VsrWire
from courser.client.targets import Target

WARM_UP_COUNT = 100
"""Requests before a measurement: connections move to the processes of their topics after some of them."""


class Release(Enum):
    """Whose protocol is spoken."""

    SDK_0_8 = "0.8"
    SDK_0_9 = "0.9"

    def connect(self, login: Target) -> Wire:
        return ClassicWire(login) if self is Release.SDK_0_8 else VsrWire(login)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each connection does."""

    release: str = Release.SDK_0_9.value
    polls: bool = False
    """Whether it reads, in order from the first message on; otherwise it sends."""
    message_count: int = 1
    """Messages in a request."""
    message_sizes: tuple[int, int] = (1_000, 1_000)
    """Bytes of the smallest and of the largest message."""
    warm_up_count: int = 0
    """Sends that are not measured."""
    request_count: int = sys.maxsize
    seconds: float = 1e9
    """The run ends with the last request or after this time, whichever is first."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The sum over all connections, each second."""

    megabytes: float
    """Payload."""
    messages: float


def place_of(number: int) -> TopicName:
    """The topic of a connection."""
    return TopicName(f"bench-{number}", "topic")


def make_topics(login: Target, count: int, release: Release = Release.SDK_0_9) -> None:
    """Create the topics of so many connections."""
    with closing(release.connect(login)) as client:
        for number in range(count):
            client.create_stream(place_of(number).stream)
            client.create_topic(place_of(number), 1)


def generate(login: Target, load: Load, connection_count: int, process_count: int) -> Speed:
    """Run the connections to their end."""
    facts = [str(login.port), login.username or "", login.password or "", json.dumps(asdict(load))]
    numbers = [range(first, connection_count, process_count) for first in range(process_count)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.generating", *facts, *map(str, mine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mine in numbers
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        found = [json.loads(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
    seconds = max(one["end"] for one in found) - min(one["begin"] for one in found)
    return Speed(
        sum(one["size"] for one in found) / 1e6 / seconds, sum(one["messages"] for one in found) / max(seconds, 1e-9)
    )


class _Connection:
    """One of the connections, and what it has done."""

    def __init__(self, client: Wire, load: Load, batches: Sequence[SampleBatch], number: int) -> None:
        self._client = client
        self._load = load
        self._sends = cycle([(client.make_send(place_of(number), 0, batch), batch.payload_size) for batch in batches])
        self._poll = client.make_poll(place_of(number), 0)
        self._mean_size = sum(batch.payload_size for batch in batches) / sum(batch.count for batch in batches)
        self._offset = 0
        self.size = self.messages = 0
        for _ in range(load.warm_up_count):
            self._send()
        self.size = self.messages = 0

    def work(self) -> None:
        end, count = time.monotonic() + self._load.seconds, 0
        while count < self._load.request_count and time.monotonic() < end:
            self._read() if self._load.polls else self._send()
            count += 1

    def _send(self) -> None:
        request, size = next(self._sends)
        self._client.send(request)
        self.size += size
        self.messages += request.message_count

    def _read(self) -> None:
        polled = self._client.poll(self._poll, OFFSET, self._offset, self._load.message_count)
        if not polled.message_count:
            # All was read: from the first one again.
            self._offset = 0
            polled = self._client.poll(self._poll, OFFSET, 0, self._load.message_count)
        self._offset += polled.message_count
        self.size += int(polled.message_count * self._mean_size)
        self.messages += polled.message_count


def main(port: str, name: str, password: str, load_text: str, *numbers: str) -> None:
    login = Target(host="127.0.0.1", port=int(port), username=name, password=password)
    load = Load(**json.loads(load_text))
    source = random.Random(7)
    batches = [
        make_sample([source.randint(*load.message_sizes) for _ in range(load.message_count)], source) for _ in range(4)
    ]
    with ExitStack() as stack:
        connections = []
        for number in numbers:
            client = stack.enter_context(closing(Release(load.release).connect(login)))
            connections.append(_Connection(client, load, batches, int(number)))
        threads = [threading.Thread(target=connection.work) for connection in connections]
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = {
            "begin": begin,
            "end": time.monotonic(),
            "size": sum(connection.size for connection in connections),
            "messages": sum(connection.messages for connection in connections),
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
