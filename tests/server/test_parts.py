"""The small parts of the server: which codec, how many connections, which signals, which files."""

import asyncio
import logging
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from courser.api.commands import LoginWithToken
from courser.api.replies import LoggedIn
from courser.broker.access.sessions import Session
from courser.catalog.entities import User
from courser.model.messaging import Transport
from courser.model.setting_kinds import Address
from courser.records.classic import Dialect
from courser.server.allocator import find_trim
from courser.server.codecs import CodecChooser, CodecMoves
from courser.server.configuration.loading import load
from courser.server.proven_dialects import ProvenDialects
from courser.server.server import masked_configuration, write_certificate, write_configuration
from courser.server.signals import IGNORED_SIGNALS, Signals
from courser.server.system_limits import connection_count_max, raise_file_limit
from courser.storage.local_files import LocalFileSystem
from courser.transports.settings import ConnectionSettings
from courser.wire.classic import ClassicCodec
from courser.wire.codec import FrameRefused, Incoming
from courser.wire.vsr import VsrCodec
from tests.wire.vsr_0_12 import register

CLASSIC_PING = bytes.fromhex("0400000001000000")


SESSION = Session(1, Transport.TCP, "127.0.0.1:1", now=0)


@pytest.fixture
def proven(tmp_path: Path) -> Iterator[ProvenDialects]:
    with ThreadPoolExecutor(1) as pool:
        yield ProvenDialects(LocalFileSystem(), tmp_path, pool)


def chooser(proven: ProvenDialects, **settings: object) -> CodecChooser:
    names = {0: "iggy", 1: "alice"}
    users = {number: User(number, name, "", True, 0, None, {}) for number, name in names.items()}
    return CodecChooser(
        ConnectionSettings(**settings),  # type: ignore[arg-type]
        verify_frames=False,
        users=users,
        proven=proven,
    )


# --- codecs -------------------------------------------------------------------------------------------


def test_the_first_bytes_decide(proven: ProvenDialects) -> None:
    choose = partial(chooser(proven).choose, session=SESSION)
    assert choose(memoryview(b"")) is None
    assert isinstance(choose(memoryview(CLASSIC_PING)), ClassicCodec)
    assert isinstance(choose(memoryview(bytes(256))), VsrCodec)
    with pytest.raises(FrameRefused):
        choose(memoryview(b"GET / HTTP/1.1\r\n"))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (13 << 10, "127.0.0.1:1: the client ('rust-sdk 0.11.1-edge.5') speaks protocol 0.13.0, which is not supported"),
        ((12 << 10) + 3, "speaks protocol 0.12.3, which is served as 0.12.2, the last one that is known"),
    ],
)
def test_an_unknown_protocol_is_one_line_in_the_log(
    proven: ProvenDialects, caplog: pytest.LogCaptureFixture, version: int, said: str
) -> None:
    request = memoryview(register(version))
    codec = chooser(proven).choose(request, SESSION)
    assert codec is not None
    with caplog.at_level(logging.WARNING):
        codec.decode(request, is_logged_in=False)
    (line,) = caplog.messages
    assert said in line
    # As after a move to another process, it still knows how its client speaks.
    moves = CodecMoves(chooser(proven))
    assert isinstance(codec, VsrCodec)
    facts = pickle.loads(pickle.dumps(moves.pack(codec)))
    moved = moves.unpack(facts, SESSION)
    assert isinstance(moved, VsrCodec)
    assert moved.facts[0] == codec.facts[0]


def test_each_connection_has_its_own(proven: ProvenDialects) -> None:
    choose = partial(chooser(proven).choose, session=SESSION)
    assert choose(memoryview(CLASSIC_PING)) is not choose(memoryview(CLASSIC_PING))


def test_the_dialect_of_a_listener(proven: ProvenDialects) -> None:
    codec = chooser(proven, classic_dialect=Dialect.SDK_0_6).choose(memoryview(CLASSIC_PING), SESSION)
    assert isinstance(codec, ClassicCodec)
    assert codec.dialect is Dialect.SDK_0_6


@pytest.mark.parametrize(("user_id", "dialect"), [(0, Dialect.SDK_0_8), (1, Dialect.SDK_0_5), (7, Dialect.SDK_0_8)])
def test_the_dialect_of_a_user(proven: ProvenDialects, user_id: int, dialect: Dialect) -> None:
    codec = chooser(proven, classic_dialects={"alice": Dialect.SDK_0_5}).choose(memoryview(CLASSIC_PING), SESSION)
    assert isinstance(codec, ClassicCodec)
    assert codec.dialect is Dialect.SDK_0_8
    codec.encode_reply(Incoming(LoginWithToken("token")), LoggedIn(user_id, 1))
    assert codec.dialect is dialect


