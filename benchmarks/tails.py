"""Tail latency at a moderate rate, with work in the background and without it.

The work: segments that roll, retention, snapshots of the metadata, and a consumer that lags.
One producer sends small batches to a partition at a fixed rate, and one consumer reads them as they arrive. A request
counts from when it was due, so a stall also counts for the requests behind it. Both are in a process of their own. The
work in the background is much more than usual, so that a short run has some of it: a segment is full every few seconds.
"""

import contextlib
import re
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.harness import MIB, Bench, Bound, Row, Target, Weight
from benchmarks.samples import Shape, sample
from benchmarks.wires.requests import OFFSET, TopicName
from benchmarks.wires.vsr_wire import VsrWire
from courser.bench.conducting import Conductor, own_stream
from courser.bench.latencies import Latencies, merge
from courser.bench.plan import Mode, Plan, Spread
from courser.bench.private_server import PrivateServer, private_server

_MESSAGE_SIZE = 1000
_BATCH_COUNT = 20
_REQUEST_RATE = 250
"""Requests a second: 5 MB/s, far below what the server can do."""
_BACKGROUND_RATE = 100
"""Requests a second that fill the segments of the other topic, of 1/4 MB each."""
_METADATA_RATE = 50
"""Changes of metadata a second: the journal is full, and a snapshot is due, after 20 seconds. Each is synced."""
_LAG_RATE = 50
"""Polls a second of the consumer that lags, of 1/4 MB each."""
_LARGE_BATCH_COUNT = 250
_SETTINGS = (
    "http.enabled=true",
    "http.address=127.0.0.1:0",
    "system.segment.size=16 MiB",
    "system.topic.max_size=128 MiB",
    "system.topic.delete_oldest_segments=true",
    "data_maintenance.messages.interval=1 s",
)
_OTHER = TopicName("other", "topic")
_SHARES = {"p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
_GOAL = Target(Bound.RATIO_AT_MOST, 3, Weight.AIM)
_BLOCKED = re.compile(
    r"^courser_event_loop_blocked_seconds_total\{kind=\"([^\"]*)\",name=\"([^\"]*)\"\} (\S+)", re.MULTILINE
)
_DELETED = re.compile(r"^courser_segments_deleted_total\{reason=\"size\"\} (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Tails:
    """What the clients of one window saw, and what the server says about it."""

    sends: Latencies
    ages: Latencies
    """From when a send was due until its messages were read."""
    metrics: str


def run(bench: Bench) -> Iterator[Row]:
    seconds = max(bench.scale.single_count / 500, 1)
    rounds = []
    for _ in range(bench.scale.rounds):
        quiet = _window(bench, seconds, with_work=False)
        rounds.append((_window(bench, seconds, with_work=True), quiet))
    busiest = rounds[-1][0].metrics
    deleted = median(_deleted_count(busy.metrics) for busy, _ in rounds)
    for name, part in (("sends", "sends"), ("end to end", "ages")):
        for percentile, share in _SHARES.items():
            yield Row(
                measure=f"{name}, {percentile}, with work in the background",
                unit="ms",
                engine=[getattr(busy, part).percentile(share) / 1e6 for busy, _ in rounds],
                bare=[getattr(quiet, part).percentile(share) / 1e6 for _, quiet in rounds],
                bare_name="without",
                target=_GOAL,
                note=f"{deleted:.0f} segments deleted" if percentile == "p99" else "",
            )
    for (kind, name), blocked in sorted(_blocked(busiest).items(), key=lambda item: -item[1])[:5]:
        yield Row(measure=f"event loop blocked by {kind} {name}".rstrip(), unit="ms", engine=[blocked * 1e3])


def _window(bench: Bench, seconds: float, *, with_work: bool) -> _Tails:
    """The same traffic on a new server, with and without other work."""
    plan = Plan(
        mode=Mode.BOTH,
        message_size=Spread(_MESSAGE_SIZE, _MESSAGE_SIZE),
        batch=Spread(_BATCH_COUNT, _BATCH_COUNT),
        message_rate=_REQUEST_RATE * _BATCH_COUNT,
        seconds=seconds,
        warm_up=min(seconds / 4, 2),
    )
    with bench.fresh_directory() as path, private_server(path, _SETTINGS) as server:
        with _background_work(server) if with_work else contextlib.nullcontext():
            result = Conductor(plan, server.target, own_stream()).run()
        sends = [report.sent.latencies for report in result.reports if report.sent is not None]
        ages = [report.end_to_end for report in result.reports if report.end_to_end is not None]
        return _Tails(merge(sends), merge(ages), _metrics(server))


@contextmanager
def _background_work(server: PrivateServer) -> Iterator[None]:
    """Segments that roll and are deleted, metadata that changes, and a consumer that reads old messages."""
    is_over = threading.Event()
    batch = sample(Shape.SAME, _LARGE_BATCH_COUNT)
    with ExitStack() as stack:
        filler, maker, reader = (stack.enter_context(closing(VsrWire(server.target))) for _ in range(3))
        filler.create_stream(_OTHER.stream)
        filler.create_topic(_OTHER, 1)
        request, poll = filler.make_send(_OTHER, 0, batch), reader.make_poll(_OTHER, 0)
        for _ in range(32 * MIB // batch.stored_size):
            filler.send(request)
        number = iter(range(1_000_000))

        def change() -> None:
            maker.create_stream(name := f"made-{next(number)}")
            maker.delete_stream(name)

        def read() -> None:
            # As far behind as retention allows.
            reader.poll(poll, OFFSET, 0, _LARGE_BATCH_COUNT)

        work = (
            (lambda: filler.send(request), _BACKGROUND_RATE),
            (change, _METADATA_RATE / 2),
            (read, _LAG_RATE),
        )
        threads = [threading.Thread(target=_repeat, args=(action, rate, is_over)) for action, rate in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join()


def _repeat(action: Callable[[], object], rate: float, is_over: threading.Event) -> None:
    due = time.perf_counter()
    while not is_over.wait(max(due - time.perf_counter(), 0)):
        action()
        # What was missed is not made up for: the server would be asked for more than the rate.
        due = max(due + 1 / rate, time.perf_counter())


def _metrics(server: PrivateServer) -> str:
    configuration = tomllib.loads((Path(server.data) / "runtime" / "current_config.toml").read_text())
    with urllib.request.urlopen(f"http://{configuration['http']['address']}/metrics") as reply:
        text: str = reply.read().decode()
    return text


def _blocked(metrics: str) -> dict[tuple[str, str], float]:
    """Seconds, by who blocked the event loop."""
    return {(kind, name): float(seconds) for kind, name, seconds in _BLOCKED.findall(metrics)}


def _deleted_count(metrics: str) -> int:
    return sum(map(int, _DELETED.findall(metrics)))
