"""The client: one login, one method per server command, producers and consumers."""

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.client.accounts import Accounts
from courser.client.argument_checks import settings_of
from courser.client.asking import place_of
from courser.client.connection import open_connection
from courser.client.consumed import PartitionsCallback
from courser.client.consumer import Consumer, ConsumerSettings
from courser.client.contexts import resolve_target
from courser.client.dead_letters import DELIVERY_TIMEOUT, DeadLetters
from courser.client.group_reset import GroupResets
from courser.client.handling import Handler, Handling, ProcessSettings, consumer_options, decoder_of
from courser.client.link import Dial, Link
from courser.client.messages import AnyPartitioning
from courser.client.payload_encryption import Encryptor
from courser.client.processing import Processor
from courser.client.producer import Producer, ProducerSettings
from courser.client.sinks import SinkCommands
from courser.client.starting_point import Start
from courser.client.targets import Target
from courser.errors import TargetRefused
from courser.model.identifiers import Identifier

if TYPE_CHECKING:
    from courser.client.tracing import Tracing


class ProducerOptions(TypedDict, total=False):
    """The fields of ``ProducerSettings``."""

    batch_count: int
    batch_size: int
    linger: float
    buffer_size: int
    max_in_flight: int
    resend: bool
    idempotent: bool
    delivery_timeout: float


class ConsumerOptions(TypedDict, total=False):
    """The fields of ``ConsumerSettings``."""

    batch_count: int
    batch_size: int
    wait: float
    commit: Literal["auto", "manual"]
    commit_interval: float
    sync_interval: float
    on_gap: Literal["raise", "skip"]
    stop_at_end: bool
    create_group: bool


class ProcessOptions(TypedDict, total=False):
    """The fields of ``ProcessSettings``."""

    retries: int
    backoff: float
    backoff_max: float
    retry_on: tuple[type[Exception], ...]
    concurrency: int
    ordering: Literal["key", "partition"]
    batch: int | None
    buffer_count: int
    grace: float
    commit_interval: float
    sync_interval: float
    on_gap: Literal["raise", "skip"]
    stop_at_end: bool
    create_group: bool


def _tracing() -> "Tracing":
    try:
        # Import it only if it is switched on: the library is an extra.
        from courser.client.tracing import Tracing  # noqa: PLC0415
    except ImportError as error:
        raise TargetRefused("tracing needs an extra that is not installed: pip install 'courser[otel]'") from error
    return Tracing()


