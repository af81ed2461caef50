"""The checks of ``courser doctor``: each turns facts into a state and advice. Pure functions."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from courser.cli.fields import size_text
from courser.cli.machine_facts import DiskSpace, Mount, SyncTimes
from courser.spark.connectors import CONNECTORS, advice

PYTHON_MIN = (3, 11)
_FILES_MIN = 4096
"""With a lower limit, a few hundred partitions and connections reach it."""
_SYNC_SLOW = 0.015
_SYNC_BAD = 0.050
_SYNC_UNBELIEVABLE = 0.000_03
"""Seconds: no disk writes and confirms a block faster than this."""
_SPACE_WARNING = 0.80
_SPACE_PROBLEM = 0.95
_DIRTY_RATIO_MAX = 40
_MEMORY_MIN = 256 * 2**20
"""Bytes: enough for a server and the segments that are being read."""
_MEMORY_SPARK = 2 * 2**30 + 512 * 2**20
"""Bytes: Java's heap of 1 GB, the same again for Java's other memory, and about ten Python processes."""

_HADOOP_JAR = re.compile(r"(hadoop-(?:client-api|aws|azure|gcp))-(\d[\d.]*)\.jar")

_TESTED = ("ext4", "xfs")
_LOCAL = ("btrfs", "zfs", "ext3", "f2fs", "bcachefs")
_VOLATILE = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "glusterfs")


class CheckState(Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One finding of ``courser doctor``."""

    check: str
    state: CheckState
    finding: str
    advice: str = ""


def ok(check: str, finding: str, advice: str = "") -> CheckResult:
    """All is well; ``advice`` may say what would be better."""
    return CheckResult(check, CheckState.OK, finding, advice)


def warning(check: str, finding: str, advice: str) -> CheckResult:
    """A server works, but something could be improved."""
    return CheckResult(check, CheckState.WARNING, finding, advice)


def problem(check: str, finding: str, advice: str) -> CheckResult:
    """A server cannot run well."""
    return CheckResult(check, CheckState.PROBLEM, finding, advice)


def check_python(version: tuple[int, ...], implementation: str, *, is_64_bit: bool) -> CheckResult:
    """Check the version of Python, and whether it has 64 bits."""
    name = f"{implementation} {'.'.join(map(str, version[:3]))}, {'64' if is_64_bit else '32'} bit"
    if version[:2] < PYTHON_MIN:
        return problem("python", name, "install Python 3.11 or newer")
    if not is_64_bit:
        return warning("python", name, "use a 64-bit Python: 64-bit offsets are slow on 32 bits")
    return ok("python", name)


def check_compiled(*, is_compiled: bool) -> CheckResult:
    """The optional part in C."""
    if is_compiled:
        return ok("compiled part", "in use")
    advice = "install a C compiler and Python's headers, then reinstall courser: large sends become faster"
    return warning("compiled part", "not in use, using Python code instead", advice)


def check_directory(path: str, *, exists: bool, is_writable: bool, is_in_use: bool) -> CheckResult:
    """Check whether the server can write its data directory."""
    if not is_writable:
        advice = "run as the user that owns it, or set system.path to a directory that this user can write"
        return problem("data directory", f"{path} is not writable", advice)
    if is_in_use:
        return ok("data directory", f"{path}, in use by a server")
    return ok("data directory", path if exists else f"{path}, will be created at the first start")


def check_file_system(mount: Mount | None) -> CheckResult:
    """Whether the file system is persistent, and tested with Courser."""
    if mount is None:
        return warning("file system", "unknown", "use ext4 or XFS on a local disk")
    name = f"{mount.kind} on {mount.point}"
    if mount.kind in _VOLATILE:
        return problem(
            "file system",
            f"{name}: in memory",
            "move the data to a disk: a restart loses everything",
        )
    if mount.kind == "overlay":
        advice = "mount a volume for the data: this layer is deleted with its container"
        return warning("file system", f"{name}: a container's own layer", advice)
    if mount.kind in _REMOTE or mount.kind.startswith("fuse"):
        advice = "use a local disk: locks and fsync are not reliable over the network"
        return warning("file system", f"{name}: not a local disk", advice)
    if mount.kind in _TESTED:
        return ok("file system", name)
    advice = "use ext4 or XFS: Courser is tested with power cuts on these"
    return CheckResult("file system", CheckState.OK if mount.kind in _LOCAL else CheckState.WARNING, name, advice)


def check_mount_options(mount: Mount | None) -> list[CheckResult]:
    """Mount options that reduce safety or speed."""
    if mount is None:
        return []
    found = [_OPTIONS[option] for option in mount.options if option in _OPTIONS]
    shown = ", ".join(mount.options)
    findings = [CheckResult("mount options", state, shown, advice) for state, advice in found]
    if not {"noatime", "relatime"} & set(mount.options) and "ro" not in mount.options:
        advice = "mount it with noatime: otherwise every read causes a write"
        findings.append(warning("mount options", shown, advice))
    return findings or [ok("mount options", shown)]


