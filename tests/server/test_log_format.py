"""One record, one line, whatever is in it."""

import json
import logging
import sys
from pathlib import Path

import pytest

from courser.server.log_format import JsonFormatter, TextFormatter


def record(message: str, *arguments: object) -> logging.LogRecord:
    made = logging.LogRecord("courser.broker.x", logging.WARNING, "x.py", 1, message, arguments, None)
    made.created = 1_700_000_000.25
    return made


def test_text() -> None:
    line = TextFormatter().format(record("trimmed stream=%d", 3))
    assert line == "2023-11-14T22:13:20.250000Z WARNING courser.broker.x: trimmed stream=3"


def test_json() -> None:
    line = JsonFormatter().format(record("trimmed stream=%d user=%s", 3, "\u20ac"))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "logger": "courser.broker.x",
        "message": "trimmed stream=3 user=\u20ac",
        "stream": 3,
        "user": "\u20ac",
    }


def facts_in_json(message: str, *arguments: object) -> dict[str, object]:
    line = json.loads(JsonFormatter().format(record(message, *arguments)))
    return {name: value for name, value in line.items() if name not in ("time", "level", "logger", "message")}


def test_facts_in_a_message_are_fields_of_a_json_line() -> None:
    message = "segments deleted reason=%s stream=%d load=%.1f path=%s %s"
    facts = facts_in_json(message, "expired", 3, 0.25, Path("/a"), "rest")
    assert facts == {"reason": "expired", "stream": 3, "load": 0.25, "path": "/a"}


def test_what_is_no_fact_stays_in_the_message() -> None:
    assert facts_in_json("100%% of %s, memory=%dMiB used", "all", 5) == {}
    assert facts_in_json("50%% done part=%d", 7) == {"part": 7}
    assert facts_in_json("text with % and name=%s, as somebody else logs it") == {}
    assert facts_in_json("%(stream)d", {"stream": 3}) == {}


def test_no_fact_takes_the_place_of_what_every_line_has() -> None:
    line = json.loads(JsonFormatter().format(record("x level=%s message=%s", "fake", "fake")))
    assert (line["level"], line["message"]) == ("warning", "x level=fake message=fake")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("name", ["a\nERROR forged", "\r", "\x1b[31m", "\u2028", "\ud800", "\x00"])
def test_nobody_forges_a_line(formatter: logging.Formatter, name: str) -> None:
    line = formatter.format(record("login user=%s", name))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_tracebacks(formatter: logging.Formatter) -> None:
    failed = record("failed")
    try:
        raise ValueError("first\n2023-11-14T22:13:20.250000Z ERROR forged")
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *others = formatter.format(failed).splitlines()
    assert "failed" in first
    assert all(line.startswith("    | ") for line in others)
    assert "ValueError" in "".join((first, *others))
