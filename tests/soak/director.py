"""One soak run: finds out how much the machine can take, runs at a share of that, and judges."""

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.servers import family
from courser import connect_sync
from courser.bench.latencies import Latencies
from courser.client.messages import PollingStrategy
from courser.client.sync import SyncClient
from courser.errors import CourserError
from tests.servers import ROOT_NAME, ROOT_PASSWORD, RunningServer
from tests.soak.crew import Crew
from tests.soak.payloads import BATCH_COUNT, SIZE, number_of
from tests.soak.trend import PART_COUNT, Memory, latency_violations, memory_of, part_of

MIB = 1024 * 1024
USUAL_SHARE = 0.7
"""Of the load that the machine can take."""
SENT_SHARE_MIN = 0.95
"""Of the messages that were due. With less, the machine had other work, and the run says nothing."""
SEGMENT_SIZE = 4 * MIB
PARTITION_COUNT = 2
"""Of each topic."""
MEMBER_COUNT = 3
KILL_INTERVALS = (5.0, 15.0)
"""Seconds between two kills."""
STEP = 1.0
"""Seconds between two samples of memory."""
CALIBRATION_SECONDS = 15.0
WARM_UP_PATIENCE = 600.0
_PROGRAM = Path(__file__).with_name("server_program.py")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is told."""

    directory: Path
    seconds: float
    seed: int
    share: float = USUAL_SHARE
    process_count: int = 1
    plant: str = "none"
    """A defect for the server, to see that it is found."""

    @property
    def kept_seconds(self) -> float:
        """For how long messages are kept: much longer than a member needs to take over, and many times in a run."""
        return min(max(self.seconds / 10, 20.0), 60.0)


@dataclass
class Report:
    """What came of it."""

    rate: float = 0.0
    """Messages per second."""
    capacity: float = 0.0
    sent_share: float = 0.0
    """Of the messages that were due."""
    memory: Memory | None = None
    latencies: list[Latencies] = field(default_factory=list)
    """Of each part of the run."""
    message_count: int = 0
    repeated_count: int = 0
    kill_count: int = 0
    segment_count: int = 0
    """Segments that retention deleted."""
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        found = [
            f"{self.rate:,.0f} of {self.capacity:,.0f} messages/s were due, {self.sent_share:.0%} of them were sent",
            f"{self.message_count:,} messages acknowledged and read, {self.repeated_count:,} of them again after kills",
            f"{self.kill_count} members killed, {self.segment_count} segments deleted by retention",
        ]
        if self.memory is not None:
            memory = self.memory
            found.append(
                f"memory {memory.first:.1f} MiB at first, {memory.last:.1f} MiB at last, slope {memory.rise:+.1f}"
            )
        for number, part in enumerate(self.latencies, 1):
            p50, p99, p999 = (part.percentile(share) / 1e6 for share in (0.5, 0.99, 0.999))
            text = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, p99.9 {p999:.1f} ms of {part.count:,} sends"
            found.append(f"part {number} of {PART_COUNT}: {text}")
        return found


class Director:
    """One run."""

    def __init__(self, options: Options, say: Say) -> None:
        self._options = options
        self._say = say
        self._source = random.Random(options.seed)
        self._server = RunningServer(
            options.directory / "server",
            settings={
                "system.logging.file_enabled": "false",
                "data_maintenance.messages.interval": "1s",
                "server.processes": options.process_count,
            },
            prefix=(sys.executable, "-P", str(_PROGRAM), options.plant),
        )
        self._latencies = [Latencies() for _ in range(PART_COUNT)]
        self._began = float("inf")
        self._recording = threading.Lock()
        self._pause = threading.Event()
        """Never set: the load needs its time."""
        self._memory: list[tuple[float, float]] = []
        self._segments: set[Path] = set()
        """All that were seen."""
        self.report = Report()

    @property
    def _url(self) -> str:
        return f"iggy://{ROOT_NAME}:{ROOT_PASSWORD}@{self._server.address}"

    def run(self) -> Report:
        """From the start to the judgement."""
        report = self.report
        with self._server:
            report.capacity = self._calibrate()
            report.rate = self._options.share * report.capacity
            topics = self._create_topics(report.rate)
            crew = Crew(self._url, topics, PARTITION_COUNT, self._note_latencies)
            try:
                self._soak(crew, report.rate)
            finally:
                crew.dismiss()
            self._judge(crew)
            self._check_what_is_kept(crew)
        return report

    # --- before ---------------------------------------------------------------------------------------

    def _calibrate(self) -> float:
        """Messages per second that are sent and read with as much load as possible."""
        with connect_sync(self._url) as client:
            client.create_stream("calibration")
            topics = [f"calibration/{name}" for name in ("size", "time")]
            for topic in topics:
                client.create_topic(topic, None, PARTITION_COUNT, segment_size=SEGMENT_SIZE)
            crew = Crew(self._url, topics, PARTITION_COUNT, lambda *_: None)
            try:
                crew.start(MEMBER_COUNT)
                crew.set_rate(0)
                _wait_until(lambda: crew.book.counts()[1] > 0, crew)
                before, begin = crew.book.counts(), time.monotonic()
                self._pause.wait(CALIBRATION_SECONDS)
                after, seconds = crew.book.counts(), time.monotonic() - begin
                crew.check()
            finally:
                crew.dismiss()
            client.delete_stream("calibration")
        if crew.book.violations:
            raise AssertionError(f"the calibration failed: {crew.book.violations[0]}")
        sent, read = ((late - early) / seconds for early, late in zip(before, after, strict=True))
        self._say(f"as fast as possible: {sent:,.0f} messages/s sent, {read:,.0f} read")
        # What is sent must be read, too: it is the slower of both.
        return min(sent, read)

    def _create_topics(self, rate: float) -> list[str]:
        kept = self._options.kept_seconds
        size = max(int(rate / 2 * SIZE * kept), 4 * PARTITION_COUNT * SEGMENT_SIZE)
        with connect_sync(self._url) as client:
            client.create_stream("soak")
            client.create_topic("soak/size", None, PARTITION_COUNT, segment_size=SEGMENT_SIZE, max_topic_size=size)
            expiry = f"{kept:.0f}s"
            client.create_topic("soak/time", None, PARTITION_COUNT, segment_size=SEGMENT_SIZE, message_expiry=expiry)
        self._say(f"messages are kept for {kept:.0f} s in one topic, up to {size / MIB:.0f} MiB in the other")
        return ["soak/size", "soak/time"]

    # --- the run --------------------------------------------------------------------------------------

    def _soak(self, crew: Crew, rate: float) -> None:
        seconds = self._options.seconds
        crew.start(MEMBER_COUNT)
        crew.set_rate(rate / BATCH_COUNT)
        self._say("warming up until retention has deleted messages of every partition")
        _wait_until(self._has_retention_begun, crew)
        self._say(f"measuring for {seconds:.0f} s")
        self._began = begin = time.monotonic()
        kill_at = begin + self._source.uniform(*KILL_INTERVALS)
        self._segments.clear()
        sent_before, _ = crew.book.counts()
        while (now := time.monotonic()) < begin + seconds and not crew.book.violations:
            self._memory.append((now - begin, self._pss()))
            self._look_at_segments()
            if now >= kill_at:
                crew.replace_member(self._source.randrange(crew.member_count))
                self.report.kill_count += 1
                kill_at = time.monotonic() + self._source.uniform(*KILL_INTERVALS)
            crew.check()
            self._say_progress(now - begin, crew)
            self._pause.wait(STEP)
        sent, seconds = crew.book.counts()[0] - sent_before, time.monotonic() - begin
        self.report.sent_share = sent / (rate * seconds)
        present = sum(map(len, self._look_at_segments().values()))
        self.report.segment_count = len(self._segments) - present
        self._began = float("inf")
        with connect_sync(self._url) as client:
            # What is left is to be compared, and must not expire meanwhile.
            client.update_topic("soak/time", message_expiry="none")
        crew.stop_producers()
        crew.wait_until_read()
        crew.stop_members()

    def _say_progress(self, seconds: float, crew: Crew) -> None:
        if int(seconds) % 60 == 0 and int(seconds):
            sent, read = crew.book.counts()
            text = f"{sent:,} messages sent, {sent - read:,} unread, {self._memory[-1][1]:.1f} MiB"
            self._say(f"{seconds:5.0f} s: {text}, {self.report.kill_count} kills")

    def _note_latencies(self, moment: float, latencies: Sequence[int]) -> None:
        began = self._began
        if moment >= began:
            part = self._latencies[part_of(moment - began, self._options.seconds)]
            with self._recording:
                for latency in latencies:
                    part.add(latency * 1_000)

    # --- facts ----------------------------------------------------------------------------------------

    def _look_at_segments(self) -> dict[Path, list[int]]:
        """The segments of each partition, by their first offsets."""
        found: dict[Path, list[int]] = {}
        for log in self._server.data.glob("streams/*/topics/*/partitions/*/*.log"):
            self._segments.add(log)
            found.setdefault(log.parent, []).append(int(log.stem))
        return found

    def _has_retention_begun(self) -> bool:
        found = self._look_at_segments()
        return len(found) == 2 * PARTITION_COUNT and all(min(offsets) for offsets in found.values())

    def _pss(self) -> float:
        """MiB of all processes of the server."""
        total = 0
        for number in family(self._server.process.pid):
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024

    # --- after ----------------------------------------------------------------------------------------

    def _judge(self, crew: Crew) -> None:
        report, book = self.report, crew.book
        for partition, count in book.acknowledged.items():
            book.readings.judge(partition, count)
        report.message_count = book.counts()[0]
        report.repeated_count = book.readings.repeated_count()
        report.violations = [*book.violations, *book.readings.violations]
        if report.violations:
            return
        if report.sent_share < SENT_SHARE_MIN:
            report.violations.append(f"only {report.sent_share:.0%} of the messages that were due were sent in time")
        report.memory = memory_of(self._memory, self._options.seconds)
        report.latencies = self._latencies
        report.violations += report.memory.violations()
        report.violations += latency_violations([part.percentile(0.999) / 1e6 for part in report.latencies])
        if not report.kill_count or not report.segment_count:
            report.violations.append("the run was too short: nobody was killed, or no segment was deleted")

    def _check_what_is_kept(self, crew: Crew) -> None:
        """After a kill of the server, too: every message from the first that is kept to the last acknowledged one."""
        self._server.kill()
        self._server.start()
        with connect_sync(self._url) as client:
            for (topic, number), count in crew.book.acknowledged.items():
                try:
                    end = _read_to_the_end(client, topic, number)
                except (CourserError, AssertionError) as error:
                    self.report.violations.append(f"{topic} {number} after a kill: {error}")
                else:
                    if end != count:
                        text = f"it ends at {end}, and {count} messages were acknowledged"
                        self.report.violations.append(f"{topic} {number} after a kill: {text}")


def _read_to_the_end(client: SyncClient, topic: str, number: int) -> int:
    """Read what a partition holds; return one more than its last offset.

    Raises:
        AssertionError: offsets are missing, or a message is at an offset of another.
    """
    expected: int | None = None
    while True:
        strategy = PollingStrategy.First() if expected is None else PollingStrategy.Offset(expected)
        messages = client.poll_messages(topic, None, number, strategy, 1_000, auto_commit=False)
        if not messages:
            return expected or 0
        expected = messages[0].offset if expected is None else expected
        for message in messages:
            if message.offset != expected or number_of(message.payload) != expected:
                raise AssertionError(f"{number_of(message.payload)} is at {message.offset}, {expected} was due")
            expected += 1


def _wait_until(condition: Callable[[], bool], crew: Crew) -> None:
    deadline = time.monotonic() + WARM_UP_PATIENCE
    while not condition():
        crew.check()
        if crew.book.violations:
            raise AssertionError(crew.book.violations[0])
        if time.monotonic() > deadline:
            raise AssertionError(f"the load did not get going within {WARM_UP_PATIENCE:.0f} s")
        crew.book.changed.wait(STEP)
        crew.book.changed.clear()
