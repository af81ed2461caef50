"""``courser serve`` as a process of its own: start, stop, kill, start again, and every way not to start."""

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from qh3.asyncio.client import connect
from qh3.quic.configuration import QuicConfiguration

import courser
from courser import connect_sync
from courser.server.certificates import make_self_signed
from courser.server.configuration.loading import load
from courser.server.configuration.settings import settings_of
from courser.server.listeners import Listeners
from courser.storage.local_files import LocalFileSystem
from courser.storage.recovery_cases import StopKind
from courser.storage.session_file import how_it_stopped, read_session
from courser.storage.watched_clock import SystemClock
from tests.servers import PATIENCE, RunningServer, free_port
from tests.torture.process import until
from tests.wire.classic_client import frame

COURSER = Path(sys.executable).parent / "courser"
CLASSIC_PING = frame(1)
UNAUTHENTICATED = bytes.fromhex("28000000")
CLASSIC_GOODBYE = bytes.fromhex("0800000000000000")
"""Status 8, disconnected, and no payload."""


def try_to_serve(
    directory: Path, *arguments: str, address: str = "127.0.0.1:0", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Start a server that is expected not to get far."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("IGGY_", "COURSER_"))}
    return subprocess.run(
        [COURSER, "serve", *arguments],
        cwd=directory,
        env={
            **inherited,
            "COURSER_TCP_ADDRESS": address,
            "COURSER_HTTP_ENABLED": "false",
            "COURSER_WEBSOCKET_ENABLED": "false",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def exchange(server: RunningServer, request: bytes, size: int) -> bytes:
    with socket.create_connection((server.host, server.port), PATIENCE) as connection:
        connection.sendall(request)
        return receive(connection, size)


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            break
        received += piece
    return received


def classic_login(name: str, password: str) -> bytes:
    words = b"".join(bytes([len(word)]) + word for word in (name.encode(), password.encode()))
    payload = words + bytes(4) + bytes(4)
    return frame(38, payload)


def can_log_in(server: RunningServer, name: str, password: str) -> bool:
    return exchange(server, classic_login(name, password), 4) == bytes(4)


def wait_for(server: RunningServer, pattern: str) -> str:
    """Wait until the server has printed such words, and return them: a thread writes the log in its own time."""
    until(lambda: re.search(pattern, server.output) is not None, pattern)
    found = re.search(pattern, server.output)
    assert found is not None
    return found[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for tests that only look at it."""
    with RunningServer(tmp_path_factory.mktemp("running")) as server:
        yield server


# --- a life -------------------------------------------------------------------------------------------


def test_a_life_with_a_restart(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    with server:
        assert server.port
        assert exchange(server, CLASSIC_PING, 8) == bytes(8)
        assert can_log_in(server, "iggy", "iggy")
        configuration = tomllib.loads((server.data / "runtime" / "current_config.toml").read_text())
        assert configuration["tcp"]["address"] == server.address
        assert configuration["system"]["path"] == str(server.data)
        assert server.stop() == 0
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN
    assert "last_stop=none" in server.output
    with server:
        assert can_log_in(server, "iggy", "iggy")
        wait_for(server, "last_stop=clean")
    log = (server.data / "logs" / "courser.log").read_text()
    assert log.count("listening transport=tcp") == 2
    assert log.count("stopped clean=True") == 2


def test_after_a_kill_it_starts_again(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    with server:
        server.kill()
        session = read_session(LocalFileSystem(), server.data)
        assert session is not None
        assert not session.is_clean
    with server:
        assert can_log_in(server, "iggy", "iggy")
        wait_for(server, "last_stop=(killed|crashed)")
        assert server.stop() == 0
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN


def test_clients_are_told_that_it_stops(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path) as server,
        socket.create_connection((server.host, server.port), PATIENCE) as connection,
    ):
        connection.sendall(CLASSIC_PING)
        assert receive(connection, 8) == bytes(8)
        server.process.send_signal(signal.SIGINT)
        assert receive(connection, 100) == CLASSIC_GOODBYE
        assert server.process.wait(PATIENCE) == 0


def test_everything_below_the_data_directory_is_private(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        assert server.stop() == 0
    for path in (server.data, *server.data.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_hang_up_is_survived(running: RunningServer) -> None:
    running.process.send_signal(signal.SIGHUP)
    assert exchange(running, CLASSIC_PING, 8) == bytes(8)


CANNOT_BE_CAUGHT = {signal.SIGKILL, signal.SIGSTOP}
OF_A_CRASH = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
}
OF_JOB_CONTROL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
ASKS_FOR_A_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGPWR, signal.SIGXCPU}


def test_no_other_signal_ends_it(tmp_path: Path) -> None:
    others = signal.valid_signals() - CANNOT_BE_CAUGHT - OF_A_CRASH - OF_JOB_CONTROL - ASKS_FOR_A_STOP
    assert {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE} < others
    with RunningServer(tmp_path) as server:
        for number in others:
            server.process.send_signal(number)
        assert exchange(server, CLASSIC_PING, 8) == bytes(8)
        wait_for(server, "ignoring SIGUSR1")
        assert server.stop() == 0
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN


@pytest.mark.parametrize("number", sorted(ASKS_FOR_A_STOP - {signal.SIGTERM}))
def test_signals_that_stop_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with RunningServer(tmp_path) as server:
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN


def test_idle_it_needs_little_memory_and_nothing_that_is_switched_off(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        process = Path("/proc") / str(server.process.pid)
        status = (process / "status").read_text()
        (resident,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
        assert int(resident) < 90 * 1024
        maps = (process / "maps").read_text()
        assert "cryptography" not in maps


# --- the root user ------------------------------------------------------------------------------------


def test_a_generated_password_is_printed_once_and_kept_nowhere(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, arguments=())
    with server:
        (password,) = re.findall(r"\n    user      iggy\n    password  (\w+)\n", server.output)
        assert can_log_in(server, "iggy", password)
    with server:
        assert can_log_in(server, "iggy", password)
    assert server.output.count(password) == 1
    for path in server.data.rglob("*"):
        assert path.is_dir() or password.encode() not in path.read_bytes()


def test_the_environment_names_the_root_user_of_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"root.username": "admin", "root.password": "secret-1"}
    with RunningServer(tmp_path, arguments=(), settings=first) as server:
        assert can_log_in(server, "admin", "secret-1")
        assert "secret-1" not in server.output
        assert "root user already" not in server.output
    later = {"root.username": "other", "root.password": "secret-2"}
    with RunningServer(tmp_path, arguments=(), settings=later) as server:
        assert can_log_in(server, "admin", "secret-1")
        assert not can_log_in(server, "other", "secret-2")
        wait_for(server, "the root user already exists")


def test_the_development_account_is_warned_about(running: RunningServer) -> None:
    wait_for(running, "for development only")


# --- settings take effect -----------------------------------------------------------------------------


def test_a_file_named_by_argument_or_variable(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('[system.logging]\nformat = "json"\nlevel = "warn"\n')
    with RunningServer(tmp_path / "a", arguments=("--config", str(tmp_path / "server.toml"))) as server:
        assert server.stop() == 0
    assert re.findall(r"^[{\d].*", server.output, re.MULTILINE) == [], "lines of the log"
    settings = {"config.path": tmp_path / "server.toml", "system.logging.level": "info"}
    with RunningServer(tmp_path / "b", settings=settings) as server:
        assert server.stop() == 0
    lines = [line for line in server.output.splitlines() if line.startswith("{")]
    assert {"starting", "listening", "stopped"} <= {json.loads(line)["message"].split()[0] for line in lines}


def test_a_file_that_nobody_named_is_not_read_and_told(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('[system.logging]\nformat = "json"\n')
    words = "ignoring server.toml in this directory; pass --config server.toml to use it"
    with RunningServer(tmp_path) as server:
        assert server.stop() == 0
    told_count = server.output.count(words)
    assert told_count
    with RunningServer(tmp_path, arguments=("--config", "server.toml")) as server:
        assert server.stop() == 0
    assert server.output.count(words) == told_count


def test_levels_by_module_from_the_environment(tmp_path: Path) -> None:
    settings = {"log": "error,courser.server.server=info"}
    with RunningServer(tmp_path, settings=settings) as server:
        assert server.stop() == 0
    loggers = {line.split()[2] for line in server.output.splitlines() if re.match(r"\d{4}-", line)}
    assert loggers == {"courser.server.server:"}


def test_the_configuration_is_logged_unless_told_otherwise(running: RunningServer, tmp_path: Path) -> None:
    wait_for(running, r"configuration \[tcp\] enabled=true")
    with RunningServer(tmp_path, settings={"display.config": "0"}) as server:
        assert server.stop() == 0
    assert "configuration [" not in server.output


def test_strangers_do_not_fill_the_log(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        before, began = len(server.output), time.monotonic()
        with socket.create_connection((server.host, server.port), PATIENCE) as stranger:
            for _ in range(40):
                stranger.sendall(classic_login("x", "a name that nobody can have") * 25)
                assert receive(stranger, 25 * 8) == (43).to_bytes(8, "little") * 25
        seconds = time.monotonic() - began
        assert server.stop() == 0
    text = server.output[before:]
    assert "result=43 INVALID_USERNAME name='x'" in text
    assert text.count("LoginUser") <= 20 * (seconds + 2), "not a line for each of a thousand"


def test_without_log_files_there_are_none(tmp_path: Path) -> None:
    with RunningServer(tmp_path, settings={"system.logging.file_enabled": "false"}) as server:
        assert server.stop() == 0
    assert not (server.data / "logs").exists()


def test_log_files_are_rotated_while_it_runs(tmp_path: Path) -> None:
    settings = {"system.logging.max_file_size": "2 KB", "system.logging.max_total_size": "8 KB"}
    with RunningServer(tmp_path, settings=settings) as server:
        assert server.stop() == 0
    with RunningServer(tmp_path, settings=settings) as server:
        assert server.stop() == 0
    sizes = [path.stat().st_size for path in (server.data / "logs").iterdir()]
    assert len(sizes) > 1
    assert sum(sizes) < 14_000


def test_tls_with_a_certificate_made_at_start(tmp_path: Path) -> None:
    with RunningServer(tmp_path, settings={"tcp.tls.enabled": "true"}) as server:
        context = ssl.create_default_context(cafile=server.data / "runtime" / "tcp_certificate.pem")
        with (
            socket.create_connection((server.host, server.port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(CLASSIC_PING)
            assert receive(connection, 8) == bytes(8)
        wait_for(server, "tls=on")
        # The address that is printed works as printed. A line of output may be there in part.
        url = wait_for(server, r"iggy://USER:PASSWORD@\S+(?=\s)")
        with connect_sync(url.replace("USER:PASSWORD", "iggy:iggy")) as client:
            assert client.target.tls
        assert server.stop() == 0
    for path in server.data.rglob("*"):
        assert path.is_dir() or b"PRIVATE KEY" not in path.read_bytes()


def test_a_hang_up_brings_a_new_certificate_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    certificate_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put() -> str:
        key, certificate = make_self_signed("localhost", datetime.now(UTC))
        certificate_file.write_bytes(certificate)
        key_file.write_bytes(key)
        return certificate.decode()

    def hang_up(words: str) -> None:
        count = server.output.count(words)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.output.count(words) > count, words)

    first = put()
    key_file.chmod(0o600)
    settings = {"tcp.tls.enabled": "true", "tcp.tls.cert_file": certificate_file, "tcp.tls.key_file": key_file}
    with RunningServer(tmp_path / "server", settings=settings) as server:
        shown = partial(ssl.get_server_certificate, (server.host, server.port))
        assert shown() == first
        second = put()
        hang_up("loaded the certificate from")
        assert shown() == second != first
        handed_out = server.data / "runtime" / "tcp_certificate.pem"
        until(lambda: handed_out.read_text() == second, "handing out the new certificate")
        key_file.write_text("nonsense")
        hang_up("could not reload the certificate; keeping the old one")
        assert shown() == second


# --- how not to start ---------------------------------------------------------------------------------


def test_a_second_server_on_the_same_directory_is_refused(running: RunningServer) -> None:
    result = try_to_serve(running.directory)
    assert result.returncode == 1
    assert f"in use by another server (process {running.process.pid})" in result.stderr
    assert "stop that server first" in result.stderr
    assert "Traceback" not in result.stderr
    assert exchange(running, CLASSIC_PING, 8) == bytes(8)
    wait_for(running, "starting version")
    log = (running.data / "logs" / "courser.log").read_text()
    assert log.count("starting version") <= 1, "the second one writes into the log of the first"


def test_an_address_in_use_is_refused(running: RunningServer, tmp_path: Path) -> None:
    result = try_to_serve(tmp_path, address=running.address)
    assert result.returncode == 1
    assert (
        f"error: the server cannot start: cannot listen on {running.address}: Address already in use" in result.stderr
    )
    assert "set tcp.address" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("address", ["203.0.113.1:8090", "no-such-host.invalid:8090"])
def test_an_address_that_is_not_ours_is_refused(tmp_path: Path, address: str) -> None:
    result = try_to_serve(tmp_path, address=address)
    assert result.returncode == 1
    assert f"cannot listen on {address}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        (["--config", "missing.toml"], {}, 1, "cannot read missing.toml: No such file or directory"),
        (["--set", "tcp.adress=x"], {}, 2, "the closest is tcp.address"),
        (["--set", "tcp.address"], {}, 2, "is not of the form key=value"),
        (["--colour"], {}, 2, "--help"),
        (["surplus"], {}, 2, "--help"),
        ([], {"IGGY_SYSTEM_SEGMENT_SIZE": "2 GiB"}, 2, 'system.segment.size = "2 GiB" (IGGY_SYSTEM_SEGMENT_SIZE)'),
        ([], {"IGGY_DATA_MAINTENANCE_STATE_ARCHIVER_ENABLED": "true"}, 2, "data_maintenance.archiver.enabled"),
        ([], {"IGGY_ROOT_USERNAME": "admin"}, 2, "COURSER_ROOT_PASSWORD is not"),
        ([], {"COURSER_LOG": "loud"}, 2, "COURSER_LOG"),
        ([], {"COURSER_SYSTEM_PATH": "/proc/nowhere"}, 1, "/proc/nowhere"),
        (
            ["--set", "tcp.tls.enabled=true", "--set", "tcp.tls.self_signed=false"],
            {},
            2,
            "tcp.tls.cert_file is required",
        ),
        (["--set", "system.path=file"], {}, 1, "file: cannot use it as the data directory: Not a directory"),
    ],
)
def test_bad_starts(
    tmp_path: Path, arguments: Sequence[str], environment: dict[str, str], code: int, words: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    result = try_to_serve(tmp_path, *arguments, **environment)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "local_data").exists()


@pytest.mark.parametrize("prefix", [(), ("env", "IGGY_SYSTEM_RECOVERY_RECREATE_MISSING_STATE=true")])
def test_missing_metadata_is_refused_with_the_option_that_rebuilds_it(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    with RunningServer(tmp_path) as server, connect_sync(f"iggy://iggy:iggy@{server.address}") as client:
        client.create_stream("shop")
        client.create_topic("shop/orders", partitions_count=1)
        client.send_messages("shop/orders", partitioning=0, messages=["kept"])
    shutil.rmtree(server.data / "metadata")
    refused = try_to_serve(tmp_path)
    assert refused.returncode == 1
    assert "the metadata is missing" in refused.stderr
    (option,) = re.findall(r"start once with --set (\S+) ", refused.stderr)
    arguments = ("--with-default-root-credentials", *(() if prefix else ("--set", option)))
    server = RunningServer(tmp_path, arguments=arguments, prefix=prefix)
    with server, connect_sync(f"iggy://iggy:iggy@{server.address}") as client:
        assert [message.text() for message in client.poll_messages("shop/orders", partition_id=0)] == ["kept"]


def test_a_certificate_that_does_not_do_is_refused_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    settings = ("tcp.tls.enabled=true", "tcp.tls.cert_file=cert.pem", "tcp.tls.key_file=key.pem")
    result = try_to_serve(tmp_path, *(word for setting in settings for word in ("--set", setting)))
    assert result.returncode == 1
    assert "key.pem: cannot read the private key: No such file or directory" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_password_that_nobody_could_read_is_not_made(tmp_path: Path) -> None:
    settings = ("tcp.address=127.0.0.1:0", "http.enabled=false", "websocket.enabled=false")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [COURSER, "serve", *(f"--set={setting}" for setting in settings)],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert result.returncode == 1
    assert "cannot show the generated password" in result.stderr
    assert "Traceback" not in result.stderr


# --- HTTP ---


def http_status(address: str, path: str) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_http_is_served_beside_tcp(tmp_path: Path) -> None:
    with RunningServer(tmp_path, settings={"http.enabled": "true", "http.address": "127.0.0.1:0"}) as server:
        address = server.address_of("http")
        assert http_status(address, "/health/ready") == (200, b"ready")
        assert b"courser_connections " in http_status(address, "/metrics")[1]
        assert can_log_in(server, "iggy", "iggy")
        words = f"listening transport=http address={address} tls=off"
        until(lambda: words in server.output, words)
        assert server.stop() == 0
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN


def test_a_busy_http_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        result = try_to_serve(tmp_path, COURSER_HTTP_ENABLED="true", COURSER_HTTP_ADDRESS=address)
    assert result.returncode != 0
    assert f"cannot listen on {address}" in result.stderr
    assert "set http.address to another one" in result.stderr


def test_https_with_a_certificate_from_files(tmp_path: Path) -> None:
    key, certificate = make_self_signed("127.0.0.1", datetime.now(UTC))
    certificate_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate_file.write_bytes(certificate)
    key_file.write_bytes(key)
    key_file.chmod(0o600)
    tls = {"http.tls.enabled": "true", "http.tls.cert_file": certificate_file, "http.tls.key_file": key_file}
    settings = {"http.enabled": "true", "http.address": "127.0.0.1:0"} | tls
    with RunningServer(tmp_path / "server", settings=settings) as server:
        host, _, port = server.address_of("http").rpartition(":")
        context = ssl.create_default_context(cafile=certificate_file)
        connection = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE, context=context)
        connection.request("GET", "/ping")
        assert connection.getresponse().read() == b"pong"
        connection.close()


async def test_the_metadata_of_the_cluster_has_the_ports_on_which_the_server_listens(tmp_path: Path) -> None:
    names = ("http", "quic", "websocket")
    settings = {f"{name}.enabled": "true" for name in names} | {f"{name}.address": "127.0.0.1:0" for name in names}
    with RunningServer(tmp_path, settings=settings) as server:
        async with await courser.connect(f"iggy://iggy:iggy@{server.address}") as client:
            (node,) = (await client.get_cluster_metadata()).nodes
        assert f"127.0.0.1:{node.websocket_port}" == server.address_of("websocket")
        assert f"127.0.0.1:{node.quic_port}" == server.address_of("quic")
        assert f"127.0.0.1:{node.http_port}" == server.address_of("http")
        assert (node.ip, node.tcp_port) == (server.host, server.port)
        words = f"listening transport=websocket address=127.0.0.1:{node.websocket_port} tls=off"
        until(lambda: words in server.output, words)


def test_a_busy_websocket_port_is_reported_with_its_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = try_to_serve(tmp_path, COURSER_WEBSOCKET_ENABLED="true", COURSER_WEBSOCKET_ADDRESS=address)
    assert result.returncode == 1
    assert f"cannot listen on {address}" in result.stderr
    assert "set websocket.address" in result.stderr


async def test_the_classic_protocol_over_quic(tmp_path: Path) -> None:
    """No SDK for Python can do this: 0.9 has the other protocol, and older packages fail to make a socket."""
    with RunningServer(tmp_path, settings={"quic.enabled": "true", "quic.address": "127.0.0.1:0"}) as server:
        host, port = server.address_of("quic").split(":")
        configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
        async with connect(host, int(port), configuration=configuration) as client:
            answers = []
            for request in (CLASSIC_PING, frame(201), classic_login("iggy", "iggy"), frame(201)):
                reader, writer = await client.create_stream()
                writer.write(request)
                writer.write_eof()
                answers.append(await asyncio.wait_for(reader.read(), PATIENCE))
        assert answers[0] == bytes(8)
        assert answers[1][:4] == UNAUTHENTICATED
        assert answers[2][:4] == bytes(4)
        assert answers[3] == bytes(8), "there are no streams"


def test_without_the_library_for_quic_the_other_transports_are_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Iggy's own files enable it, whether anybody uses it or not."""
    monkeypatch.setitem(sys.modules, "qh3", None)
    zero = [
        "tcp.address=127.0.0.1:0",
        "websocket.address=127.0.0.1:0",
        "quic.address=127.0.0.1:0",
        "http.enabled=false",
    ]
    listeners = Listeners(settings_of(load(settings=["quic.enabled=true", *zero])))
    listeners.prepare(SystemClock())
    assert "not listening for QUIC" in caplog.text
    assert "courser[quic]" in caplog.text
    assert not listeners.certificates


def test_a_stop_does_not_wait_for_an_archive_that_never_answers(tmp_path: Path) -> None:
    """Its requests may take an hour here. Nobody waits for the threads that made them."""
    port = free_port()
    settings = {
        "data_maintenance.archiver.enabled": "true",
        "data_maintenance.archiver.kind": "s3",
        "data_maintenance.archiver.request_timeout": "1 h",
        "data_maintenance.archiver.s3.bucket": "b",
        "data_maintenance.archiver.s3.endpoint": f"http://127.0.0.1:{port}",
        "data_maintenance.archiver.s3.access_key_id": "a",
        "data_maintenance.archiver.s3.secret_access_key": "b",
        "system.shutdown_timeout": "1 s",
    }
    # Nobody is there at first, so that the start need not wait.
    with RunningServer(tmp_path, settings=settings) as server, socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        listener.settimeout(PATIENCE)
        request, _ = listener.accept()
        with request:
            assert request.recv(1)
            assert server.stop() == 0
    assert "the last run was not completed" in server.output
    assert how_it_stopped(LocalFileSystem(), server.data) is StopKind.CLEAN
