"""The root user: from the environment, or with a generated password that is shown once; a lost password."""

from pathlib import Path

import pytest

from courser.broker.access.credentials import Passwords
from courser.broker.broker import Broker, RootUser
from courser.broker.settings import BrokerSettings
from courser.catalog import changes
from courser.catalog.directories import Directories
from courser.errors import CommandRejected, ConfigurationRefused, StartRefused
from courser.model.messaging import Transport
from courser.model.topic_options import TopicOptions
from courser.server.root_user import choose_root, reset_root_password
from courser.storage.data_directory import DataDirectory
from courser.storage.recovery_cases import StopKind
from tests.catalog.opening import open_store


def test_the_environment_names_it() -> None:
    shown: list[str] = []
    root = choose_root({"IGGY_ROOT_USERNAME": "admin", "IGGY_ROOT_PASSWORD": "secret-1"}, use_default=True)
    made = root.make(shown.append)
    assert made.name == "admin"
    assert Passwords().is_right("secret-1", made.password_hash)
    assert shown == []
    assert "secret-1" not in repr(root)


def test_our_variables_come_first() -> None:
    environment = {
        "IGGY_ROOT_USERNAME": "admin",
        "IGGY_ROOT_PASSWORD": "secret-1",
        "COURSER_ROOT_USERNAME": "boss",
        "COURSER_ROOT_PASSWORD": "",
    }
    root = choose_root(environment, use_default=False)
    assert (root.name, root.password) == ("boss", "secret-1")


def test_a_password_alone_is_that_of_the_usual_user() -> None:
    root = choose_root({"COURSER_ROOT_PASSWORD": "secret"}, use_default=True)
    assert (root.name, root.password, root.is_known_to_all) == ("iggy", "secret", False)


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("admin", None, "COURSER_ROOT_PASSWORD is not"),
        ("ab", "secret", "3 to 50 bytes"),
        ("a" * 51, "secret", "3 to 50 bytes"),
        ("admin", "pw", "3 to 100 bytes"),
        ("admin", "p" * 101, "3 to 100 bytes"),
    ],
)
def test_what_nobody_could_log_in_with_is_refused(name: str | None, password: str | None, words: str) -> None:
    environment = {"IGGY_ROOT_USERNAME": name or "", "IGGY_ROOT_PASSWORD": password or ""}
    # Only when the user is made: later starts do not use it, and must not end because of it.
    root = choose_root(environment, use_default=False)
    with pytest.raises(ConfigurationRefused) as refused:
        root.make(print)
    assert words in str(refused.value)
    assert password is None or password == "secret" or password not in str(refused.value)


def test_the_development_account() -> None:
    root = choose_root({}, use_default=True)
    assert (root.name, root.password, root.is_known_to_all) == ("iggy", "iggy", True)


def test_a_generated_password_is_shown_before_it_is_used() -> None:
    shown: list[str] = []
    first, second = (choose_root({}, use_default=False) for _ in range(2))
    assert first.name == "iggy"
    assert first.password != second.password
    assert len(first.password) == 24
    assert first.password.isalnum()
    made = first.make(shown.append)
    assert f"\n\n    user      iggy\n    password  {first.password}\n\n" in shown[0]
    assert Passwords().is_right(first.password, made.password_hash)


def test_a_password_that_cannot_be_shown_is_not_used() -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(ConfigurationRefused, match="COURSER_ROOT_PASSWORD"):
        choose_root({}, use_default=False).make(closed)


# --- a password that is lost --------------------------------------------------------------------------


async def make_directory(path: Path, password: str = "forgotten") -> None:
    """The data directory of a server that stopped, with the root user ``iggy``."""
    root = RootUser("iggy", Passwords().hash(password))
    broker = await Broker.open(DataDirectory.open(path), BrokerSettings(), make_root=lambda: root)
    assert await broker.close()


async def log_in(path: Path, password: str) -> None:
    """Start on the directory and log in. Raises ``CommandRejected``."""
    data = DataDirectory.open(path)
    assert data.stop is StopKind.CLEAN
    broker = await Broker.open(data, BrokerSettings(), make_root=lambda: RootUser("never", ""))
    try:
        await broker.authentication.login(broker.sessions.open(Transport.TCP, "127.0.0.1:1"), "iggy", password)
    finally:
        await broker.close()


def never_asked() -> str:
    raise AssertionError("the directory is refused before anybody chooses a password")


async def test_a_lost_password_is_replaced_and_nothing_else_changes(tmp_path: Path) -> None:
    await make_directory(tmp_path)
    assert reset_root_password(tmp_path, lambda: "found again") == "iggy"
    await log_in(tmp_path, "found again")
    with pytest.raises(CommandRejected, match="wrong password"):
        await log_in(tmp_path, "forgotten")


async def test_a_directory_is_left_alone_if_it_is_in_use_or_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_directory(tmp_path)
    data = DataDirectory.open(tmp_path)
    with pytest.raises(StartRefused, match="in use"):
        reset_root_password(tmp_path, never_asked)
    data.close(is_clean=False)
    with pytest.raises(CommandRejected, match="3 to 100 bytes"):
        reset_root_password(tmp_path, lambda: "no")
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    with pytest.raises(StartRefused, match="belongs to"):
        reset_root_password(tmp_path, never_asked)
    monkeypatch.undo()
    await log_in(tmp_path, "forgotten")


def test_a_directory_of_nobody_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="not the data directory of a server"):
        reset_root_password(tmp_path / "none", never_asked)
    assert list(tmp_path.iterdir()) == []


async def test_a_creation_that_a_kill_interrupted_is_completed_first(tmp_path: Path) -> None:
    """Otherwise the next start would find another change at the end of the journal, and take the topic for lost."""
    await make_directory(tmp_path)
    data = DataDirectory.open(tmp_path)
    store = open_store(data.file_system, tmp_path, clock=data.clock, stop=data.stop)
    data.begin()
    store.submit(changes.StreamCreation("s", bytes(16)))
    Directories(data.file_system, tmp_path).make_stream(store.state.streams[0])
    store.submit(changes.TopicCreation(0, "t", bytes(16), 1, TopicOptions()))
    store.close()
    data.close(is_clean=False)
    reset_root_password(tmp_path, lambda: "found again")
    data = DataDirectory.open(tmp_path)
    assert data.stop is StopKind.KILLED
    broker = await Broker.open(data, BrokerSettings(), make_root=lambda: RootUser("never", ""))
    assert broker.partitions.unopened == frozenset()
    assert await broker.close()
