"""A broker on a store that refuses, loses replies, answers late and lists late, with everything going on at once."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from courser.client.client import Client
from courser.client.messages import PollingStrategy, SendMessage
from courser.errors import CourserError
from courser.testing.broker import TestBroker
from courser.testing.object_store import WRITE_TIME
from tests.archive.brokers import HOUR, archiver_of, partition_of, running, settings_of
from tests.archive.test_restore import restore
from tests.fakes.clocks import ManualClock
from tests.fakes.object_store import FakeStore

_STEP_COUNT = 60


async def rows(client: Client) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    strategy = PollingStrategy.First()
    while messages := await client.poll_messages(
        "shop/rows", None, 0, strategy, 100, auto_commit=False, skip_missing=True
    ):
        found.update((message.offset, message.payload) for message in messages)
        strategy = PollingStrategy.Offset(messages[-1].offset + 1)
    return found


async def step(dice: random.Random, broker: TestBroker, client: Client, sent: list[bytes]) -> None:
    """One of the things that happen to a topic."""
    partition = partition_of(broker)
    match dice.randrange(6):
        case 0 | 1:
            payload = b"%s%d" % (dice.choice([b"a", b"b", b"c"]), len(sent))
            message = SendMessage(payload, key=payload[:1])
            await client.send_messages("shop/rows", partitioning=0, messages=[message])
            sent.append(payload)
        case 2:
            await partition.roll()
        case 3:
            await archiver_of(broker).run_once(with_active=dice.random() < 0.5)
        case 4:
            await broker.broker.condenser.condense_due()
        case _:
            await broker.broker.retention.relieve(dice.choice([1, 10**9]))


def check(found: dict[int, bytes], sent: list[bytes]) -> None:
    """What is there is what was sent, and the newest message of every key is there."""
    assert all(sent[offset] == payload for offset, payload in found.items())
    latest = {payload[:1]: offset for offset, payload in enumerate(sent)}
    assert set(latest.values()) <= found.keys()


@pytest.mark.parametrize("seed", range(6))
async def test_the_newest_message_of_every_key_stays_whatever_the_store_does(seed: int, tmp_path: Path) -> None:
    dice, clock = random.Random(seed), ManualClock()
    store = FakeStore(random.Random(seed), list_delay=seed % 4 * WRITE_TIME)
    settings = replace(settings_of(), tombstone_delay=HOUR, condensing_percent=1)
    sent: list[bytes] = []
    for session in range(2):
        async with running(tmp_path / "server", settings, store, clock) as (broker, client):
            if not session:
                await client.create_stream("shop")
                await client.create_topic("shop", "rows", keep_latest_by_key=True)
            store.fault_rate = 0.2
            for _ in range(_STEP_COUNT):
                clock.advance(1_000_000)
                try:
                    await step(dice, broker, client, sent)
                except CourserError as error:
                    raise AssertionError("a client or the server noticed what the store did") from error
                if not archiver_of(broker).failure:
                    check(await rows(client), sent)
            store.fault_rate = 0.0
            assert await archiver_of(broker).run_once(with_active=True)
            check(await rows(client), sent)
    # Behind a late reply, an upload under the same key would replace what a manifest names.
    assert not store.overwritten
    restore(store, tmp_path / "restored" / "data")
    async with running(tmp_path / "restored", settings_of(), FakeStore(random.Random(1)), clock) as (_, client):
        check(await rows(client), sent)
