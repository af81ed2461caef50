"""Somebody who uses the server as it is meant to be used, while others do not, and notices if that is no longer so."""

import struct
import threading
import time
from types import TracebackType
from typing import Self

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from courser.model.topic_options import TopicOptions
from courser.records.classic import Dialect
from tests.records.reference import read_wire
from tests.torture.clients import ClassicClient, VsrClient

STREAM = "witness"
_STREAM_ID = 70_123
"""No number that comes of a small one by a changed byte or two: nobody gets at this stream by accident."""
_CONSUMER = Consumer(ConsumerKind.CONSUMER, 1)
_POLL_HEAD_SIZE = 16


class Witness:
    """Sends, polls and compares in a thread of its own while the block lasts. ``check`` and the end of it raise.

    ``pause``: seconds between two rounds; a measure of latency needs no more than a few hundred of them.
    """

    def __init__(self, port: int, *, pause: float = 0.002) -> None:
        self._port = port
        self._pause = pause
        self._client = VsrClient(port).login()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness")
        self._failure: BaseException | None = None
        self._next_offset = 0
        self.latencies: list[float] = []
        """Seconds of each round: a send and a poll."""
        self._prepare()

    def _prepare(self) -> None:
        if self._client.ask(c.GetStream(STREAM)).body:
            self._next_offset = self._current_end()
            return
        # Only SDK 0.5 can choose a number.
        with ClassicClient(self._port, dialect=Dialect.SDK_0_5).login() as old:
            old.do(c.CreateStream(STREAM, _STREAM_ID))
        self._client.do(c.CreateTopic(STREAM, "t", 1, TopicOptions()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()
        if error is None:
            self.check()
            assert self.latencies, "it was there"

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self._failure is not None:
            raise AssertionError(f"the witness was disturbed after {len(self.latencies)} rounds") from self._failure

    def latency(self, share: float) -> float:
        """The seconds that so large a share of the rounds stayed below."""
        ordered = sorted(self.latencies)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]

    @property
    def figures(self) -> str:
        """For reports."""
        marks = ((0.5, "median"), (0.99, "p99"), (1.0, "max"))
        values = ", ".join(f"{name} {self.latency(share) * 1000:.1f} ms" for share, name in marks)
        return f"{len(self.latencies)} rounds, {values}"

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                began = time.perf_counter()
                self._round()
                self.latencies.append(time.perf_counter() - began)
        except BaseException as error:  # noqa: BLE001 - raised by check
            self._failure = error

    def _round(self) -> None:
        """What was sent is there, at its offset, and nothing else."""
        first = self._next_offset
        payloads = [f"message {offset}".encode() * (1 + offset % 50) for offset in range(first, first + 3)]
        reply = self._client.do(c.SendMessages(STREAM, "t", ToPartition(0), []), payloads)
        assert struct.unpack_from("<Q", reply, 16) == (first,)
        self._next_offset += len(payloads)
        body = self._poll(PollingKind.OFFSET, first)
        found = [(message.offset, message.payload) for message in read_wire(body[_POLL_HEAD_SIZE:])]
        assert found == list(enumerate(payloads, first))

    def _poll(self, kind: PollingKind, value: int = 0) -> bytes:
        return self._client.do(c.PollMessages(_CONSUMER, STREAM, "t", 0, kind, value, 100, False))

    def _current_end(self) -> int:
        body = self._poll(PollingKind.LAST)
        current_offset, count = struct.unpack_from("<QI", body, 4)
        return current_offset + 1 if count else 0
