"""The figures as Markdown tables and as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.contenders import Contender, Role
from benchmarks.peers.loads import (
    CPU_1,
    CPU_8,
    CPU_64,
    MEASURES,
    POLL_1,
    POLL_8,
    SEND_1,
    SEND_8,
    SEND_MIXED,
    SEND_SMALL,
    SINGLE_1,
    SINGLE_8,
    SINGLE_64,
    SINGLE_POLL,
    Measure,
)
from benchmarks.report import format_number

Rounds = Mapping[tuple[str, Measure], Sequence[float | None]]
"""The figure of each round, by contender and measure; None where it failed."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How the new version must compare with the old one."""

    measure: Measure
    must: float
    aim: float | None = None
    wire: str | None = None
    """The only wire that it applies to."""
    is_for_one_process: bool = False
    """Several processes are shown, but not judged."""


GOALS = (
    Goal(SEND_8, 1.15, 1.4),
    Goal(POLL_8, 1.25, 1.5),
    Goal(SINGLE_8, 1.2, 1.5),
    Goal(SINGLE_64, 1.2, 1.5),
    Goal(CPU_8, 0.85, 0.75, is_for_one_process=True),
    Goal(SEND_SMALL, 1.1, 1.2, wire="classic wire"),
    Goal(SEND_MIXED, 1.1, 1.2, wire="classic wire"),
    Goal(SEND_SMALL, 0.97, wire="0.9 wire"),
    Goal(SEND_MIXED, 0.97, wire="0.9 wire"),
    Goal(SEND_1, 0.97),
    Goal(POLL_1, 0.97),
    Goal(SINGLE_1, 0.97),
    Goal(SINGLE_POLL, 0.97),
    Goal(CPU_1, 1 / 0.97, is_for_one_process=True),
    Goal(CPU_64, 1 / 0.97, is_for_one_process=True),
)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table whose first line has the headings."""
    first, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, "| " + " | ".join("---" for _ in lines[0]) + " |", *others])


def with_spread(figures: Sequence[float | None]) -> str:
    """The median, and the least and the greatest figure."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return "failed" if figures else ""
    text = format_number(median(known))
    return text if len(known) == 1 else f"{text} ({format_number(min(known))}..{format_number(max(known))})"


def peers_table(rounds: Rounds, contenders: Sequence[Contender]) -> str:
    """One row for each measure, one column for each contender."""
    lines = [["", *(contender.name for contender in contenders)]]
    for measure in MEASURES:
        cells = [with_spread(rounds.get((contender.name, measure), ())) for contender in contenders]
        if any(cells):
            lines.append([str(measure), *cells])
    lines.append(["an acknowledgement means", *(contender.acknowledged for contender in contenders)])
    return markdown(lines)


def ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
    """Our figure divided by theirs, for each round that has both."""
    pairs = zip(ours, theirs, strict=True)
    return [our / their for our, their in pairs if our is not None and their]


def goals_table(rounds: Rounds, contenders: Sequence[Contender]) -> str:
    """The new version beside the old one, on each wire, with what it must reach."""
    lines = [["", "before", "now / before", "2 processes / before", "must reach", "aim", "verdict"]]
    lines += _goal_lines(rounds, contenders)
    return markdown(lines)


def _goal_lines(rounds: Rounds, contenders: Sequence[Contender]) -> Iterator[list[str]]:
    for goal in GOALS:
        for wire in dict.fromkeys(contender.wire for contender in contenders):
            named = {contender.role: contender.name for contender in contenders if contender.wire == wire}
            if Role.OLD not in named or goal.wire not in (None, wire):
                continue
            old = rounds.get((named[Role.OLD], goal.measure), ())
            found: dict[Role, list[float]] = {
                role: ratios(rounds.get((named[role], goal.measure), ()), old)
                for role in (Role.NEW, Role.NEW_PROCESSES)
                if role in named
            }
            if not any(found.values()):
                continue
            yield [
                f"{goal.measure}, {wire}",
                with_spread(old),
                *(_ratio_cell(found.get(role, [])) for role in (Role.NEW, Role.NEW_PROCESSES)),
                f"{goal.must:.2f}",
                "" if goal.aim is None else f"{goal.aim:.2f}",
                _verdict(goal, found),
            ]


def _ratio_cell(found: Sequence[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f}..{max(found):.2f})" if found else ""


def _verdict(goal: Goal, found: Mapping[Role, Sequence[float]]) -> str:
    """Judge each number of processes: which of them a server uses is up to its user."""
    verdicts = []
    for role, name in ((Role.NEW, "1 process"), (Role.NEW_PROCESSES, "2 processes")):
        if not found.get(role) or (goal.is_for_one_process and role is not Role.NEW):
            continue
        ratio = median(found[role])
        is_met = ratio <= goal.must if goal.measure.unit.is_less_better else ratio >= goal.must
        verdicts.append(f"{name}: {'met' if is_met else 'MISSED'}")
    return ", ".join(verdicts)


def as_json(facts: Mapping[str, str], rounds: Rounds) -> str:
    """Everything, every round."""
    figures: dict[str, dict[str, list[float | None]]] = {}
    for (name, measure), found in rounds.items():
        figures.setdefault(name, {})[str(measure)] = list(found)
    return json.dumps({"machine": dict(facts), "figures": figures}, indent=2, ensure_ascii=False)
