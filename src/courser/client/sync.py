"""The sync client: the methods of the async one, without ``await``. One implementation, on a private event loop.

``blocking_form`` takes most methods from the async classes when this module is loaded. ``make reference`` writes their
types into ``sync.pyi``.
"""

import asyncio
import inspect
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

from courser.client.blocking import Blocking, LoopThread, blocking_form, on_new_loop, with_parameters_of
from courser.client.client import Client
from courser.client.connection import open_connection
from courser.client.consumed import PartitionsCallback
from courser.client.consumer import ConsumedMessage, Consumer
from courser.client.contexts import resolve_target
from courser.client.link import Dial
from courser.client.messages import Message
from courser.client.processing import Processor
from courser.client.sync_producer import SyncProducer
from courser.client.targets import Target


@blocking_form(Client)
class SyncClient(Blocking):
    """A connection to a server that reconnects automatically. Create it with ``connect_sync``; see ``Client``.

    May be used by several threads at once.

    Example:
        for stream in client.get_streams():
            print(stream.name)
    """

    def __init__(self, original: Client, thread: LoopThread, *, owns_thread: bool = True) -> None:
        super().__init__(original, thread)
        self._owns_thread = owns_thread
        """Whether closing the client stops the event loop."""

    def close(self, *, failed: bool = False) -> None:
        """Close the connection and all producers and consumers. See ``Client.close``."""
        if self._thread.loop.is_closed():
            return
        try:
            self._thread.call(self._original.close(failed=failed))
        finally:
            if self._owns_thread:
                self._thread.stop()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    @with_parameters_of(Client.producer)
    def producer(self, *arguments: Any, **named: Any) -> SyncProducer:
        """A producer for one topic; use it in ``with``. See ``Client.producer``."""
        return SyncProducer(self._on_loop(self._original.producer, *arguments, **named), self._thread)

    @with_parameters_of(Client.consumer)
    def consumer(self, *arguments: Any, **named: Any) -> "SyncConsumer":
        """A consumer of one topic, with its own connection. See ``Client.consumer``.

        Callbacks run on a thread of their own while the consumer's thread waits.
        """
        named |= {name: _in_thread(named.get(name)) for name in ("on_assigned", "on_revoked")}
        return SyncConsumer(self._on_loop(self._original.consumer, *arguments, **named), self._thread)

    @with_parameters_of(Client.process)
    def process(self, *arguments: Any, **named: Any) -> "SyncProcessor":
        """Run a handler over the messages of a topic: call ``run``, or use it in ``with``. See ``Client.process``.

        A plain handler runs on threads, and may use this client. An async one runs on the client's event loop.
        """
        return SyncProcessor(self._on_loop(self._original.process, *arguments, **named), self._thread)


def connect_sync(
    target: str | Target | None = None, *, context: str | None = None, dial: Dial = open_connection, **options: object
) -> SyncClient:
    """Connect to a server. Use the client in ``with``, or close it. The arguments are those of ``connect``.

    Raises:
        TargetRefused: the target is invalid, the context does not exist, or the password of the user is missing.
        ConnectionFailed: no server listens at the address.
        AuthenticationFailed: the login failed.

    Example:
        with courser.connect_sync("iggy://iggy:iggy@127.0.0.1:8090") as client:
            client.ping()
    """
    chosen = resolve_target(target, context=context, options=options).target
    return SyncClient(*on_new_loop(lambda: Client(chosen, dial).__aenter__()))


class SyncConsumedMessage(Message, frozen=True):
    """A message that a sync consumer read: a ``Message`` that can be committed.

    Example:
        for message in client.consumer("shop/orders", group="billing", commit="manual", stop_at_end=True):
            message.commit()
    """

    consumer: "SyncConsumer | None" = None
    """The consumer that read it."""

    def commit(self) -> bool:
        """Commit this message and all before it in its partition. See ``ConsumedMessage``."""
        assert self.consumer is not None, "only a consumer creates such messages"
        return self.consumer.commit(self)


@blocking_form(Consumer, ("partitions", "paused", "position", "seek", "pause", "resume", "commit", "commit_done"))
class SyncConsumer(Blocking):
    """Reads one topic: ``for message in client.consumer("stream/topic", group="app")``. See ``Consumer``.

    Example:
        with client.consumer("shop/orders", group="billing", stop_at_end=True) as consumer:
            for message in consumer:
                print(message.partition_id, message.offset, message.text())
    """

    def __iter__(self) -> Iterator[SyncConsumedMessage]:
        return self

    def __next__(self) -> SyncConsumedMessage:
        # Nearly all messages take this path, without a visit to the event loop: it touches the fetched messages only
        # while this thread waits for it.
        message = self._original.pop() or self._thread.call(self._fetch())
        if message is None:
            raise StopIteration
        return SyncConsumedMessage(
            message.payload,
            message.offset,
            message.partition_id,
            message.timestamp,
            message.origin_timestamp,
            message.id,
            message.raw_headers,
            self,
        )

    async def _fetch(self) -> ConsumedMessage | None:
        """The next message, after waiting for it; None if there will be no more."""
        return await anext(self._original, None)

    @property
    def skipped_count(self) -> int:
        """Offsets that were skipped because their messages are deleted or damaged."""
        return self._original.skipped_count

    def close(self, *, failed: bool = False) -> None:
        """Commit processed messages, leave the group, close the connection. See ``Consumer.close``."""
        if not self._thread.loop.is_closed():
            self._thread.call(self._original.close(failed=failed))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def _in_thread(callback: PartitionsCallback | None) -> PartitionsCallback | None:
    """A callback that may call the sync client: it runs on its own thread while the event loop goes on."""
    if callback is None:
        return None

    async def call(partition_ids: tuple[int, ...]) -> None:
        result = await asyncio.to_thread(callback, partition_ids)
        if inspect.isawaitable(result):
            await result

    return call


@blocking_form(Processor, ("handled_count", "retry_count", "dead_letter_count", "partitions", "is_ended", "close"))
class SyncProcessor(Blocking):
    """Runs a handler over the messages of a topic. Made by ``SyncClient.process``; see ``Processor``.

    ``run`` returns after ``stop``, which another thread, a handler or a signal handler calls, or at the end of the
    topic with ``stop_at_end``. In ``with`` it runs in the background until the end of the block.

    Example:
        processor = client.process("shop/orders", print, group="printing", stop_at_end=True)
        processor.run()
        processor.stop()
        print(processor.handled_count)
    """

    def run(self) -> None:
        """Process messages until the end; see ``Processor.run``. An interrupt stops it in order."""
        running = self._thread.begin(self._original.run())
        try:
            wait((running,))
        except BaseException:
            self.stop()
            wait((running,))
            raise
        running.result()

    def stop(self) -> None:
        """End when the running handlers are done; see ``Processor.stop``. May be called more than once."""
        if not self._thread.loop.is_closed():
            self._thread.loop.call_soon_threadsafe(self._original.stop)
