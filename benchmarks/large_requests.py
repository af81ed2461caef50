"""Small requests beside sends and polls of 40 MB: how long a large request keeps the others waiting.

One connection sends or polls large messages without a pause, another one polls a single small message again and again.
The small polls are also measured alone. The longest of them shows the longest turn of the event loop; the server's own
histogram of delays is in the note.
"""

import re
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random
from statistics import median

from benchmarks.harness import Bench, Row
from benchmarks.samples import SampleBatch, make_sample
from benchmarks.serving import PLACE
from benchmarks.wires.classic_wire import ClassicWire
from benchmarks.wires.requests import OFFSET
from benchmarks.wires.vsr_wire import VsrWire
from courser.bench.private_server import PrivateServer, private_server

_LARGE_SIZE = 40_000_000
_LARGE_COUNT = 8
"""Large requests in one round."""
_SMALL_COUNT = 200
"""Small requests that are measured alone in one round."""
_SETTINGS = ("http.enabled=true", "http.address=127.0.0.1:0")
_DELAY = re.compile(r'^courser_event_loop_delay_seconds_bucket\{le="([^"]+)"\} (\d+)', re.MULTILINE)
_WIRES: dict[str, type[VsrWire] | type[ClassicWire]] = {"SDK 0.9": VsrWire, "classic": ClassicWire}


@dataclass(frozen=True, slots=True)
class _Latencies:
    """Milliseconds of small requests: in the middle, and at most."""

    usual: float
    longest: float


def _message(size: int) -> SampleBatch:
    return make_sample([size], Random(7))


def _measure(ask: Callable[[], object], is_over: Callable[[int], bool]) -> _Latencies:
    times: list[float] = []
    while not times or not is_over(len(times)):
        begin = time.perf_counter()
        ask()
        times.append((time.perf_counter() - begin) * 1000)
    return _Latencies(median(times), max(times))


def _measure_beside(ask: Callable[[], object], large: Callable[[], object]) -> _Latencies:
    def repeat() -> None:
        for _ in range(_LARGE_COUNT):
            large()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        return _measure(ask, lambda _: not thread.is_alive())
    finally:
        thread.join()


def _delays(server: PrivateServer) -> dict[float, int]:
    """How many delays of the event loop were at most so many milliseconds, since the start."""
    configuration = tomllib.loads((server.data / "runtime" / "current_config.toml").read_text())
    with urllib.request.urlopen(f"http://{configuration['http']['address']}/metrics") as reply:
        text = reply.read().decode()
    return {float(bound) * 1000: int(count) for bound, count in _DELAY.findall(text)}


def _longest_delay(before: dict[float, int], after: dict[float, int]) -> str:
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    whole = max(counts.values())
    bound = next(bound for bound, count in counts.items() if count == whole)
    return f"{whole} delays of the event loop of at most {bound:g} ms"


def _rows(bench: Bench, name: str, wire: type[VsrWire] | type[ClassicWire]) -> Iterator[Row]:
    size = min(_LARGE_SIZE, bench.scale.append_size)
    large, small = _message(size), _message(100)
    with ExitStack() as stack:
        path = stack.enter_context(bench.fresh_directory(size * _LARGE_COUNT))
        server = stack.enter_context(private_server(path, _SETTINGS))
        client, other = (stack.enter_context(closing(wire(server.target))) for _ in range(2))
        client.create_stream(PLACE.stream)
        client.create_topic(PLACE, 2)
        send, poll = client.make_send(PLACE, 0, large), client.make_poll(PLACE, 0)
        other.send(other.make_send(PLACE, 1, small))
        small_poll = other.make_poll(PLACE, 1)

        def ask() -> None:
            other.poll(small_poll, OFFSET, 0, 1)

        for what, work in (
            ("sends", lambda: client.send(send)),
            ("polls", lambda: client.poll(poll, OFFSET, 0, 1)),
        ):
            before = _delays(server)
            alone, beside = [], []
            for _ in range(bench.scale.rounds):
                alone.append(_measure(ask, lambda count: count == _SMALL_COUNT))
                beside.append(_measure_beside(ask, work))
            label = f"small polls beside {what} of {size / 1e6:.0f} MB, {name}"
            yield Row(
                measure=f"{label}: longest",
                unit="ms",
                engine=[found.longest for found in beside],
                bare=[found.longest for found in alone],
                bare_name="alone",
                note=_longest_delay(before, _delays(server)),
            )
            yield Row(
                measure=f"{label}: median",
                unit="ms",
                engine=[found.usual for found in beside],
                bare=[found.usual for found in alone],
                bare_name="alone",
            )


def run(bench: Bench) -> Iterator[Row]:
    for name, wire in _WIRES.items():
        yield from _rows(bench, name, wire)
