"""The programs of this directory: which release of which SDK each of them uses, how it is built, how it is started.

Each is built in a copy of its directory, one for every release, so that nothing is left behind in the sources. The
copies stay in ``.languages`` beside ``.venv``: the tool chains know what they have to do again, and a second run is
quick. The first one downloads the SDKs from the package registries, and compiles two of them in Rust for many minutes.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = Path(__file__).resolve().parent
BUILDS = ROOT / ".languages"

PATIENCE = 120.0
"""Seconds that a program may take: five or so, if nothing else goes on."""

NODE_SDK_VARIABLE = "COURSER_NODE_SDK"
"""What npm installs in place of the released package: a directory, an archive."""

CHECKS = (
    "reads on a new connection",
    "wrong password",
    "system",
    "streams and topics",
    "partitions",
    "missing",
    "sending",
    "polling",
    "offsets",
    "groups",
    "users",
    "permissions",
    "tokens",
    "writes for Python",
    "deletes",
    "logout",
)
"""What every program does, in this order."""
CHECKS_WITH_PURGES = (*CHECKS[:-2], "purges", *CHECKS[-2:])
"""The SDKs of Go and Java cannot purge."""
_WAITS = ("waits", "consumer of all partitions", "member that commits on the server")
CHECKS_OF_EDGE_6 = (*CHECKS[:-2], *_WAITS, "reconnects", *CHECKS[-2:])
"""SDK 0.10 cannot purge either, but its reads wait."""
CHECKS_OF_EDGE_9 = (*CHECKS[:-2], *_WAITS, "idempotent producer", "reconnects", *CHECKS[-2:])


@dataclass(frozen=True)
class Program:
    """One program with one release of its SDK."""

    language: str
    release: str
    """Of the SDK, as the others count it."""
    tools: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    start: tuple[str, ...]
    """The command; the address of the server and the transport come behind it."""
    transports: tuple[str, ...] = ("tcp",)
    """Those of the SDK."""
    checks: tuple[str, ...] = CHECKS

    def __str__(self) -> str:
        return f"{self.language}-{self.release}"

    @property
    def directory(self) -> Path:
        """Where it is built and started."""
        return BUILDS / str(self)

    @property
    def missing_tools(self) -> list[str]:
        """What it takes and is not installed."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    def make(self) -> None:
        """Build it, or what has changed of it."""
        shutil.copytree(SOURCES / self.language, self.directory, dirs_exist_ok=True)
        for command in self.build:
            self._run(command)

    def checks_over(self, transport: str) -> tuple[str, ...]:
        """What it does over a transport. Over HTTP nobody is a member of a group; only a TCP connection can be cut."""
        over_http = {"groups", *_WAITS, "idempotent producer", "reconnects"}
        left_out = {"http": over_http, "tcp": set[str]()}.get(transport, {"reconnects"})
        return tuple(check for check in self.checks if check not in left_out)

    def lines(self, address: str, transport: str) -> list[str]:
        """Start it, wait for its end; what it printed."""
        return self._run((*self.start, address, transport), timeout=PATIENCE).splitlines()

    def _run(self, command: tuple[str, ...], timeout: float | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{self}: {' '.join(command)} failed:\n{done.stdout}"
        return done.stdout


def go(release: str) -> Program:
    return Program(
        "go",
        release,
        tools=("go",),
        build=(
            ("go", "mod", "edit", f"-require=github.com/apache/iggy/foreign/go@v{release}"),
            ("go", "mod", "tidy"),
            ("go", "build", "-o", "program", "."),
        ),
        start=("./program",),
    )


def java(release: str) -> Program:
    return Program(
        "java",
        release,
        tools=("java", "mvn"),
        build=(("mvn", "-q", "-B", f"-Dsdk={release}", "compile", "dependency:copy-dependencies"),),
        start=("java", "-cp", f"target/classes{os.pathsep}target/dependency/*", "Program"),
        transports=("tcp", "http"),
    )


def node(release: str) -> Program:
    sdk = os.environ.get(NODE_SDK_VARIABLE, f"apache-iggy@{release}")
    return Program(
        "node",
        release,
        tools=("node", "npm"),
        build=(("npm", "install", "--no-save", "--no-audit", "--no-fund", sdk),),
        start=("node", "program.js"),
        checks=CHECKS_WITH_PURGES,
    )


def rust(release: str) -> Program:
    major, minor, _ = release.split(".")
    return Program(
        "rust",
        release,
        tools=("cargo",),
        build=(("cargo", "build", "--quiet", "--features", f"sdk-{major}-{minor}"),),
        start=("target/debug/program",),
        transports=("tcp", "http", "websocket", "quic"),
        checks=CHECKS_WITH_PURGES,
    )


def rust_preview(edge: int, checks: tuple[str, ...]) -> Program:
    """SDK 0.10 is not released yet: a preview of its crate, which has a manifest of its own."""
    features = "sdk-0-10,idempotence" if "idempotent producer" in checks else "sdk-0-10"
    return Program(
        "rust",
        f"0.10.0-edge.{edge}",
        tools=("cargo",),
        build=(("cp", f"edge-{edge}.toml", "Cargo.toml"), ("cargo", "build", "--quiet", "--features", features)),
        start=("target/debug/program",),
        transports=("tcp", "http", "websocket", "quic"),
        checks=checks,
    )


PROGRAMS = (
    go("0.7.0"),
    go("0.8.0"),
    java("0.8.0"),
    node("0.8.0"),
    rust("0.8.0"),
    rust("0.9.0"),
    rust_preview(6, CHECKS_OF_EDGE_6),
    rust_preview(9, CHECKS_OF_EDGE_9),
)
