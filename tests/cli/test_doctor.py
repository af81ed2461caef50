"""``courser doctor``: every finding has an advice, unless all is well."""

import json
import re
import socket
from pathlib import Path

import pytest

from courser.cli import machine_checks as checks
from courser.cli import machine_facts as facts
from courser.cli.machine_checks import CheckResult, CheckState
from courser.cli.machine_facts import DiskSpace, Mount, SyncTimes
from courser.cli.main import run
from tests.cli.commands import on_a_terminal
from tests.servers import RunningServer

GIB = 2**30


def mount(kind: str = "ext4", *options: str) -> Mount:
    return Mount("/data", kind, "/dev/sda1", options or ("rw", "relatime"))


@pytest.mark.parametrize(
    ("finding", "state", "word"),
    [
        (checks.check_python((3, 11, 2), "CPython", is_64_bit=True), CheckState.OK, ""),
        (checks.check_python((3, 10, 9), "CPython", is_64_bit=True), CheckState.PROBLEM, "3.11"),
        (checks.check_python((3, 12, 0), "CPython", is_64_bit=False), CheckState.WARNING, "64-bit"),
        (checks.check_compiled(is_compiled=True), CheckState.OK, ""),
        (checks.check_compiled(is_compiled=False), CheckState.WARNING, "compiler"),
        (checks.check_directory("d", exists=True, is_writable=True, is_in_use=False), CheckState.OK, ""),
        (checks.check_directory("d", exists=False, is_writable=True, is_in_use=False), CheckState.OK, ""),
        (checks.check_directory("d", exists=True, is_writable=True, is_in_use=True), CheckState.OK, ""),
        (
            checks.check_directory("d", exists=True, is_writable=False, is_in_use=False),
            CheckState.PROBLEM,
            "system.path",
        ),
        (checks.check_file_system(mount()), CheckState.OK, ""),
        (checks.check_file_system(mount("xfs")), CheckState.OK, ""),
        (checks.check_file_system(mount("btrfs")), CheckState.OK, "power cuts"),
        (checks.check_file_system(mount("exfat")), CheckState.WARNING, "power cuts"),
        (checks.check_file_system(mount("tmpfs")), CheckState.PROBLEM, "move the data"),
        (checks.check_file_system(mount("overlay")), CheckState.WARNING, "volume"),
        (checks.check_file_system(mount("nfs4")), CheckState.WARNING, "local disk"),
        (checks.check_file_system(mount("fuse.sshfs")), CheckState.WARNING, "local disk"),
        (checks.check_file_system(None), CheckState.WARNING, "ext4"),
        (checks.check_syncs(SyncTimes(0.002, 0.01, 30)), CheckState.OK, ""),
        (checks.check_syncs(SyncTimes(0.02, 0.05, 30)), CheckState.WARNING, "SSD"),
        (checks.check_syncs(SyncTimes(0.2, 0.5, 3)), CheckState.PROBLEM, "dmesg"),
        (checks.check_syncs(SyncTimes(0.000_01, 0.001, 30)), CheckState.WARNING, "write cache"),
        (checks.check_space(DiskSpace(100 * GIB, 50 * GIB)), CheckState.OK, ""),
        (checks.check_space(DiskSpace(100 * GIB, 10 * GIB)), CheckState.WARNING, "message_expiry"),
        (checks.check_space(DiskSpace(100 * GIB, GIB)), CheckState.PROBLEM, "free some space"),
        (checks.check_file_limit(1024, 1024 * 1024), CheckState.OK, ""),
        (checks.check_file_limit(1024, 1024), CheckState.WARNING, "LimitNOFILE"),
        (checks.check_memory(8 * GIB), CheckState.OK, ""),
        (checks.check_memory(GIB), CheckState.OK, "Spark"),
        (checks.check_memory(GIB // 8), CheckState.WARNING, "add memory"),
        (checks.check_memory(None), CheckState.OK, ""),
        (checks.check_package("pyspark", "4.3.0", "pyspark>=4.3", is_met=True), CheckState.OK, ""),
        (checks.check_package("pyspark", None, "pyspark>=4.3", is_met=False), CheckState.OK, "courser demo"),
        (checks.check_package("pyspark", "3.5", "pyspark>=4.3", is_met=False), CheckState.WARNING, "'pyspark>=4.3'"),
        (checks.check_java(17, "/usr/bin/java (PATH)"), CheckState.OK, ""),
        (checks.check_java(None, "none is on the path"), CheckState.OK, "courser demo"),
        (checks.check_port("h:1", is_taken=False, refusal=None, remedy="", is_ours=False), CheckState.OK, ""),
        (checks.check_port("h:1", is_taken=True, refusal="in use", remedy="", is_ours=True), CheckState.OK, ""),
        (
            checks.check_port("h:1", is_taken=True, refusal="x", remedy="y", is_ours=False),
            CheckState.PROBLEM,
            "tcp.address",
        ),
        (
            checks.check_port("h:1", is_taken=False, refusal="x", remedy="do y", is_ours=False),
            CheckState.PROBLEM,
            "do y",
        ),
    ],
)
def test_what_is_found_and_what_to_do(finding: CheckResult, state: CheckState, word: str) -> None:
    assert finding.state is state
    assert word in finding.advice
    assert finding.finding
    assert finding.advice or state is CheckState.OK


@pytest.mark.parametrize(
    ("hadoop", "bundle"),
    [
        ("3.4.1", "bundle-2.24.6.jar"),
        ("3.4.2", "bundle-2.29.52.jar and analyticsaccelerator-s3-1.2.1.jar"),
        ("3.5.0", "bundle-2.35.4.jar and analyticsaccelerator-s3-1.3.1.jar"),
    ],
)
def test_the_jars_for_object_stores_have_the_version_of_sparks_hadoop(hadoop: str, bundle: str) -> None:
    amazon, azure, google = checks.check_connectors([f"hadoop-client-api-{hadoop}.jar", "hadoop-client-api.txt"])
    assert [one.check for one in (amazon, azure, google)] == ["spark s3a://", "spark abfss://", "spark gs://"]
    assert amazon.advice == (
        f"if you need it, set spark.jars.packages to org.apache.hadoop:hadoop-aws:{hadoop}, or put "
        f"hadoop-aws-{hadoop}.jar and {bundle} into a folder and set spark.jars to FOLDER/*.jar"
    )
    assert azure.advice == f"if you need it, set spark.jars.packages to org.apache.hadoop:hadoop-azure:{hadoop}"
    # Hadoop has a part for Google since 3.5.
    assert (f"org.apache.hadoop:hadoop-gcp:{hadoop}" in google.advice) is (hadoop == "3.5.0")


def test_jars_that_are_there_need_no_advice_unless_they_are_of_another_hadoop() -> None:
    jars = ["hadoop-client-api-3.5.0.jar", "hadoop-aws-3.5.0.jar", "hadoop-azure-3.4.1.jar"]
    amazon, azure, _ = checks.check_connectors(jars)
    assert (amazon.state, amazon.finding, amazon.advice) == (CheckState.OK, "hadoop-aws 3.5.0", "")
    assert (azure.state, azure.finding) == (CheckState.WARNING, "hadoop-azure 3.4.1 does not fit Hadoop 3.5.0")
    (unknown,) = checks.check_connectors([])
    assert (unknown.state, unknown.advice) == (CheckState.OK, "")


@pytest.mark.parametrize(
    ("options", "states"),
    [
        (("rw", "noatime"), [CheckState.OK]),
        (("rw", "relatime"), [CheckState.OK]),
        (("rw",), [CheckState.WARNING]),
        (("rw", "relatime", "nobarrier"), [CheckState.PROBLEM]),
        (("rw", "noatime", "data=writeback", "barrier=0"), [CheckState.WARNING, CheckState.PROBLEM]),
        (("ro", "relatime"), [CheckState.PROBLEM]),
    ],
)
def test_mount_options(options: tuple[str, ...], states: list[CheckState]) -> None:
    assert [finding.state for finding in checks.check_mount_options(mount("ext4", *options))] == states
    assert checks.check_mount_options(None) == []


def test_write_back() -> None:
    assert checks.check_write_back(20) == checks.check_write_back(None) == []
    assert [finding.state for finding in checks.check_write_back(80)] == [CheckState.WARNING]


def test_memory_is_what_the_kernel_calls_available() -> None:
    assert facts.available_memory("MemTotal: 9 kB\nMemFree:   1 kB\nMemAvailable:    2048 kB\n") == 2**21
    assert facts.available_memory("MemTotal: 9 kB\n") is None
    assert (facts.available_memory() or 0) > 0


def test_the_mount_of_a_directory_is_the_innermost(tmp_path: Path) -> None:
    inner = tmp_path / "data with blanks"
    inner.mkdir()
    table = (
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw,errors=remount-ro\n"
        f"22 21 8:2 / {str(inner).replace(' ', chr(92) + '040')} rw,noatime - xfs /dev/sdb rw,attr2\n"
        "23 21 8:3 / /elsewhere rw - tmpfs tmpfs rw\n"
        "nonsense\n"
    )
    assert facts.find_mount(inner, table) == Mount(str(inner), "xfs", "/dev/sdb", ("rw", "noatime", "attr2"))
    found = facts.find_mount(tmp_path, table)
    assert found is not None
    assert found.kind == "ext4"
    assert facts.find_mount(tmp_path, "") is None


def test_measures_leave_nothing_behind(tmp_path: Path) -> None:
    times = facts.measure_syncs(tmp_path)
    assert 0 < times.median <= times.longest
    assert list(tmp_path.iterdir()) == []
    assert facts.measure_space(tmp_path).size > 0
    assert facts.nearest_directory(tmp_path / "a" / "b") == tmp_path


def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSER_SEED")
    arguments = ["doctor", "--data", str(tmp_path / "data"), "--set", "tcp.address=127.0.0.1:0"]
    code = run([*arguments, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert code == (1 if document["summary"]["state"] == "problem" else 0)
    checked = {finding["check"] for finding in document["findings"]}
    assert {"python", "data directory", "file system", "mount options", "disk space", "fsync", "file limit"} <= checked
    assert {"java", "pyspark", "pyarrow", "memory"} <= checked
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out.startswith("CHECK")
    assert "server" in err


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_cuts_nothing_off(columns: int, tmp_path: Path) -> None:
    """The rows wrap at the edge, and between words: none is longer than the terminal, and none has lost its advice."""
    free = ["--set", "tcp.address=127.0.0.1:0", "--set", "websocket.address=127.0.0.1:0"]
    arguments = ["doctor", "--data", str(tmp_path), *free]
    code, text = on_a_terminal(arguments, columns=columns, environment={"COURSER_NONE": "1"})
    assert code == 0
    plain = re.sub(r"\x1b\[[\d;]*m|\r", "", text)
    assert max(map(len, plain.splitlines()[:-1])) <= columns
    whole = " ".join(plain.split())
    for words in ("compiled part", "data directory", "mount options", "warning", "prints each value and its source"):
        assert words in whole


def test_ports(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    def port_finding(address: str) -> dict[str, str]:
        run(["doctor", "--set", f"tcp.address={address}", "-o", "jsonl"])
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        found: dict[str, str] = next(row for row in rows if row.get("check") == "port")
        return found

    assert "server is running" in port_finding(server.address)["finding"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert "in use by another program" in port_finding(address)["finding"]
    assert port_finding(address)["state"] == "ok"
    assert port_finding("192.0.2.1:8090")["state"] == "problem"


def test_the_ports_of_other_transports(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as stream,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram,
    ):
        datagram.bind(("127.0.0.1", 0))
        taken = {
            "websocket": f"127.0.0.1:{stream.getsockname()[1]}",
            "quic": f"127.0.0.1:{datagram.getsockname()[1]}",
        }
        settings = ["tcp.address=127.0.0.1:0", "quic.enabled=true"]
        settings += [f"{name}.address={address}" for name, address in taken.items()]
        arguments = [word for setting in settings for word in ("--set", setting)]
        assert run(["doctor", *arguments, "-o", "jsonl"]) == 1
    rows = {row.get("check"): row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    for name, check in (("websocket", "WebSocket port"), ("quic", "QUIC port")):
        assert rows[check]["state"] == "problem"
        assert taken[name] in rows[check]["finding"]
        assert f"{name}.address" in rows[check]["advice"]


def test_a_directory_in_use(server: RunningServer) -> None:
    assert facts.is_locked(server.data / "lock")
    assert not facts.is_locked(server.data / "nothing")


def test_a_directory_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data", "/proc/self/nothing", "-o", "csv"]) == 1
    assert "problem" in capsys.readouterr().out


def test_a_configuration_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--set", "tcp.adress=1"]) == 2
    assert "tcp.address" in capsys.readouterr().err
