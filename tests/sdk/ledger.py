"""Who was promised what: the acknowledgements that producers received and the messages that consumers were given.

The ledger lives in the process of the test. Producers and consumers are children that report line by line, and the
server that is killed is another one: nothing of the ledger dies with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.sdk.programs.load import name_of

Event = Mapping[str, Any]


class PromiseBroken(AssertionError):
    """The server acknowledged something and did not keep it."""


@dataclass(frozen=True)
class Found:
    """A partition as it was read in the end: the producer and number of each message, by offset."""

    offsets: Sequence[int]
    messages: Sequence[str]


def judge_producer(producer: str, events: Iterable[Event], found: Found) -> int:
    """Hold a producer's acknowledgements against its partition. Return how many messages were acknowledged."""
    if list(found.offsets) != list(range(len(found.offsets))):
        raise PromiseBroken(f"{producer}: the offsets have gaps after mere kills")
    places: dict[str, list[int]] = {}
    for offset, message in zip(found.offsets, found.messages, strict=True):
        places.setdefault(message, []).append(offset)
    attempted: set[int] = set()
    acknowledged: set[int] = set()
    for event in events:
        if event["by"] != producer:
            continue
        if event["event"] == "attempt":
            attempted.update(event["numbers"])
        elif event["event"] == "ack":
            acknowledged.update(event["numbers"])
            judge_confirmation(producer, event, places)
    missing = sorted(number for number in acknowledged if f"{producer} {number}" not in places)
    if missing:
        raise PromiseBroken(f"{producer}: {len(missing)} acknowledged messages are missing, the first is {missing[0]}")
    strange = places.keys() - {f"{producer} {number}" for number in attempted}
    if strange:
        raise PromiseBroken(f"{producer}: messages that nobody sent: {sorted(strange)[:3]}")
    twice = [message for message, offsets in places.items() if len(offsets) > 1]
    if twice:
        raise PromiseBroken(f"{producer}: sent once and stored twice: {twice[:3]}")
    return len(acknowledged)


def judge_confirmation(producer: str, event: Event, places: Mapping[str, list[int]]) -> None:
    """An offset that was confirmed names the same message for ever."""
    if event["offset"] is None:
        return
    for delta, number in enumerate(event["numbers"]):
        offset = event["offset"] + delta
        if offset not in places.get(f"{producer} {number}", []):
            raise PromiseBroken(f"{producer}: number {number} was confirmed at offset {offset}, and is not there")


def judge_consumer(events: Iterable[Event], partitions: Mapping[str, Found]) -> int:
    """Hold what a consumer was given against the partitions, by producer. Return how many messages it was given."""
    reached: dict[str, int] = {}
    count = 0
    for event in events:
        if event["event"] != "message":
            continue
        count += 1
        name = name_of(event["payload"])
        producer = name.split()[0]
        offset, expected = event["offset"], reached.get(producer, -1) + 1
        found = partitions[producer].messages
        if offset >= len(found) or found[offset] != name:
            raise PromiseBroken(f"offset {offset} was {name} when it was read, and is another message now")
        if offset > expected:
            raise PromiseBroken(f"{producer}: the consumer was given offset {offset} when {expected} was next")
        reached[producer] = max(offset, expected - 1)
    for producer, found_partition in partitions.items():
        if reached.get(producer, -1) != len(found_partition.offsets) - 1:
            raise PromiseBroken(f"{producer}: the consumer stopped at {reached.get(producer)}")
    return count
