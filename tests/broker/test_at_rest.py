"""Messages that are compressed and encrypted on disk: every reader sees what was sent, and the disk does not."""

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from courser.broker.partition import preparing
from courser.broker.settings import USUAL_TOPIC_OPTIONS, BrokerSettings
from courser.client.client import Client
from courser.client.messages import Message, PollingStrategy, SendMessage
from courser.errors import CourserError, ErrorCode, ServerFailure
from courser.inspect.findings import Severity
from courser.inspect.log_file import BatchRow, LogInspection, MessageRow, ZeroTailRow
from courser.inspect.verify import Verification
from courser.model.topic_options import COMPRESSIONS
from courser.records import stored_body
from courser.records.encryption import EncryptionKey, KeyRing, key_name
from courser.records.stored_body import Encryption
from courser.storage import batch_loader
from courser.storage.local_files import LocalFileSystem
from courser.testing.broker import TestBroker

KEY, NEXT_KEY = EncryptionKey(bytes(range(32))), EncryptionKey(bytes(range(1, 33)))
NAME = key_name(KEY.key_id)
PAYLOADS = [b'{"order": %d, "state": "paid", "customer": "known"}' % number for number in range(300)]
"""More than what is encoded on the thread of the event loop."""


def encrypting(key: EncryptionKey, *old: EncryptionKey) -> BrokerSettings:
    return BrokerSettings(encryption=Encryption(key, os.urandom), keys=KeyRing([key, *old]))


async def send(client: Client, payloads: list[bytes] = PAYLOADS) -> None:
    await client.send_messages("shop", "orders", 0, [SendMessage(payload) for payload in payloads])


async def read_all(client: Client, count: int = 1000) -> list[bytes]:
    """Read on from the first message, ``count`` at a time."""
    found: list[Message] = []
    while messages := await client.poll_messages(
        "shop", "orders", 0, PollingStrategy.Offset(len(found)), count, consumer=0
    ):
        found += messages
    assert [message.offset for message in found] == list(range(len(found)))
    return [message.payload for message in found]


def log_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.log"))


def every_file(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def on_disk(directory: Path) -> bytes:
    return b"".join(path.read_bytes().rstrip(b"\0") for path in log_files(directory))


async def make_topic(client: Client, **settings: str) -> None:
    await client.create_stream("shop")
    await client.create_topic("shop/orders", **settings)  # type: ignore[arg-type]


# --- compression ---


@pytest.mark.parametrize("algorithm", list(COMPRESSIONS))
async def test_every_reader_sees_what_was_sent(tmp_path: Path, algorithm: str) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await make_topic(client, compression_algorithm=algorithm)
        topic = await client.get_topic("shop/orders")
        assert topic.topic.effective.compression == COMPRESSIONS[algorithm]
        await send(client)
        await send(client, [b"one small message"])
        for count in (7, 1000):
            assert await read_all(client, count) == [*PAYLOADS, b"one small message"]
        await broker.restart()
        assert await read_all(client) == [*PAYLOADS, b"one small message"]
    is_compressed = algorithm != "none"
    assert (len(on_disk(tmp_path)) < sum(map(len, PAYLOADS))) is is_compressed
    assert (PAYLOADS[150] in on_disk(tmp_path)) is not is_compressed
    (path,) = log_files(tmp_path)
    rows = list(LogInspection(LocalFileSystem(), path).rows(messages=True))
    assert next(row.codec for row in rows if isinstance(row, BatchRow)) == algorithm
    assert [row.offset for row in rows if isinstance(row, MessageRow)] == list(range(301))
    assert list(Verification(LocalFileSystem(), tmp_path / "data").findings()) == []


async def test_the_default_of_the_server_counts_where_a_topic_names_none(tmp_path: Path) -> None:
    zstd = msgspec.structs.replace(USUAL_TOPIC_OPTIONS, compression=COMPRESSIONS["zstd"])
    async with TestBroker(tmp_path, settings=BrokerSettings(topic_defaults=zstd)) as broker:
        client = await broker.connect()
        await make_topic(client, compression_algorithm="none")
        topic = await client.get_topic("shop/orders")
        assert topic.topic.options.compression is None
        assert topic.topic.effective.compression == COMPRESSIONS["zstd"]
        await send(client)
        assert await read_all(client) == PAYLOADS
    assert PAYLOADS[150] not in on_disk(tmp_path)


async def test_large_batches_are_encoded_and_decoded_on_other_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads: list[threading.Thread] = []

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: object) -> object:
            threads.append(threading.current_thread())
            return work(*arguments)

        return noted

    monkeypatch.setattr(preparing, "encode", noting(stored_body.encode))
    monkeypatch.setattr(batch_loader, "decode", noting(stored_body.decode))
    loop_thread = threading.current_thread()
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await make_topic(client, compression_algorithm="gzip")
        await send(client)
        assert await read_all(client) == PAYLOADS
        assert len(threads) == 2
        assert loop_thread not in threads
        threads.clear()
        await client.purge_topic("shop/orders")
        await send(client, [b"small" * 100])
        assert threads == [loop_thread]


