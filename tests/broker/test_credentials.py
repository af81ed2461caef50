"""Passwords and tokens: only hashes reach the disk, a wrong user costs as much as a wrong password."""

import stat
from pathlib import Path
from unittest import mock

import pytest
from argon2 import PasswordHasher, Type, extract_parameters

from courser.broker.access.credentials import Passwords, hash_token, make_token
from courser.catalog import changes as c
from courser.catalog.opening import OpenedCatalog, open_catalog
from courser.model.topic_options import TopicOptions
from courser.storage.data_directory import DataDirectory
from tests.catalog.scenes import uuid
from tests.fakes.clocks import ManualClock

PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def passwords() -> Passwords:
    return Passwords()


# --- passwords ---


def test_a_hash_is_argon2id_with_at_least_what_owasp_asks_for(passwords: Passwords) -> None:
    parameters = extract_parameters(passwords.hash(PASSWORD))
    assert parameters.type is Type.ID
    assert parameters.memory_cost >= 19 * 1024
    assert parameters.time_cost >= 2
    assert parameters.parallelism == 1
    assert parameters.salt_len >= 16
    assert parameters.hash_len >= 32


def test_the_right_password_is_right_and_no_other(passwords: Passwords) -> None:
    password_hash = passwords.hash(PASSWORD)
    assert PASSWORD not in password_hash
    assert passwords.is_right(PASSWORD, password_hash)
    for other in ("", PASSWORD + " ", PASSWORD[:-1], PASSWORD.upper()):
        assert not passwords.is_right(other, password_hash)


def test_two_hashes_of_one_password_differ(passwords: Passwords) -> None:
    assert passwords.hash(PASSWORD) != passwords.hash(PASSWORD)


def test_nobody_is_an_unknown_user(passwords: Passwords) -> None:
    assert not passwords.is_right(PASSWORD, None)
    assert not passwords.is_right("", None)


def test_an_unknown_user_costs_as_many_hashes_as_a_wrong_password() -> None:
    verified: list[str] = []
    original = PasswordHasher.verify

    def verify(self: PasswordHasher, stored: str, password: str | bytes) -> bool:
        verified.append(stored)
        return original(self, stored, password)

    passwords = Passwords()
    known = passwords.hash(PASSWORD)
    with mock.patch.object(PasswordHasher, "verify", verify):
        assert not passwords.is_right("wrong", known)
        assert not passwords.is_right("wrong", None)
    assert len(verified) == 2
    first, second = map(extract_parameters, verified)
    assert first == second


@pytest.mark.parametrize("stored", ["", "plain", "$argon2id$", "$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$"])
def test_a_damaged_hash_lets_nobody_in(passwords: Passwords, stored: str) -> None:
    assert not passwords.is_right(PASSWORD, stored)
    assert not passwords.is_right("", stored)


@pytest.mark.parametrize("password", ["", "\0", "ü" * 1000, "\ud800", "\U0001f600"])
def test_any_text_can_be_a_password(passwords: Passwords, password: str) -> None:
    assert passwords.is_right(password, passwords.hash(password))
    assert not passwords.is_right(password + "x", passwords.hash(password))


def test_weaker_hashes_are_made_again_at_the_next_login(passwords: Passwords) -> None:
    assert not passwords.is_outdated(passwords.hash(PASSWORD))
    assert passwords.is_outdated(PasswordHasher(time_cost=1, memory_cost=8 * 1024, parallelism=1).hash(PASSWORD))


# --- tokens ---


def test_a_token_has_256_random_bits() -> None:
    with mock.patch("secrets.token_urlsafe", return_value="token") as source:
        assert make_token() == "token"
    source.assert_called_once_with(32)
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 43 for token in tokens)


def test_the_hash_of_a_token_does_not_show_it() -> None:
    token = make_token()
    assert len(hash_token(token)) == 32
    assert token.encode() not in hash_token(token)
    assert hash_token(token) == hash_token(token)
    assert hash_token(token) != hash_token(make_token())
    assert hash_token("\ud800")


# --- what is on the disk ---

TOKEN = make_token()
NEW_PASSWORD = "another secret phrase"


def open_at(path: Path) -> tuple[DataDirectory, OpenedCatalog]:
    directory = DataDirectory.open(path)
    catalog = open_catalog(directory.file_system, path, clock=ManualClock(), stop=directory.stop)
    directory.begin()
    return directory, catalog


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real directory in which users, tokens, streams and snapshots came and went, and that was rebuilt once."""
    passwords = Passwords()
    path = tmp_path_factory.mktemp("home") / "local_data"
    directory, catalog = open_at(path)
    commands: list[c.AnyChange] = [
        c.UserCreation("root", passwords.hash(PASSWORD)),
        c.UserCreation("alice", passwords.hash(PASSWORD)),
        c.TokenCreation(1, "laptop", hash_token(TOKEN)),
        c.StreamCreation("orders", uuid(1)),
        c.TopicCreation(0, "placed", uuid(2), 2, TopicOptions()),
        c.PasswordChange(1, passwords.hash(NEW_PASSWORD)),
        c.PartitionCreation(0, 0, 1),
    ]
    for command in commands:
        catalog.store.submit(command)
        catalog.directories.carry_out(catalog.store.state, command)
    catalog.store.take_snapshot()
    catalog.store.submit(c.TokenCreation(0, "laptop", hash_token(TOKEN)))
    catalog.store.close()
    directory.close(is_clean=False)
    journal = path / "metadata" / "journal.wal"
    journal.write_bytes(journal.read_bytes() + b"torn")
    directory, catalog = open_at(path)
    assert catalog.store.state.users[0].tokens["laptop"].token_hash == hash_token(TOKEN)
    catalog.store.close()
    directory.close(is_clean=True)
    return path


def test_neither_password_nor_token_is_in_any_file(lived_in: Path) -> None:
    files = [path for path in lived_in.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        data = path.read_bytes()
        for secret in (PASSWORD, NEW_PASSWORD, TOKEN):
            assert secret.encode() not in data, path
            assert secret.encode() not in bytes(reversed(data)), path
    # The search would find something: names are there in plain text.
    assert any(b"laptop" in path.read_bytes() for path in files)
    assert any(b"$argon2id$" in path.read_bytes() for path in files)


def test_files_are_for_their_owner_alone(lived_in: Path) -> None:
    entries = [lived_in, *lived_in.rglob("*")]
    assert {"metadata", "quarantine", "streams", "topics", "partitions", "0-4"} <= {path.name for path in entries}
    assert {"journal.wal", "snapshot.bin", "descriptor", "ledger", "session", "lock"} <= {path.name for path in entries}
    modes = {str(path.relative_to(lived_in)): stat.S_IMODE(path.stat().st_mode) for path in entries}
    expected = {str(path.relative_to(lived_in)): 0o700 if path.is_dir() else 0o600 for path in entries}
    assert modes == expected
