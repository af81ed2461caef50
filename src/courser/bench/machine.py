"""Facts about the machine that the results of a run depend on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from courser.records import frame_walk

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