async def test_a_topic_can_change_its_compression(tmp_path: Path) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await make_topic(client)
        await send(client)
        await client.update_topic("shop/orders", compression_algorithm="lz4")
        await send(client)
        await client.update_topic("shop/orders", compression_algorithm="none")
        await send(client)
        assert await read_all(client) == PAYLOADS * 3
    (path,) = log_files(tmp_path)
    codecs = [row.codec for row in LogInspection(LocalFileSystem(), path).rows() if isinstance(row, BatchRow)]
    assert codecs == ["none", "lz4", "none"]


async def test_a_missing_library_is_an_error_when_the_topic_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    async with TestBroker() as broker:
        client = await broker.connect()
        await client.create_stream("shop")
        with pytest.raises(CourserError, match="zstd needs the Python package cramjam") as refused:
            await client.create_topic("shop/orders", compression_algorithm="zstd")
        assert refused.value.code is ErrorCode.CODEC_MISSING
        await client.create_topic("shop/orders", compression_algorithm="gzip")
        with pytest.raises(CourserError, match="lz4 needs the Python package cramjam"):
            await client.update_topic("shop/orders", compression_algorithm="lz4")


# --- encryption ---


async def test_nothing_of_a_message_is_on_the_disk(tmp_path: Path) -> None:
    async with TestBroker(tmp_path, settings=encrypting(KEY)) as broker:
        client = await broker.connect()
        await make_topic(client, compression_algorithm="zstd")
        await send(client)
        await send(client, [PAYLOADS[0]])
        assert await read_all(client, 7) == [*PAYLOADS, PAYLOADS[0]]
        found = await client.find_messages("shop", "orders", conditions=[".order = 123"])
        assert found.first_offset == 123
        await broker.restart()
        assert await read_all(client) == [*PAYLOADS, PAYLOADS[0]]
    contents = {path: path.read_bytes() for path in every_file(tmp_path)}
    assert not [path for path, data in contents.items() if b"customer" in data]


async def test_staged_messages_are_encrypted_too(tmp_path: Path) -> None:
    settings = encrypting(KEY)
    async with TestBroker(tmp_path, settings=settings) as broker:
        client = await broker.connect()
        await make_topic(client)
        await client.stage("sink", 1, 0, 0, 0, "shop", "orders", 0, [SendMessage(one) for one in PAYLOADS])
        await client.finish_stage("sink", 1, 0, 0, 1)
        await broker.restart()
        assert not [path for path in every_file(tmp_path) if b"customer" in path.read_bytes()]
        await client.publish_staged("sink", 1, {0: 0})
        assert await read_all(client) == PAYLOADS


