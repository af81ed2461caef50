"""What actors do, with a server in memory."""

import threading
import time

from courser.bench.actors import Actor
from courser.bench.channel import ActorReport, Phase
from courser.bench.latencies import merge
from courser.bench.plan import Mode, Plan, Role, Spread, tasks_of
from courser.bench.wires import TopicName
from tests.bench.fake_wire import FakeWire

SECOND = 1_000_000_000
PLACE = TopicName("stream", "topic")


def actor_of(plan: Plan, wire: FakeWire, role: Role = Role.PRODUCER) -> Actor:
    task = next(task for task in tasks_of(plan) if task.role is role)
    actor = Actor(wire, task, plan, PLACE, "group" if task.group is not None else None)
    if actor.reading is not None:
        actor.reading.join()
        actor.reading.settle()
    return actor


def work(
    actor: Actor,
    *,
    seconds: float | None = None,
    is_counted: bool = True,
    drains: bool = False,
    stop: threading.Event | None = None,
) -> ActorReport:
    begin = time.monotonic_ns()
    end = None if seconds is None else begin + int(seconds * SECOND)
    phase = Phase(begin=begin, end=end, is_counted=is_counted, drains=drains)
    actor.begin(phase)
    actor.run(phase, stop or threading.Event())
    return actor.report()


def test_a_producer_sends_its_quota_to_the_message() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER, messages=2500, message_size=Spread(10, 10))
    wire = FakeWire()
    sent = work(actor_of(plan, wire)).sent
    assert wire.sent_counts == [1000, 1000, 500]
    assert sent is not None
    assert (sent.messages, sent.size, sent.requests, sent.latencies.count) == (2500, 25_000, 3, 3)


def test_random_batches_come_out_even_too() -> None:
    for messages in (1, 49, 50, 51, 777, 10_000):
        plan = Plan(mode=Mode.PINNED_PRODUCER, messages=messages, message_size=Spread(1, 9), batch=Spread(1, 50))
        wire = FakeWire()
        work(actor_of(plan, wire))
        assert sum(wire.sent_counts) == messages
        assert max(wire.sent_counts) <= 50


def test_a_warm_up_knows_no_quota_and_leaves_it_whole() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER, messages=100, batch=Spread(10, 10), message_size=Spread(10, 10))
    wire = FakeWire()
    wire.stop_after = 250
    actor = actor_of(plan, wire)
    warm = work(actor, is_counted=False, stop=wire.stop).sent
    assert warm is not None
    assert warm.messages == 250
    sent = work(actor).sent
    assert sent is not None
    assert (sent.messages, sent.requests) == (100, 10)


def test_a_time_ends_a_producer_and_so_does_a_stop() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER, seconds=1)
    begin = time.monotonic()
    work(actor_of(plan, FakeWire()), seconds=0.01)
    stop = threading.Event()
    stop.set()
    report = work(actor_of(plan, FakeWire()), seconds=1000, stop=stop)
    assert report.sent is not None
    assert report.sent.requests == 0
    assert time.monotonic() - begin < 30


def test_with_a_rate_a_stall_counts_for_every_request_that_it_held_up() -> None:
    # A request every 2 ms, one of them takes 50 ms: those behind it were due long before they went out.
    plan = Plan(
        mode=Mode.PINNED_PRODUCER,
        messages=40,
        message_rate=500,
        batch=Spread(1, 1),
        message_size=Spread(10, 10),
    )
    wire = FakeWire()
    wire.stalls[5] = 0.05
    sent = work(actor_of(plan, wire)).sent
    assert sent is not None
    found = merge([sent.latencies])
    assert found.maximum >= 50_000_000
    assert found.percentile(0.75) >= 10_000_000


def test_a_rate_is_kept() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER, messages=50, message_rate=1000, batch=Spread(1, 1))
    sent = work(actor_of(plan, FakeWire())).sent
    assert sent is not None
    assert sent.end - sent.begin >= 49 / 1000 * SECOND * 0.99


def test_a_consumer_alone_reads_its_quota_beginning_anew_at_the_end() -> None:
    plan = Plan(mode=Mode.PINNED_CONSUMER, messages=25, batch=Spread(10, 10), message_size=Spread(7, 7))
    wire = FakeWire()
    wire.partitions[0] = [0] * 12
    received = work(actor_of(plan, wire, Role.CONSUMER)).received
    assert received is not None
    assert (received.messages, received.size, received.empty) == (25, 175, 2)
    # 10 and 2, nothing, 10 and 2, nothing, and the one that is missing.
    assert received.requests == 5


def test_a_consumer_reads_its_partitions_in_turn() -> None:
    plan = Plan(mode=Mode.BALANCED_CONSUMER, messages=6, partitions=3, batch=Spread(2, 2))
    wire = FakeWire(3)
    for partition in wire.partitions.values():
        partition += [0] * 2
    work(actor_of(plan, wire, Role.CONSUMER))
    assert [poll[0] for poll in wire.polls] == [0, 1, 2]


def test_payloads_of_random_size_are_measured() -> None:
    plan = Plan(mode=Mode.PINNED_CONSUMER, messages=5, message_size=Spread(1, 9))
    wire = FakeWire()
    wire.partitions[0] = [0] * 5
    received = work(actor_of(plan, wire, Role.CONSUMER)).received
    assert received is not None
    assert received.size == wire.payload_size_of_one * 5


def test_a_member_joins_and_commits_and_warms_up_without_the_group() -> None:
    plan = Plan(mode=Mode.BALANCED_CONSUMER_GROUP, messages=20, partitions=2, batch=Spread(10, 10))
    wire = FakeWire(2)
    for partition in wire.partitions.values():
        partition += [0] * 10
    actor = actor_of(plan, wire, Role.CONSUMER)
    assert wire.joined == ["group"]
    wire.stop_after = 55
    warm = work(actor, is_counted=False, stop=wire.stop).received
    assert warm is not None
    assert warm.messages == 60
    assert sum(wire.committed.values()) == 0
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(actor,), kwargs={"drains": True, "stop": stop})
    thread.start()
    while actor.reading is not None and actor.reading.count.messages != 20:
        thread.join(0.001)
        assert thread.is_alive()
    stop.set()
    thread.join()
    assert sum(wire.committed.values()) == 20


def test_consumers_of_producers_take_the_age_of_messages() -> None:
    plan = Plan(mode=Mode.PINNED_PRODUCER_AND_CONSUMER, messages=10, batch=Spread(10, 10))
    wire = FakeWire()
    work(actor_of(plan, wire))
    wire.stop_after = 10
    report = work(actor_of(plan, wire, Role.CONSUMER), stop=wire.stop)
    assert report.received is not None
    assert report.received.messages == 10
    assert report.end_to_end is not None
    assert report.end_to_end.count == 1
    assert 0 <= report.end_to_end.maximum < 60 * SECOND


def test_a_producing_consumer_waits_for_its_own_messages() -> None:
    plan = Plan(mode=Mode.END_TO_END_PRODUCING_CONSUMER, messages=30, batch=Spread(10, 10))
    wire = FakeWire()
    report = work(actor_of(plan, wire, Role.PRODUCING_CONSUMER))
    assert report.sent is not None
    assert report.received is not None
    assert report.end_to_end is not None
    assert (report.sent.messages, report.received.messages, report.end_to_end.count) == (30, 30, 3)
    assert report.end_to_end.minimum >= report.sent.latencies.minimum


def test_a_closed_actor_closes_its_connection() -> None:
    wire = FakeWire()
    actor_of(Plan(mode=Mode.PINNED_PRODUCER, seconds=1), wire).close()
    assert wire.is_closed
