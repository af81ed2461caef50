"""One release of the SDK behind the names that the scenarios use: what differs between releases is said here, once.

Releases differ in names of arguments, in the numbers of partitions (0.5 counts from one), and in what they offer at
all. Scenarios speak of the first, second ... partition and of plain values; everything else is the SDK itself.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from tests.sdk.programs.usage import RecordedModule

ROOT_NAME, ROOT_PASSWORD = "iggy", "iggy"
MOMENT = timedelta(milliseconds=10)
"""Between two polls of a high-level consumer, so that the tests need not wait for its usual second."""


def numbers(release: str) -> tuple[int, int]:
    """The numbers by which a release is compared. A build after 0.9.0 belongs to the release that comes next."""
    major, minor, *rest = release.split(".")
    return int(major), int(minor) + (len(rest) > 1 and rest[0] != "0")


class Sdk:
    """What a scenario gets: the module of the release, and the server's address."""

    def __init__(self, release: str, address: str, module: Any, token: str = "") -> None:
        self.release = release
        self.version = numbers(release)
        scheme, _, self.address = address.rpartition("://")
        self.scheme = scheme or "iggy"
        """Names the transport: ``iggy`` is TCP, ``iggy+ws`` WebSocket, ``iggy+quic`` QUIC, ``iggy+http`` HTTP."""
        self.iggy = RecordedModule(module)
        self.token = token
        """A personal access token of root; the releases before 0.9 can use one, but not make one."""
        self._names = itertools.count(1)

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the protocol of 0.5 to 0.8."""
        return self.version < (0, 9)

    @property
    def is_http(self) -> bool:
        """Whether it sends requests over HTTP, without a connection of its own."""
        return self.scheme == "iggy+http"

    def fresh_name(self, what: str) -> str:
        """A name that nothing else on the server has, other releases and transports included."""
        return f"{what}-{self.release}{self.scheme.removeprefix('iggy')}-{next(self._names)}"

    # --- connections ---

    async def connected(self) -> Any:
        """A client that is connected, and not logged in."""
        client = self.iggy.IggyClient(self.place)
        await client.connect()
        return client

    @property
    def place(self) -> Any:
        """What a client needs to find the server, without a login. Only 0.9 can leave TCP without one."""
        if self.scheme == "iggy":
            return self.address
        if self.is_http:
            return self.iggy.HttpConfig(api_url=f"http://{self.address}")
        kind = self.iggy.WebSocketConfig if self.scheme == "iggy+ws" else self.iggy.QuicConfig
        return kind(server_address=self.address)

    async def client(self, name: str = ROOT_NAME, password: str = ROOT_PASSWORD) -> Any:
        """A client that has logged in by itself."""
        client = await self.connected()
        await client.login_user(name, password)
        return client

    def connection_string(self, credentials: str = f"{ROOT_NAME}:{ROOT_PASSWORD}", options: str = "") -> str:
        return f"{self.scheme}://{credentials}@{self.address}{options}"

    async def lasting_client(self) -> Any:
        """A client that logs in again whenever it has to connect again; 0.5 has none, it gets a plain one."""
        if self.version < (0, 6):
            return await self.client()
        client = self.iggy.IggyClient.from_connection_string(self.connection_string())
        await client.connect()
        return client

    # --- streams and topics ---

    async def topic(self, client: Any, partition_count: int = 1) -> tuple[str, str]:
        """Make a stream with one topic; return both names."""
        stream, topic = self.fresh_name("stream"), self.fresh_name("topic")
        await client.create_stream(stream)
        await self.create_topic(client, stream, topic, partition_count)
        return stream, topic

    async def create_topic(
        self, client: Any, stream: str, name: str, partitions_count: int = 1, **settings: Any
    ) -> None:
        """Make a topic with these settings; 0.10 takes all of them as one value."""
        if self.version < (0, 10):
            await client.create_topic(stream, name, partitions_count, **settings)
            return
        raw = settings.pop("options", None)
        options = self.iggy.TopicOptions(partitions_count=partitions_count, raw=raw, **settings)
        await client.create_topic(stream, name, options)

    def partition(self, index: int) -> int:
        """The number by which this release knows the first (index 0), second ... partition."""
        return index + 1 if self.version < (0, 6) else index

    def options(self, expected: dict[str, Any]) -> dict[str, Any]:
        """These options as the SDK shows them: over HTTP all values are text, in lower case."""
        return {name: str(value).lower() for name, value in expected.items()} if self.is_http else expected

    # --- messages ---

    def message(self, payload: str | bytes) -> Any:
        """A message; 0.5 takes text alone."""
        if self.version < (0, 6) and isinstance(payload, bytes):
            payload = payload.decode()
        return self.iggy.SendMessage(payload)

    async def send(
        self, client: Any, stream: str | int, topic: str | int, payloads: Sequence[str | bytes], index: int = 0
    ) -> Any:
        """Send to the partition with this index; return the confirmation, or None if the release has none."""
        messages = [self.message(payload) for payload in payloads]
        response = await client.send_messages(stream, topic, self.partition(index), messages)
        return None if self.is_classic else response

    async def poll(
        self,
        client: Any,
        stream: str | int,
        topic: str | int,
        strategy: Any,
        *,
        count: int = 1000,
        auto_commit: bool = False,
        index: int = 0,
        consumer: str | int = 0,
    ) -> list[Any]:
        """Poll the partition with this index, as a single consumer. Releases before 0.9 have one consumer only."""
        if self.is_classic:
            messages = await client.poll_messages(stream, topic, self.partition(index), strategy, count, auto_commit)
        else:
            messages = await client.poll_messages(
                stream,
                topic,
                consumer=self.iggy.Consumer.Single(consumer),
                polling_strategy=strategy,
                count=count,
                auto_commit=auto_commit,
                partition_id=self.partition(index),
            )
        return list(messages)

    async def payloads(self, client: Any, stream: str | int, topic: str | int, index: int = 0) -> list[str]:
        """All that the partition holds, as text."""
        messages = await self.poll(client, stream, topic, self.iggy.PollingStrategy.First(), index=index)
        return [message.payload().decode() for message in messages]

    # --- consumers ---

    async def group_consumer(self, client: Any, group: str, stream: str, topic: str, **arguments: Any) -> Any:
        """A member of a consumer group that polls without a pause. From 0.10 on, the server lets polls wait.

        Until 0.6 the call was not a coroutine, and the group is looked for, made and joined when consuming begins.
        """
        arguments = {"polling_strategy": self.iggy.PollingStrategy.Next()} | arguments
        if self.version < (0, 10):
            arguments.setdefault("poll_interval", MOMENT)
        made = client.consumer_group(group, stream, topic, **arguments)
        return made if self.version < (0, 7) else await made

    @asynccontextmanager
    async def consuming(self, consumer: Any) -> AsyncIterator["asyncio.Queue[Any]"]:
        """Inside the block, ``consume_messages`` runs, and what it is given lands in the queue.

        Meanwhile the consumer must not be asked for anything: it would wait for its own end.
        """
        received: asyncio.Queue[Any] = asyncio.Queue()
        stop = asyncio.Event()

        async def take(message: Any) -> None:
            received.put_nowait(message)

        running = asyncio.ensure_future(consumer.consume_messages(take, stop))
        running.add_done_callback(lambda _: received.put_nowait(None))  # nobody waits for a consumer that has failed
        try:
            yield received
        finally:
            stop.set()
            await running

    async def consume(self, consumer: Any, count: int) -> list[Any]:
        """The next messages of this consumer."""
        messages: list[Any] = []
        async with self.consuming(consumer) as received:
            while len(messages) < count and (message := await received.get()) is not None:
                messages.append(message)
        return messages
