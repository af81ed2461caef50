"""A processor that writes down what it handles and what it has committed, until it is stopped or killed.

``python -m tests.client.process_worker URL JOURNAL NAME``. All workers append to one journal, line by line, so its
order is the order of events: ``B name partition offset`` when a handler begins, ``H name partition offset key number``
when it has handled the message, and ``C name partition offset`` after the server has acknowledged a commit.
"""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import courser
from courser.client.client import Client
from courser.client.processing import Processor
from courser.errors import ConnectionFailed

PLACE, GROUP = "proof/messages", "workers"
OPTIONS: dict[str, Any] = {"concurrency": 16, "sync_interval": 0.1, "commit_interval": 0.1, "buffer_count": 300}


class Journal:
    """The file that all workers append to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


def recorded(client: Client, journal: Journal, name: str) -> Processor:
    """A processor whose deeds are written down."""

    async def handle(message: Any) -> None:
        place = (name, message.partition_id, message.offset)
        journal.write("B", *place)
        await asyncio.sleep(random.uniform(0, 0.004))
        journal.write("H", *place, message.key.decode(), message.text())

    processor = client.process(PLACE, handle, group=GROUP, **OPTIONS)
    commits: Any = processor._consumer._commits
    store = commits._store

    async def store_and_record(partition_id: int, offset: int) -> bool:
        is_stored: bool = await store(partition_id, offset)
        if is_stored:
            journal.write("C", name, partition_id, offset)
        return is_stored

    commits._store = store_and_record
    return processor


async def main(url: str, path: str, name: str) -> None:
    journal = Journal(Path(path))
    is_done = False
    while not is_done:
        # The first connection is tried once, and the server may be down at that moment.
        with suppress(ConnectionFailed):
            async with courser.connect(url, reconnect_interval=0.02, reconnect_interval_max=0.2) as client:
                processor = recorded(client, journal, name)
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, processor.stop)
                await processor
                is_done = True


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
