"""The newest lines of the log, in memory."""

import logging

from courser.server.logs import LogRing


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("courser.example", level, __file__, 1, message, None, None)


def test_lines_are_numbered_and_can_be_continued() -> None:
    ring = LogRing()
    for text in ("one", "two", "three"):
        ring.handle(record(text))
    assert [(line.number, line.message) for line in ring.after(1)] == [(2, "two"), (3, "three")]
    assert ring.after(3) == []


def test_a_line_says_where_it_comes_from_and_cannot_forge_another() -> None:
    ring = LogRing()
    ring.handle(record("a\nb\x1b[31m", logging.WARNING))
    (line,) = ring.after(0)
    assert (line.level, line.logger, line.message) == ("warning", "courser.example", "a\\nb\\x1b[31m")


def test_memory_is_bounded() -> None:
    ring = LogRing()
    for _ in range(2_500):
        ring.handle(record("x" * 5_000))
    lines = ring.after(0)
    assert len(lines) == 2_000
    assert lines[-1].number == 2_500
    assert len(lines[0].message) == 2_000
