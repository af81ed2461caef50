"""``python -m tests.soak``: the long run of ``make soak``. Ends with 1 if something grew or got lost."""

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.director import USUAL_SHARE, Director, Options
from tests.soak.server_program import PLANTS

SHOWN_MAX = 30
"""Violations that are printed."""


def main() -> int:
    arguments = parse()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed in ("", "random") else int(arguments.seed)
    directory = Path(tempfile.mkdtemp(prefix="courser-soak-", dir=arguments.directory))
    say(f"seed {seed}, {arguments.seconds:.0f} s, load of the machine {os.getloadavg()[0]:.1f}")
    options = Options(
        directory=directory,
        seconds=arguments.seconds,
        seed=seed,
        share=arguments.share,
        process_count=arguments.processes,
        plant=arguments.plant,
    )
    director = Director(options, say)
    try:
        report = director.run()
    except BaseException:
        say(f"the data is in {directory}")
        raise
    for line in report.lines():
        say(line)
    for violation in report.violations[:SHOWN_MAX]:
        say(f"VIOLATION {violation}")
    if report.violations:
        say(f"{len(report.violations)} violations; the data is in {directory}")
        return 1
    shutil.rmtree(directory)
    say("flat, and nothing was lost")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="a server under load for a long time")
    parser.add_argument("--seconds", type=float, default=1_800.0, help="how long to measure, after the warm-up")
    parser.add_argument("--seed", default=os.environ.get("COURSER_SEED", "random"), help="a number, or random")
    parser.add_argument("--share", type=float, default=USUAL_SHARE, help="of the load that the machine can take (0.7)")
    parser.add_argument("--processes", type=int, default=1, help="processes of the server")
    parser.add_argument("--directory", type=Path, help="where the data goes; by default a temporary directory")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="none", help="a defect, to see that it is found")
    return parser.parse_args()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
