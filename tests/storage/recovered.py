"""Partitions for tests of recovery, and what is checked after one."""

import pytest

from courser.model.identifiers import ConsumerKind
from courser.storage.offset_table import ConsumerKey
from courser.storage.read_result import SkippedRange
from courser.storage.recovery_cases import RecoveryFinding, StopKind
from courser.storage.settings import LogSettings
from tests.storage.engine import Engine

ONE_SEGMENT = LogSettings(segment_size=1024 * 1024, reservation_min=100)
every_stop = pytest.mark.parametrize("stop", list(StopKind), ids=lambda stop: stop.value)
KEY = ConsumerKey(ConsumerKind.GROUP, b"group")


def filled(batch_count: int = 5, settings: LogSettings = ONE_SEGMENT) -> Engine:
    """Batches of three messages in one open segment, all synced, behind the recovery point."""
    engine = Engine(settings)
    engine.fill(batch_count)
    engine.sync()
    return engine


def three_segments() -> Engine:
    """Two sealed segments, 0 to 5 and 6 to 11, and an open one with 12 to 17; stopped cleanly."""
    engine = filled(2)
    engine.roll()
    engine.fill(2)
    engine.roll()
    engine.fill(2)
    engine.stop()
    return engine


def offsets(engine: Engine) -> list[int]:
    return [message.offset for message in engine.read_all()[0]]


def skipped(engine: Engine) -> list[SkippedRange]:
    return [skip for result in engine.read_all()[1] for skip in result.skipped]


def the_finding(engine: Engine) -> RecoveryFinding:
    (finding,) = engine.log.findings
    return finding


def change(engine: Engine, base_offset: int, data: bytes) -> None:
    engine.disk.plant(engine.log_path(base_offset), data)


def data_of(engine: Engine, base_offset: int = 0) -> bytes:
    return engine.disk.contents(engine.log_path(base_offset))


def assert_stable(engine: Engine) -> None:
    """A second start finds everything in order, and the partition takes messages."""
    before = offsets(engine)
    known = {(finding.path, finding.position) for finding in engine.log.findings}
    engine.restart(StopKind.KILLED)
    assert {(finding.path, finding.position) for finding in engine.log.findings if finding.is_damage} <= known
    assert offsets(engine) == before
    appended = engine.append_numbered(2)
    engine.sync()
    assert offsets(engine) == [*before, appended.base_offset, appended.base_offset + 1]
