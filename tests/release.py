"""Builds the archives of a release: source, a wheel for each platform, and a wheel without compiled code.

``make release`` runs this, and then ``tests/test_release.py`` on what it has built. One compiler per platform must be
on the path; on Debian, the package ``gcc-aarch64-linux-gnu`` has the one for ARM. Each compiled wheel is checked by the
tools of others: ``auditwheel`` reads which C library it needs, and ``abi3audit`` which functions of Python it calls.
"""

import argparse
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.wheels import Builder, Environment, make_builder, make_environment, run

AUDITORS = ("abi3audit>=0.0.25", "auditwheel~=6.8")
C_LIBRARY = (2, 17)
"""The oldest glibc that the wheels run with: that of manylinux2014."""
PURE_PLATFORM = "any"


@dataclass(frozen=True)
class Target:
    """A processor, and what compiles for it."""

    processor: str

    @property
    def platform(self) -> str:
        major, minor = C_LIBRARY
        return f"manylinux_{major}_{minor}_{self.processor}"

    @property
    def compiler(self) -> str:
        return f"{self.processor}-linux-gnu-gcc"


TARGETS = (Target("x86_64"), Target("aarch64"))


def build(directory: Path, builder: Builder) -> list[Path]:
    """All archives of a release; the compiled wheels are last."""
    missing = [target.compiler for target in TARGETS if shutil.which(target.compiler) is None]
    if missing:
        sys.exit(f"not on the path: {', '.join(missing)}; Debian's package is gcc-aarch64-linux-gnu for ARM")
    sdist = builder.make_sdist(directory)
    builds = [(PURE_PLATFORM, "cc"), *((target.platform, target.compiler) for target in TARGETS)]
    wheels = []
    for platform, compiler in builds:
        with tempfile.TemporaryDirectory(prefix="courser-wheel-") as name:
            variables = {"COURSER_WHEEL_PLATFORM": platform, "CC": compiler}
            wheels.append(Path(shutil.move(builder.make_wheel(sdist, Path(name), variables), directory)))
    return [sdist, *wheels]


def audit(wheel: Path, auditors: Environment) -> None:
    """Fail unless the wheel runs where its name says that it does."""
    tools = auditors.directory / "bin"
    run(tools / "abi3audit", "--strict", "--assume-minimum-abi3", "3.11", wheel)
    shown = run(tools / "auditwheel", "show", wheel).stdout
    found = re.search(r'following platform tag:\s*"manylinux_(\d+)_(\d+)_(\w+)"', shown)
    if found is None or (int(found[1]), int(found[2])) > C_LIBRARY or not wheel.stem.endswith(found[3]):
        sys.exit(f"{wheel.name} does not run where its name says: {shown}")


def main() -> None:
    """Build into an empty directory, and check."""
    parser = argparse.ArgumentParser(description="Build the archives of a release.")
    parser.add_argument("directory", type=Path, help="where they go; what is there is removed first")
    directory: Path = parser.parse_args().directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="courser-release-") as name:
        archives = build(directory, make_builder(Path(name) / "builder"))
        auditors = make_environment(Path(name) / "auditors", *AUDITORS)
        for wheel in archives[-len(TARGETS) :]:
            audit(wheel, auditors)
    for archive in archives:
        print(f"{archive.stat().st_size:>10,} {archive.name}")


if __name__ == "__main__":
    main()
