"""A program: a member of the group of some topics. Arguments: URL, group, topics.

It says on standard output what it was given, what it read, and what it committed, before anything follows from that: it
may be killed at any time. SIGTERM ends it in order.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence

from courser import connect
from courser.client.client import Client
from courser.errors import OffsetsUnavailable
from tests.soak.payloads import number_of

COMMIT_INTERVAL = 0.1
"""Seconds: some messages are read and not committed whenever a member is killed."""


def say(*words: object) -> None:
    """One line, written at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def consume(client: Client, topic: str, group: str) -> None:
    def assigned(partition_ids: Sequence[int]) -> None:
        for partition_id in partition_ids:
            say("assigned", topic, partition_id, time.monotonic())

    consumer = client.consumer(topic, group=group, commit="manual", wait=1.0, on_assigned=assigned)
    committed_at = 0.0
    async with consumer:
        while messages := await consumer.take():
            spans: dict[int, list[int]] = {}
            for message in messages:
                if number_of(message.payload) != message.offset:
                    say("wrong", topic, message.partition_id, message.offset, number_of(message.payload))
                span = spans.setdefault(message.partition_id, [message.offset, message.offset])
                if message.offset != span[1]:
                    say("wrong", topic, message.partition_id, message.offset, span[1])
                span[1] = message.offset + 1
            for partition_id, (first, end) in spans.items():
                say("read", topic, partition_id, first, end)
            if time.monotonic() - committed_at < COMMIT_INTERVAL:
                continue
            last = {message.partition_id: message for message in messages}
            for partition_id, message in last.items():
                if await consumer.commit(message):
                    say("committed", topic, partition_id, message.offset, time.monotonic())
            committed_at = time.monotonic()


async def main(url: str, group: str, topics: Sequence[str]) -> None:
    try:
        async with connect(url) as client, asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(consume(client, topic, group)) for topic in topics]
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in running])
    except* OffsetsUnavailable as gaps:
        for gap in gaps.exceptions:
            say("gone", gap)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
