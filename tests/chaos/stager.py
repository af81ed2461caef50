"""A job that writes through staged parts: batch after batch, each published once, however often it is asked for."""

from dataclasses import dataclass, replace

from courser.api import commands as c
from courser.model.messaging import ToPartition
from tests.chaos.history import History, Message, Operation, Outcome, Path
from tests.chaos.speakers import Told, packed
from tests.chaos.workers import Declare, Worker

PART_COUNT = 2
CHUNK_COUNT = 2


@dataclass
class _Batch:
    number: int
    attempt: int
    messages: list[tuple[Path, list[tuple[str, str]]]]
    """By chunk, over all parts."""
    is_staged: bool = False
    operation: Operation | None = None


class Stager(Worker):
    """The driver of such a job and its tasks in one."""

    _batch: _Batch | None = None
    _next_number = 0
    _attempt = 0

    @property
    def sink(self) -> str:
        return f"sink of {self.name}"

    def step(self) -> None:
        batch = self._batch
        if batch is None:
            self._begin()
        elif not batch.is_staged:
            self._stage(batch)
        elif batch.operation is None or batch.operation.outcome is Outcome.UNKNOWN:
            self._publish(batch)
        else:
            # A judgement has told whether it was published.
            self._finish(batch, is_published=batch.operation.outcome is Outcome.DONE)

    def _begin(self) -> None:
        targets = [self.any_partition() for _ in range(PART_COUNT * CHUNK_COUNT)]
        self._attempt += 1
        chunks = [(path, self.new_messages(self.source.choice((1, 5, 20)))) for path in targets if path is not None]
        if len(chunks) == len(targets):
            self._batch = _Batch(self._next_number, self._attempt, chunks)

    def _stage(self, batch: _Batch) -> None:
        for part in range(PART_COUNT):
            name = c.StagedPartName(self.sink, batch.number, part, batch.attempt)
            for chunk in range(CHUNK_COUNT):
                (stream, topic, partition), messages = batch.messages[part * CHUNK_COUNT + chunk]
                content = packed([payload for _, payload in messages])
                command = c.StageMessages(name, chunk, stream, topic, ToPartition(int(partition)), content)
                if not self._tell(f"stage {batch.number}", command):
                    self._batch = None
                    return
            if not self._tell(f"finish stage {batch.number}", c.FinishStage(name, CHUNK_COUNT)):
                self._batch = None
                return
        batch.is_staged = True

    def _tell(self, what: str, command: c.Command) -> bool:
        return self.ask(what, (), command, lambda *_: None).is_done

    def _publish(self, batch: _Batch) -> None:
        parts = tuple((part, batch.attempt) for part in range(PART_COUNT))
        command = c.PublishStaged(self.sink, batch.number, parts, 0)
        if batch.operation is None:
            batch.operation = self.book.begin(self.name, f"publish {batch.number}", (), self._declare(batch))
        else:
            with self.book.lock:
                self.book.history.resume(batch.operation)
        told = Told(Outcome.UNKNOWN, "the client failed", is_over=False)
        is_repeated = batch.operation.answer != ""
        try:
            told = self.speaker.ask(command)
            if is_repeated and not told.is_done:
                # An earlier attempt may have done it, or be at it still: this answer proves nothing.
                told = replace(told, outcome=Outcome.UNKNOWN, is_over=False)
        finally:
            self.book.end(batch.operation, told)
        if told.outcome is not Outcome.UNKNOWN:
            self._finish(batch, is_published=told.is_done)

    def _declare(self, batch: _Batch) -> Declare:
        def declare(history: History, operation: Operation) -> None:
            messages: list[Message] = []
            for path, chunk in batch.messages:
                messages += history.sends(operation, path, [identity for identity, _ in chunk])
            history.publishes(operation, self.sink, batch.number, messages)
            history.writes(operation, (), self.sink, batch.number)

        return declare

    def _finish(self, batch: _Batch, *, is_published: bool) -> None:
        self._batch = None
        if is_published:
            self._next_number = batch.number + 1
            if self.source.random() < 0.5:
                # Once more, as a driver does that was killed before it noted its success: nothing may come of it.
                parts = tuple((part, batch.attempt) for part in range(PART_COUNT))
                self._tell(f"publish {batch.number} again", c.PublishStaged(self.sink, batch.number, parts, 0))
        else:
            self._tell(f"discard {batch.number}", c.DiscardStaged(self.sink, batch.number, False))