class Client(GroupResets, Accounts, SinkCommands):
    """A connection to a server that reconnects automatically. Create it with ``connect``.

    Methods may be called from several tasks at once; requests are processed in the order in which they were made. A
    request raises ``NotFound`` if what it names does not exist, and ``NotAllowed`` if the user lacks the permission.

    Example:
        print(client.target.address, client.user_id, client.is_connected)
    """

    def __init__(self, target: Target, dial: Dial = open_connection) -> None:
        encryptor = Encryptor(target.encryption_key) if target.encryption_key else None
        super().__init__(Link(target, dial), encryptor, _tracing() if target.tracing else None)
        self._dial = dial
        self._consumers: set[Consumer] = set()
        self._producers: set[Producer] = set()
        self._processors: set[Processor] = set()

    @property
    def target(self) -> Target:
        """The server and login."""
        return self._link.target

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected now. Requests reconnect if it is not."""
        return self._link.is_connected

    @property
    def user_id(self) -> int | None:
        """The id of the user who is logged in."""
        return self._link.user_id

    async def request(self, command: Command) -> Reply | None:
        """Send any command of ``courser.api.commands`` and return its reply unchanged.

        Raises:
            CourserError: whatever the command can raise.
            TypeError: it is not a command, or one of its fields has another type.

        Example:
            from courser.api.commands import GetStreams

            print(await client.request(GetStreams()))
        """
        if not isinstance(command, Command):
            raise TypeError(f"a request must be a command of courser.api.commands, not {command!r}")
        return await self._link.request(command)

    def producer(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        *,
        partitioning: AnyPartitioning = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer:
        """A producer for one topic; use it in ``async with``. Options are the fields of ``ProducerSettings``.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            partitioning: For messages without their own key or partition; None uses all partitions in turn.
            options: Limits of batches and of memory.

        Raises:
            ValueError: an option is out of range.

        Example:
            async with client.producer("shop/orders", linger=0.05) as producer:
                await producer.send({"n": 1}, key="customer-7")
        """
        settings = settings_of("producer", ProducerSettings, options)
        return self._make_producer(place_of(stream, topic), partitioning, settings, self._tracing)

    def _make_producer(
        self,
        place: tuple[Identifier, Identifier],
        partitioning: AnyPartitioning,
        settings: ProducerSettings,
        tracing: "Tracing | None",
    ) -> Producer:
        producer = Producer(
            self._link,
            *place,
            partitioning=partitioning,
            settings=settings,
            encryptor=self._encryptor,
            tracing=tracing,
        )
        self._producers = {other for other in self._producers if not other.is_closed} | {producer}
        return producer

    def consumer(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        *,
        group: Identifier | None = None,
        name: Identifier | None = None,
        partitions: Sequence[int] | None = None,
        start: Start | None = None,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer of one topic, with its own connection. Options are the fields of ``ConsumerSettings``.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            topic: Its name or number.
            group: Share the partitions with the other members of this group.
            name: Read alone, and store offsets under this name.
            partitions: The partitions to read; by default all. Not with a group.
            start: ``first``, ``last``, ``end``, ``next``, an offset, a time, or offsets by partition. By default after
                the stored offset, or at the first message if none is stored. In a group a stored offset always wins.
            on_assigned: Called with the numbers of the partitions that this consumer has got, before it reads them.
            on_revoked: Called with those that it has lost. Nothing more of them is handed out, but what was processed
                can still be committed, and is committed when the callback returns. The new owner waits for that.
            options: How to read and commit.

        Both callbacks may be async or plain functions. An error that they raise is raised to the reader.

        Raises:
            ValueError: an option is out of range, the start is invalid, or a group has a name or partitions.

        Example:
            async for message in client.consumer("shop/orders", group="billing", stop_at_end=True):
                print(message.partition_id, message.offset, message.text())
        """
        if partitions is not None and not isinstance(partitions, Iterable):
            raise TypeError(f"partitions must be a list of partition ids, not {partitions!r}")
        consumer = Consumer(
            Link(self._link.login_target(), self._dial),
            *place_of(stream, topic),
            group=group,
            name=name,
            partitions=partitions,
            start=start,
            settings=settings_of("consumer", ConsumerSettings, options),
            encryptor=self._encryptor,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        self._consumers = {other for other in self._consumers if not other.is_closed} | {consumer}
        return consumer

    def process(
        self,
        stream: Identifier,
        handler: Handler,
        *,
        group: Identifier,
        topic: Identifier | None = None,
        payload_type: Any = None,
        dead_letter: str | None = None,
        start: Start | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Processor:
        """Run a handler over the messages of a topic, as a member of a group. Await the result, or use ``async with``.

        Several handlers run at the same time. Messages with the same key are handled in the order in which they were
        sent, one after another. A handler that raises an error is called again after a pause; after the last retry the
        message goes to the dead-letter topic. An offset is committed when all messages up to it are handled or are dead
        letters, so a crash repeats messages but skips none.

        Args:
            stream: Its name or number, or ``"stream/topic"``.
            handler: Takes a ``ReceivedMessage``; with ``batch=``, a list of them. A plain function runs on a thread.
            group: Share the partitions with the other members of this group.
            topic: Its name or number.
            payload_type: Decode payloads to this type: a msgspec struct, a pydantic model, a dataclass, ``str``, or
                anything else that msgspec can decode from JSON. A payload that does not fit goes to the dead-letter
                topic at once.
            dead_letter: The ``"stream/topic"`` for messages that cannot be handled, created if the topic does not
                exist. Without one, such a message ends the processing with ``HandlerFailed``.
            start: Where a group without stored offsets starts, as for ``consumer``.
            options: The fields of ``ProcessSettings``.

        Raises:
            ValueError: an option has an invalid value.
            TypeError: an option is unknown, or a value has another type.

        Example:
            async def bill(message: courser.ReceivedMessage[str]) -> None:
                print(message.value, message.attempt)


            await client.process(
                "shop/orders", bill, group="billing", payload_type=str, dead_letter="shop/failed", stop_at_end=True
            )
        """
        settings, place = settings_of("processor", ProcessSettings, options), place_of(stream, topic)
        origin = "/".join(map(str, place))
        dead_letters = None if dead_letter is None else self._dead_letters(dead_letter, origin, str(group))
        handling = Handling(handler, settings, origin, decoder_of(payload_type), dead_letters, self._tracing)

        def make_consumer(on_revoked: PartitionsCallback) -> Consumer:
            return self.consumer(*place, group=group, start=start, on_revoked=on_revoked, **consumer_options(settings))

        processor = Processor(make_consumer, handling, settings)
        self._processors = {other for other in self._processors if not other.is_ended} | {processor}
        return processor

    def _dead_letters(self, topic: str, origin: str, group: str) -> DeadLetters:
        place, settings = place_of(topic, None), ProducerSettings(delivery_timeout=DELIVERY_TIMEOUT)
        # A dead letter keeps the trace context that it has.
        producer = self._make_producer(place, None, settings, tracing=None)
        return DeadLetters(self, place, producer, origin=origin, group=group)

    async def close(self, *, failed: bool = False) -> None:
        """Close the connection and all producers and consumers. May be called more than once.

        Processors stop in order, and consumers leave their groups. The messages that consumers read last count as
        processed, unless ``failed``. Producers that were not closed before lose unsent messages.

        Example:
            client = await courser.connect()
            await client.ping()
            await client.close()
        """
        try:
            for processor in self._processors:
                await processor.close()
            for consumer in self._consumers:
                await consumer.close(failed=failed)
            for producer in self._producers:
                producer.abandon()
        finally:
            await self._link.close()

    async def __aenter__(self) -> Self:
        if not self._link.is_connected:
            await self._link.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(failed=kind is not None)


class Connecting:
    """A client that is not connected yet: ``async with connect() as client``, or ``client = await connect()``.

    Example:
        client = await courser.connect()
        await client.close()
    """

    def __init__(self, target: Target, dial: Dial) -> None:
        self._client = Client(target, dial)

    if not TYPE_CHECKING:
        # Type checkers report a forgotten await by themselves.
        def __getattr__(self, name: str) -> object:
            """A method of a client: somebody forgot to await this."""
            problem = f'the client is not connected yet, so it has no "{name}"'
            raise AttributeError(f"{problem}: use async with connect() as client, or client = await connect()")

    def __await__(self) -> Generator[object, None, Client]:
        return self._client.__aenter__().__await__()

    async def __aenter__(self) -> Client:
        return await self._client.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._client.close(failed=kind is not None)


def connect(
    target: str | Target | None = None, *, context: str | None = None, dial: Dial = open_connection, **options: object
) -> Connecting:
    """Connect to a server. Use the result in ``async with``, or await it.

    The target is the argument, else the environment (``COURSER_URL``, ``COURSER_CONTEXT``), else the selected context,
    else the server on this machine.

    Args:
        target: ``iggy://user:password@host:port``, ``iggy://token@host:port``, ``host:port``, or a ``Target``.
        context: The name of a saved context.
        dial: Opens connections; for tests.
        options: Fields of ``Target``, such as ``username``, ``password``, ``token``, ``tls``, ``request_timeout``.

    Raises:
        TargetRefused: the target is invalid, the context does not exist, or the password of the user is missing.
        ConnectionFailed: no server listens at the address. Raised by ``async with`` and ``await``.
        AuthenticationFailed: the login failed. Raised by ``async with`` and ``await``.

    Example:
        async with courser.connect("iggy://iggy:iggy@127.0.0.1:8090", request_timeout=5) as client:
            await client.ping()
    """
    return Connecting(resolve_target(target, context=context, options=options).target, dial)
