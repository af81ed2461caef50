"""``python -m tests.chaos``: the chaos run of ``make chaos``. Ends with 1 if a promise was broken."""

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.director import Director, Options, Report
from tests.chaos.plan import ARCHIVE_TROUBLES, PROCESS_TROUBLES, Attack, Trouble
from tests.sdk.environments import RELEASES

PURGES, ARCHIVE = "purges", "archive"
"""What can be left out besides troubles and attacks."""
NOTHING = "nothing"
"""The trouble of a run without any."""
UNMENDED = frozenset({Trouble.STOPPED, *PROCESS_TROUBLES} - {Trouble.KILLED_ON_FULL_DISK})
"""Troubles that a run leaves out unless it is told to make them: the server does not cope with them yet."""
SHOWN_MAX = 30
"""Violations that are printed."""


def main() -> int:
    arguments = parse()
    seed = seed_of(arguments.seed)
    directory = Path(tempfile.mkdtemp(prefix="courser-chaos-", dir=arguments.directory))
    with_archive = ARCHIVE not in arguments.without
    options = Options(
        seed=seed,
        seconds=arguments.seconds,
        directory=directory,
        with_disk=os.geteuid() == 0 and Path("/dev/loop-control").exists() and not arguments.without_disk,
        releases=() if arguments.without_sdks else RELEASES,
        troubles=troubles_of(arguments, with_archive=with_archive),
        with_purges=PURGES not in arguments.without,
        attacks=attacks_of(arguments),
        with_archive=with_archive,
    )
    disk = "a small disk of its own" if options.with_disk else "no disk of its own: a full one is pretended"
    say(f"seed {seed}, {options.seconds:.0f} s, {disk}; again with COURSER_SEED={seed}")
    report = Director(options, say).run()
    show(report)
    if report.violations:
        say(
            f"{len(report.violations)} violations with COURSER_SEED={seed}; the evidence is in {directory / 'evidence'}"
        )
        return 1
    shutil.rmtree(directory)
    say(f"every promise was kept; COURSER_SEED={seed}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="a server among all troubles at once")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long; the last episode is played to its end")
    parser.add_argument("--seed", default=os.environ.get("COURSER_SEED", "random"), help="a number, or random")
    parser.add_argument("--directory", type=Path, help="where the data goes while it runs; by default a temporary one")
    parser.add_argument("--without-disk", action="store_true", help="mount no file system, even if it could be done")
    parser.add_argument("--without-sdks", action="store_true", help="without the official SDKs")
    troubles = [NOTHING, *(trouble.name.lower() for trouble in Trouble)]
    parser.add_argument("--only", action="append", default=[], choices=troubles, help="make this trouble alone")
    names = [PURGES, ARCHIVE, *(entry.name.lower() for kind in (Trouble, Attack) for entry in kind)]
    parser.add_argument("--without", action="append", default=[], choices=names, help="leave out one thing")
    return parser.parse_args()


def troubles_of(arguments: argparse.Namespace, *, with_archive: bool) -> tuple[Trouble, ...]:
    chosen = arguments.only or [trouble.name.lower() for trouble in Trouble if trouble not in UNMENDED]
    names = set(chosen) - set(arguments.without)
    return tuple(
        trouble
        for trouble in Trouble
        if trouble.name.lower() in names and (with_archive or trouble not in ARCHIVE_TROUBLES)
    )


def attacks_of(arguments: argparse.Namespace) -> tuple[Attack, ...]:
    if arguments.only and Trouble.STRANGERS.name.lower() not in arguments.only:
        return ()
    return tuple(attack for attack in Attack if attack.name.lower() not in arguments.without)


def seed_of(text: str) -> int:
    return random.SystemRandom().randrange(2**32) if text in ("", "random") else int(text)


def show(report: Report) -> None:
    say(
        f"{report.episode_count} episodes, {report.message_count} messages read and compared, "
        f"{report.restore_count} restores of the archive"
    )
    say(", ".join(f"{what} {count}" for what, count in grouped(report.answer_counts).items()))
    for line in report.measurement.lines():
        say(line)
    for violation in report.violations[:SHOWN_MAX]:
        say(f"VIOLATION {violation}")
    for line in report.story if report.violations else ():
        say(f"  {line}")


def grouped(counts: dict[str, int]) -> dict[str, int]:
    """Without the numbers that stand in some names."""
    found: dict[str, int] = {}
    for text, count in counts.items():
        words = text.split()
        key = f"{words[0]} {words[-1]}"
        found[key] = found.get(key, 0) + count
    return found


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
