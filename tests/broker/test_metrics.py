"""What a broker counts, and that a slow disk is reported."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from courser.api import commands as c
from courser.broker.access.sessions import sdk_of
from courser.broker.broker import Broker
from courser.broker.figures import lag
from courser.broker.figures.lag import Lags
from courser.broker.figures.scraping import Scrapes
from courser.broker.messages.consuming import group_key
from courser.broker.partition import partition_survey
from courser.broker.partition.partition_metrics import SLOW_SYNC, PartitionMetrics
from courser.broker.partition.partition_survey import STEP_COUNT, PartitionSurvey
from courser.broker.settings import BrokerSettings
from courser.errors import CommandRejected
from courser.model import metric_table as m
from courser.model.identifiers import TopicAddress
from courser.model.metrics import Metric, MetricKind, Registry, Sample
from courser.model.topic_options import TopicOptions
from courser.wire import prometheus
from courser.wire.prometheus import decode_series, encode_families
from tests.fakes.clocks import ManualClock
from tests.handlers.messaging import add_topic, poll, poll_command, send, send_command
from tests.handlers.scenes import Scene, opened

LOGINS = Metric("courser_logins_total", MetricKind.COUNTER, "Logins.", ("user",))
LOGGED = Metric("courser_logged_total", MetricKind.COUNTER, "Lines.")
DIRECTORY = Path("streams/0/topics/0/partitions/0-1")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "courser.broker.partition.partition_metrics")
    return caplog


def test_a_slow_sync_is_counted_and_reported_once_in_a_while(warnings: pytest.LogCaptureFixture) -> None:
    registry, clock = Registry(), ManualClock()
    times = PartitionMetrics(registry, clock)
    times.note_sync(DIRECTORY, 2_000)
    assert warnings.messages == []
    times.note_sync(DIRECTORY, SLOW_SYNC + 500_000)
    times.note_sync(DIRECTORY, SLOW_SYNC)
    (line,) = warnings.messages
    assert line.startswith("slow sync: the disk may be overloaded or failing took=1.5s expected_max=1s partition=str")
    clock.advance(10_000_000)
    times.note_sync(DIRECTORY, SLOW_SYNC)
    assert len(warnings.messages) == 2
    assert registry.value(m.SYNC_DURATION) == 4
    assert registry.value(m.SLOW_SYNCS) == 3


async def test_syncs_of_partitions_are_timed(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, durability="persisted")
        await send(scene, "one")
        assert scene.broker.metrics.value(m.SYNC_DURATION) >= 1


async def test_figures_of_all_partitions_are_added_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=3)
        await send(scene, "one", to=0)
        await send(scene, "two", "three", to=2)
        await poll(scene, poll_command(partition=2))
        series = await scrape(scene.broker)
        assert series["courser_partitions"] == 3
        assert series["courser_appended_messages_total"] == 3
        assert series["courser_appended_bytes_total"] == series["courser_unsynced_bytes"] > 600
        assert series["courser_append_size_bytes_count"] == 2
        assert series["courser_append_size_bytes_sum"] == series["courser_appended_bytes_total"]
        assert series["courser_polled_messages_total"] == 2
        assert series["courser_polled_bytes_total"] == series["courser_partition_polled_bytes_total", "s", "t", "2"]
        assert series["courser_segments_created_total"] == series["courser_segments"] == 2
        assert series["courser_segments_max"] == 1
        assert series["courser_partition_segments", "s", "t", "1"] == 0
        assert series["courser_partition_appended_messages_total", "s", "t", "2"] == 2
        assert series["courser_disk_free_bytes"] > 0
        assert series["courser_staged_bytes"] == 0


async def test_syncs_cover_appends(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, durability="persisted")
        await send(scene, "one")
        await send(scene, "two")
        series = await scrape(scene.broker)
        assert series["courser_appends_per_sync_sum"] == 2
        assert series["courser_appends_per_sync_count"] == series["courser_sync_duration_seconds_count"]
        assert series["courser_unsynced_bytes"] == 0


async def test_segments_are_counted_by_the_reason_of_their_deletion(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=1)
        (topic,) = scene.broker.partitions
        for number in range(2):
            await send(scene, f"message {number}", to=0)
            await topic.partition(0).roll()
        await scene.broker.retention.delete_segments(TopicAddress(0, 0), 0, 1)
        await topic.partition(0).purge()
        await send(scene, "new", to=0)
        before = await scrape(scene.broker)
        await scene.ask(scene.root, c.DeleteTopic("s", "t"))
        after = await scrape(scene.broker)
    reasons = ("expired", "size", "requested", "purged", "dropped")
    assert [before["courser_segments_deleted_total", reason] for reason in reasons] == [0, 0, 1, 1, 0]
    assert [after["courser_segments_deleted_total", reason] for reason in reasons] == [0, 0, 1, 1, 1]
    assert after["courser_retention_deleted_messages_total", "requested"] == 1
    # Counters do not decrease with the partition that counted.
    for name in ("courser_appended_messages_total", "courser_appended_bytes_total", "courser_segments_created_total"):
        assert after[name] == before[name] > 0
    assert (before["courser_partitions"], after["courser_partitions"]) == (1, 0)


async def test_partitions_beyond_the_limit_are_added_up(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=BrokerSettings(series_count_max=3)) as scene:
        await add_topic(scene, partition_count=2)
        for name in ("u", "v", "w", "x"):
            await scene.ask(scene.root, c.CreateTopic("s", name, 2, TopicOptions()))
            await scene.ask(scene.root, replace(send_command("one", to=1), topic=name))
            await scene.ask(scene.root, c.CreateConsumerGroup("s", name, "g"))
        series = await scrape(scene.broker)
    appended = {
        key[1:]: value for key, value in series.items() if key[0] == "courser_partition_appended_messages_total"
    }
    assert appended == {
        ("s", "t", "0"): 0,
        ("s", "t", "1"): 0,
        ("s", "u", "other"): 1,
        ("s", "v", "other"): 1,
        ("s", "w", "other"): 1,
        ("other", "other", "other"): 1,
    }
    lags = {key[1:]: value for key, value in series.items() if key[0] == "courser_group_lag_messages"}
    assert lags == {
        ("s", "u", "g", "0"): 0,
        ("s", "u", "g", "1"): 1,
        ("s", "v", "g", "other"): 1,
        ("s", "w", "g", "other"): 1,
        ("s", "x", "g", "other"): 1,
    }


async def test_with_a_limit_of_zero_no_names_are_shown(tmp_path: Path) -> None:
    async with opened(tmp_path, settings=BrokerSettings(series_count_max=0)) as scene:
        await scene.ask(scene.root, c.CreateStream("secret-stream"))
        await scene.ask(scene.root, c.CreateTopic("secret-stream", "secret-topic", 1, TopicOptions()))
        await scene.ask(scene.root, c.CreateConsumerGroup("secret-stream", "secret-topic", "secret-group"))
        assert "secret" not in await scene.broker.operating.scrapes.text()


async def test_no_step_of_a_scrape_is_long(tmp_path: Path) -> None:
    """Counted, not timed: how many partitions and lines there are between two pauses."""
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=8)
        for name in ("g", "h"):
            await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", name))
        (topic,) = scene.broker.partitions
        topic.partitions *= 125
        looked_at = Steps()
        state, clock = scene.broker.catalog.state, scene.broker.clock
        survey = PartitionSurvey(scene.broker.partitions, state, series_count_max=5000, pause=looked_at.pause)
        with looked_at.counting(partition_survey, "counters_of"):
            await survey.run()
        # The last step needs no pause.
        assert looked_at.counts == [STEP_COUNT] * 9
        lags = Lags(scene.broker.partitions, state, clock, series_count_max=5000, pause=looked_at.pause)
        with looked_at.counting(lag, "position_of"):
            await lags.run()
        assert sum(looked_at.counts) >= 1900
        assert max(looked_at.counts) <= lag.STEP_COUNT
        registry = Registry()
        registry.collected(LOGINS, lambda: (Sample(LOGINS.labeled(str(number)), 1) for number in range(1050)))
        lines = [piece.count("\n") for piece in encode_families(registry.collect())]
        assert lines == [2, *[prometheus.STEP_COUNT] * 10, 50]
        topic.partitions = topic.partitions[:8]


class Steps:
    """Counts calls between pauses."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._count = 0

    async def pause(self) -> None:
        self.counts.append(self._count)
        self._count = 0

    @contextmanager
    def counting(self, module: ModuleType, name: str) -> Iterator[None]:
        self.counts, self._count = [], 0
        function = getattr(module, name)

        def count(*arguments: object) -> object:
            self._count += 1
            return function(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, count)
            yield


