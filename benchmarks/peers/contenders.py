"""Who is compared: servers with the load generators that fit them, as far as their programs are found."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.generating import Release
from benchmarks.peers import kafka, nats, redis, servers
from benchmarks.peers.generator import IggyGenerator, OwnGenerator, StreamGenerator
from benchmarks.peers.loads import Load, Measure
from benchmarks.peers.servers import Running


class Role(Enum):
    """What a contender is compared as."""

    OLD = "old"
    NEW = "new"
    NEW_PROCESSES = "new, 2 processes"
    PEER = "peer"


class Generator(Protocol):
    """Puts a load on a server that has no data yet."""

    def covers(self, load: Load) -> bool: ...

    def measure(self, load: Load, server: Running) -> dict[Measure, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server and what puts load on it."""

    name: str
    role: Role
    wire: str = ""
    """Of contenders on the same wire, the new version is compared with the old one."""
    start: Callable[[Path], AbstractContextManager[Running]]
    generator: Generator
    acknowledged: str
    """What an acknowledgement means there."""


_WRITTEN = "the write call has returned (`written`)"


@dataclass(frozen=True, slots=True)
class Generation:
    """A release of Iggy: its wire, and where its programs are named."""

    wire: str
    release: str
    server_name: str
    generator_variable: str
    server_variable: str
    acknowledged: str


GENERATIONS = (
    Generation(
        "classic wire",
        "0.8",
        "Iggy 0.8",
        "IGGY_BENCH_08",
        "IGGY_SERVER_08",
        "the message is in the server's memory; it is written after 1,024 messages or 1 MiB",
    ),
    Generation(
        "0.9 wire",
        "0.9",
        "Iggy 0.9",
        "IGGY_BENCH_09",
        "IGGY_SERVER_09",
        "the message is in the server's memory; it is written after some more of them",
    ),
)

VARIABLES: Mapping[str, str] = {
    "IGGY_BENCH_08": "iggy-bench of release 0.8",
    "IGGY_BENCH_09": "iggy-bench of release 0.9",
    "IGGY_SERVER_08": "iggy-server of release 0.8",
    "IGGY_SERVER_09": "iggy-server of release 0.9",
    "REDIS_SERVER": "redis-server, with redis-benchmark beside it; otherwise looked for on the PATH",
    "NATS_SERVER": "nats-server; otherwise looked for on the PATH",
    "NATS_CLI": "nats, the command line of NATS; otherwise looked for on the PATH",
    "KAFKA_HOME": "a directory of Kafka, with its libraries in libs; java must be on the PATH",
}


def named_program(variable: str, usual: str | None = None) -> Path | None:
    """The program that an environment variable names, or the usual one on the PATH; None if there is neither.

    Raises:
        SystemExit: there is no such program.
    """
    value = os.environ.get(variable)
    found = shutil.which(value or usual or "")
    if found is None and not value:
        return None
    if found is None:
        raise SystemExit(f"error: {variable}={value} is not a program")
    # Not resolved: some programs are links, and look at the name that they are called by.
    return Path(found).absolute()


def checkout_python(checkout: Path) -> Path:
    """The interpreter of another checkout.

    Raises:
        SystemExit: the checkout has no environment.
    """
    # Not resolved: the link itself says which environment it belongs to.
    python = checkout.absolute() / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"error: {checkout} has no .venv; run make check there")
    return python


def iggy_contenders(baseline: Path | None, *, with_own_generator: bool = False) -> Iterator[Contender]:
    """Courser and Iggy's servers, with the generators that are found, or with our own."""
    for generation in GENERATIONS:
        program = named_program(generation.generator_variable)
        if with_own_generator:
            generator: StreamGenerator = OwnGenerator(Release(generation.release))
        elif program is not None:
            generator = IggyGenerator(program)
        else:
            continue
        ours: list[tuple[str, Role, Path, int]] = [
            ("Courser", Role.NEW, Path(sys.executable), 1),
            ("Courser, 2 processes", Role.NEW_PROCESSES, Path(sys.executable), 2),
        ]
        if baseline is not None:
            ours.insert(0, ("Courser before", Role.OLD, checkout_python(baseline), 1))
        for name, role, python, process_count in ours:
            yield Contender(
                name=f"{name}, {generation.wire}",
                role=role,
                wire=generation.wire,
                start=partial(servers.courser, python, process_count=process_count),
                generator=generator,
                acknowledged=_WRITTEN,
            )
        server = named_program(generation.server_variable)
        if server is not None:
            yield Contender(
                name=generation.server_name,
                role=Role.PEER,
                wire=generation.wire,
                start=partial(servers.iggy, server),
                generator=generator,
                acknowledged=generation.acknowledged,
            )


def other_contenders() -> Iterator[Contender]:
    """Servers with protocols of their own, with their own generators."""
    server = named_program("REDIS_SERVER", "redis-server")
    generator = server.with_name("redis-benchmark") if server is not None else None
    if server is not None and generator is not None and generator.exists():
        yield Contender(
            name="Redis streams",
            role=Role.PEER,
            start=partial(redis.redis, server),
            generator=redis.RedisGenerator(generator),
            acknowledged=redis.ACKNOWLEDGED,
        )
    server, generator = named_program("NATS_SERVER", "nats-server"), named_program("NATS_CLI", "nats")
    if server is not None and generator is not None:
        yield Contender(
            name="NATS JetStream",
            role=Role.PEER,
            start=partial(nats.nats, server),
            generator=nats.NatsGenerator(generator),
            acknowledged=nats.ACKNOWLEDGED,
        )
    home = os.environ.get("KAFKA_HOME")
    if home:
        yield Contender(
            name="Kafka",
            role=Role.PEER,
            start=partial(kafka.kafka, Path(home).absolute()),
            generator=kafka.KafkaGenerator(Path(home).absolute()),
            acknowledged=kafka.ACKNOWLEDGED,
        )
