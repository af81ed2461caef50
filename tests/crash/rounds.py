"""Crash rounds by the thousand: ``python -m tests.crash.rounds --rounds 1000000 [--seed N] [--processes K]``.

Seeds are tried one after another until there were enough rounds. The first failure is printed with its seed, the
command that repeats it and everything that happened; the exit status is then 1.
"""

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator

from tests.simulator.partition_simulation import SimulationFailure, Statistics, simulate

_REPORT_INTERVAL = 20.0
"""Seconds between two lines of progress."""


def run_rounds(first_seed: int, rounds: int) -> Statistics:
    """Run seeds from ``first_seed`` on until there were ``rounds`` rounds."""
    total = Statistics()
    seed = first_seed
    while total.rounds < rounds:
        total.add(simulate(seed))
        seed += 1
    return total


def outcome_of(seed: int) -> Statistics | str:
    """For other processes: the failure as text."""
    try:
        return simulate(seed)
    except SimulationFailure as failure:
        return str(failure)


def outcomes(first_seed: int, processes: int) -> Iterator[Statistics | str]:
    """The outcome of every seed, without end."""
    seeds = iter(range(first_seed, sys.maxsize))
    if processes == 1:
        yield from map(outcome_of, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        while True:
            yield from pool.imap_unordered(outcome_of, [next(seeds) for _ in range(64 * processes)], chunksize=8)


def report(total: Statistics, seconds: float) -> None:
    print(
        f"{total.rounds} rounds in {seconds:.0f} s: {total.rounds / max(seconds, 0.001):.0f} rounds/s, "
        f"{total.acknowledged_count} sends acknowledged",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="the first one; without it, a random one")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    first_seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seeds from {first_seed} on", flush=True)
    total = Statistics()
    began = reported = time.monotonic()
    for outcome in outcomes(first_seed, arguments.processes):
        if isinstance(outcome, str):
            print(outcome)
            return 1
        total.add(outcome)
        if total.rounds >= arguments.rounds:
            break
        if time.monotonic() - reported > _REPORT_INTERVAL:
            reported = time.monotonic()
            report(total, reported - began)
    report(total, time.monotonic() - began)
    for name, count in sorted(total.operations.items()):
        print(f"  {count:>10}  {name}")
    if total.acknowledged_count == 0:
        print("nothing was acknowledged: the run is void")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
