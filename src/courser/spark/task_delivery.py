"""Delivers batches to the server: staged and published later, or sent directly. A few are in flight at a time."""

from collections import deque
from concurrent.futures import Future
from typing import Any, Protocol

from courser.api import commands as c
from courser.errors import CourserError, ErrorCode, Uncertain
from courser.model.messaging import ToPartition
from courser.records.batch import Batch
from courser.spark.background_clients import BackgroundClient, with_retries
from courser.spark.routing import Destination
from courser.spark.write_options import WriteOptions

_IN_FLIGHT_MAX = 4
"""Batches in flight: the server writes one while the next is encoded."""


class TaskDelivery(Protocol):
    """Delivers the batches of one task."""

    def send(self, destination: Destination, batch: Batch) -> None:
        """Deliver a batch. It may still be in flight on return; its error is then raised by a later call."""

    def finish(self) -> int:
        """Wait until the server has everything. Returns the number of batches."""


class StagedDelivery:
    """Stages the batches of one task attempt."""

    def __init__(
        self, connection: BackgroundClient, options: WriteOptions, *, sink: str, batch: int, part: int, attempt: int
    ) -> None:
        self._connection = connection
        self._options = options
        self._name = (sink, batch, part, attempt)
        self._chunk_count = 0
        self._under_way: deque[tuple[int, Destination, Batch, Future[None]]] = deque()

    def send(self, destination: Destination, batch: Batch) -> None:
        chunk = self._chunk_count
        self._chunk_count += 1
        self._under_way.append((chunk, destination, batch, self._begin(chunk, destination, batch)))
        if len(self._under_way) >= _IN_FLIGHT_MAX:
            self._await_first()

    def finish(self) -> int:
        """The staged part is durable on return."""
        while self._under_way:
            self._await_first()
        if self._chunk_count:
            finish = self._connection.finish_stage
            with_retries(lambda: finish(*self._name, self._chunk_count), self._options.retries)
        return self._chunk_count

    def _begin(self, chunk: int, destination: Destination, batch: Batch) -> "Future[None]":
        place = destination.stream, destination.topic, destination.partition
        return self._connection.begin(lambda client: client.stage(*self._name, chunk, *place, batch))

    def _await_first(self) -> None:
        chunk, destination, batch, future = self._under_way.popleft()
        try:
            future.result()
        except CourserError as error:
            # After a reconnect, batches may arrive out of order. Those before this one have arrived by now.
            if error.code not in (ErrorCode.STAGED_PART_INCOMPLETE, ErrorCode.DISCONNECTED):
                raise
            with_retries(lambda: self._begin(chunk, destination, batch).result(), self._options.retries)


class DirectDelivery:
    """Sends batches that are visible immediately: at least once, because a retried task sends again."""

    def __init__(self, connection: BackgroundClient, options: WriteOptions) -> None:
        self._connection = connection
        self._options = options
        self._count = 0
        self._under_way: deque[tuple[c.SendMessages, Future[Any]]] = deque()

    def send(self, destination: Destination, batch: Batch) -> None:
        partition = ToPartition(destination.partition)
        command = c.SendMessages(destination.stream, destination.topic, partition, [batch])
        self._count += 1
        self._under_way.append((command, self._connection.begin(lambda client: client.request(command))))
        if len(self._under_way) >= _IN_FLIGHT_MAX:
            self._await_first()

    def finish(self) -> int:
        while self._under_way:
            self._await_first()
        return self._count

    def _await_first(self) -> None:
        command, future = self._under_way.popleft()
        try:
            future.result()
        except Uncertain:
            # The message may be stored twice then, as "at least once" allows.
            with_retries(lambda: self._connection.request(command), self._options.retries)
