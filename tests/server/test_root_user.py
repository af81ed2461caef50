"""The root user: from the environment, or with a generated password that is shown once."""

import pytest

from courser.broker.credentials import Passwords
from courser.errors import ConfigurationRefused
from courser.server.root_user import choose_root


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


@pytest.mark.parametrize(
    ("name", "password", "words"),
    [
        ("admin", None, "COURSER_ROOT_PASSWORD is not"),
        (None, "secret", "COURSER_ROOT_USERNAME is not"),
        ("ab", "secret", "3 to 50 bytes"),
        ("a" * 51, "secret", "3 to 50 bytes"),
        ("admin", "pw", "3 to 100 bytes"),
        ("admin", "p" * 101, "3 to 100 bytes"),
    ],
)
def test_what_nobody_could_log_in_with_is_refused(name: str | None, password: str | None, words: str) -> None:
    environment = {"IGGY_ROOT_USERNAME": name or "", "IGGY_ROOT_PASSWORD": password or ""}
    with pytest.raises(ConfigurationRefused) as refused:
        choose_root(environment, use_default=False)
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
    assert first.password in shown[0]
    assert Passwords().is_right(first.password, made.password_hash)


def test_a_password_that_cannot_be_shown_is_not_used() -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(ConfigurationRefused, match="COURSER_ROOT_PASSWORD"):
        choose_root({}, use_default=False).make(closed)