_FLUSHES = "mount it without this option: a power cut may lose synced data"
_OPTIONS = {
    "nobarrier": (CheckState.PROBLEM, f"nobarrier: {_FLUSHES}"),
    "barrier=0": (CheckState.PROBLEM, f"barrier=0: {_FLUSHES}"),
    "nobh": (CheckState.WARNING, "nobh: remove this option of old kernels"),
    "data=writeback": (CheckState.WARNING, "data=writeback: use data=ordered, a power cut then does less damage"),
    "sync": (CheckState.WARNING, "sync: remove it, the server syncs what is necessary"),
    "ro": (CheckState.PROBLEM, "ro: mount it writable; the kernel makes it read-only after disk errors"),
}


def check_syncs(times: SyncTimes) -> CheckResult:
    """How fast the server can acknowledge at the level ``synced``."""
    finding = f"median {_milliseconds(times.median)}, longest {_milliseconds(times.longest)} of {times.count}"
    if times.median > _SYNC_BAD:
        advice = "check the disk's health and load (dmesg, iostat -x): each durable send waits that long"
        return problem("fsync", finding, advice)
    if times.median > _SYNC_SLOW:
        advice = "use an SSD for durable topics, or the profile balanced (courser config example balanced)"
        return warning("fsync", finding, advice)
    if times.median < _SYNC_UNBELIEVABLE:
        advice = "make sure that the disk's write cache is protected: no disk is that fast"
        return warning("fsync", finding, advice)
    return ok("fsync", finding)


def check_space(space: DiskSpace) -> CheckResult:
    """Whether the disk has enough free space."""
    finding = f"{size_text(space.free)} of {size_text(space.size)} free"
    if space.used_share > _SPACE_PROBLEM:
        return problem("disk space", finding, "free some space: sends fail when the disk is full")
    if space.used_share > _SPACE_WARNING:
        advice = "add space, or limit topics with message_expiry and max_topic_size"
        return warning("disk space", finding, advice)
    return ok("disk space", finding)


def check_file_limit(soft: int, hard: int) -> CheckResult:
    """The limit of open files. The server raises the soft limit to the hard limit."""
    finding = f"{hard} files at most (ulimit -n is {soft})"
    if hard < _FILES_MIN:
        advice = "raise it: LimitNOFILE=65536 in the systemd unit, or nofile in /etc/security/limits.conf"
        return warning("file limit", finding, advice)
    return ok("file limit", finding)


def check_write_back(dirty_ratio: int | None) -> list[CheckResult]:
    """How much dirty data the kernel may keep in memory."""
    if dirty_ratio is None or dirty_ratio <= _DIRTY_RATIO_MAX:
        return []
    advice = "set it to 20 or less: a larger value loses more unsynced data in a power cut and causes longer stalls"
    return [warning("vm.dirty_ratio", f"{dirty_ratio} percent of memory", advice)]


def check_port(address: str, *, is_taken: bool, refusal: str | None, remedy: str, is_ours: bool) -> CheckResult:
    """Whether the server can listen on its address."""
    if is_ours:
        return ok("port", f"{address}: a Courser or Iggy server is running")
    if is_taken:
        advice = "stop the program that uses the port, or set tcp.address to another port"
        return problem("port", f"{address}: in use by another program", advice)
    if refusal is not None:
        return problem("port", refusal, remedy)
    return ok("port", f"{address}: free")


def check_memory(available: int | None) -> CheckResult:
    """The memory that is available without swapping."""
    if available is None:
        return ok("memory", "unknown: the kernel does not report it")
    finding = f"{size_text(available)} available"
    if available < _MEMORY_MIN:
        return warning("memory", finding, "stop other programs or add memory: reads will be slow")
    if available < _MEMORY_SPARK:
        advice = "enough for a server; Spark jobs need about 2.5 GB more, or another machine (--master)"
        return ok("memory", finding, advice)
    return ok("memory", f"{finding}, enough for Spark too")


def check_package(name: str, version: str | None, wanted: str, *, is_met: bool) -> CheckResult:
    """A package that Spark jobs need and a server does not."""
    if version is None:
        advice = "nothing to do: the commands that need it offer to install it (courser demo, courser pipeline)"
        return ok(name, "not installed, needed only for Spark jobs", advice)
    if not is_met:
        return warning(name, f"{version} is too old for Spark jobs", f"pip install '{wanted}'")
    return ok(name, version)


def check_java(version: int | None, where: str) -> CheckResult:
    """The Java that runs Spark."""
    if version is None:
        advice = "nothing to do: the commands that need it offer to install one (courser demo, courser pipeline)"
        return ok("java", f"no suitable Java for Spark jobs: {where}", advice)
    return ok("java", f"{version}: {where}")


def check_connectors(jars: Iterable[str]) -> list[CheckResult]:
    """The jars with which Spark's own readers, writers and checkpoints reach object stores, by the names of files."""
    versions = {found[1]: found[2] for jar in jars if (found := _HADOOP_JAR.fullmatch(jar))}
    if (hadoop := versions.get("hadoop-client-api")) is None:
        return [ok("spark jars", "the Hadoop of this Spark is not known")]
    results: list[CheckResult] = []
    for scheme, part in CONNECTORS.items():
        name, version = f"spark {scheme}://", versions.get(part)
        if version is None:
            finding = "no jar, which only checkpoints and Spark's own readers and writers need"
            results.append(ok(name, finding, f"if you need it, {advice(scheme, hadoop)}"))
        elif version != hadoop:
            finding = f"{part} {version} does not fit Hadoop {hadoop}"
            results.append(warning(name, finding, advice(scheme, hadoop)))
        else:
            results.append(ok(name, f"{part} {version}"))
    return results


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
