"""``courser bench``: put load on a server, show the figures, and compare two runs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from courser.bench.conducting import Arrangement, Conductor, RunState, own_stream
from courser.bench.plan import Mode, Plan, PlanRefused, check_plan
from courser.bench.private_server import ServerFailed, private_server
from courser.bench.results import (
    ALL,
    Comparison,
    MeasuredServer,
    Measurements,
    Result,
    UnreadableResult,
    as_plain,
    compare,
    decode_result,
    differences,
    encode_result,
    machine_facts,
    make_result,
    now_text,
)
from courser.cli.bench_options import mode_parameters, plan_of
from courser.cli.connecting import find_target
from courser.cli.explaining import explain
from courser.cli.failures import Failure, unreadable
from courser.cli.fields import ABSENT, Record, fields
from courser.cli.options import local_command
from courser.cli.output import emit_list, emit_thing
from courser.cli.server_options import server_choice, server_command
from courser.cli.terminal import say
from courser.client.contexts import Resolved
from courser.errors import AlreadyExists, CourserError, NotFound

_TOLERANCE = 0.05
"""The relative difference up to which two runs count as equal."""


# --- a run --------------------------------------------------------------------------------------------


def _mode_command(mode: Mode, text: str, *lines: str) -> click.Command:

    def run(*, output: str, **options: Any) -> None:
        _run(mode, options, output)

    run.__doc__ = text
    command = server_command(mode.value, *lines)(run)
    command.params[:0] = mode_parameters(mode)
    return command


def _run(mode: Mode, options: dict[str, Any], output: str) -> None:
    plan = plan_of(mode, options)
    arrangement = _arrangement(options)
    try:
        check_plan(plan)
    except PlanRefused as refusal:
        raise click.UsageError(refusal.reason, click.get_current_context()) from refusal
    with _server(options) as (resolved, server, directory):
        if output == "table":
            say(_announcement(plan, server))
        facts, started_at = machine_facts(directory), now_text()
        try:
            with _progress() as show:
                outcome = Conductor(plan, resolved.target, arrangement, show).run()
        except AlreadyExists as error:
            hint = "pass --reuse to use the existing stream, or choose another --name"
            raise Failure(str(error), hint) from error
        except NotFound as error:
            raise _not_there(error, resolved, arrangement) from error
        except CourserError as error:
            raise explain(error, resolved) from error
    result = make_result(plan, outcome, started_at=started_at, server=server, machine=facts)
    if options["save"] is not None:
        _save(options["save"], result)
    _emit(result, output, per_actor=options["per_actor"])
    if output == "table" and (missed := _missed_rate(result)) is not None:
        say(f"warning: {missed}; latencies include the delay")


def _missed_rate(result: Result) -> str | None:
    """A warning if the load was lower than requested."""
    plan, group = result.plan, result.groups[0]
    for wanted, reached, unit in (
        (plan.message_rate, group.messages_per_second, "messages/s"),
        (None if plan.rate is None else plan.rate / 1e6, group.megabytes_per_second, "MB/s"),
    ):
        if wanted is not None and reached is not None and reached < wanted * (1 - _TOLERANCE):
            return f"reached only {reached:,.1f} of the requested {wanted:,.1f} {unit}"
    return None


def _arrangement(options: dict[str, Any]) -> Arrangement:
    if options["reuse"] and options["name"] is None:
        raise click.UsageError("--reuse requires --name", click.get_current_context())
    if not options["is_private"] and (options["settings"] or options["server_directory"]):
        raise click.UsageError("--set and --server-directory require --server", click.get_current_context())
    if options["name"] is None:
        return own_stream(keeps=options["keep"])
    return Arrangement(options["name"], options["reuse"], options["keep"])


@contextmanager
def _server(options: dict[str, Any]) -> Iterator[tuple[Resolved, MeasuredServer, Path | None]]:
    """The server to measure, and its data directory if it is known."""
    if not options["is_private"]:
        resolved = find_target()
        yield resolved, MeasuredServer(address=resolved.target.address), None
        return
    choice = server_choice()
    if choice.url is not None or choice.context is not None:
        raise click.UsageError("--server cannot be combined with --url or --context", click.get_current_context())
    settings = list(options["settings"])
    try:
        with private_server(options["server_directory"], settings) as running:
            server = MeasuredServer(address=running.target.address, is_private=True, settings=settings)
            yield Resolved(running.target, "--server"), server, running.data
    except ServerFailed as error:
        raise Failure(error.reason, "for details, run courser serve with the same --set") from error


def _not_there(error: NotFound, resolved: Resolved, arrangement: Arrangement) -> Failure:
    failure = explain(error, resolved)
    if arrangement.reuses:
        failure.hint = f"leave out --reuse: there is no suitable stream {arrangement.stream}"
    return failure


def _announcement(plan: Plan, server: MeasuredServer) -> str:
    producer = "actor" if plan.mode is Mode.END_TO_END else "producer"
    counts = ((plan.producers, producer), (plan.consumers, "consumer"))
    actors = [f"{count} {word}" if count == 1 else f"{count} {word}s" for count, word in counts if count]
    amount = f"{plan.messages:,} messages" if plan.messages is not None else f"{plan.seconds:g} s"
    where = f"a private server at {server.address}" if server.is_private else server.address
    return (
        f"{plan.mode.value} at {where}: {' and '.join(actors)}, "
        f"{amount}, {plan.batch} x {plan.message_size} B per request"
    )


@contextmanager
def _progress() -> Iterator[Callable[[RunState], None]]:
    """A progress bar, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield _show_nothing
        return
    # rich is slow to import: import it only at a terminal.
    from courser.cli.drawing import status_bar  # noqa: PLC0415

    with status_bar("preparing") as show:
        yield lambda state: show(state.step, state.share, _rates(state))


