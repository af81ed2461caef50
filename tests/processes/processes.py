"""The processes of a running server."""

from pathlib import Path

from courser.server.crew import WORKER_MODULE
from tests.servers import RunningServer


def children_of(server: RunningServer, module: str = WORKER_MODULE) -> list[int]:
    """The ids of the further processes, in the order of their numbers. ``module`` is what they run."""
    parent = server.process.pid
    found: list[tuple[int, int]] = []
    for path in Path("/proc").iterdir():
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if module.encode() in words:
            place = words.index(module.encode())
            if int(words[place + 1]) == parent:
                found.append((int(words[place + 2]), int(path.name)))
    return [process_id for _, process_id in sorted(found)]


def connection_counts(server: RunningServer) -> list[int]:
    """The number of open connections of each process, the first one first."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        is_here = int(words[1].rpartition(":")[2], 16) == server.port
        if is_here and words[3] == "01":
            inodes.add(words[9])
    counts = []
    for process_id in (server.process.pid, *children_of(server)):
        links = [_target(entry) for entry in Path(f"/proc/{process_id}/fd").iterdir()]
        counts.append(sum(link.removeprefix("socket:[").rstrip("]") in inodes for link in links))
    return counts


def _target(entry: Path) -> str:
    try:
        return entry.readlink().name
    except FileNotFoundError:
        # It was closed since the directory was listed.
        return ""
