"""The processor: reads a topic as a member of a group, and runs a handler over its messages.

One task reads and puts messages into strands; each strand with messages has a task that runs the handler. A partition
that is lost is given up in order: handlers finish what was begun, and what is done is committed before the next owner
gets the partition. After a reconnect all partitions are read again from the last commit.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Self, TypeAlias

from courser.client.consumed import PartitionsCallback
from courser.client.consumer import Consumer
from courser.client.handling import Dropped, Handling, ProcessSettings
from courser.client.workload import Strand, Workload

MakeConsumer: TypeAlias = Callable[[PartitionsCallback], Consumer]
"""Makes a consumer that tells the callback which partitions it has lost."""


class Processor:
    """Runs a handler over the messages of a topic. Made by ``Client.process``.

    ``await`` it, or call ``run``: it returns after ``stop``, or at the end of the topic with ``stop_at_end``. In
    ``async with`` it runs in the background until the end of the block. It runs once.

    Example:
        import asyncio

        async with client.process("shop/orders", print, group="printing") as processor:
            while not processor.handled_count:
                await asyncio.sleep(0.01)
            processor.stop()
    """

    def __init__(self, make_consumer: MakeConsumer, handling: Handling, settings: ProcessSettings) -> None:
        self._consumer = make_consumer(self._give_up)
        self._consumer.starts_over = True
        self._handling = handling
        self._settings = settings
        self._workload = Workload("partition" if settings.batch is not None else settings.ordering)
        self._tasks: dict[Strand, asyncio.Task[None]] = {}
        self._is_changed = asyncio.Event()
        """Set when messages are done."""
        self._is_noted = asyncio.Event()
        """Set when there is something to commit."""
        self._is_open = asyncio.Event()
        self._is_ended = asyncio.Event()
        self._is_stopping = False
        self._reader: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    # --- life -----------------------------------------------------------------------------------------

    @property
    def handled_count(self) -> int:
        """Messages for which the handler succeeded."""
        return self._handling.handled_count

    @property
    def retry_count(self) -> int:
        """How often a handler was called again after an error."""
        return self._handling.retry_count

    @property
    def dead_letter_count(self) -> int:
        """Messages that were sent to the dead-letter topic."""
        return self._handling.dead_letter_count

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are assigned to this processor."""
        return self._consumer.partitions

    def __await__(self) -> Generator[object, None, None]:
        return self.run().__await__()

    async def __aenter__(self) -> Self:
        self._background = asyncio.create_task(self.run(), name="courser-process")
        waits = [asyncio.create_task(event.wait()) for event in (self._is_open, self._is_ended)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if self._is_ended.is_set():
            await self._background
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        assert self._background is not None
        await self._background

    def stop(self) -> None:
        """End when the running handlers are done. May be called more than once.

        Others are begun only for messages before those that are done already: they could not be committed otherwise.
        For example as a signal handler: ``loop.add_signal_handler(signal.SIGTERM, processor.stop)``.
        """
        self._is_stopping = True
        for strand in self._workload.strands():
            strand.wind_down()
        if self._reader is not None:
            self._reader.cancel()

    async def close(self) -> None:
        """Stop, and wait for the end. What made it fail is raised by ``run``, or at the end of ``async with``."""
        self.stop()
        if self._reader is not None:
            await self._is_ended.wait()

    @property
    def is_ended(self) -> bool:
        """Whether it has run to its end."""
        return self._is_ended.is_set()

    async def run(self) -> None:
        """Process messages until the end. Commits what is done, and leaves the group.

        Raises:
            HandlerFailed: the handler failed for a message, and there is no dead-letter topic.
            OffsetsUnavailable: messages are deleted or damaged, and ``on_gap`` is ``raise``.
            CourserError: the server rejected a request, or cannot be reached any more.

        Example:
            processor = client.process("shop/orders", print, group="printing", stop_at_end=True)
            await processor.run()
            print(processor.handled_count, processor.retry_count, processor.dead_letter_count)
        """
        if self._reader is not None:
            raise RuntimeError("a processor runs only once: make another one")
        self._reader = asyncio.create_task(self._read(), name="courser-process-read")
        committing = asyncio.create_task(self._commit_now_and_then(), name="courser-process-commit")
        if self._is_stopping:
            self._reader.cancel()
        try:
            await asyncio.wait((self._reader, committing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end((self._reader, committing))
        if self._failure is not None:
            raise self._failure

    async def _end(self, tasks: tuple["asyncio.Task[None]", ...]) -> None:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                self._failure = self._failure or result
        try:
            await self._wind_down(self._workload.strands())
        finally:
            await self._consumer.close()
            await self._handling.close()
            self._is_ended.set()

    # --- reading --------------------------------------------------------------------------------------

    async def _read(self) -> None:
        await self._handling.open()
        await self._consumer.open()
        self._is_open.set()
        while True:
            if self._workload.count >= self._settings.buffer_count:
                await self._wait_for_change()
                continue
            messages = await self._consumer.take()
            if messages:
                for strand in self._workload.add(messages):
                    self._start(strand)
            elif self._workload.count:
                await self._wait_for_change()
            else:
                return

    async def _wait_for_change(self) -> None:
        """Wait until messages are done, but not so long that the group is kept waiting."""
        self._is_changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.sync_interval):
                await self._is_changed.wait()
        await self._consumer.keep_up()

    async def _commit_now_and_then(self) -> None:
        """Commit also while the reader waits for messages."""
        while True:
            await self._is_noted.wait()
            self._is_noted.clear()
            await asyncio.sleep(self._settings.commit_interval)
            await self._consumer.commit_done()

    # --- strands ----------------------------------------------------------------------------------------

    def _start(self, strand: Strand) -> None:
        task = self._tasks[strand] = asyncio.create_task(self._run_strand(strand), name="courser-process-strand")
        task.add_done_callback(lambda task: self._ended(strand, task))

    async def _run_strand(self, strand: Strand) -> None:
        while messages := strand.take(self._settings.batch or 1):
            try:
                await self._handling.handle(strand, messages)
            except Dropped:
                return
            offset = self._workload.finish(messages)
            self._is_changed.set()
            if offset is not None:
                self._consumer.note_done({strand.partition_id: offset})
                self._is_noted.set()
        self._workload.close(strand)

    def _ended(self, strand: Strand, task: "asyncio.Task[None]") -> None:
        del self._tasks[strand]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self.stop()

    async def _give_up(self, partition_ids: tuple[int, ...]) -> None:
        """Partitions were lost: finish what runs, and forget the rest."""
        await self._wind_down(self._workload.strands(partition_ids))
        self._workload.drop(partition_ids)
        self._is_changed.set()

    async def _wind_down(self, strands: list[Strand]) -> None:
        """End these strands. Handlers get some time to finish; a message that waits for a retry gets none."""
        tasks: list[asyncio.Task[None]] = []
        for strand in strands:
            strand.wind_down()
            if (task := self._tasks.get(strand)) is not None:
                tasks.append(task)
                if strand.is_pausing:
                    task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
