"""``courser demo``: run a sample pipeline with orders, Spark and a lake on this machine."""

import dataclasses
import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import click

from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import fields
from courser.cli.job_support import LocalPath, install_option, prepare_spark, spark_failures, spark_log
from courser.cli.options import local_command, option
from courser.cli.output import emit_list, to_json, write_table
from courser.cli.terminal import flush, say, write
from courser.demo.demonstration import ORDER_COUNT, SEED, DemoResult, WindowSales, run_demo

_ORDER_COUNT_MAX = 1_000_000
"""More would take longer than a demo should."""
_WINDOW_FIELDS = fields(", ".join(field.name for field in dataclasses.fields(WindowSales)))


@local_command(
    "demo",
    "courser demo",
    "courser demo --orders 100000",
    "courser demo --keep shop-demo",
    exits="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.",
)
@option(
    "--orders N",
    "The number of generated orders.",
    "order_count",
    type=click.IntRange(100, _ORDER_COUNT_MAX),
    default=ORDER_COUNT,
)
@option("--seed", "The same seed generates the same orders.", type=int, default=SEED)
@option(
    "--keep DIRECTORY",
    "Keep the server's data, the lake and the checkpoint in this directory. Default: delete everything.",
    type=LocalPath(path_type=Path),
)
@install_option
def demo_command(*, order_count: int, seed: int, keep: Path | None, output: str) -> None:
    """Run a small data pipeline: a server, orders, a windowed aggregation on Spark, and a lake.

    Starts a private server on a free loopback port and sends the orders of an evening to a topic. Spark then sums the
    revenue of every ten minutes into another topic, exactly once, writes all orders to Parquet files and queries these
    for the best sellers. If pyspark or Java is missing, the demo offers to install it; after that it works offline.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise Failure(f"{keep} is not empty", "choose another directory with --keep", ExitCode.USAGE)
    prepare_spark()
    log = (keep / "failure.log") if keep is not None else spark_log()
    with spark_failures(log):
        outcome = run_demo(say, order_count=order_count, seed=seed, keep=keep)
    if output == "json":
        document = {**dataclasses.asdict(outcome), "open_count": outcome.open_count}
        write(json.dumps(to_json(document)) + "\n")
        return
    if output != "table":
        emit_list(_WINDOW_FIELDS, map(dataclasses.asdict, outcome.windows), output)
        return
    _show(outcome)
    flush()
    if keep is not None:
        data = keep / "server" / "data"
        say(f"kept in {keep}: the lake, and the server's data: courser serve --set system.path={data}  (iggy / iggy)")


def _show(outcome: DemoResult) -> None:
    from courser.cli.drawing import draw_bars  # noqa: PLC0415 -- rich takes a while to load

    bars = [
        (start.strftime("%H:%M"), cents / 100, f"{cents / 100:,.2f}")
        for start, cents in _revenue_by_window(outcome.windows).items()
    ]
    write("\n")
    flush()
    draw_bars("revenue of every ten minutes, read from the topic shop/revenue", bars)
    write("\n")
    write_table(
        fields("category, orders#, revenue#"),
        (((name, f"{orders:,}", f"{cents / 100:,.2f}"), False) for name, orders, cents in _by_category(outcome)),
    )
    write("\nbest sellers, queried from the Parquet files\n")
    write_table(
        fields("product, city=most in, orders#, revenue#"),
        (
            ((one.product, one.city, f"{one.order_count:,}", f"{float(one.revenue):,.2f}"), False)
            for one in outcome.best
        ),
    )
    write("\n")
    flush()
    closed = outcome.order_count - outcome.open_count
    say(
        f"{outcome.order_count:,} orders: {closed:,} in closed windows, {outcome.open_count:,} in windows that are "
        f"still open for late orders; {outcome.lake_count:,} in the lake"
    )
    say(", ".join(f"{part} {seconds:.1f} s" for part, seconds in outcome.seconds.items()))


def _revenue_by_window(windows: tuple[WindowSales, ...]) -> dict[datetime, int]:
    cents: dict[datetime, int] = defaultdict(int)
    for window in windows:
        cents[datetime.fromisoformat(window.start)] += window.revenue_cents
    return dict(sorted(cents.items()))


def _by_category(outcome: DemoResult) -> list[tuple[str, int, int]]:
    names = sorted({window.category for window in outcome.windows})
    return [
        (
            name,
            sum(window.orders for window in outcome.windows if window.category == name),
            sum(window.revenue_cents for window in outcome.windows if window.category == name),
        )
        for name in names
    ]
