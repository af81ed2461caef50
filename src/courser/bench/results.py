"""The results of a run as shown and saved: by role, by actor, and in total; and the machine that they depend on."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from courser import __version__
from courser.bench.actors import ActorReport, Part
from courser.bench.conducting import Moment, PhaseResult
from courser.bench.latencies import Latencies, merge
from courser.bench.plan import Plan
from courser.records import frame_walk

FORMAT = "courser-bench/2"
_SECOND = 1_000_000_000
_MICROSECOND = 1_000

PRODUCERS, CONSUMERS, END_TO_END, ALL = "producers", "consumers", "end to end", "all"


class Latency(msgspec.Struct, frozen=True):
    """Latencies in microseconds. Percentiles are at most 0.1 % too high."""

    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    p99_99: float
    max: float


PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999, "p99_99": 0.9999}


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one actor, one role, or all actors."""

    name: str
    actors: int
    messages: int | None = None
    bytes: int | None = None
    """Bytes of payload."""
    requests: int
    """Requests with messages; end to end, messages whose age was measured."""
    empty_polls: int | None = None
    seconds: float | None = None
    """From the start of the first request to the end of the last."""
    messages_per_second: float | None = None
    megabytes_per_second: float | None = None
    """Millions of bytes of payload per second."""
    latency_us: Latency | None = None
    """None if there were no requests."""


class MeasuredServer(msgspec.Struct, frozen=True, kw_only=True):
    """The server that was measured."""

    address: str
    is_private: bool = False
    """Whether it was started for this run."""
    settings: list[str] = []
    """The settings of a private server that differ from the defaults."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run, as ``--save`` writes it."""

    format: str = FORMAT
    courser: str = __version__
    started_at: str
    server: MeasuredServer
    plan: Plan
    machine: dict[str, str]
    """The machine of the load generator."""
    groups: list[Measurements]
    """By role, and in total."""
    actors: list[Measurements]
    timeline: list[Moment]
    """Messages sent and received so far, about once a second."""


class UnreadableResult(ValueError):
    """The file does not contain the result of a run."""


