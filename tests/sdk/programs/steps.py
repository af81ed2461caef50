"""What a test can ask of a running child, one call at a time: small acts of a program that uses the SDK.

Everything that goes in or out is JSON. Partitions are indices from 0 for every release. Acts that go on by themselves
(``consume``, ``produce``) report through events.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from tests.sdk.programs.load import payload_of
from tests.sdk.programs.sdk import ROOT_NAME, ROOT_PASSWORD, Sdk

Emit = Callable[..., None]
Send = Callable[[Any, list[int]], Awaitable[Any]]

CREATE_TOKEN, GET_CONSUMER_OFFSET = 42, 120
SEND_PATIENCE = 2.0
"""Seconds until a producer gives up a send and its client: left alone, the client waits five seconds to reconnect."""


class Steps:
    """The acts, and the clients that they use."""

    def __init__(self, sdk: Sdk, emit: Emit) -> None:
        self._sdk = sdk
        self._emit = emit
        self._clients: dict[str, Any] = {}
        self._running: dict[str, tuple[asyncio.Event, asyncio.Future[Any]]] = {}
        self._consumers: dict[str, Any] = {}

    # --- connections ---

    async def connect(self, client: str, lasting: bool = False, options: str = "") -> None:
        """Make a client and log it in; a lasting one logs in again by itself after a lost connection."""
        is_http = self._sdk.scheme == "iggy+http"
        if options or is_http:
            string = self._sdk.connection_string(options=options)
            made = self._sdk.iggy.IggyClient.from_connection_string(string)
            await made.connect()
            if is_http:
                # Over HTTP a connection string does not log in.
                await made.login_user(ROOT_NAME, ROOT_PASSWORD)
        else:
            made = await (self._sdk.lasting_client() if lasting else self._sdk.client())
        self._clients[client] = made

    async def login(self, client: str, user: str = ROOT_NAME, password: str = ROOT_PASSWORD) -> None:
        """Log in, or in again, by hand."""
        if client not in self._clients:
            self._clients[client] = await self._sdk.connected()
        await self._clients[client].login_user(user, password)

    async def ping(self, client: str) -> None:
        await self._clients[client].ping()

    # --- data ---

    async def create(self, client: str, stream: str, topic: str, partitions: int) -> None:
        await self._clients[client].create_stream(stream)
        await self._sdk.create_topic(self._clients[client], stream, topic, partitions)

    async def send(self, client: str, stream: str, topic: str, payloads: list[str], index: int = 0) -> Any:
        """Send; return where it landed if the release says so."""
        response = await self._sdk.send(self._clients[client], stream, topic, payloads, index)
        if response is None:
            return None
        return [[found.partition_id, found.base_offset] for found in response.confirmations]

    async def send_rich(self, client: str, stream: str, topic: str, messages: list[Any], index: int = 0) -> None:
        """Send messages with ids and headers of their own (0.9)."""
        made = [
            self._sdk.iggy.SendMessage(payload, user_headers=headers or None, id=int(number))
            for payload, number, headers in messages
        ]
        await self._clients[client].send_messages(stream, topic, index, made)

    async def poll(self, client: str, stream: str, topic: str, index: int = 0, offset: int = 0) -> list[Any]:
        """Everything from this offset on: offset, payload and id of each message."""
        found: list[Any] = []
        while part := await self.poll_once(client, stream, topic, index, offset):
            found += part
            offset = part[-1][0] + 1
        return found

    async def poll_once(self, client: str, stream: str, topic: str, index: int = 0, offset: int = 0) -> list[Any]:
        """The same for one poll."""
        strategy = self._sdk.iggy.PollingStrategy.Offset(offset)
        part = await self._sdk.poll(self._clients[client], stream, topic, strategy, index=index)
        return [[message.offset(), message.payload().decode(), str(message.id())] for message in part]

    async def headers(self, client: str, stream: str, topic: str, index: int = 0) -> list[Any]:
        """The headers of all messages (0.9)."""
        first = self._sdk.iggy.PollingStrategy.First()
        messages = await self._sdk.poll(self._clients[client], stream, topic, first, index=index)
        return [(message.user_headers() or self._sdk.iggy.UserHeaders()).to_scalar_dict() for message in messages]

    async def poll_next(self, client: str, stream: str, topic: str, commit: bool = True) -> list[str]:
        """What the next poll gives, which commits unless told otherwise."""
        strategy = self._sdk.iggy.PollingStrategy.Next()
        found = await self._sdk.poll(self._clients[client], stream, topic, strategy, auto_commit=commit)
        return [message.payload().decode() for message in found]

    async def raw(self, client: str, code: int, body: str) -> str:
        """Send a request that the SDK knows nothing of; the body and the reply are in hex."""
        reply: bytes = await self._clients[client].send_binary_request(code, bytes.fromhex(body))
        return reply.hex()

    async def delete_topic(self, client: str, stream: str, topic: str) -> None:
        await self._clients[client].delete_topic(stream, topic)

    async def remake_topic(self, client: str, stream: str, topic: str) -> None:
        """Delete a topic, and make another one with its name."""
        await self._clients[client].delete_topic(stream, topic)
        await self._sdk.create_topic(self._clients[client], stream, topic)

    # --- what only 0.9 can ask ---

    async def members(self, client: str, stream: str, topic: str, group: str) -> Any:
        """The partitions of each member of a group, or None if there is no such group."""
        details = await self._clients[client].get_consumer_group(stream, topic, group)
        return None if details is None else sorted(sorted(member.partitions) for member in details.members)

    async def stored_offset(self, client: str, stream: str, topic: str, group: str, index: int = 0) -> int | None:
        """What the server remembers for a group."""
        identifiers = b"".join(struct.pack("<BB", 2, len(name)) + name.encode() for name in (group, stream, topic))
        request = b"\x02" + identifiers + struct.pack("<BI", 1, index)
        reply = await self._clients[client].send_binary_request(GET_CONSUMER_OFFSET, request)
        return struct.unpack_from("<IQQ", reply)[2] if reply else None

    async def create_user(self, client: str, user: str, password: str) -> None:
        await self._clients[client].create_user(user, password)

    async def set_status(self, client: str, user: str, is_active: bool) -> None:
        status = self._sdk.iggy.UserStatus.Active if is_active else self._sdk.iggy.UserStatus.Inactive
        await self._clients[client].update_user(user, status=status)

    async def grant(self, client: str, user: str, stream: str, flags: list[str]) -> None:
        """Give the user these permissions for one stream, and no others."""
        number = (await self._clients[client].get_stream(stream)).id
        streams = {number: self._sdk.iggy.StreamPermissions(**dict.fromkeys(flags, True))}
        await self._clients[client].update_permissions(user, self._sdk.iggy.Permissions(streams=streams))

    async def token(self, client: str, name: str) -> str:
        """Make a personal access token that never expires."""
        request = struct.pack("<B", len(name)) + name.encode() + struct.pack("<Q", 0)
        reply: bytes = await self._clients[client].send_binary_request(CREATE_TOKEN, request)
        return reply[1 : 1 + reply[0]].decode()

    # --- consumers ---

    async def consume(self, client: str, name: str, group: str, stream: str, topic: str, batch: int = 100) -> None:
        """Join a group and report every message, until ``stop``. The offset is stored after each message."""
        after_each = self._sdk.iggy.AutoCommit.After(self._sdk.iggy.AutoCommitAfter.ConsumingEachMessage())
        consumer = await self._sdk.group_consumer(
            self._clients[client], group, stream, topic, batch_length=batch, auto_commit=after_each
        )
        self._consumers[name] = consumer
        stop = asyncio.Event()

        async def take(message: Any) -> None:
            partition = message.partition_id() if self._sdk.version >= (0, 7) else None
            payload = message.payload().decode()
            self._emit(event="message", by=name, partition=partition, offset=message.offset(), payload=payload)

        async def keep_consuming() -> None:
            while not stop.is_set():
                try:
                    await consumer.consume_messages(take, stop)
                except RuntimeError as error:  # 0.9 leaves it to the program to go on after a lost connection
                    self._emit(event="failure", by=name, error=str(error))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), 0.1)

        self._running[name] = (stop, asyncio.ensure_future(keep_consuming()))

    async def stop(self, name: str) -> None:
        """End what ``consume`` or ``produce`` began."""
        stop, running = self._running.pop(name)
        stop.set()
        await running

    # --- producers ---

    async def produce(self, name: str, stream: str, topic: str, index: int, batch: int, pause: float = 0.0) -> None:
        """Send batch after batch, each announced before and confirmed after, until ``stop``.

        Each message carries a number of its own; a batch that failed is never sent again under the same numbers, so
        that the ledger knows for each number whether it was acknowledged.
        """
        stop = asyncio.Event()

        async def send(client: Any, numbers: list[int]) -> Any:
            payloads = [payload_of(name, number) for number in numbers]
            return await self._sdk.send(client, stream, topic, payloads, index)

        self._running[name] = (stop, asyncio.ensure_future(self._produce(name, send, batch, pause, stop)))

    async def _produce(self, name: str, send: Send, batch: int, pause: float, stop: asyncio.Event) -> None:
        number = 0
        client: Any = None
        while not stop.is_set():
            numbers = list(range(number, number + batch))
            number += batch
            try:
                if client is None:
                    client = await asyncio.wait_for(self._sdk.client(), SEND_PATIENCE)
                self._emit(event="attempt", by=name, numbers=numbers)
                response = await asyncio.wait_for(send(client, numbers), SEND_PATIENCE)
            except (RuntimeError, TimeoutError) as error:
                # The server died under it. A new client does not wait five seconds before it connects.
                client = None
                self._emit(event="failure", by=name, numbers=numbers, error=str(error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.05)
                continue
            offset = None if response is None else response.confirmations[0].base_offset
            self._emit(event="ack", by=name, numbers=numbers, offset=offset)
            await asyncio.sleep(pause)
