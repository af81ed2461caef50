"""A program: sends to all partitions of a topic at a given rate. Arguments: URL, topic, number of partitions.

Each line on standard input is a rate in requests per second, 0 for as many as possible, or "stop". A second's worth of
results is one line of JSON. Latencies count from the moment when a request was due.
"""

import asyncio
import json
import sys
import time
from array import array

from courser import connect
from courser.client.client import Client
from tests.soak.payloads import BATCH_COUNT, payload_of

REPORT_INTERVAL = 1.0
STOP = "stop"


class Producer:
    """One connection for each partition; each waits for its acknowledgements."""

    def __init__(self, url: str, topic: str, partition_count: int) -> None:
        self._url = url
        self._topic = topic
        self._partition_count = partition_count
        self._rate: float | None = 0.0
        """Requests per second for each partition, 0 for as many as possible; None at the end."""
        self._changed = asyncio.Event()
        self._counts = [0] * partition_count
        """Acknowledged messages."""
        self._latencies = array("q")

    async def run(self) -> None:
        reporter = asyncio.create_task(self._report_regularly())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            for partition_id in range(self._partition_count):
                group.create_task(self._send(partition_id))
        reporter.cancel()
        self._report()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while self._rate is not None:
            line = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
            # The end of the input: whoever gave the commands is gone.
            self._rate = None if line in ("", STOP) else float(line) / self._partition_count
            self._changed.set()

    async def _send(self, partition_id: int) -> None:
        async with connect(self._url) as client:
            due = time.monotonic()
            while (rate := self._rate) is not None:
                if rate:
                    due += 1 / rate
                    if due > time.monotonic():
                        await self._rest(due - time.monotonic())
                        if self._rate != rate:
                            # Another rate begins now, and the time that has passed is not a debt.
                            due = time.monotonic()
                            continue
                else:
                    due = time.monotonic()
                await self._send_one(client, partition_id, due)

    async def _send_one(self, client: Client, partition_id: int, due: float) -> None:
        first = self._counts[partition_id]
        payloads = [payload_of(number) for number in range(first, first + BATCH_COUNT)]
        sent = await client.send_messages(self._topic, partitioning=partition_id, messages=payloads)
        if sent.base_offset != first:
            raise AssertionError(f"message {first} of partition {partition_id} was stored at {sent.base_offset}")
        self._counts[partition_id] = first + BATCH_COUNT
        self._latencies.append(int((time.monotonic() - due) * 1e6))

    async def _rest(self, seconds: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            self._report()

    def _report(self) -> None:
        latencies, self._latencies = self._latencies, array("q")
        line = {"moment": time.monotonic(), "counts": self._counts, "latencies": list(latencies)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Producer(sys.argv[1], sys.argv[2], int(sys.argv[3])).run())
