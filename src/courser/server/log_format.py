"""Format one log record as one line: text or JSON. Text from clients is escaped, so that it cannot forge a line.

Facts are part of the message, ``_log.info("rolled stream=%d", 3)``. In JSON they also become separate fields.
"""

import json
import logging
import re
from datetime import UTC, datetime

_TRACE_PREFIX = "\n    | "
_PLACEHOLDER = re.compile(r"(?:\b([a-z_]+)=)?%(?:%|([-+ #0]*\d*(?:\.\d+)?[a-zA-Z]))(?=(\s|$)?)")
"""Matches a placeholder in a message template: the name of the fact, if one precedes it; the format of the value; and
whether the value ends there, without a unit after it."""


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123456Z INFO  courser.server.server: listening address=127.0.0.1:8090``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without the line end. The lines of a traceback follow, indented."""
        text = f"{_time(record)} {record.levelname:<7} {record.name}: {escaped(record.getMessage())}"
        if not record.exc_info and not record.stack_info:
            return text
        return text + "".join(_TRACE_PREFIX + escaped(line) for line in self._trace(record).splitlines())

    def _trace(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        return trace + (f"\n{record.stack_info}" if record.stack_info else "")


class JsonFormatter(TextFormatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, without the line end."""
        contents: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in facts_of(record).items():
            contents.setdefault(name, value)
        if trace := self._trace(record):
            contents["trace"] = trace
        return json.dumps(contents, default=str)


def escaped(text: str) -> str:
    """Text with line ends and control characters escaped."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def facts_of(record: logging.LogRecord) -> dict[str, bool | int | float | str]:
    """The facts that the message contains as ``name=%s``, by name. A value with a unit is not extracted."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return {}
    placeholders = [found for found in _PLACEHOLDER.finditer(record.msg) if found[2] is not None]
    if len(placeholders) != len(record.args):
        return {}
    return {
        placeholder[1]: value if isinstance(value, bool | int | float | str) else str(value)
        for placeholder, value in zip(placeholders, record.args, strict=True)
        if placeholder[1] is not None and placeholder[3] is not None
    }


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
