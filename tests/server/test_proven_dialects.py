"""What is remembered about classic clients."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from courser.api import commands as c
from courser.api.replies import LoggedIn
from courser.broker.access.sessions import Session
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition, Transport
from courser.records.classic import Dialect
from courser.server.codecs import CodecChooser
from courser.server.proven_dialects import LOGIN_COUNT_MAX, ProvenDialects
from courser.storage.local_files import LocalFileSystem
from courser.storage.paths import PROVEN_DIALECTS
from courser.transports.settings import ConnectionSettings
from courser.wire.classic import ClassicCodec
from courser.wire.classic_dialect import NO_PROOF, LoginFields, Proof
from tests.wire.classic_client import Message, request

G5, G6, G8 = Dialect.SDK_0_5, Dialect.SDK_0_6, Dialect.SDK_0_8
LOGIN = LoginFields("0.8.0")
LONG, SHORT = Proof(has_long_header=True), Proof(has_long_header=False)
POLL = c.PollMessages(Consumer(ConsumerKind.CONSUMER, 1), 0, 1, 2, PollingKind.OFFSET, 7, 10, auto_commit=True)
SEND = c.SendMessages(0, 1, ToPartition(2), [])


class Run:
    """The memory of a server from its start to its stop."""

    def __init__(self, directory: Path) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.proven = ProvenDialects(LocalFileSystem(), directory, self._pool)

    def stop(self) -> None:
        self._pool.shutdown()

    def connect(self, version: str, *, user_id: int = 0) -> ClassicCodec:
        """A codec whose client is logged in."""
        chooser = CodecChooser(ConnectionSettings(), verify_frames=False, users={}, proven=self.proven)
        session = Session(7, Transport.TCP, "127.0.0.1:1", now=0)
        login = request(c.LoginUser("iggy", "iggy", version, ""), G8)
        codec = chooser.choose(memoryview(login), session)
        assert isinstance(codec, ClassicCodec)
        incoming = codec.decode(memoryview(login), is_logged_in=False)
        session.user_id = user_id
        codec.encode_reply(incoming, LoggedIn(user_id, 1))
        return codec


def feed(codec: ClassicCodec, command: c.Command, dialect: Dialect) -> None:
    assert codec.decode(memoryview(request(command, dialect, [Message()])), is_logged_in=True).command is not None


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.stop()


def test_what_one_connection_proves_holds_for_the_next_one(run: Run) -> None:
    feed(run.connect("0.8.0"), SEND, G8)
    reader = run.connect("0.8.0")
    feed(reader, c.Ping(), G8)
    feed(reader, POLL, G8)
    assert reader.dialect is G8


def test_it_holds_for_the_same_user_and_login_only(run: Run) -> None:
    feed(run.connect("0.8.0"), SEND, G8)
    other = run.connect("0.8.0", user_id=1)
    feed(other, c.Ping(), G6)
    feed(other, POLL, G6)
    assert other.dialect is G6


def test_it_survives_a_restart(tmp_path: Path) -> None:
    first = Run(tmp_path)
    feed(first.connect("0.7.0"), SEND, G8)
    first.stop()
    second = Run(tmp_path)
    assert second.connect("0.7.0").dialect is G8
    assert second.connect("0.7.0", user_id=1).dialect is G5
    second.stop()


def test_two_programs_that_differ_prove_nothing_about_a_third(run: Run) -> None:
    run.proven.note(0, LOGIN, LONG)
    assert run.proven.recall(0, LOGIN) == LONG
    run.proven.note(0, LOGIN, SHORT)
    assert run.proven.recall(0, LOGIN) == NO_PROOF


def test_clients_that_identify_themselves_are_not_remembered(run: Run, tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0"):
        feed(run.connect(version), SEND, G8)
    run.stop()
    assert not (tmp_path / PROVEN_DIALECTS).exists()


def test_memory_is_bounded(run: Run) -> None:
    for user_id in range(LOGIN_COUNT_MAX + 1):
        run.proven.note(user_id, LOGIN, LONG)
    assert run.proven.recall(0, LOGIN) == NO_PROOF
    assert run.proven.recall(1, LOGIN) == run.proven.recall(LOGIN_COUNT_MAX, LOGIN) == LONG
    long_text = LoginFields("0" * 101)
    run.proven.note(1, long_text, LONG)
    assert run.proven.recall(1, long_text) == NO_PROOF


@pytest.mark.parametrize("contents", [b"not JSON", b"{}", b"\xff", b'[[[0,{}],"x"]]'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, contents: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / PROVEN_DIALECTS).write_bytes(contents)
    run = Run(tmp_path)
    assert "is not needed to start" in caplog.text
    run.proven.note(0, LOGIN, LONG)
    run.stop()
    again = Run(tmp_path)
    assert again.proven.recall(0, LOGIN) == LONG
    again.stop()


def test_a_file_that_cannot_be_written_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path / "missing")
    run.proven.note(0, LOGIN, LONG)
    run.stop()
    assert "cannot write" in caplog.text
    assert run.proven.recall(0, LOGIN) == LONG


def test_a_guess_is_logged_once_for_each_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    codec = run.connect("0.8.0")
    feed(codec, POLL, G8)
    feed(codec, c.CreateStream("orders"), G8)
    feed(codec, POLL, G8)
    lines = [record.getMessage() for record in caplog.records if "does not identify" in record.getMessage()]
    assert len(lines) == 1
    assert "client 7 at 127.0.0.1:1" in lines[0]
    assert "assuming 0.8" in lines[0]


@pytest.mark.parametrize("version", ["0.10.0", "0.8.0"])
def test_what_is_known_is_not_logged(run: Run, caplog: pytest.LogCaptureFixture, version: str) -> None:
    caplog.set_level(logging.INFO)
    feed(run.connect(version), SEND, G8)
    feed(run.connect(version), POLL, G8)
    assert "does not identify" not in caplog.text
