"""``courser doctor``: check whether this machine is suitable for a server, and advise what to change."""

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from courser.cli import machine_checks as checks
from courser.cli import machine_facts as facts
from courser.cli import ports
from courser.cli.configuration_options import config_option, configuration_of, set_option
from courser.cli.failures import ExitCode
from courser.cli.fields import fields
from courser.cli.machine_checks import CheckResult, CheckState
from courser.cli.options import local_command, option
from courser.cli.output import Report, emit
from courser.cli.terminal import say
from courser.configuration.key import Key
from courser.configuration.loading import Configuration
from courser.errors import AddressRefused
from courser.model.setting_kinds import Address
from courser.records.frame_walk import is_compiled
from courser.server.configuration.checks import warnings
from courser.server.configuration.settings import PATH
from courser.server.system_limits import check_address
from courser.spark.installing import SPARK_CLIENT, installed_version, requirements_of
from courser.spark.java import JavaMissing, find_java
from courser.storage.paths import LOCK
from courser.transports.settings import (
    HTTP_ADDRESS,
    HTTP_ENABLED,
    QUIC_ADDRESS,
    QUIC_ENABLED,
    TCP_ADDRESS,
    WEBSOCKET_ADDRESS,
    WEBSOCKET_ENABLED,
)

_COLUMNS = fields("check, state, finding, advice")
_COLUMNS_AT_TERMINAL = _COLUMNS[:3]
"""Two columns of sentences do not fit side by side: the advice follows the finding."""


@local_command(
    "doctor",
    "courser doctor",
    "courser doctor --data /var/lib/courser",
    "courser doctor --config server.toml -o json",
    exits="Exit codes: 0 no problem (there may be warnings), 1 a problem was found, 2 wrong usage or configuration.",
)
@config_option
@set_option
@option(
    "--data DIRECTORY", "The data directory, if it differs from the configuration.", type=click.Path(path_type=Path)
)
def doctor_command(*, path: Path | None, settings: tuple[str, ...], data: Path | None, output: str) -> int:
    """Check Python, the disk, limits, ports and the requirements of Spark; give advice for each finding.

    Syncs a small file without a name next to the data a few times. Safe while a server is running.
    """
    configuration = configuration_of(path, settings)
    directory = data or configuration[PATH]
    findings = list(_examine(configuration, Path(directory)))
    worst = [CheckState.OK, CheckState.WARNING, CheckState.PROBLEM][max(_severity(finding) for finding in findings)]
    is_terminal = output == "table" and sys.stdout.isatty()
    emit(
        Report(
            columns=_COLUMNS_AT_TERMINAL if is_terminal else _COLUMNS,
            cells=_cells_at_terminal if is_terminal else _cells,
            rows=findings,
            is_alarming=lambda row: isinstance(row, CheckResult) and row.state is not CheckState.OK,
            head={"directory": str(directory)},
            summary=lambda: {"state": worst},
            names=("examined", "findings"),
        ),
        output,
    )
    if output == "table":
        say(_CONCLUSIONS[worst])
    return ExitCode.FAILED if worst is CheckState.PROBLEM else ExitCode.OK


_CONCLUSIONS = {
    CheckState.OK: "this machine is suitable for a server",
    CheckState.WARNING: "a server works on this machine; the warnings show what could be improved",
    CheckState.PROBLEM: "a server cannot run well on this machine; see the advice",
}


def _severity(finding: CheckResult) -> int:
    return list(CheckState).index(finding.state)


def _cells(row: object) -> tuple[str, ...]:
    assert isinstance(row, CheckResult)
    return row.check, row.state.value, row.finding, row.advice


def _cells_at_terminal(row: object) -> tuple[str, ...]:
    check, state, finding, advice = _cells(row)
    return check, state, f"{finding}; {advice}" if advice else finding


