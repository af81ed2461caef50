"""Batches that name their idempotent producer: from whom they are taken, and how a refusal is told."""

import struct

import pytest

from courser.api import commands as c
from courser.api.replies import LoggedIn
from courser.errors import ErrorCode
from courser.model.messaging import ToPartition
from courser.records.batch import NewMessage, build_batch, sent_header
from courser.records.producers import BatchProducer
from courser.wire.vsr import VsrCodec
from courser.wire.vsr_client import VsrClientCodec
from tests.wire.classic_samples import PART
from tests.wire.vsr_0_12 import VERSIONS, Client12
from tests.wire.vsr_captures import CLIENT, frame

PRODUCER = BatchProducer(101 * 2**20, 3, 7, 2)
DESTINATION = b"\2\1s\2\1t\2\4\1\0\0\0" + struct.pack("<I", 2)
SEND = 160


def send_body(producer: BatchProducer | None = PRODUCER) -> bytes:
    batch = build_batch([NewMessage(b"one", 1), NewMessage(b"two", 2)])
    batch.producer = producer
    return struct.pack("<I", len(DESTINATION)) + DESTINATION + sent_header(batch) + batch.body


@pytest.mark.parametrize("verify_frames", [False, True])
def test_the_release_that_numbers_messages_may(verify_frames: bool) -> None:
    client = Client12()
    client.codec._verify_frames = verify_frames
    command = client.command(client.request(SEND, send_body()))
    assert isinstance(command, c.SendMessages)
    assert command.batches[0].producer == PRODUCER
    other = client.command(client.request(SEND, send_body(None)))
    assert isinstance(other, c.SendMessages)
    assert other.batches[0].producer is None


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_releases_before_may_not(version: int) -> None:
    client = Client12(version)
    answer = client.answer(client.request(SEND, send_body()))
    assert struct.unpack_from("<I", answer, 216)[0] == ErrorCode.INVALID_RESERVED_FIELD


def test_nor_may_sdk_0_9() -> None:
    incoming = VsrCodec().decode(memoryview(frame(SEND, send_body(), request=1, session=1)), is_logged_in=True)
    assert incoming.answer is not None
    assert struct.unpack_from("<I", b"".join(incoming.answer), 216)[0] == ErrorCode.INVALID_RESERVED_FIELD


@pytest.mark.parametrize("code", [92, 93, 94, 95])
def test_the_sdk_is_told_the_number_that_it_knows(code: int) -> None:
    client = Client12()
    answer = client.answer(client.request(SEND, send_body()), ErrorCode(code))
    assert struct.unpack_from("<I", answer, 216)[0] == code


def test_what_the_own_client_sends_is_read() -> None:
    server, client = VsrCodec(), VsrClientCodec(CLIENT)
    login = server.decode(memoryview(b"".join(client.encode(c.LoginUser("iggy", "iggy")))), is_logged_in=False)
    assert login.command is not None
    reply = client.decode(login.command, memoryview(b"".join(server.encode_reply(login, LoggedIn(0, 101)))))
    assert isinstance(reply, LoggedIn)
    assert reply.frame_size_max is not None, "by this a client knows that the server may be sent numbers"
    batch = build_batch([NewMessage(b"one", 1), NewMessage(b"two", 2)])
    batch.producer = PRODUCER
    sent = b"".join(client.encode(c.SendMessages("s", "t", ToPartition(1), [batch])))
    command = server.decode(memoryview(sent), is_logged_in=True).command
    assert isinstance(command, c.SendMessages)
    assert command.batches[0].producer == PRODUCER


def test_staged_messages_have_no_producer() -> None:
    """They are appended by the publish, whose number they get."""
    server, client = VsrCodec(), VsrClientCodec(CLIENT)
    server.decode(memoryview(b"".join(client.encode(c.LoginUser("iggy", "iggy")))), is_logged_in=False)
    client.session = 1
    batch = build_batch([NewMessage(b"one", 1)])
    batch.producer = PRODUCER._replace(message_count=1)
    stage = c.StageMessages(PART, 0, "s", "t", ToPartition(1), batch)
    incoming = server.decode(memoryview(b"".join(client.encode(stage))), is_logged_in=True)
    assert incoming.command is None
    assert incoming.answer is not None
