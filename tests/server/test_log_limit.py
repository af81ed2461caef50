import logging

from courser.server.logs import LineLimit
from tests.fakes.clocks import ManualClock


def record(level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("courser.transports.tcp", level, __file__, 1, "%d connections are open", (7,), None)


def test_a_few_lines_get_through_and_the_others_are_counted() -> None:
    clock = ManualClock()
    limit = LineLimit(clock)
    assert sum(limit.filter(record()) for _ in range(1000)) == 20
    clock.advance(999_999)
    assert not limit.filter(record())
    clock.advance(1)
    line = record()
    assert limit.filter(line)
    assert line.getMessage() == "(981 lines were suppressed before this one) 7 connections are open"
    line = record()
    assert limit.filter(line)
    assert line.getMessage() == "7 connections are open"


def test_errors_always_get_through() -> None:
    limit = LineLimit(ManualClock())
    assert all(limit.filter(record(logging.ERROR)) for _ in range(1000))
    assert limit.filter(record())
