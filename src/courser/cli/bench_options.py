"""The options of ``courser bench`` for each mode, and the plan made from them."""

import math
import os
from pathlib import Path
from typing import Any

import click

from courser.bench.plan import Mode, Plan, Spread, WireName, parse_spread
from courser.cli.quantity_words import BYTE_SIZE, DURABILITY
from courser.model.quantities import SECOND, parse_duration

_BALANCED_ACTORS = 4
_BALANCED_PARTITIONS = 8
_SECONDS = 5.0
"""Default duration of a run."""


class _RangeType(click.ParamType[Spread]):
    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A ``Spread``."""
        if not isinstance(value, str):
            return value
        try:
            return parse_spread(value)
        except ValueError as error:
            self.fail(f"expected {error}", param, ctx)


class _SecondsType(click.ParamType[float]):
    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Seconds, as a plain number or with a unit."""
        if not isinstance(value, str):
            return value
        try:
            number = float(value)
        except ValueError:
            try:
                number = parse_duration(value) / SECOND
            except ValueError as error:
                self.fail(f"expected {error}", param, ctx)
        if not 0 <= number < math.inf:
            self.fail('expected a time such as "5" or "1m"', param, ctx)
        return number


_RANGE, _TIME = _RangeType(), _SecondsType()
_COUNT = click.IntRange(min=1)


def mode_parameters(mode: Mode) -> list[click.Option]:
    """Create the options of a mode anew: a click parameter belongs to one command."""
    return [*_actor_options(mode), *_load_options(mode), *_end_options(mode), *_server_options(), *_result_options()]


def _option(*names: str, **settings: Any) -> click.Option:
    return click.Option(names, **settings)


def _count(*names: str, default: int | None, text: str) -> click.Option:
    return _option(*names, type=_COUNT, metavar="N", default=default, show_default=default is not None, help=text)


def _actor_options(mode: Mode) -> list[click.Option]:
    actors = _BALANCED_ACTORS if mode.is_balanced else 1
    options = []
    if mode.is_end_to_end:
        options.append(
            _count(
                "--actors",
                "--producing-consumers",
                "producers",
                default=actors,
                text="Connections that send and poll in turn.",
            )
        )
    else:
        if mode.produces:
            options.append(_count("--producers", default=actors, text="Connections that send."))
        if mode.consumes:
            options.append(_count("--consumers", default=actors, text="Connections that poll."))
    if mode.is_grouped:
        options.append(_count("--groups", default=1, text="Consumer groups of each topic; each reads everything."))
    streams = 1 if mode.is_balanced else None
    text = "Number of streams." if mode.is_balanced else "Number of streams. Default: one for each actor."
    partitions = _BALANCED_PARTITIONS if mode.is_balanced else 1
    return [
        *options,
        _count("--streams", default=streams, text=text),
        _count("--topics", default=1, text="Topics per stream."),
        _count("--partitions", default=partitions, text="Partitions per topic."),
        _option(
            "--processes",
            type=_COUNT,
            metavar="N",
            help="Processes that run the actors. Default: one per core.",
        ),
    ]


def _load_options(mode: Mode) -> list[click.Option]:
    followed = mode.produces and mode.consumes and not mode.is_end_to_end
    limited = "producers together" if followed else "all actors together"
    return [
        _option(
            "-m",
            "--message-size",
            type=_RANGE,
            metavar="SIZE",
            default="1000",
            show_default=True,
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
            show_default=True,
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
    if mode.produces:
        text = "Send this many messages in total."
    elif mode.is_grouped:
        text = "Read about this many messages in total. They are stored first."
    else:
        text = "Read this many messages in total."
    options = [
        _count("--messages", default=None, text=text),
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
            help="Run this long before measuring.",
        ),
    ]
    if not mode.produces:
        text = "The amount of data stored first, for consumers to read"
        text += " once." if mode.is_grouped else " repeatedly, from the page cache."
        options.append(
            _option(
                "--fill",
                "fill_size",
                type=BYTE_SIZE,
                metavar="SIZE",
                default="256 MB",
                show_default=True,
                help=text,
            )
        )
    return options


def _server_options() -> list[click.Option]:
    return [
        _option(
            "--wire",
            type=click.Choice([wire.value for wire in WireName]),
            default=WireName.VSR.value,
            show_default=True,
            help="The protocol: that of SDK 0.9 or of SDK 0.8.",
        ),
        _option(
            "--durability",
            type=DURABILITY,
            default="default",
            show_default=True,
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
        _option("--name", metavar="NAME", help="Name the streams NAME-0 and so on. Default: a unique name."),
        _option("--reuse", is_flag=True, help="With --name: use existing streams with their messages."),
        _option("--keep", is_flag=True, help="Keep the streams at the end."),
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
    producers, consumers = options.get("producers", 1), options.get("consumers", 1)
    actors = producers * (mode.produces or mode.is_end_to_end) + consumers * (mode.consumes and not mode.is_end_to_end)
    # One for each, so that every producer has a consumer and vice versa.
    streams = options["streams"] or (
        min(producers, consumers)
        if mode is Mode.PINNED_PRODUCER_AND_CONSUMER
        else producers
        if mode.produces
        else consumers
    )
    return Plan(
        mode=mode,
        wire=WireName(options["wire"]),
        producers=producers,
        consumers=consumers,
        streams=streams,
        topics=options["topics"],
        partitions=options["partitions"],
        groups=options.get("groups", 1),
        message_size=options["message_size"],
        batch=options["batch"],
        messages=messages,
        seconds=seconds,
        rate=float(options["rate_limit"]) if options["rate_limit"] else None,
        message_rate=options["message_rate"],
        warm_up=options["warm_up"],
        fill_size=options.get("fill_size", 1),
        is_synced=options["durability"] == "synced",
        processes=options["processes"] or max(min(actors, len(os.sched_getaffinity(0))), 1),
    )
