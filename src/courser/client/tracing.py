"""Carry the trace context of OpenTelemetry in message headers, from producers to consumers.

The headers are those of the W3C, ``traceparent`` and ``tracestate``, so programs in other languages can read them. This
module needs the extra ``otel``; a client imports it only if tracing is switched on. Without a tracer provider in the
program, nothing is added to messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from courser import __version__
from courser.client.messages import Headers, Message, SendMessage
from courser.model.trace_context import PARENT

_PROPAGATOR = TraceContextTextMapPropagator()


def trace_context(message: Message) -> Context:
    """The trace context that a message carries, to be the parent of a span; empty if it carries none.

    Example:
        from opentelemetry import trace

        tracer = trace.get_tracer("billing")
        for message in await client.poll_messages("shop/orders", partition_id=0):
            with tracer.start_as_current_span("bill", context=courser.trace_context(message)):
                print(message.offset)
    """
    texts = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return _PROPAGATOR.extract(texts, Context())


class Tracing:
    """The spans of one client."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("courser", __version__)

    def marked(self, headers: Headers | None, place: str) -> Headers | None:
        """The headers of one message, with the context of a span of its own.

        Headers that have a context already stay as they are: whoever sends a message on knows best.
        """
        if headers and PARENT in headers:
            return headers
        span = self._tracer.start_span(f"send {place}", kind=trace.SpanKind.PRODUCER, attributes=_facts(place, 1))
        span.end()
        return _with_context(headers, span)

    @contextmanager
    def sending(self, messages: Sequence[SendMessage], place: str) -> Iterator[list[SendMessage]]:
        """A span around a request that sends messages. Gives the messages with its context."""
        with self._tracer.start_as_current_span(
            f"send {place}", kind=trace.SpanKind.PRODUCER, attributes=_facts(place, len(messages))
        ) as span:
            yield [
                message
                if message.headers and PARENT in message.headers
                else msgspec.structs.replace(message, headers=_with_context(message.headers, span))
                for message in messages
            ]

    @contextmanager
    def handling(self, messages: Sequence[Message], place: str) -> Iterator[None]:
        """A span around a handler. A single message is its parent; several are linked to it."""
        contexts = [trace_context(message) for message in messages]
        is_single = len(contexts) == 1
        origins = [] if is_single else [trace.get_current_span(context).get_span_context() for context in contexts]
        with self._tracer.start_as_current_span(
            f"process {place}",
            context=contexts[0] if is_single else Context(),
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(origin) for origin in origins if origin.is_valid],
            attributes=_facts(place, len(messages)) | _position(messages[0]),
        ):
            yield


def _with_context(headers: Headers | None, span: trace.Span) -> Headers | None:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return {**(headers or {}), **carrier} if carrier else headers


def _facts(place: str, count: int) -> dict[str, Any]:
    return {
        "messaging.system": "courser",
        "messaging.destination.name": place,
        "messaging.batch.message_count": count,
    }


def _position(message: Message) -> dict[str, Any]:
    return {
        "messaging.destination.partition.id": str(message.partition_id),
        "messaging.courser.offset": message.offset,
    }