# --- lag ---


async def test_lag_in_messages_and_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as scene:
        await add_topic(scene, partition_count=2)
        await scene.ask(scene.root, c.CreateConsumerGroup("s", "t", "g"))
        for number in range(3):
            await send(scene, f"message {number}", to=0)
            clock.advance(10_000_000)
        assert await lags_of(scene) == {"0": (3, 30.0), "1": (0, 0.0)}
        (topic,) = scene.broker.partitions
        await topic.partition(0).store_offset(group_key(0), 0)
        assert await lags_of(scene) == {"0": (2, 20.0), "1": (0, 0.0)}
        await topic.partition(0).roll()
        await topic.partition(0).store_offset(group_key(0), 1)
        assert await lags_of(scene) == {"0": (1, 10.0), "1": (0, 0.0)}
        clock.advance(1_000_000)
        assert await lags_of(scene) == {"0": (1, 11.0), "1": (0, 0.0)}
        await topic.partition(0).store_offset(group_key(0), 2)
        assert await lags_of(scene) == {"0": (0, 0.0), "1": (0, 0.0)}


async def lags_of(scene: Scene) -> dict[str, tuple[float, float]]:
    series = await scrape(scene.broker)
    return {
        number: (
            series["courser_group_lag_messages", "s", "t", "g", number],
            series["courser_group_lag_seconds", "s", "t", "g", number],
        )
        for number in ("0", "1")
    }


