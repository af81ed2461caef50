"""``courser top``: what the server is doing now, on a page that is drawn anew every few seconds."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable

import click

from courser.cli.connecting import ask_server
from courser.cli.fields import ABSENT, Record, as_size, fields, size_text
from courser.cli.lag import as_age
from courser.cli.options import option
from courser.cli.output import Section, emit_thing
from courser.cli.server_options import server_command
from courser.cli.terminal import flush
from courser.cli.top_figures import Comparison, Reading, figures
from courser.client.client import Client

_ROW_COUNT_MIN = 3
_LINES_OF_TITLE = 2
_TREND_MIN = 0.05
"""Messages per second: a lag that changes less is called steady."""


def _as_rate(value: object) -> str:
    if not isinstance(value, int | float):
        return ABSENT
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"


def _as_size_rate(value: object) -> str:
    return f"{size_text(int(value))}/s" if isinstance(value, int | float) else ABSENT


def _as_milliseconds(value: object) -> str:
    return f"{value:.2f} ms" if isinstance(value, int | float) else ABSENT


def _as_bound(value: object) -> str:
    return f"< {value:.2f} ms" if isinstance(value, int | float) else ABSENT


def _as_percent(value: object) -> str:
    return f"{value * 100:.0f} %" if isinstance(value, int | float) else ABSENT


def _as_trend(value: object) -> str:
    if not isinstance(value, int | float) or abs(value) < _TREND_MIN:
        return "steady"
    return f"{'grows' if value > 0 else 'shrinks'} {abs(value):,.1f}/s"


_FACTS = fields(
    "messages_in_per_second=messages in, bytes_in_per_second=bytes in, messages_out_per_second=messages out, "
    "bytes_out_per_second=bytes out, failures_per_second=failed requests, connections, partitions, "
    "partitions_read_only=read-only partitions, unsynced_size=not synced, disk_used, disk_size, processor, memory, "
    "sync_milliseconds=syncs (p99), loop_delay_milliseconds=event loop delay (p99)",
    bytes_in_per_second=_as_size_rate,
    bytes_out_per_second=_as_size_rate,
    per_second=_as_rate,
    milliseconds=_as_bound,
    disk_used=as_size,
    processor=_as_percent,
)
_SECTIONS = (
    Section(
        "groups",
        fields(
            "stream, topic, group, lag#, lag_seconds=behind#, growth_per_second=trend/1",
            lag_seconds=as_age,
            growth_per_second=_as_trend,
        ),
    ),
    Section(
        "commands",
        fields(
            "command, per_second=rate#, mean_milliseconds=mean#, p99_milliseconds=p99#",
            per_second=_as_rate,
            mean_milliseconds=_as_milliseconds,
            p99_milliseconds=_as_bound,
        ),
    ),
    Section(
        "blocks",
        fields(
            "kind=event loop blocked by, name, per_second=rate#, milliseconds_per_second=time per second#",
            milliseconds_per_second=_as_milliseconds,
            per_second=_as_rate,
        ),
    ),
    Section(
        "topics",
        fields(
            "stream, topic, messages_in_per_second=messages in#, bytes_in_per_second=bytes in#, "
            "bytes_out_per_second=bytes out#/1",
            messages_in_per_second=_as_rate,
            per_second=_as_size_rate,
        ),
    ),
)


@server_command("top", "courser top", "courser top --interval 5", "courser top --once", "courser top -o jsonl")
@option(
    "-i, --interval SECONDS",
    "The time between two readings: rates are averages over it.",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
)
@option("--once", "Print one report and exit. This is the default without a terminal.")
def top_command(*, interval: float, once: bool, output: str) -> None:
    """Show what the server is doing now: rates, lag and its trend, the slowest commands, the disk.

    The page is drawn anew until Ctrl-C. With -o jsonl, one line is printed for each reading. Needs the permission to
    read the server.
    """
    is_page = output == "table" and sys.stdout.isatty() and not once
    is_endless = is_page or (output == "jsonl" and not once)

    def show(record: Record) -> None:
        if is_page:
            click.clear()
        emit_thing(_FACTS, _shortened(record) if output == "table" else record, output, _SECTIONS)
        flush()

    ask_server(lambda client: _watch(client, interval, show, is_endless=is_endless), is_patient=is_endless)


async def _watch(client: Client, interval: float, show: Callable[[Record], None], *, is_endless: bool) -> None:
    before = await _read(client)
    while True:
        await asyncio.sleep(interval)
        after = await _read(client)
        show(figures(Comparison(before, after)))
        if not is_endless:
            return
        before = after


async def _read(client: Client) -> Reading:
    return Reading.of(await client.get_metrics(), time.monotonic())


def _shortened(record: Record) -> Record:
    """With as many rows of each list as fit on the terminal, and a few in any case."""
    room = shutil.get_terminal_size().lines - len(_FACTS) - 1
    count = max(room // len(_SECTIONS) - _LINES_OF_TITLE, _ROW_COUNT_MIN)
    return {key: value[:count] if isinstance(value, list) else value for key, value in record.items()}