@pytest.mark.parametrize(("user_id", "dialect"), [(0, Dialect.SDK_0_7), (1, Dialect.SDK_0_5), (7, Dialect.SDK_0_7)])
def test_the_dialect_of_all_users_that_are_not_named(proven: ProvenDialects, user_id: int, dialect: Dialect) -> None:
    settings = {"alice": Dialect.SDK_0_5, "*": Dialect.SDK_0_7}
    codec = chooser(proven, classic_dialects=settings).choose(memoryview(CLASSIC_PING), SESSION)
    assert isinstance(codec, ClassicCodec)
    codec.encode_reply(Incoming(LoginWithToken("token")), LoggedIn(user_id, 1))
    assert codec.dialect is dialect


# --- connections and files ----------------------------------------------------------------------------


def test_half_of_the_descriptors_are_for_connections() -> None:
    assert connection_count_max(10_000, 1_000_000) == 10_000
    assert connection_count_max(10_000, 64) == 32
    assert connection_count_max(10_000, 1) == 1
    assert connection_count_max(10_000, resource.RLIM_INFINITY) == 10_000


@pytest.fixture
def file_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("file_limit")
def test_the_limit_of_open_files_is_raised() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    assert raise_file_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_files_of_a_running_server(tmp_path: Path) -> None:
    configuration = load(settings=["tcp.address=127.0.0.1:0", "system.logging.level=warn"])
    for _ in range(2):
        write_configuration(tmp_path / "runtime", configuration, {Transport.TCP: Address("127.0.0.1", 4711)})
        write_certificate(tmp_path / "runtime", b"pem")
    assert sorted(path.name for path in (tmp_path / "runtime").iterdir()) == [
        "current_config.toml",
        "tcp_certificate.pem",
    ]
    contents = tomllib.loads((tmp_path / "runtime" / "current_config.toml").read_text())
    assert contents["tcp"]["address"] == "127.0.0.1:4711"
    assert contents["system"]["logging"]["level"] == "warn"
    assert stat.S_IMODE((tmp_path / "runtime" / "current_config.toml").stat().st_mode) == 0o600
    assert b'level = "warn"  # --set' in masked_configuration(configuration)


# --- signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU])
async def test_the_first_signal_asks_the_second_ends(number: signal.Signals) -> None:
    exits: list[int] = []
    ended = asyncio.Event()

    def note(code: int) -> None:
        exits.append(code)
        ended.set()

    signals = Signals(on_hang_up=lambda: None, exit_at_once=note)
    try:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.stop.wait(), 60)
        assert exits == []
        os.kill(os.getpid(), number)
        await asyncio.wait_for(ended.wait(), 60)
        assert exits == [128 + number]
    finally:
        signals.close()


@pytest.mark.parametrize("number", IGNORED_SIGNALS)
async def test_a_signal_that_means_nothing_is_ignored_and_logged_once(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    heard = asyncio.Event()
    # Whoever runs the tests may use it.
    before = signal.signal(number, signal.SIG_DFL)
    signals = Signals(on_hang_up=heard.set)
    try:
        for _ in range(3):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(heard.wait(), 60)
        assert not signals.stop.is_set()
        assert len([record for record in caplog.records if "ignoring" in record.getMessage()]) == 1
    finally:
        signals.close()
        signal.signal(number, before)


async def test_a_handler_that_was_there_before_is_left_alone() -> None:
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        Signals(on_hang_up=lambda: None).close()
        assert signal.getsignal(signal.SIGPROF) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGPROF, before)


async def test_a_hang_up_is_no_end() -> None:
    heard = asyncio.Event()
    signals = Signals(on_hang_up=heard.set)
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(heard.wait(), 60)
        assert not signals.stop.is_set()
    finally:
        signals.close()


# --- memory -------------------------------------------------------------------------------------------


def test_freed_memory_can_be_given_back() -> None:
    trim = find_trim()
    is_glibc = "CS_GNU_LIBC_VERSION" in os.confstr_names
    assert (trim is not None) == is_glibc
    if trim is not None:
        trim()


_REPLIES = """
import resource
from courser.server.allocator import prepare_heap

def replies():
    for _ in range(20):
        blocks = [bytearray(1_060_000) for _ in range(8)]
        del blocks

def fault_count():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

prepare_heap()
replies()
before = fault_count()
replies()
print(fault_count() - before)
"""


def test_the_memory_of_large_replies_is_kept_for_the_next_ones() -> None:
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return
    # A process of its own: the allocator remembers the largest block that was ever freed.
    ran = subprocess.run([sys.executable, "-c", _REPLIES], stdout=subprocess.PIPE, text=True, check=True)
    assert int(ran.stdout) < 1000, "if memory was returned in between, there would be 40,000"
