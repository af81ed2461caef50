"""``python -m benchmarks.peers``: Courser beside other servers, or beside an older checkout of itself.

Iggy's own load generators put the load on Courser and on Iggy's servers. Programs are found by environment variables
(see --help); what is not found is left out. The load generator shares the processors with the server.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import default_directory, fresh_directory
from benchmarks.peers.contenders import VARIABLES, Contender, Role, iggy_contenders, other_contenders
from benchmarks.peers.loads import LOADS, Load, Measure
from benchmarks.peers.report import as_json, goals_table, peers_table
from benchmarks.peers.servers import PeerFailed
from courser.bench.results import machine_facts

_QUICK_SHARE = 0.25


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rounds and print the tables."""
    options = _parser().parse_args(arguments)
    found = list(iggy_contenders(options.baseline, with_own_generator=options.own_generator))
    if not found:
        raise SystemExit(
            "error: no load generator was found; set IGGY_BENCH_08 or IGGY_BENCH_09, or use --own-generator"
        )
    if options.baseline is None:
        found += other_contenders()
    contenders = [contender for contender in found if _is_wanted(contender, options.only)]
    if not contenders:
        raise SystemExit(f"error: nobody is called {' or '.join(options.only)}")
    loads = [load.scaled(options.share) for load in LOADS if not options.load or load.name in options.load]
    directory = options.directory or default_directory()
    facts = machine_facts(directory)
    print("\n".join(f"{name:12} {fact}" for name, fact in facts.items()))
    print(f"{'rounds':12} {options.rounds}; all contenders in turns, each with an empty directory after a sync\n")
    rounds = run_rounds(contenders, loads, directory, options.rounds)
    print(f"{'load':12} {os.getloadavg()[0]:.1f} at the end\n")
    print(peers_table(rounds, contenders))
    if options.baseline is not None:
        print(f"\n{goals_table(rounds, contenders)}")
    if options.json:
        options.json.write_text(as_json(facts, rounds) + "\n")


def run_rounds(
    contenders: Sequence[Contender], loads: Sequence[Load], directory: Path, count: int
) -> dict[tuple[str, Measure], list[float | None]]:
    """Every load for every contender in every round."""
    found: dict[tuple[str, Measure], list[float | None]] = {}
    for number in range(count):
        for load in loads:
            # Whoever comes first finds the caches as the previous load has left them: not always the same one.
            first = number % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                if not contender.generator.covers(load):
                    continue
                figures = _measure(contender, load, directory)
                for measure in filter(None, (load.sent, load.polled, load.cpu)):
                    found.setdefault((contender.name, measure), []).append(figures.get(measure))
    return found


def _measure(contender: Contender, load: Load, directory: Path) -> dict[Measure, float]:
    begin = time.monotonic()
    figures: dict[Measure, float] = {}
    with fresh_directory(directory, load.total_size) as place:
        try:
            with contender.start(place) as server:
                figures = contender.generator.measure(load, server)
        except PeerFailed as failure:
            print(f"{contender.name}, {load.name}: {failure}", file=sys.stderr)
    shown = ", ".join(f"{figure:,.0f} {measure.unit.value}" for measure, figure in figures.items())
    print(f"{contender.name:36} {load.name:10} {time.monotonic() - begin:4.0f} s  {shown}", file=sys.stderr, flush=True)
    return figures


def _is_wanted(contender: Contender, only: Sequence[str] | None) -> bool:
    return not only or any(text.lower() in contender.name.lower() for text in only) or contender.role is Role.OLD


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one")
    return number


def _parser() -> argparse.ArgumentParser:
    variables = "\n".join(f"  {name:16} {text}" for name, text in VARIABLES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        epilog=f"environment variables, each with the path of a program:\n{variables}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [load.name for load in LOADS]
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="another checkout with its own .venv, to compare")
    parser.add_argument("--own-generator", action="store_true", help="our own generator instead of iggy-bench")
    parser.add_argument("--rounds", type=_positive, default=5, help="how often all take turns (5 by default)")
    parser.add_argument("--quick", dest="share", action="store_const", const=_QUICK_SHARE, default=1, help="less load")
    parser.add_argument("--load", action="append", choices=names, help="one load; may be given again")
    parser.add_argument("--only", action="append", metavar="TEXT", help="contenders with this in their name")
    parser.add_argument("--directory", type=Path, help="where to write, on the disk to be measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round there")
    return parser


if __name__ == "__main__":
    main()
