"""The options of ``courser bench`` for each mode, and the plan made from them."""

import math
import os
from pathlib import Path
from typing import Any

import click

from courser.bench.plan import Mode, Plan, parse_spread
from courser.cli.quantity_words import BYTE_SIZE, DURABILITY
from courser.model.quantities import SECOND, parse_duration

_SECONDS = 5.0
"""Default duration of a run."""


class _Text(click.ParamType[Any]):
    """A text that ``parse`` accepts."""

    def __init__(self, name: str, parse: Any) -> None:
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


def _parse_seconds(text: str) -> float:
    """Seconds, as a plain number or with a unit."""
    try:
        number = float(text)
    except ValueError:
        number = parse_duration(text) / SECOND
    if not 0 <= number < math.inf:
        raise ValueError('a time such as "5" or "1m"')
    return number


_RANGE, _TIME = _Text("range", parse_spread), _Text("seconds", _parse_seconds)
_COUNT = click.IntRange(min=1)


def mode_parameters(mode: Mode) -> list[click.Option]:
    """Create the options of a mode anew: a click parameter belongs to one command."""
    return [*_actor_options(mode), *_load_options(mode), *_end_options(mode), *_server_options(), *_result_options()]


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(names, **{"show_default": settings.get("default") is not None, **settings})


def _count(*names: str, default: int | None = None, text: str) -> click.Option:
    return _option(*names, type=_COUNT, metavar="N", default=default, help=text)


def _actor_options(mode: Mode) -> list[click.Option]:
    options = []
    if mode is Mode.END_TO_END:
        options.append(_count("--actors", "producers", default=1, text="Connections that send and poll in turn."))
    if mode in (Mode.SEND, Mode.BOTH):
        options.append(_count("--producers", default=1, text="Connections that send."))
    if mode in (Mode.POLL, Mode.BOTH):
        options.append(_count("--consumers", default=1, text="Connections that poll."))
    return [
        *options,
        _count("--topics", text="Number of topics. Default: one for each actor."),
        _count("--partitions", default=1, text="Partitions per topic."),
        _count("--processes", text="Processes that run the actors. Default: one per core."),
    ]


def _load_options(mode: Mode) -> list[click.Option]:
    limited = "producers together" if mode is Mode.BOTH else "all actors together"
    return [
        _option(
            "-m",
            "--message-size",
            type=_RANGE,
            metavar="SIZE",
            default="1000",
            help='Bytes per message: "1000", "1 KB", or a random size "200..1800".',
        ),
        _option(
            "-P",
            "--batch",
            "--messages-per-batch",
            "batch",
            type=_RANGE,
            metavar="COUNT",
            default="1000",
            help='Messages per request: "1000", or a random count "1..100". Polls request the upper bound.',
        ),
        _option(
            "-r",
            "--rate-limit",
            type=BYTE_SIZE,
            metavar="SIZE",
            help=f'Bytes per second, {limited}: "50 MB". Latencies then include the time a request waited.',
        ),
        _option(
            "--message-rate",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help="The same in messages per second.",
        ),
    ]


def _end_options(mode: Mode) -> list[click.Option]:
    verb = "Send" if mode.produces else "Read"
    options = [
        _count("--messages", text=f"{verb} this many messages in total."),
        _option(
            "-T", "--bytes", "--total-data", "total_size", type=BYTE_SIZE, metavar="SIZE", help="The same by size."
        ),
        _option(
            "-s",
            "--seconds",
            type=_TIME,
            metavar="TIME",
            help=f'Stop after this time: "10", "2m". Default: {_SECONDS:g} seconds.',
        ),
        _option(
            "-w",
            "--warm-up",
            "--warmup-time",
            "warm_up",
            type=_TIME,
            metavar="TIME",
            default="0",
            show_default=False,
            help="Run this long before measuring.",
        ),
    ]
    if mode is Mode.POLL:
        text = "The amount of data stored first, for consumers to read repeatedly, from the page cache."
        options.append(_option("--fill", "fill_size", type=BYTE_SIZE, metavar="SIZE", default="256 MB", help=text))
    return options


def _server_options() -> list[click.Option]:
    return [
        _option(
            "--durability",
            type=DURABILITY,
            default="default",
            help="Durability of the topics. synced: sends are acknowledged after a sync. default: the server's level.",
        ),
        _option(
            "--server",
            "is_private",
            is_flag=True,
            help="Start a server with default settings for this run, and stop it at the end.",
        ),
        _option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="With --server: a server setting, as for courser serve.",
        ),
        _option(
            "--server-directory",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIRECTORY",
            help="With --server: the parent of its data directory. Default: the directory of temporary files.",
        ),
        _option("--name", metavar="NAME", help="The name of the stream. Default: a unique name."),
        _option("--reuse", is_flag=True, help="With --name: use an existing stream with its messages."),
        _option("--keep", is_flag=True, help="Keep the stream at the end."),
    ]


def _result_options() -> list[click.Option]:
    return [
        _option(
            "--save",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write the result to this file as JSON, for courser bench compare.",
        ),
        _option("--per-actor", is_flag=True, help="Show each actor in the table; JSON always includes them."),
    ]


def plan_of(mode: Mode, options: dict[str, Any]) -> Plan:
    """The plan described by the options of a mode."""
    messages, seconds = options["messages"], options["seconds"]
    if options["total_size"] is not None:
        if messages is not None:
            raise click.UsageError("--messages and --bytes cannot be combined", click.get_current_context())
        messages = max(math.ceil(options["total_size"] / options["message_size"].mean), 1)
    if messages is None and seconds is None:
        seconds = _SECONDS
    producers, consumers = options.get("producers", 0), options.get("consumers", 0)
    # With both, every producer has a consumer and vice versa.
    each = min(producers, consumers) if mode is Mode.BOTH else producers + consumers
    return Plan(
        mode=mode,
        producers=producers,
        consumers=consumers,
        topics=options["topics"] or each,
        partitions=options["partitions"],
        message_size=options["message_size"],
        batch=options["batch"],
        messages=messages,
        seconds=seconds,
        rate=float(options["rate_limit"]) if options["rate_limit"] else None,
        message_rate=options["message_rate"],
        warm_up=options["warm_up"],
        fill_size=options.get("fill_size", 0),
        is_synced=options["durability"] == "synced",
        processes=options["processes"] or min(producers + consumers, len(os.sched_getaffinity(0))),
    )
