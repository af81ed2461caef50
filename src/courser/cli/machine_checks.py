"""What ``courser doctor`` makes of the facts: each finding says how good it is and what to do about it. Pure."""

from dataclasses import dataclass
from enum import Enum

from courser.cli.cells import size_text
from courser.cli.machine_facts import Mount, Space, SyncTimes

PYTHON_MIN = (3, 11)
_FILES_MIN = 4096
"""Below it a few hundred partitions and connections meet the limit."""
_SYNC_SLOW = 0.015
_SYNC_BAD = 0.050
_SYNC_UNBELIEVABLE = 0.000_03
"""Seconds: no disk writes a block and confirms it that quickly."""
_SPACE_WARNING = 0.80
_SPACE_PROBLEM = 0.95
_DIRTY_RATIO_MAX = 40
_MEMORY_MIN = 256 * 2**20
"""Bytes: what a server needs for itself and the segments that are read just now."""
_MEMORY_SPARK = 2 * 2**30 + 512 * 2**20
"""Bytes: Java's heap of 1 GB, as much again around it, and some ten Python processes."""

_TESTED = ("ext4", "xfs")
_LOCAL = ("btrfs", "zfs", "ext3", "f2fs", "bcachefs")
_VOLATILE = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "glusterfs")


class State(Enum):
    """How good it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding."""

    check: str
    state: State
    finding: str
    advice: str = ""


def check_python(version: tuple[int, ...], implementation: str, *, is_64_bit: bool) -> Diagnosis:
    """The interpreter."""
    name = f"{implementation} {'.'.join(map(str, version[:3]))}, {'64' if is_64_bit else '32'} bit"
    if version[:2] < PYTHON_MIN:
        return Diagnosis("python", State.PROBLEM, name, "install Python 3.11 or newer")
    if not is_64_bit:
        return Diagnosis("python", State.WARNING, name, "use a 64-bit Python: sizes and offsets need it to be quick")
    return Diagnosis("python", State.OK, name)


def check_compiled(*, is_compiled: bool) -> Diagnosis:
    """The part in C, which is optional."""
    if is_compiled:
        return Diagnosis("compiled part", State.OK, "built")
    advice = "install a C compiler and Python's headers, then install courser again: large sends get quicker"
    return Diagnosis("compiled part", State.WARNING, "not built, Python does its work", advice)


def check_directory(path: str, *, exists: bool, is_writable: bool, is_in_use: bool) -> Diagnosis:
    """The data directory."""
    if not is_writable:
        advice = "run as the user that owns it, or set system.path to a directory that this user may write"
        return Diagnosis("data directory", State.PROBLEM, f"{path} cannot be written", advice)
    if is_in_use:
        return Diagnosis("data directory", State.OK, f"{path}, a server uses it now")
    return Diagnosis("data directory", State.OK, path if exists else f"{path}, will be made at the first start")


def check_file_system(mount: Mount | None) -> Diagnosis:
    """Whether it keeps data, and was tested."""
    if mount is None:
        return Diagnosis("file system", State.WARNING, "unknown", "use ext4 or XFS on a local disk")
    name = f"{mount.kind} on {mount.point}"
    if mount.kind in _VOLATILE:
        return Diagnosis(
            "file system", State.PROBLEM, f"{name}: in memory", "move the data to a disk: all is lost at a restart"
        )
    if mount.kind == "overlay":
        advice = "mount a volume for the data: this layer goes away with its container"
        return Diagnosis("file system", State.WARNING, f"{name}: a container's own layer", advice)
    if mount.kind in _REMOTE or mount.kind.startswith("fuse"):
        advice = "use a local disk: over the network neither locks nor fsync can be relied on"
        return Diagnosis("file system", State.WARNING, f"{name}: not a local disk", advice)
    if mount.kind in _TESTED:
        return Diagnosis("file system", State.OK, name)
    advice = "ext4 and XFS are the ones that are tested with power cuts"
    return Diagnosis("file system", State.OK if mount.kind in _LOCAL else State.WARNING, name, advice)


def check_mount_options(mount: Mount | None) -> list[Diagnosis]:
    """What an option costs, in safety or in speed."""
    if mount is None:
        return []
    found = [_OPTIONS[option] for option in mount.options if option in _OPTIONS]
    shown = ",".join(mount.options)
    findings = [Diagnosis("mount options", state, shown, advice) for state, advice in found]
    if not {"noatime", "relatime"} & set(mount.options) and "ro" not in mount.options:
        advice = "mount it with noatime: every read writes otherwise"
        findings.append(Diagnosis("mount options", State.WARNING, shown, advice))
    return findings or [Diagnosis("mount options", State.OK, shown)]


