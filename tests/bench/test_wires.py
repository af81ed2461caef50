"""Both wires against a real server."""

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from courser.bench.actors import open_wire
from courser.bench.plan import WireName
from courser.bench.samples import make_sample
from courser.bench.wires import FIRST, NEXT, OFFSET, TopicName, Wire
from courser.client.client import connect
from courser.client.targets import Target
from courser.errors import AlreadyExists, AuthenticationFailed, ConnectionFailed, InvalidRequest, NotFound
from tests.servers import RunningServer

WIRES = pytest.mark.parametrize("name", WireName, ids=lambda name: name.value)


@pytest.fixture(params=WireName, ids=lambda name: str(name.value))
def wire(request: pytest.FixtureRequest, target: Target) -> Iterator[Wire]:
    with closing(open_wire(request.param, target)) as opened:
        yield opened


@pytest.fixture
def place(wire: Wire) -> Iterator[TopicName]:
    place = TopicName(f"wire-{secrets.token_hex(4)}", "topic")
    wire.create_stream(place.stream)
    wire.create_topic(place, 2)
    yield place
    wire.delete_stream(place.stream)


def test_what_is_sent_is_polled(wire: Wire, place: TopicName) -> None:
    sample = make_sample([10, 200, 3000], random.Random(1))
    request = wire.make_send(place, 1, sample)
    for _ in range(3):
        wire.send(request)
    poll = wire.make_poll(place, 1)
    polled = wire.poll(poll, FIRST, 0, 100)
    assert (polled.message_count, polled.first_offset) == (9, 0)
    assert wire.payload_size(polled) == 3 * sample.payload_size
    polled = wire.poll(poll, OFFSET, 4, 2)
    assert (polled.message_count, polled.first_offset) == (2, 4)
    assert wire.payload_size(polled) == 3200
    assert wire.poll(poll, OFFSET, 9, 5).message_count == 0
    assert wire.poll(wire.make_poll(place, 0), FIRST, 0, 5).message_count == 0
    assert wire.topic_figures(place) == (2, 9)


def test_the_server_balances(wire: Wire, place: TopicName) -> None:
    request = wire.make_send(place, None, make_sample([10], random.Random(1)))
    for _ in range(4):
        wire.send(request)
    counts = [wire.poll(wire.make_poll(place, number), FIRST, 0, 10).message_count for number in (0, 1)]
    assert counts == [2, 2]


def test_a_stamped_send_tells_when_it_was_made(wire: Wire, place: TopicName) -> None:
    request = wire.make_send(place, 0, make_sample([10, 20, 30], random.Random(1)))
    now = time.time_ns() // 1000
    for time_made in (now, now + 5):
        wire.stamp(request, time_made)
        wire.send(request)
    poll = wire.make_poll(place, 0)
    assert [wire.poll(poll, OFFSET, offset, 10).origin_timestamp for offset in (0, 2, 3, 5)] == [
        now,
        now,
        now + 5,
        now + 5,
    ]


def test_replies_larger_than_the_buffer_are_taken(wire: Wire, place: TopicName) -> None:
    sample = make_sample([1_500_000], random.Random(1))
    request = wire.make_send(place, 0, sample)
    wire.send(request)
    wire.send(request)
    polled = wire.poll(wire.make_poll(place, 0), FIRST, 0, 2)
    assert wire.payload_size(polled) == 2 * sample.payload_size


def test_members_of_a_group_go_on_where_they_were(wire: Wire, place: TopicName) -> None:
    request = wire.make_send(place, None, make_sample([10] * 5, random.Random(1)))
    wire.send(request)
    wire.send(request)
    wire.create_group(place, "readers")
    wire.join_group(place, "readers")
    assigned = wire.assigned(place, "readers")
    assert assigned in (None, [0, 1])
    polls = [wire.make_poll(place, number, group="readers", auto_commit=True) for number in assigned or (None,)]
    counts = [wire.poll(polls[turn % len(polls)], NEXT, 0, 3).message_count for turn in range(6)]
    assert sorted(counts) == [0, 0, 2, 2, 3, 3]


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


def test_durable_topics_are_for_the_wire_of_0_9(target: Target) -> None:
    place = TopicName(f"wire-{secrets.token_hex(4)}", "topic")
    with closing(open_wire(WireName.VSR, target)) as wire, closing(open_wire(WireName.CLASSIC, target)) as classic:
        wire.create_stream(place.stream)
        wire.create_topic(place, 1, is_synced=True)
        wire.send(wire.make_send(place, 0, make_sample([10], random.Random(1))))
        with pytest.raises(InvalidRequest, match="durability"):
            classic.create_topic(TopicName(place.stream, "other"), 1, is_synced=True)
        wire.delete_stream(place.stream)


@WIRES
def test_wrong_passwords_and_tokens(name: WireName, target: Target) -> None:
    for login in (replace(target, password="wrong"), replace(target, username=None, password=None, token="wrong")):
        with pytest.raises(AuthenticationFailed):
            open_wire(name, login)


@WIRES
def test_nobody_listens(name: WireName) -> None:
    with pytest.raises(ConnectionFailed, match="cannot connect"):
        open_wire(name, Target(port=1, username="iggy", password="iggy"))


@WIRES
def test_a_server_that_is_silent_is_not_waited_for(name: WireName, target: Target, server: RunningServer) -> None:
    with closing(open_wire(name, replace(target, request_timeout=2.5))) as wire:
        server.freeze()
        try:
            with pytest.raises(ConnectionFailed, match=r"no answer within 2\.5 seconds"):
                wire.topic_figures(TopicName("any", "topic"))
        finally:
            server.thaw()


@WIRES
def test_a_token_logs_in(name: WireName, target: Target) -> None:
    async def make(token_name: str) -> str:
        async with connect(target) as client:
            return await client.create_personal_access_token(token_name)

    token = asyncio.run(make(f"bench-{secrets.token_hex(4)}"))
    with closing(open_wire(name, replace(target, username=None, password=None, token=token))) as wire:
        stream = f"wire-{secrets.token_hex(4)}"
        wire.create_stream(stream)
        wire.delete_stream(stream)


@pytest.fixture(scope="module")
def tls_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("tls-server")
    settings = {"tcp.tls.enabled": "true", "tcp.tls.self_signed": "true"}
    with RunningServer(directory, settings=settings) as server:
        certificate = directory / "certificate.pem"
        certificate.write_text(ssl.get_server_certificate((server.host, server.port)))
        yield Target(
            host=server.host,
            port=server.port,
            username="iggy",
            password="iggy",
            tls=True,
            tls_domain="localhost",
            tls_ca_file=str(certificate),
        )


@WIRES
def test_tls(name: WireName, tls_target: Target) -> None:
    place = TopicName(f"tls-{name.name.lower()}", "topic")
    with closing(open_wire(name, tls_target)) as wire:
        wire.create_stream(place.stream)
        wire.create_topic(place, 1)
        sample = make_sample([500_000] * 4, random.Random(1))
        wire.send(wire.make_send(place, 0, sample))
        polled = wire.poll(wire.make_poll(place, 0), FIRST, 0, 10)
        assert wire.payload_size(polled) == sample.payload_size


def test_a_certificate_that_is_not_trusted_is_refused(tls_target: Target) -> None:
    with pytest.raises(ConnectionFailed, match="cannot connect"):
        open_wire(WireName.VSR, replace(tls_target, tls_ca_file=None))
    open_wire(WireName.VSR, replace(tls_target, tls_ca_file=None, tls_verify=False)).close()
