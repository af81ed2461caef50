"""Sends and polls of SDK 0.10 beside those of SDK 0.9: the same server, the same batches, turn by turn."""

from collections.abc import Callable, Iterator
from contextlib import closing

from benchmarks.harness import Bench, Bound, Row, Target
from benchmarks.samples import SampleBatch, Shape, sample
from benchmarks.serving import Running, courser
from benchmarks.wires.requests import FIRST, TopicName
from benchmarks.wires.vsr_0_12_wire import Vsr12Wire
from benchmarks.wires.vsr_wire import VsrWire

_OLD, _NEW = TopicName("bench", "old"), TopicName("bench", "new")
_TURN_COUNT = 20
"""Each round is cut into turns: what else the machine does then meets both."""
_LARGE_SHARE = 40
"""A large batch takes about as long as so many single messages."""
_TARGET = 0.97


def _requests_per_second(server: Running, old: Callable[[], None], new: Callable[[], None], count: int) -> list[float]:
    """Requests per second of the server's CPU: of the old release, then of the new one."""
    used = [0.0, 0.0]
    each = max(count // _TURN_COUNT, 1)
    for turn in range(_TURN_COUNT):
        pair = ((0, old), (1, new))
        for number, act in pair if turn % 2 else reversed(pair):
            before = server.cpu_seconds()
            for _ in range(each):
                act()
            used[number] += server.cpu_seconds() - before
    return [each * _TURN_COUNT / seconds if seconds else 0.0 for seconds in used]


def _acts(client: VsrWire, place: TopicName, batch: SampleBatch) -> tuple[Callable[[], None], Callable[[], None]]:
    """A send and a poll of so many messages."""
    send, poll = client.make_send(place, 0, batch), client.make_poll(place, 0)

    def do_poll() -> None:
        client.poll(poll, FIRST, 0, batch.count)

    return lambda: client.send(send), do_poll


def run(bench: Bench) -> Iterator[Row]:
    """The releases in turns, over one connection each."""
    for message_count, count in (
        (1, 3 * bench.scale.single_count),
        (bench.scale.message_count, 3 * bench.scale.single_count // _LARGE_SHARE),
    ):
        batch = sample(Shape.SAME, message_count)
        found: dict[str, list[list[float]]] = {"send": [], "poll": []}
        for _ in range(bench.scale.rounds):
            with (
                bench.fresh_directory() as path,
                courser(path) as (server, login),
                closing(VsrWire(login)) as old,
                closing(Vsr12Wire(login)) as new,
            ):
                old.create_stream(_OLD.stream)
                for place in (_OLD, _NEW):
                    old.create_topic(place, 1)
                acts = zip(_acts(old, _OLD, batch), _acts(new, _NEW, batch), strict=True)
                for verb, (old_act, new_act) in zip(found, acts, strict=True):
                    found[verb].append(_requests_per_second(server, old_act, new_act, count))
        for verb, rounds in found.items():
            olds, news = zip(*rounds, strict=True)
            yield Row(
                measure=f"{verb}s of SDK 0.10, {message_count:,} messages each",
                unit="requests per CPU second",
                engine=news,
                bare=olds,
                bare_name="SDK 0.9",
                target=Target(Bound.RATIO_AT_LEAST, _TARGET),
            )
