"""The trace context from producers to consumers, in the headers of messages."""

import builtins
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import courser
from courser.client.messages import Message, write_headers
from courser.client.sync import SyncClient
from courser.errors import TargetRefused
from courser.testing.broker import SyncTestBroker, TestBroker

PLACE = "shop/orders"
FOREIGN = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
"""Of another program."""


class Spans:
    """What a program with a tracer provider has recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("program")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The library has one provider for the whole process and refuses a second one, so it is not set for good."""
    spans = Spans()
    monkeypatch.setattr(trace, "get_tracer", spans.provider.get_tracer)
    yield spans
    spans.provider.shutdown()


async def topic_of(broker: TestBroker, **options: Any) -> courser.Client:
    client = await broker.connect(**options)
    await client.create_stream("shop")
    await client.create_topic(PLACE)
    return client


def parent_of(message: Message) -> trace.SpanContext:
    return trace.get_current_span(courser.trace_context(message)).get_span_context()


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


async def test_a_request_carries_the_context_of_its_span(spans: Spans) -> None:
    async with TestBroker() as broker:
        client = await topic_of(broker, tracing=True)
        with spans.tracer.start_as_current_span("order") as order:
            await client.send_messages(PLACE, messages=["one", courser.SendMessage("two", headers={"a": 1})])
        one, two = await client.poll_messages(PLACE, partition_id=0)
    (sent,) = spans.named("send shop/orders")
    assert sent.kind is trace.SpanKind.PRODUCER
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert sent.parent is not None
    assert sent.parent.span_id == order.get_span_context().span_id
    for message in (one, two):
        assert parent_of(message).span_id == context_of(sent).span_id
        assert parent_of(message).trace_id == order.get_span_context().trace_id
    assert two.headers["a"] == 1


async def test_a_producer_marks_each_message_with_the_context_in_which_it_was_sent(spans: Spans) -> None:
    async with TestBroker() as broker:
        client = await topic_of(broker, tracing=True)
        orders = []
        async with client.producer(PLACE) as producer:
            for number in range(3):
                with spans.tracer.start_as_current_span("order") as order:
                    await producer.send(b"%d" % number)
                orders.append(order.get_span_context())
            await producer.send_many([b"without", b"a parent"])
        messages = await client.poll_messages(PLACE, partition_id=0)
    assert [parent_of(message).trace_id for message in messages[:3]] == [order.trace_id for order in orders]
    assert len({parent_of(message).trace_id for message in messages}) == 5
    assert len(spans.named("send shop/orders")) == 5


def test_the_sync_producer_takes_the_context_of_the_calling_thread(spans: Spans) -> None:
    with SyncTestBroker() as broker:
        client: SyncClient = broker.connect(tracing=True)
        client.create_stream("shop")
        client.create_topic(PLACE)
        with client.producer(PLACE) as producer, spans.tracer.start_as_current_span("order") as order:
            producer.send(b"one")
            producer.send_and_wait(b"two")
            client.send_messages(PLACE, messages=[b"three"])
        messages = client.poll_messages(PLACE, partition_id=0)
    assert [message.payload for message in messages] == [b"one", b"two", b"three"]
    assert {parent_of(message).trace_id for message in messages} == {order.get_span_context().trace_id}
    assert len(spans.named("send shop/orders")) == 3


async def test_a_context_that_a_message_has_already_is_kept(spans: Spans) -> None:
    async with TestBroker() as broker:
        client = await topic_of(broker, tracing=True)
        await client.send_messages(PLACE, messages=[courser.SendMessage("one", headers=FOREIGN)])
        async with client.producer(PLACE) as producer:
            await producer.send("two", headers=FOREIGN)
        for message in await client.poll_messages(PLACE, partition_id=0):
            assert message.headers == FOREIGN


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_continues_the_trace(spans: Spans, is_async: bool) -> None:
    seen: list[int] = []

    def note(_: Any) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async def note_later(message: Any) -> None:
        note(message)

    async with TestBroker() as broker:
        client = await topic_of(broker, tracing=True)
        with spans.tracer.start_as_current_span("order") as order:
            await client.send_messages(PLACE, messages=["one"])
        await client.process(PLACE, note_later if is_async else note, group="billing", stop_at_end=True)
    (processed,) = spans.named("process shop/orders")
    assert processed.kind is trace.SpanKind.CONSUMER
    assert seen == [context_of(processed).span_id]
    assert context_of(processed).trace_id == order.get_span_context().trace_id
    assert processed.attributes is not None
    assert processed.attributes["messaging.courser.offset"] == 0


async def test_a_list_of_messages_is_linked_to_all_of_them_and_failures_are_recorded(spans: Spans) -> None:
    calls: list[int] = []

    async def fail_once(messages: list[courser.ReceivedMessage[bytes]]) -> None:
        calls.append(len(messages))
        if len(calls) == 1:
            raise ValueError("not yet")

    async with TestBroker() as broker:
        client = await topic_of(broker, tracing=True)
        async with client.producer(PLACE) as producer:
            await producer.send_many([b"one", b"two"])
        await client.process(PLACE, fail_once, group="billing", batch=10, backoff=0.0, stop_at_end=True)
    failed, processed = spans.named("process shop/orders")
    sent = {context_of(span).span_id for span in spans.named("send shop/orders")}
    assert {link.context.span_id for link in processed.links} == sent
    assert (failed.status.status_code, processed.status.status_code) == (trace.StatusCode.ERROR, trace.StatusCode.UNSET)


async def test_a_dead_letter_keeps_its_context(spans: Spans) -> None:
    async def fail(_: Any) -> None:
        raise ValueError("never")

    async with TestBroker() as broker:
        client = await topic_of(broker, tracing=True)
        await client.send_messages(PLACE, messages=["one"])
        await client.process(PLACE, fail, group="billing", retries=0, dead_letter="shop/failed", stop_at_end=True)
        (letter,) = await client.poll_messages("shop/failed", partition_id=0)
    (sent,) = spans.named("send shop/orders")
    assert parent_of(letter).span_id == context_of(sent).span_id


async def test_without_a_provider_or_without_tracing_messages_are_as_they_were() -> None:
    async with TestBroker() as broker:
        for tracing in (True, False):
            client = await broker.connect(tracing=tracing)
            await client.create_stream(f"s{tracing}")
            await client.create_topic(f"s{tracing}/t")
            await client.send_messages(f"s{tracing}/t", messages=["one"])
            async with client.producer(f"s{tracing}/t") as producer:
                await producer.send(b"two")
                assert producer.traced() is None
            for message in await client.poll_messages(f"s{tracing}/t", partition_id=0):
                assert message.raw_headers == b""
                assert not parent_of(message).is_valid


def test_a_malformed_context_is_no_context() -> None:
    for value in ("nonsense", b"bytes", 7):
        message = Message(b"", 0, 0, 0, 0, 0, write_headers({"traceparent": value}))
        assert not parent_of(message).is_valid


async def test_without_the_library_the_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "courser.client.tracing":
            raise ImportError(name)
        return find(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(TargetRefused, match=r"pip install 'courser\[otel\]'"):
        await courser.connect("127.0.0.1:8090", tracing=True)
