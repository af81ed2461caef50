"""Topics with messages of every kind, for the tests of jobs."""

from pathlib import Path

import courser
from courser.client.messages import PollingStrategy
from courser.client.sync import SyncClient
from tests.servers import ROOT_NAME, ROOT_PASSWORD, RunningServer

ORIGIN = 1_777_636_800_000_000
"""2026-05-01T12:00:00Z: long before anything is appended."""


def connected(server: RunningServer) -> SyncClient:
    return courser.connect_sync(server.address, username=ROOT_NAME, password=ROOT_PASSWORD)


def options_of(server: RunningServer, topic: str, **others: str) -> dict[str, str]:
    """Of the data source, for a topic of the stream ``shop``."""
    login = {"address": server.address, "username": ROOT_NAME, "password": ROOT_PASSWORD}
    return {**login, "stream": "shop", "topic": topic, **others}


def file_options(data: Path, topic: str, **others: str) -> dict[str, str]:
    """The same without a server."""
    return {"path": str(data), "source": "segments", "stream": "shop", "topic": topic, **others}


def make_topic(client: SyncClient, topic: str, *, partitions: int = 2) -> None:
    if "shop" not in {stream.name for stream in client.get_streams()}:
        client.create_stream("shop")
    client.create_topic("shop", topic, partitions)


def fill_topic(client: SyncClient, topic: str, count: int, *, partitions: int = 2, first: int = 0) -> None:
    """``count`` messages to each partition, with ids, times, headers and keys that tell them apart."""
    for partition in range(partitions):
        for begin in range(first, first + count, 500):
            messages = [message(partition, number) for number in range(begin, min(begin + 500, first + count))]
            client.send_messages("shop", topic, partition, messages)


def message(partition: int, number: int) -> courser.SendMessage:
    return courser.SendMessage(
        f"{partition}:{number}:" + "x" * (number % 97),
        id=partition * 1_000_000 + number + 1,
        headers={"number": number, "shop": "north"} if number % 3 == 0 else None,
        key=f"customer-{number % 10}" if number % 2 else None,
        timestamp=ORIGIN + 1000 * number,
    )


def all_messages(client: SyncClient, topic: str, partition: int) -> list[courser.Message]:
    """Every message of a partition."""
    found: list[courser.Message] = []
    while True:
        start = PollingStrategy.Offset(len(found))
        polled = client.poll_messages("shop", topic, partition, start, 1000, auto_commit=False)
        if not list(polled):
            return found
        found += polled


def facts_of(found: courser.Message) -> tuple[int, bytes, bytes, int]:
    """What a replay keeps of a message."""
    return found.id, found.payload, found.raw_headers, found.origin_timestamp
