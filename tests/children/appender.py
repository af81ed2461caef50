"""A small server without a network, made to be killed: ``python -m tests.children.appender PLAN``.

It opens a data directory, says what recovery found, and appends, stores offsets and trims. One line on standard
output for each thing that was acknowledged, written in one call after the acknowledgement; what may also show up
without one is announced before. The lines are the evidence: they outlive the process and its disk.

==============================  ==========================================================================
``stopped KIND``                how the last session ended
``partition P HOW START NEXT``  it was ``created`` or ``opened``
``finding P LETTER DAMAGE``     of recovery
``ready``                       the session has begun
``ack P BASE COUNT RUN SEQ T``  a batch was acknowledged, at that time
``storing P KEY OFFSET``        and ``stored P KEY OFFSET BACK``: a consumer's offset; BACK is 1 if it is durable
``trimming P OFFSET``           and ``trimmed P START``
``purging P NEXT``              and ``purged P START``
``failed P ERROR TEXT``         an operation was refused
``state P START NEXT FAILED``   on demand
==============================  ==========================================================================
"""

import asyncio
import itertools
import os
import random
import resource
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from courser.broker.partition.partition import Partition
from courser.errors import CourserError
from courser.model.identifiers import ConsumerKind
from courser.records.batch import Batch
from courser.storage.offset_table import ConsumerKey
from courser.storage.paths import LEDGER
from tests.children.broken import open_data_directory
from tests.children.payloads import make_batch
from tests.children.plan import Fault, Plan, identity_of_partition

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def emit(*words: object) -> None:
    """One line in one call: a kill leaves all of it or nothing."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class InlineExecutor(Executor):
    """Runs everything at once on the caller's thread, so that the n-th system call is the same one every time."""

    def submit(
        self, function: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except CourserError as error:
            future.set_exception(error)
        return future


class Appender:
    """One life."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sequence = itertools.count(1)
        self._pool: Executor = ThreadPoolExecutor(plan.pool_size) if plan.pool_size else InlineExecutor()
        self._partitions: dict[int, Partition] = {}
        self._trims: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._directory = open_data_directory(Path(plan.path), Fault(plan.fault))

    def open(self) -> None:
        emit("stopped", self._directory.stop.value)
        for number in range(self._plan.partition_count):
            self.open_partition(number)
        self._directory.begin()
        emit("ready")

    def open_partition(self, number: int) -> None:
        path = self._plan.directory_of(number)
        arguments = path, identity_of_partition(number), self._plan.settings
        if (path / LEDGER).exists():
            how, log = "opened", self._directory.open_partition(*arguments)
        else:
            how, log = "created", self._directory.create_partition(*arguments)
        for finding in log.findings:
            emit("finding", number, finding.letter, int(finding.is_damage), finding.text)
        emit("partition", number, how, log.start_offset, log.next_offset)
        self._partitions[number] = Partition(log, self._pool, self._directory.clock)

    # --- work ---

    def new_batch(self, source: random.Random) -> tuple[Batch, int]:
        plan, sequence = self._plan, next(self._sequence)
        is_single = source.random() < 0.4
        count = 1 if is_single else source.randint(1, plan.batch_count_max)
        has_one_size = source.random() < 0.5
        sizes = [source.randint(0, plan.payload_size_max) for _ in range(1 if has_one_size else 7)]
        return make_batch(plan.run, sequence, count, sizes), sequence

    async def append(self, number: int, batch: Batch, sequence: int) -> int:
        appended = await self._partitions[number].append(batch)
        now = self._directory.clock.monotonic()
        emit("ack", number, appended.base_offset, appended.message_count, self._plan.run, sequence, now)
        return appended.base_offset

    async def store(self, number: int, name: str, offset: int) -> None:
        partition = self._partitions[number]
        key = ConsumerKey(ConsumerKind.CONSUMER, name.encode())
        before = partition.log.offsets.get(key)
        emit("storing", number, name, offset)
        await partition.store_offset(key, offset)
        emit("stored", number, name, offset, int(before is not None and offset < before))

    async def trim(self, number: int, before: int) -> None:
        partition = self._partitions[number]
        # One at a time: the start that a partition shows may be that of a trim which is still under way.
        async with self._trims[number]:
            emit("trimming", number, before)
            await partition.trim(before)
            emit("trimmed", number, partition.log.start_offset)

    async def purge(self, number: int) -> None:
        partition = self._partitions[number]
        emit("purging", number, partition.log.next_offset)
        await partition.purge()
        emit("purged", number, partition.log.start_offset)

    async def append_for_ever(self, appender: int) -> None:
        plan = self._plan
        source = random.Random(f"{plan.seed} {plan.run} {appender}")
        while True:
            number = source.randrange(plan.partition_count)
            batch, sequence = self.new_batch(source)
            try:
                base_offset = await self.append(number, batch, sequence)
                if plan.stores and source.random() < 0.2:
                    # Sometimes back: that one is durable at every level.
                    offset = base_offset if source.random() < 0.9 else base_offset // 2
                    await self.store(number, f"consumer-{appender}", offset)
                next_offset = self._partitions[number].log.next_offset
                if plan.trims and source.random() < 0.02 and next_offset > plan.kept_message_count:
                    await self.trim(number, next_offset - plan.kept_message_count)
            except CourserError as error:
                emit("failed", number, type(error).__name__, error)
                return
            # At `written` nothing above waits: let the others have a turn.
            await asyncio.sleep(0)

    async def obey(self) -> None:
        """Commands, one per line; an empty line ends it."""
        loop = asyncio.get_running_loop()
        source = random.Random(self._plan.seed)
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            number = int(words[1])
            try:
                await self._obey(words[0], number, words[2:], source)
            except CourserError as error:
                emit("failed", number, type(error).__name__, error)
            emit("done")
        is_clean = all([await partition.close() for partition in self._partitions.values()])
        self._directory.close(is_clean=is_clean)
        emit("closed", int(is_clean))

    async def _obey(self, command: str, number: int, numbers: list[str], source: random.Random) -> None:
        match command:
            case "append":
                for _ in range(int(numbers[0])):
                    await self.append(number, *self.new_batch(source))
            case "store":
                await self.store(number, numbers[0], int(numbers[1]))
            case "trim":
                await self.trim(number, int(numbers[0]))
            case "purge":
                await self.purge(number)
            case "open":
                self.open_partition(number)
            case "roll":
                self._partitions[number].log.roll()
            case "sync":
                await self._partitions[number].sync()
            case "state":
                log = self._partitions[number].log
                emit("state", number, log.start_offset, log.next_offset, int(log.failure is not None))


async def live(plan: Plan) -> None:
    appender = Appender(plan)
    appender.open()
    if plan.appender_count:
        await asyncio.gather(*map(appender.append_for_ever, range(plan.appender_count)))
        emit("all failed")
        await asyncio.Event().wait()
    await appender.obey()


def main() -> None:
    plan = Plan.from_json(sys.argv[1])
    if plan.descriptor_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (plan.descriptor_limit, plan.descriptor_limit))
    asyncio.run(live(plan))


if __name__ == "__main__":
    main()
