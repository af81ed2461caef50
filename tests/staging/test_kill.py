"""A real server, killed while it publishes: what was decided is finished by the next start, once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import courser
from courser.client.messages import PollingStrategy, SendMessage
from courser.client.sync import SyncClient
from tests.servers import ROOT_NAME, ROOT_PASSWORD, RunningServer

SINK = "a query"
CHUNK_COUNT = 48
MESSAGE_COUNT = 100
PADDING = b"." * 10_000
ROUND_COUNT_MAX = 20
"""Three are usual. On a busy machine a publish may be over before it is noticed, and the kill comes too late."""


def stage(client: SyncClient, batch: int) -> Counter[bytes]:
    """A part of 48 MB for two partitions; returns what is in it."""
    staged: Counter[bytes] = Counter()
    for chunk in range(CHUNK_COUNT):
        names = [f"{batch}/{chunk}/{number}".encode() for number in range(MESSAGE_COUNT)]
        messages = [SendMessage(name + PADDING) for name in names]
        client.stage(SINK, batch, 0, 1, chunk, "s/t", None, chunk % 2, messages)
        staged.update(names)
    client.finish_stage(SINK, batch, 0, 1, CHUNK_COUNT)
    return staged


def seen(client: SyncClient) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for partition in client.get_partition_bounds("s/t").partitions:
        offset = partition.first_offset
        while offset < partition.next_offset:
            polled = client.poll_batches("s/t", None, partition.partition_id, PollingStrategy.Offset(offset))
            found.update(bytes(message.payload).removesuffix(PADDING) for message in polled.messages())
            assert polled.next_offset is not None
            offset = polled.next_offset
    return found


def test_a_server_killed_in_the_middle_of_a_publish(tmp_path: Path) -> None:
    url = f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@"
    expected: Counter[bytes] = Counter()
    with (
        RunningServer(tmp_path) as server,
        ThreadPoolExecutor(1) as thread,
        courser.connect_sync(url + server.address) as driver,
        courser.connect_sync(url + server.address) as witness,
    ):
        driver.create_stream("s")
        driver.create_topic("s", "t", 2)
        for batch in range(ROUND_COUNT_MAX):
            expected += stage(driver, batch)
            publishing = thread.submit(driver.publish_staged, SINK, batch, {0: 1})
            while witness.get_sink(SINK).batch != batch and not publishing.done():
                # The entry that decides is not written yet.
                continue
            server.kill()
            server.start()
            # The driver's connection came back, and it asked once more.
            publishing.result()
            assert seen(witness) == expected
            assert not witness.get_sink(SINK).is_open
            assert not list((server.data / "staging").iterdir())
            if batch >= 2 and "publish finished" in server.output:
                return
    raise AssertionError("no kill came in the middle of a publish")
