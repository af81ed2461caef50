"""The load generators' own encodings of both protocols, against a real server."""

import random
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from benchmarks.generating import Load, Release, generate, make_topics, place_of
from benchmarks.samples import make_sample
from benchmarks.wires.requests import FIRST, OFFSET, TopicName, Wire
from courser.client.messages import PollingStrategy
from courser.client.sync import connect_sync
from courser.client.targets import Target
from courser.errors import AlreadyExists, NotFound, RequestFailed

RELEASES = pytest.mark.parametrize("release", Release, ids=lambda release: release.value)


@pytest.fixture(params=Release, ids=lambda release: str(release.value))
def wire(request: pytest.FixtureRequest, target: Target) -> Iterator[Wire]:
    with closing(request.param.connect(target)) as opened:
        yield opened


@pytest.fixture
def place(wire: Wire) -> Iterator[TopicName]:
    place = TopicName(f"wire-{secrets.token_hex(4)}", "topic")
    wire.create_stream(place.stream)
    wire.create_topic(place, 2)
    yield place
    wire.delete_stream(place.stream)


def test_what_is_sent_is_stored(wire: Wire, place: TopicName, target: Target) -> None:
    sample = make_sample([10, 200, 3000], random.Random(1))
    request = wire.make_send(place, 1, sample)
    for _ in range(3):
        wire.send(request)
    assert wire.topic_figures(place) == (2, 9)
    with connect_sync(target) as client:
        found = client.poll_messages(place.stream, place.topic, 1, PollingStrategy.First(), 10)
    assert [message.payload for message in found] == list(sample.payloads) * 3
    assert [message.id for message in found] == list(sample.ids) * 3
    assert {message.origin_timestamp for message in found} == {sample.origin_timestamp}


def test_what_is_stored_is_polled(wire: Wire, place: TopicName) -> None:
    sample = make_sample([10, 200, 3000], random.Random(1))
    request = wire.make_send(place, 1, sample)
    for _ in range(3):
        wire.send(request)
    poll = wire.make_poll(place, 1)
    whole, part = wire.poll(poll, FIRST, 0, 100), wire.poll(poll, OFFSET, 4, 2)
    assert (whole.message_count, part.message_count) == (9, 2)
    assert whole.size > 3 * sample.payload_size > part.size > 3200
    assert wire.poll(poll, OFFSET, 9, 5).message_count == 0
    assert wire.poll(wire.make_poll(place, 0), FIRST, 0, 5).message_count == 0


def test_replies_larger_than_the_buffer_are_taken(wire: Wire, place: TopicName) -> None:
    sample = make_sample([1_500_000], random.Random(1))
    request = wire.make_send(place, 0, sample)
    wire.send(request)
    wire.send(request)
    assert wire.poll(wire.make_poll(place, 0), FIRST, 0, 2).size > 2 * sample.payload_size


def test_what_the_server_refuses(wire: Wire, place: TopicName) -> None:
    with pytest.raises(AlreadyExists):
        wire.create_stream(place.stream)
    with pytest.raises(NotFound):
        wire.topic_figures(TopicName(place.stream, "nothing"))
    with pytest.raises(NotFound):
        wire.send(wire.make_send(TopicName("nothing", "at all"), 0, make_sample([1], random.Random(1))))
    with pytest.raises(NotFound):
        wire.poll(wire.make_poll(place, 9), FIRST, 0, 1)
    # The connection is as good as before.
    assert wire.topic_figures(place) == (2, 0)


@RELEASES
def test_a_wrong_password(release: Release, target: Target) -> None:
    with pytest.raises(RequestFailed):
        release.connect(replace(target, password="wrong"))


@RELEASES
def test_connections_send_and_read_from_several_processes(release: Release, target: Target) -> None:
    make_topics(target, 3, release)
    load = Load(release=release.value, message_count=5, message_sizes=(10, 20), request_count=4)
    sent = generate(target, load, 3, 2)
    read = generate(target, replace(load, polls=True), 3, 2)
    assert min(sent.messages, sent.megabytes, read.messages, read.megabytes) > 0
    with closing(release.connect(target)) as wire:
        assert [wire.topic_figures(place_of(number)) for number in range(3)] == [(1, 20)] * 3
        for number in range(3):
            wire.delete_stream(place_of(number).stream)