def _examine(configuration: Configuration, directory: Path) -> Iterator[CheckResult]:
    version = tuple(sys.version_info[:3])
    yield checks.check_python(version, platform.python_implementation(), is_64_bit=sys.maxsize > 2**32)
    yield checks.check_compiled(is_compiled=is_compiled)
    yield from _examine_disk(directory)
    yield checks.check_file_limit(*facts.file_limits())
    yield from checks.check_write_back(facts.kernel_number("vm/dirty_ratio"))
    yield checks.check_memory(facts.available_memory())
    yield _examine_port(configuration[TCP_ADDRESS])
    yield from _examine_other_ports(configuration)
    yield from _examine_spark()
    for warning in (*configuration.warnings, *warnings(configuration)):
        yield checks.warning("configuration", warning, "courser config show prints each value and its source")


def _examine_disk(directory: Path) -> Iterator[CheckResult]:
    place = facts.nearest_directory(directory)
    yield checks.check_directory(
        str(directory),
        exists=place == directory.absolute(),
        is_writable=os.access(place, os.W_OK | os.X_OK),
        is_in_use=facts.is_locked(directory / LOCK),
    )
    mount = facts.find_mount(place)
    yield checks.check_file_system(mount)
    yield from checks.check_mount_options(mount)
    try:
        yield checks.check_space(facts.measure_space(place))
        yield checks.check_syncs(facts.measure_syncs(place))
    except OSError as error:
        reason = f"cannot be measured in {place}: {error.strerror or error}"
        yield checks.problem("fsync", reason, "run the command as the user that runs the server")


def _examine_spark() -> Iterator[CheckResult]:
    # An environment has pyspark, or its part for programs beside a Spark server, which need no Java.
    is_client = installed_version("pyspark") is None and installed_version(SPARK_CLIENT) is not None
    for requirement in requirements_of(["connect" if is_client else "spark"]):
        version = installed_version(requirement.name)
        yield checks.check_package(requirement.name, version, requirement.text, is_met=requirement.is_met_by(version))
    if installed := importlib.util.find_spec("pyspark"):
        places = [Path(place, "jars") for place in installed.submodule_search_locations or ()]
        yield from checks.check_connectors(file.name for place in places for file in place.glob("*.jar"))
    if is_client:
        return
    try:
        java = find_java(os.environ, write=False)
    except JavaMissing as missing:
        yield checks.check_java(None, "; ".join(missing.seen))
    else:
        yield checks.check_java(java.version, f"{java.program} ({java.origin})")


def _examine_port(address: Address) -> CheckResult:
    host, port = address.host, address.port
    if not port:
        return checks.check_port("any free port", is_taken=False, refusal=None, remedy="", is_ours=False)
    refusal, remedy = None, ""
    try:
        check_address(address)
    except AddressRefused as error:
        refusal, remedy = error.reason, error.remedy
    # A server that listens on all addresses answers on loopback.
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    is_taken = refusal is not None and ports.listens(reached, port)
    is_ours = is_taken and ports.answers_ping(reached, port)
    return checks.check_port(str(address), is_taken=is_taken, refusal=refusal, remedy=remedy, is_ours=is_ours)


def _examine_other_ports(configuration: Configuration) -> Iterator[CheckResult]:
    if _refusal(configuration, TCP_ADDRESS) is not None:
        # Whatever uses the TCP port probably uses these too, and is reported already.
        return
    for name, is_enabled, address in (
        ("WebSocket port", WEBSOCKET_ENABLED, WEBSOCKET_ADDRESS),
        ("QUIC port", QUIC_ENABLED, QUIC_ADDRESS),
        ("HTTP port", HTTP_ENABLED, HTTP_ADDRESS),
    ):
        if configuration[is_enabled]:
            yield _examine_other_port(name, configuration, address)


def _examine_other_port(name: str, configuration: Configuration, key: Key[Address]) -> CheckResult:
    refusal = _refusal(configuration, key)
    if refusal is not None:
        return checks.problem(name, refusal.reason, refusal.remedy)
    address = configuration[key]
    return checks.ok(name, f"{address}: free" if address.port else "any free port")


def _refusal(configuration: Configuration, key: Key[Address]) -> AddressRefused | None:
    """Why a server could not listen on an address; None if it could."""
    try:
        check_address(configuration[key], key.path, is_udp=key is QUIC_ADDRESS)
    except AddressRefused as refusal:
        return refusal
    return None
