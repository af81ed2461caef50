"""What a broker counts, and that a slow disk is reported."""

import logging
from pathlib import Path

import pytest

from courser.broker.metrics import SLOW_SYNC, SyncMetrics
from courser.model.metrics import Registry
from courser.testing.clocks import ManualClock
from tests.handlers.messaging import add_topic, send
from tests.handlers.scenes import Scene, opened

DIRECTORY = Path("streams/0/topics/0/partitions/0-1")
DURATION = "courser_sync_duration_seconds"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "courser.broker.metrics")
    return caplog


def test_a_slow_sync_is_counted_and_reported_once_in_a_while(warnings: pytest.LogCaptureFixture) -> None:
    registry, clock = Registry(), ManualClock()
    times = SyncMetrics(registry, clock)
    times.note(DIRECTORY, 2_000)
    assert warnings.messages == []
    times.note(DIRECTORY, SLOW_SYNC + 500_000)
    times.note(DIRECTORY, SLOW_SYNC)
    (line,) = warnings.messages
    assert line.startswith("slow sync: the disk may be overloaded or failing took=1.5s expected_max=1s partition=str")
    clock.advance(10_000_000)
    times.note(DIRECTORY, SLOW_SYNC)
    assert len(warnings.messages) == 2
    assert registry.value(DURATION) == 4
    assert registry.value("courser_slow_syncs_total") == 3


async def test_syncs_of_partitions_are_timed(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, durability="persisted")
        await send(scene, "one")
        assert scene.broker.metrics.value(DURATION) >= 1


async def test_figures_of_all_partitions_are_added_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as scene:
        await add_topic(scene, partition_count=3)
        await send(scene, "one", to=0)
        await send(scene, "two", to=2)
        assert figure(scene, "courser_partitions") == 3
        assert figure(scene, "courser_appended_bytes_total") == figure(scene, "courser_unsynced_bytes") > 600
        assert figure(scene, "courser_segments_created_total") == 2
        families = {family.name for family in scene.broker.metrics.collect()}
        assert {"courser_checksum_failures_total", "courser_retention_deleted_segments_total"} <= families


def figure(scene: Scene, name: str) -> float:
    return scene.broker.metrics.value(name)