async def test_after_a_rotation_old_and_new_messages_are_readable(tmp_path: Path) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await make_topic(client)
        await send(client, [b"plain"])
    for settings, payload in ((encrypting(KEY), b"old key"), (encrypting(NEXT_KEY, KEY), b"new key")):
        async with TestBroker(tmp_path, settings=settings) as broker:
            client = await broker.connect()
            await send(client, [payload])
    async with TestBroker(tmp_path, settings=BrokerSettings(keys=KeyRing([KEY, NEXT_KEY]))) as broker:
        client = await broker.connect()
        await send(client, [b"plain again"])
        assert await read_all(client) == [b"plain", b"old key", b"new key", b"plain again"]


async def test_a_missing_key_is_named_and_what_needs_none_is_read(tmp_path: Path) -> None:
    async with TestBroker(tmp_path) as broker:
        client = await broker.connect()
        await make_topic(client)
        await send(client, [b"plain"])
    async with TestBroker(tmp_path, settings=encrypting(KEY)) as broker:
        client = await broker.connect()
        await send(client)
    for settings in (BrokerSettings(), encrypting(NEXT_KEY)):
        async with TestBroker(tmp_path, settings=settings) as broker:
            client = await broker.connect()
            first = await client.poll_messages("shop", "orders", 0, PollingStrategy.First(), 10, consumer=0)
            assert [message.payload for message in first] == [b"plain"]
            with pytest.raises(ServerFailure, match=f"encrypted with key {NAME}, which is not configured") as refused:
                await client.poll_messages("shop", "orders", 0, PollingStrategy.Offset(1), 10, consumer=0)
            assert refused.value.code is ErrorCode.KEY_MISSING


async def test_no_nonce_is_used_twice_by_copies_of_a_directory_and_after_restarts(tmp_path: Path) -> None:
    """A backup that is restored, or a copy that runs beside the original, starts from the same files."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    async with TestBroker(original, settings=encrypting(KEY)) as broker:
        client = await broker.connect()
        await make_topic(client)
        await send(client, [b"before"])
    shutil.copytree(original, copy)
    nonces = []
    for directory in (original, copy):
        async with TestBroker(directory, settings=encrypting(KEY)) as broker:
            client = await broker.connect()
            await send(client, [b"the same message"])
            await broker.restart()
            await send(client, [b"the same message"])
        nonces.append(nonces_in(directory))
    (before, *first), (same, *second) = nonces
    assert before == same
    assert len({before, *first, *second}) == 5


def nonces_in(directory: Path) -> list[bytes]:
    return [
        path.read_bytes()[row.position + 128 : row.position + 152]
        for path in log_files(directory)
        for row in LogInspection(LocalFileSystem(), path).rows()
        if isinstance(row, BatchRow)
    ]


async def test_offline_tools_check_as_much_as_they_can_without_the_key(tmp_path: Path) -> None:
    async with TestBroker(tmp_path, settings=encrypting(KEY)) as broker:
        client = await broker.connect()
        await make_topic(client)
        await send(client)
    files, data, (path,) = LocalFileSystem(), tmp_path / "data", log_files(tmp_path)
    assert list(Verification(files, data, keys=KeyRing([KEY])).findings()) == []
    (finding,) = Verification(files, data).findings()
    assert finding.severity is Severity.NOTE
    assert f"1 batches are right, but their messages were not checked: the messages are encrypted with key {NAME}" in (
        finding.reason
    )
    (batch,) = (row for row in LogInspection(files, path).rows(messages=True) if not isinstance(row, ZeroTailRow))
    assert isinstance(batch, BatchRow)
    assert batch.encryption_key == NAME
    with_key = list(LogInspection(files, path, KeyRing([KEY])).rows(messages=True))
    assert [row.payload for row in with_key if isinstance(row, MessageRow)][:1] == [PAYLOADS[0][:48].decode()]
    changed = bytearray(path.read_bytes())
    changed[300] ^= 1
    path.write_bytes(changed)
    assert [found.severity for found in Verification(files, data).findings()] == [Severity.DAMAGE]
