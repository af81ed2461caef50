"""Parameter types for sizes, durations, points in time and durability."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from courser.client.messages import PollingStrategy, microseconds
from courser.model.quantities import (
    parse_byte_size,
    parse_duration,
    parse_expiry,
)
from courser.model.topic_options import COMPRESSIONS, TOPIC_OPTIONS, OptionKind


class Quantity(click.ParamType[Any]):
    """A text that a parser accepts. The parser's error says which form it expects."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text, or fail with a message that names the expected form."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"expected {error}", param, ctx)


class OptionChoice(click.Choice[str]):
    """A word for an option of topics. Iggy's words are accepted, but not offered."""

    def __init__(self, kind: OptionKind) -> None:
        super().__init__(tuple(kind.own_words))
        self._own_words = {theirs: word for word, theirs in kind.own_words.items()}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word in Courser's terms."""
        return super().convert(self._own_words.get(value, value), param, ctx)


DURATION = Quantity("duration", parse_duration)
BYTE_SIZE = Quantity("size", parse_byte_size)
DURABILITY = OptionChoice(TOPIC_OPTIONS["durability"].kind)
COMPRESSION = click.Choice(tuple(COMPRESSIONS))


def expiry_of(words: tuple[str, ...]) -> int | None:
    """Parse several words as one duration: ``7 days``, ``1day 1hour``. None if there are no words.

    Raises:
        click.UsageError: the words are not a duration.
    """
    text = " ".join(words)
    try:
        return parse_expiry(text) if text else None
    except ValueError as error:
        raise click.UsageError(f"EXPIRY: expected {error}", click.get_current_context(silent=True)) from None


class StartingPointType(click.ParamType[PollingStrategy | str]):
    """``earliest``, ``latest``, an offset, a time of day, a date, or how long ago."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The strategy for the first poll, or ``LATEST``: only messages that arrive later."""
        if not isinstance(value, str):
            return value
        word = value.strip()
        if word == "earliest":
            return PollingStrategy.First()
        if word == "latest":
            return LATEST
        if word.isascii() and word.isdigit():
            return PollingStrategy.Offset(int(word))
        moment = parse_time(word)
        if moment is None:
            expected = "earliest, latest, an offset, a time (2026-01-31T12:00, 12:00) or how long ago (10m, 2h)"
            self.fail(f'expected {expected}, not "{word[:60]}"', param, ctx)
        return PollingStrategy.Timestamp(moment)


LATEST = "latest"
START = StartingPointType()


def parse_time(text: str, now: int | None = None) -> int | None:
    """Microseconds since 1970: an ISO date and time (local unless it has a zone), a time of today, or how long ago."""
    present = time.time_ns() // 1000 if now is None else now
    for candidate in (text, f"{datetime.fromtimestamp(present / 1_000_000).astimezone():%Y-%m-%d}T{text}"):
        try:
            return microseconds(datetime.fromisoformat(candidate))
        except (ValueError, OverflowError):
            continue
    try:
        return max(0, present - parse_duration(text.removeprefix("-").removesuffix("ago").strip()))
    except ValueError:
        return None