_FLUSHES = "mount it without this option: a power cut may take data that was synced"
_OPTIONS = {
    "nobarrier": (State.PROBLEM, f"nobarrier: {_FLUSHES}"),
    "barrier=0": (State.PROBLEM, f"barrier=0: {_FLUSHES}"),
    "nobh": (State.WARNING, "nobh: an option of old kernels, leave it out"),
    "data=writeback": (State.WARNING, "data=writeback: use data=ordered, a power cut leaves less damage"),
    "sync": (State.WARNING, "sync: leave it out, the server syncs what has to be synced"),
    "ro": (State.PROBLEM, "ro: mount it for writing; after errors of the disk the kernel makes it read-only"),
}


def check_syncs(times: SyncTimes) -> Diagnosis:
    """How quick acknowledgements at the level ``synced`` can be."""
    finding = f"median {_milliseconds(times.median)}, longest {_milliseconds(times.longest)} of {times.count}"
    if times.median > _SYNC_BAD:
        advice = "look at the disk's health and load (dmesg, iostat -x): each durable send waits that long"
        return Diagnosis("fsync", State.PROBLEM, finding, advice)
    if times.median > _SYNC_SLOW:
        advice = "use an SSD for durable topics, or the profile balanced (courser config example balanced)"
        return Diagnosis("fsync", State.WARNING, finding, advice)
    if times.median < _SYNC_UNBELIEVABLE:
        advice = "make sure that the disk's write cache is protected: no disk is that quick"
        return Diagnosis("fsync", State.WARNING, finding, advice)
    return Diagnosis("fsync", State.OK, finding)


def check_space(space: Space) -> Diagnosis:
    """Whether there is room."""
    finding = f"{size_text(space.free)} of {size_text(space.size)} free"
    if space.used_share > _SPACE_PROBLEM:
        return Diagnosis("disk space", State.PROBLEM, finding, "make room: sends fail when the disk is full")
    if space.used_share > _SPACE_WARNING:
        advice = "add space, or limit topics with message_expiry and max_topic_size"
        return Diagnosis("disk space", State.WARNING, finding, advice)
    return Diagnosis("disk space", State.OK, finding)


def check_file_limit(soft: int, hard: int) -> Diagnosis:
    """How many files and connections fit. The server raises the limit as far as it may."""
    finding = f"{hard} files at most (ulimit -n is {soft})"
    if hard < _FILES_MIN:
        advice = "raise it: LimitNOFILE=65536 in the systemd unit, or nofile in /etc/security/limits.conf"
        return Diagnosis("file limit", State.WARNING, finding, advice)
    return Diagnosis("file limit", State.OK, finding)


def check_write_back(dirty_ratio: int | None) -> list[Diagnosis]:
    """How much the kernel may keep unwritten."""
    if dirty_ratio is None or dirty_ratio <= _DIRTY_RATIO_MAX:
        return []
    advice = "set it to 20 or less: what a power cut takes without fsync grows with it, and so do stalls"
    return [Diagnosis("vm.dirty_ratio", State.WARNING, f"{dirty_ratio} percent of memory", advice)]


def check_port(address: str, *, is_taken: bool, refusal: str | None, remedy: str, is_ours: bool) -> Diagnosis:
    """Where the server would listen."""
    if is_ours:
        return Diagnosis("port", State.OK, f"{address}: a Courser or Iggy server answers")
    if is_taken:
        advice = "stop the program that listens there, or set tcp.address to another port"
        return Diagnosis("port", State.PROBLEM, f"{address}: another program listens", advice)
    if refusal is not None:
        return Diagnosis("port", State.PROBLEM, refusal, remedy)
    return Diagnosis("port", State.OK, f"{address}: free")


def check_memory(available: int | None) -> Diagnosis:
    """What can be had without swapping."""
    if available is None:
        return Diagnosis("memory", State.OK, "unknown: the kernel does not tell")
    finding = f"{size_text(available)} available"
    if available < _MEMORY_MIN:
        return Diagnosis("memory", State.WARNING, finding, "end other programs or add memory: reads will be slow")
    if available < _MEMORY_SPARK:
        advice = "enough for a server; Spark jobs beside it need about 2.5 GB, or another machine (--master)"
        return Diagnosis("memory", State.OK, finding, advice)
    return Diagnosis("memory", State.OK, f"{finding}, enough for Spark too")


def check_package(name: str, version: str | None, wanted: str, *, is_met: bool) -> Diagnosis:
    """A package that Spark jobs need, and that a server does without."""
    if version is None:
        advice = "nothing to do: the commands that need it install it (courser demo, courser pipeline)"
        return Diagnosis(name, State.OK, "not installed, only Spark jobs need it", advice)
    if not is_met:
        return Diagnosis(name, State.WARNING, f"{version} is too old for Spark jobs", f"pip install '{wanted}'")
    return Diagnosis(name, State.OK, version)


def check_java(version: int | None, where: str) -> Diagnosis:
    """What runs Spark."""
    if version is None:
        advice = "nothing to do: the commands that need it install one (courser demo, courser pipeline)"
        return Diagnosis("java", State.OK, f"none that Spark jobs could use: {where}", advice)
    return Diagnosis("java", State.OK, f"{version}: {where}")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
