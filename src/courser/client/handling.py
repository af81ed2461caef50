"""Run a handler over messages: decode the payload, try several times, and put aside what cannot be handled."""

import asyncio
import contextvars
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import msgspec

from courser.client.dead_letters import DeadLetters
from courser.client.messages import Decoded, Message
from courser.client.workload import Ordering, Strand
from courser.errors import HandlerFailed

if TYPE_CHECKING:
    from courser.client.tracing import Tracing

_log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Any], Awaitable[object] | object]
"""Async or plain. Takes a ``ReceivedMessage``, or a list of them. Plain handlers run on threads."""
Decoder: TypeAlias = Callable[[Message], Any]


class ReceivedMessage(Message, Generic[Decoded], frozen=True, kw_only=True):
    """A message as a handler gets it.

    Example:
        async def note(message: courser.ReceivedMessage[str]) -> None:
            print(message.partition_id, message.offset, message.value, message.attempt)


        await client.process("shop/orders", note, group="notes", payload_type=str, stop_at_end=True)
    """

    value: Decoded
    """The payload, decoded to the type that was given to ``process``; without one, the bytes."""
    attempt: int = 1
    """How often the handler has been called with this message, this time included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of ``Client.process``.

    Example:
        async def insert(messages: list[courser.ReceivedMessage[bytes]]) -> None:
            print([message.offset for message in messages])


        await client.process("shop/orders", insert, group="warehouse", batch=500, retries=5, stop_at_end=True)
    """

    retries: int = 3
    """How often a handler that failed is called again with the same message."""
    backoff: float = 0.1
    """Seconds before the first retry. Each further pause is twice as long, and somewhat random."""
    backoff_max: float = 30.0
    """Seconds of the longest pause."""
    retry_on: tuple[type[Exception], ...] = (Exception,)
    """Errors after which it is worth trying again. With any other error the handler is not called again."""
    concurrency: int = 8
    """How many handlers run at the same time."""
    ordering: Ordering = "key"
    """``key``: messages with the same key are handled in order, others at the same time. ``partition``: all messages of
    a partition are handled in order."""
    batch: int | None = None
    """Hand over lists of at most this many messages of one partition. A partition has one list at a time."""
    buffer_count: int = 1000
    """Messages that may wait for a handler. The consumer reads no more until some are done."""
    grace: float = 10.0
    """Seconds that running handlers get to finish when a partition is lost or the processing stops."""
    commit_interval: float = 1.0
    """Seconds between commits. They also happen when a partition is given up, and at the end."""
    sync_interval: float = 1.0
    """Seconds after which a busy member asks for its assigned partitions."""
    on_gap: Literal["raise", "skip"] = "raise"
    """What to do about deleted or damaged messages."""
    stop_at_end: bool = False
    """Whether to end when nothing is left to read, instead of waiting."""
    create_group: bool = True
    """Whether to create the group if it does not exist."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries must not be negative: {self.retries}")
        for name in ("concurrency", "buffer_count", "batch"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in ("backoff", "backoff_max", "grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative: {getattr(self, name)}")
        if self.ordering not in ("key", "partition"):
            raise ValueError(f'ordering must be "key" or "partition", not "{self.ordering}"')


def consumer_options(settings: ProcessSettings) -> dict[str, Any]:
    """The options of the consumer: those that have the same name there."""
    names = ("commit_interval", "sync_interval", "on_gap", "stop_at_end", "create_group")
    return {name: getattr(settings, name) for name in names} | {"batch_count": min(settings.buffer_count, 1000)}


def pause_after(settings: ProcessSettings, attempt: int) -> float:
    """Seconds between a failed attempt and the next one, before the random part."""
    # The exponent is limited: 2.0**1100 would be too large for a float.
    return float(min(settings.backoff * 2.0 ** min(attempt - 1, 64), settings.backoff_max))


class Dropped(Exception):
    """The strand ends, and the message was not handled: whoever gets the partition will do it."""


def decoder_of(payload_type: Any) -> Decoder:
    """How to decode payloads: bytes and text as they are, pydantic models by themselves, everything else from JSON."""
    if payload_type is None or payload_type is bytes:
        return lambda message: message.payload
    if payload_type is str:
        return lambda message: message.text()
    if hasattr(payload_type, "model_validate_json"):
        # A pydantic model. The library is not needed otherwise.
        return lambda message: payload_type.model_validate_json(message.payload)
    decode = msgspec.json.Decoder(payload_type).decode
    return lambda message: decode(message.payload)


class Handling:
    """Calls the handler of a processor, again after failures, and counts the results."""

    def __init__(
        self,
        handler: Handler,
        settings: ProcessSettings,
        topic: str,
        decode: Decoder,
        dead_letters: DeadLetters | None,
        tracing: "Tracing | None" = None,
    ) -> None:
        """``topic`` is its name for people. Raises ``TypeError`` if the handler cannot be called."""
        if not callable(handler):
            raise TypeError(f"a handler must be a function, not {handler!r}")
        self._handler = handler
        self._settings = settings
        self._topic = topic
        self._decode = decode
        self._dead_letters = dead_letters
        self._tracing = tracing
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._threads: ThreadPoolExecutor | None = None
        if not _is_async(handler):
            self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="courser-handler")
        self.handled_count = self.retry_count = self.dead_letter_count = 0

    async def open(self) -> None:
        """Get ready. Raises an error if dead letters cannot be sent."""
        if self._dead_letters is not None:
            await self._dead_letters.open()

    async def close(self) -> None:
        """Let go of threads and connections. Threads that are still busy end with their handler."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        if self._dead_letters is not None:
            await self._dead_letters.close()

    async def handle(self, strand: Strand, messages: Sequence[Message]) -> None:
        """Return when each message is handled, or is a dead letter.

        Raises:
            HandlerFailed: a message cannot be handled, and there is no dead-letter topic.
            Dropped: the strand ends, and the messages were not handled.
        """
        received = []
        for message in messages:
            try:
                value = self._decode(message)
            except Exception as reason:  # noqa: BLE001 - whatever a type or a model raises, the payload does not fit
                await self._put_aside(message, reason, 0)
            else:
                received.append(_received(message, value))
        if not received:
            return
        attempt, error = await self._try(strand, received)
        if error is None:
            self.handled_count += len(received)
        elif len(received) == 1:
            await self._put_aside(received[0], error, attempt)
        else:
            await self._separate(strand, received, attempt + 1)

    async def _separate(self, strand: Strand, received: Sequence[ReceivedMessage[Any]], attempt: int) -> None:
        """Find out which messages of a list fail: one more attempt for each by itself."""
        for message in received:
            if (error := await self._attempt(strand, [message], attempt)) is None:
                self.handled_count += 1
            else:
                await self._put_aside(message, error, attempt)

    async def _try(self, strand: Strand, received: Sequence[ReceivedMessage[Any]]) -> tuple[int, Exception | None]:
        """Call the handler until it succeeds or has failed too often. Returns the last attempt and its error."""
        attempt = 0
        while True:
            attempt += 1
            error = await self._attempt(strand, received, attempt)
            if error is None:
                return attempt, None
            if attempt > self._settings.retries or not isinstance(error, self._settings.retry_on):
                return attempt, error
            first = received[0]
            place = (self._topic, first.partition_id, first.offset)
            _log.info("handler failed topic=%s partition=%d offset=%d attempt=%d: %r", *place, attempt, error)
            self.retry_count += 1
            await self._pause(strand, attempt)

    async def _pause(self, strand: Strand, attempt: int) -> None:
        strand.is_pausing = True
        try:
            await asyncio.sleep(pause_after(self._settings, attempt) * random.uniform(0.5, 1.0))
        finally:
            strand.is_pausing = False

    async def _attempt(
        self, strand: Strand, received: Sequence[ReceivedMessage[Any]], attempt: int
    ) -> Exception | None:
        async with self._slots:
            if not strand.may_begin(received[-1].offset):
                raise Dropped
            strand.progress.begin(received[-1].offset)
            try:
                with nullcontext() if self._tracing is None else self._tracing.handling(received, self._topic):
                    await self._call([msgspec.structs.replace(message, attempt=attempt) for message in received])
            except Exception as error:
                if strand.is_ending:
                    raise Dropped from error
                return error
        return None

    async def _call(self, received: list[ReceivedMessage[Any]]) -> None:
        argument = received if self._settings.batch is not None else received[0]
        if self._threads is None:
            result = self._handler(argument)
        else:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, context.run, self._handler, argument)
        if inspect.isawaitable(result):
            await result

    async def _put_aside(self, message: Message, error: Exception, attempts: int) -> None:
        """Send a message to the dead-letter topic."""
        if self._dead_letters is None:
            raise HandlerFailed(self._topic, message.partition_id, message.offset, attempts) from error
        await self._dead_letters.send(message, error, attempts)
        place = (self._topic, message.partition_id, message.offset)
        _log.warning("dead letter topic=%s partition=%d offset=%d attempts=%d: %r", *place, attempts, error)
        self.dead_letter_count += 1


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _received(message: Message, value: Any) -> ReceivedMessage[Any]:
    return ReceivedMessage(
        message.payload,
        message.offset,
        message.partition_id,
        message.timestamp,
        message.origin_timestamp,
        message.id,
        message.raw_headers,
        value=value,
    )