# --- scrapes ---


async def test_who_asks_during_a_scrape_gets_the_same_text() -> None:
    registry, go_on, count = Registry(), asyncio.Event(), 0

    async def survey() -> None:
        nonlocal count
        count += 1
        await go_on.wait()

    registry.surveys.append(survey)
    scrapes = Scrapes(registry, patience=60)
    first, second = (asyncio.ensure_future(scrapes.text()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    assert await second == ""
    assert count == 1
    await scrapes.text()
    assert count == 2


async def test_a_survey_that_hangs_or_fails_does_not_hold_up_a_scrape(caplog: pytest.LogCaptureFixture) -> None:
    registry, go_on, count = Registry(), asyncio.Event(), 0

    async def hang() -> None:
        nonlocal count
        count += 1
        await go_on.wait()

    async def fail() -> None:
        raise ValueError("a defect")

    registry.surveys += [hang, fail]
    registry.counter(LOGGED)
    scrapes = Scrapes(registry, patience=0.01)
    for _ in range(2):
        assert "courser_logged_total 0" in await scrapes.text()
    assert count == 1
    assert "a survey failed" in caplog.text
    await scrapes.close()


# --- requests ---


async def test_requests_are_timed_and_failures_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, durability="persisted")
        await send(scene, "one")
        with pytest.raises(CommandRejected):
            await scene.ask(scene.root, c.DeleteTopic("s", "x"))
        with pytest.raises(CommandRejected):
            await scene.ask(scene.root, c.DeleteTopic("s", "x"))
        series = await scrape(scene.broker)
    assert series["courser_request_duration_seconds_count", "CreateTopic"] == 1
    # It had to wait for a sync.
    assert series["courser_request_duration_seconds_count", "SendMessages"] == 1
    assert series["courser_failed_requests_total", "DeleteTopic", "topic_not_found"] == 2


@pytest.mark.parametrize(
    ("name", "label"),
    [("rust-sdk", "rust"), ("courser", "courser"), ("Iggy Java 0.8", "java"), ("cargo", "other"), ("", "unknown")],
)
def test_client_libraries_are_told_apart_by_known_names_alone(name: str, label: str) -> None:
    assert sdk_of(name) == label


async def scrape(broker: Broker) -> dict[tuple[str, ...] | str, float]:
    """The value of each series: by its name, or by its name and the values of its labels."""
    found = decode_series(await broker.operating.scrapes.text())
    return {(one.name, *(value for _, value in one.labels)) if one.labels else one.name: one.value for one in found}
