"""The options of ``courser bench`` for each mode, and the plan made from them."""

import math
import os
from pathlib import Path
from typing import Any

import click

from courser.bench.plan import Mode, Plan, parse_spread
from courser.cli.options import make_option
from courser.cli.quantity_words import BYTE_SIZE, DURABILITY, Quantity
from courser.model.quantities import parse_seconds

_SECONDS = 5.0
"""Default duration of a run."""


def _parse_seconds(text: str) -> float:
    """Seconds, as a plain number or with a unit."""
    number = parse_seconds(text)
    if not 0 <= number < math.inf:
        raise ValueError('a time such as "5" or "1m"')
    return number


_RANGE, _TIME = Quantity("range", parse_spread), Quantity("seconds", _parse_seconds)
_COUNT = click.IntRange(min=1)


def mode_parameters(mode: Mode) -> list[click.Option]:
    """Create the options of a mode anew: a click parameter belongs to one command."""
    return [*_actor_options(mode), *_load_options(mode), *_end_options(mode), *_server_options(), *_result_options()]


def _actor_options(mode: Mode) -> list[click.Option]:
    options = []
    if mode is Mode.END_TO_END:
        options.append(
            make_option("--actors N", "Connections that send and poll in turn.", "producers", type=_COUNT, default=1)
        )
    if mode in (Mode.SEND, Mode.BOTH):
        options.append(make_option("--producers N", "Connections that send.", type=_COUNT, default=1))
    if mode in (Mode.POLL, Mode.BOTH):
        options.append(make_option("--consumers N", "Connections that poll.", type=_COUNT, default=1))
    return [
        *options,
        make_option("--topics N", "Number of topics. Default: one for each actor.", type=_COUNT),
        make_option("--partitions N", "Partitions per topic.", type=_COUNT, default=1),
        make_option("--processes N", "Processes that run the actors. Default: one per core.", type=_COUNT),
    ]


def _load_options(mode: Mode) -> list[click.Option]:
    limited = "producers together" if mode is Mode.BOTH else "all actors together"
    return [
        make_option(
            "-m, --message-size SIZE",
            'Bytes per message: "1000", "1 KB", or a random size "200..1800".',
            type=_RANGE,
            default="1000",
        ),
        make_option(
            "-P, --batch, --messages-per-batch COUNT",
            'Messages per request: "1000", or a random count "1..100". Polls request the upper bound.',
            "batch",
            type=_RANGE,
            default="1000",
        ),
        make_option(
            "-r, --rate-limit SIZE",
            f'Bytes per second, {limited}: "50 MB". Latencies then include the time a request waited.',
            type=BYTE_SIZE,
        ),
        make_option(
            "--message-rate N", "The same in messages per second.", type=click.FloatRange(min=0, min_open=True)
        ),
    ]


def _end_options(mode: Mode) -> list[click.Option]:
    verb = "Send" if mode.produces else "Read"
    options = [
        make_option("--messages N", f"{verb} this many messages in total.", type=_COUNT),
        make_option("-T, --bytes, --total-data SIZE", "The same by size.", "total_size", type=BYTE_SIZE),
        make_option(
            "-s, --seconds TIME", f'Stop after this time: "10", "2m". Default: {_SECONDS:g} seconds.', type=_TIME
        ),
        make_option(
            "-w, --warm-up, --warmup-time TIME",
            "Run this long before measuring.",
            "warm_up",
            type=_TIME,
            default="0",
            show_default=False,
        ),
    ]
    if mode is Mode.POLL:
        text = "The amount of data stored first, for consumers to read repeatedly, from the page cache."
        options.append(make_option("--fill SIZE", text, "fill_size", type=BYTE_SIZE, default="256 MB"))
    return options


def _server_options() -> list[click.Option]:
    return [
        make_option(
            "--durability",
            "Durability of the topics. synced: sends are acknowledged after a sync. default: the server's level.",
            type=DURABILITY,
            default="default",
        ),
        make_option(
            "--server", "Start a server with default settings for this run, and stop it at the end.", "is_private"
        ),
        make_option(
            "--set KEY=VALUE", "With --server: a server setting, as for courser serve.", "settings", multiple=True
        ),
        make_option(
            "--server-directory DIRECTORY",
            "With --server: the parent of its data directory. Default: the directory of temporary files.",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
        ),
        make_option("--name NAME", "The name of the stream. Default: a unique name."),
        make_option("--reuse", "With --name: use an existing stream with its messages."),
        make_option("--keep", "Keep the stream at the end."),
    ]


def _result_options() -> list[click.Option]:
    return [
        make_option(
            "--save FILE",
            "Write the result to this file as JSON, for courser bench compare.",
            type=click.Path(dir_okay=False, path_type=Path),
        ),
        make_option("--per-actor", "Show each actor in the table; JSON always includes them."),
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