def _show_nothing(state: RunState) -> None:
    """Show no progress: stderr is not a terminal."""


def _rates(state: RunState) -> str:
    if not state.seconds:
        return ""
    found = state.totals
    parts = [
        f"{messages / state.seconds:,.0f}/s {name} ({size / 1e6 / state.seconds:,.0f} MB/s)"
        for name, messages, size in (("in", found.sent, found.sent_size), ("out", found.received, found.received_size))
        if messages and size
    ]
    return ", ".join(parts)


def _save(path: Path, result: Result) -> None:
    try:
        path.write_bytes(encode_result(result))
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}", "choose another file with --save") from error


# --- figures ------------------------------------------------------------------------------------------


def _number(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else ABSENT


def _one_digit(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, int | float) else ABSENT


def _milliseconds(value: object) -> str:
    return f"{value / 1000:,.3f}" if isinstance(value, int | float) else ABSENT


FIGURE_FIELDS = fields(
    "name=who, actors#/6, messages#/4, messages_per_second=messages/s#, megabytes_per_second=MB/s#, mean_us=mean#/7, "
    "p50_us=p50#, p90_us=p90#/5, p95_us=p95#/3, p99_us=p99#, p99_9_us=p99.9#/1, p99_99_us=p99.99#/2, max_us=max#",
    messages=_number,
    messages_per_second=_number,
    megabytes_per_second=_one_digit,
    _us=_milliseconds,
)
_CSV_FIELDS = (*FIGURE_FIELDS, *fields("bytes, requests, empty_polls, seconds, min_us"))


def figure_record(figures: Measurements) -> Record:
    """The figures as one flat record, including the latencies."""
    record: dict[str, object] = msgspec.to_builtins(figures)
    latency = record.pop("latency_us")
    if isinstance(latency, dict):
        record |= {f"{key}_us": value for key, value in latency.items()}
    return record


def _emit(result: Result, output: str, *, per_actor: bool) -> None:
    if output in ("json", "jsonl"):
        emit_thing((), as_plain(result), output)
        return
    shown = [figures for figures in result.groups if figures.name != ALL or len(result.groups) > 2]
    rows = [*(result.actors if per_actor else ()), *shown]
    emit_list(_CSV_FIELDS if output == "csv" else FIGURE_FIELDS, map(figure_record, rows), output)
    if output == "table":
        say("latencies in ms: producers until the acknowledgement, consumers until the messages arrive")


# --- two runs -----------------------------------------------------------------------------------------


def _figure(value: object) -> str:
    if not isinstance(value, int | float):
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}"


def _ratio(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ABSENT


_COMPARISON_FIELDS = fields(
    "group=who, measure, unit/1, first=A#, second=B#, ratio=B / A#, verdict=B is",
    first=_figure,
    second=_figure,
    ratio=_ratio,
)


@local_command(
    "compare",
    "courser bench both --save before.json",
    "courser bench compare before.json after.json",
    exits="Exit codes: 0 compared, 1 a file cannot be read or is not a result, 2 wrong usage.",
)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
def compare_command(*, first: Path, second: Path, output: str) -> None:
    """Show the figures of two saved runs side by side, and the ratio of B to A.

    Differences in settings and machines are listed on stderr: they make the comparison less meaningful.
    """
    results = _read(first), _read(second)
    rows = compare(*results)
    for sentence in differences(*results):
        say(f"warning: {sentence}")
    if not rows:
        raise Failure("the two runs have no figures in common", "compare runs with the same kind of actors")
    emit_list(_COMPARISON_FIELDS, map(_comparison_record, rows), output)


def _read(path: Path) -> Result:
    try:
        return decode_result(path.read_bytes())
    except OSError as error:
        raise unreadable(str(path), error) from error
    except UnreadableResult as error:
        hint = "save a result with courser bench ... --save FILE, or with -o json"
        raise Failure(f"{path} is not a result of courser bench: {error}", hint) from error


def _comparison_record(row: Comparison) -> Record:
    record: dict[str, object] = msgspec.to_builtins(row)
    del record["is_more_better"]
    return {**record, "verdict": _verdict(row)}


def _verdict(row: Comparison) -> str | None:
    if row.ratio is None:
        return None
    if abs(row.ratio - 1) <= _TOLERANCE:
        return "alike"
    return "better" if (row.ratio > 1) is row.is_more_better else "worse"


# --- the modes ----------------------------------------------------------------------------------------

send_command = _mode_command(
    Mode.SEND,
    """Send messages: each producer to a partition of its own.

    Sends as fast as acknowledgements arrive, or at a given rate. Creates the stream of the run and deletes it at the
    end.
    """,
    "courser bench send --seconds 10",
    "courser bench send --producers 8 --batch 1 --message-size 100",
    "courser bench send --server --durability synced --save run.json",
)
poll_command = _mode_command(
    Mode.POLL,
    """Read messages: each consumer from a partition of its own.

    Messages are stored first, which is not measured, and then read again and again.
    """,
    "courser bench poll --seconds 10",
    'courser bench poll --consumers 4 --bytes "10 GB"',
)
both_command = _mode_command(
    Mode.BOTH,
    """Send and read at the same time: each pair of a producer and a consumer has its own partition.

    Also measures the end-to-end time: the age of the oldest message of each poll.
    """,
    "courser bench both --seconds 5",
    'courser bench both --rate-limit "20 MB" --batch 10 -o json',
)
end_to_end_command = _mode_command(
    Mode.END_TO_END,
    """Send a batch, read it back, and send the next: the end-to-end time of a single request.""",
    "courser bench end-to-end --batch 1",
    "courser bench e2e --actors 4 --messages 100000",
)