def now_text() -> str:
    """The current time, for ``started_at``."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def make_result(
    plan: Plan, outcome: PhaseResult, *, started_at: str, server: MeasuredServer, machine: dict[str, str]
) -> Result:
    """Compute the results of a run."""
    sent = [(report, report.sent) for report in outcome.reports if report.sent is not None]
    received = [(report, report.received) for report in outcome.reports if report.received is not None]
    ages = [report.end_to_end for report in outcome.reports if report.end_to_end is not None]
    groups, actors = [], []
    for name, parts in ((PRODUCERS, sent), (CONSUMERS, received)):
        if parts:
            groups.append(_figures(name, len(parts), [part for _, part in parts]))
            actors += [_figures(_actor_name(name, report), 1, [part]) for report, part in parts]
    if ages:
        groups.append(_ages(len(ages), ages))
    all_parts = [part for _, part in (*sent, *received)]
    groups.append(_figures(ALL, len(outcome.reports), all_parts))
    return Result(
        started_at=started_at,
        server=server,
        plan=plan,
        machine=machine,
        groups=groups,
        actors=actors,
        timeline=outcome.moments,
    )


def _actor_name(kind: str, report: ActorReport) -> str:
    return f"{kind.removesuffix('s')} {report.task.number}"


def _figures(name: str, actors: int, parts: list[Part]) -> Measurements:
    busy = [part for part in parts if part.requests]
    messages, size = sum(part.messages for part in busy), sum(part.size for part in busy)
    nanoseconds = max((part.end for part in busy), default=0) - min((part.begin for part in busy), default=0)
    seconds = nanoseconds / _SECOND
    return Measurements(
        name=name,
        actors=actors,
        messages=messages,
        bytes=size,
        requests=sum(part.requests for part in busy),
        empty_polls=sum(part.empty for part in parts),
        seconds=seconds,
        messages_per_second=messages / seconds if seconds else 0.0,
        megabytes_per_second=size / 1e6 / seconds if seconds else 0.0,
        latency_us=_latency(merge([part.latencies for part in busy])),
    )


def _ages(actors: int, ages: list[Latencies]) -> Measurements:
    found = merge(ages)
    return Measurements(name=END_TO_END, actors=actors, requests=found.count, latency_us=_latency(found))


def _latency(found: Latencies) -> Latency | None:
    if not found.count:
        return None
    percentiles = {name: found.percentile(share) / _MICROSECOND for name, share in PERCENTILES.items()}
    return Latency(
        mean=found.mean / _MICROSECOND,
        min=found.minimum / _MICROSECOND,
        max=found.maximum / _MICROSECOND,
        **percentiles,
    )


def encode_result(result: Result) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def decode_result(data: bytes) -> Result:
    """Decode what ``encode_result`` wrote.

    Raises:
        UnreadableResult: the data is something else.
    """
    try:
        result = msgspec.json.decode(data, type=Result)
    except msgspec.MsgspecError as error:
        raise UnreadableResult(str(error)) from error
    if result.format != FORMAT:
        raise UnreadableResult(f'the format is "{result.format[:40]}", not "{FORMAT}"')
    return result


def as_plain(result: Result) -> dict[str, object]:
    """Convert it to dictionaries and lists, as in JSON."""
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


# --- two runs -----------------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True):
    """One figure of two runs."""

    group: str
    measure: str
    unit: str
    first: float
    second: float
    ratio: float | None
    """The second divided by the first; None if the first is 0."""
    is_more_better: bool


_SPEEDS = {"messages_per_second": ("messages", "1/s"), "megabytes_per_second": ("payload", "MB/s")}


def compare(first: Result, second: Result) -> list[Comparison]:
    """Compare the figures that both runs have."""
    others = {figures.name: figures for figures in second.groups}
    rows = []
    for figures in first.groups:
        other = others.get(figures.name)
        if other is None:
            continue
        for key, (measure, unit) in _SPEEDS.items():
            rows += _row(figures.name, measure, unit, getattr(figures, key), getattr(other, key), is_more_better=True)
        for key in ("mean", *PERCENTILES, "max"):
            name = key.replace("_", ".")
            ours, theirs = getattr(figures.latency_us, key, None), getattr(other.latency_us, key, None)
            rows += _row(figures.name, name, "us", ours, theirs, is_more_better=False)
    return rows


def _row(
    group: str, measure: str, unit: str, first: float | None, second: float | None, *, is_more_better: bool
) -> list[Comparison]:
    if first is None or second is None:
        return []
    return [Comparison(group, measure, unit, first, second, second / first if first else None, is_more_better)]


def differences(first: Result, second: Result) -> list[str]:
    """Differences in settings and machines that make the runs hard to compare. One sentence each."""
    ours, theirs = msgspec.to_builtins(first.plan), msgspec.to_builtins(second.plan)
    found = [
        f"{key.replace('_', ' ')} differs: {_shown(ours[key])} and {_shown(theirs[key])}"
        for key in ours
        if ours[key] != theirs[key]
    ]
    for key in sorted(first.machine.keys() | second.machine.keys()):
        facts = first.machine.get(key), second.machine.get(key)
        if key != "load" and facts[0] != facts[1]:
            found.append(f"{key} differs: {facts[0]} and {facts[1]}")
    return found


def _shown(value: object) -> str:
    return f"{value['minimum']}..{value['maximum']}" if isinstance(value, dict) else str(value)


# --- the machine --------------------------------------------------------------------------------------

_PACKAGES = ("uvloop", "numpy", "xxhash")


def machine_facts(directory: Path | None = None) -> dict[str, str]:
    """The facts by name; with a directory, also its file system."""
    facts = {
        "cores": str(_usable_cores()),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "frame walk": "compiled" if frame_walk.is_compiled else "in Python",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes)",
    }
    return facts if directory is None else facts | {"file system": _file_system(directory)}


def _usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _file_system(directory: Path) -> str:
    """Type and options of the directory's mount."""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    for mount in mounts:
        fields, _, source = mount.partition(" - ")
        if fields.split()[2] == number:
            return f"{source.split()[0]} ({fields.split()[5]})"
    return "unknown"
