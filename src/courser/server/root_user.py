"""The root user of a data directory.

The first start creates it from the environment, or with a generated password that is shown once. If its password is
lost, a new one can be set while no server is running.
"""

import os
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from courser.broker.access.authentication import check_password, check_user_name
from courser.broker.access.credentials import Passwords
from courser.broker.broker import RootUser
from courser.catalog.changes import PasswordChange
from courser.catalog.opening import open_catalog
from courser.catalog.rules import ROOT_USER_ID
from courser.configuration.environment import variable
from courser.errors import CommandRejected, ConfigurationRefused, StartRefused
from courser.storage.data_directory import DataDirectory
from courser.storage.paths import JOURNAL, METADATA

USUAL_NAME = "iggy"
DEVELOPMENT_PASSWORD = "iggy"
"""The password of ``--with-default-root-credentials``: the examples of all SDKs use it."""
_LETTERS = string.ascii_letters + string.digits
_GENERATED_LENGTH = 24
"""Letters and digits: 142 bits."""
_NOTICE = """
First start: this is the login of the root user.

    user      {name}
    password  {password}

The password is not shown again. To choose your own, set COURSER_ROOT_PASSWORD before the first start.
If it is lost, stop the server and run: courser user reset-root
"""
"""Blank lines set it off from the log."""


@dataclass(frozen=True, slots=True)
class RootCredentials:
    """Name and password of the user that the first start creates."""

    name: str
    password: str = field(repr=False)
    is_generated: bool = False
    is_known_to_all: bool = False
    problem: str | None = None
    """Why no user can be made of them. Later starts do not use them, so it stops only the first one."""

    def check(self) -> None:
        """Raises ``ConfigurationRefused`` if no user can be made of them."""
        if self.problem is not None:
            raise ConfigurationRefused([self.problem])

    def make(self, announce: Callable[[str], None]) -> RootUser:
        """Hash the password. Show it first if it was generated. This is slow: call it in a pool.

        Raises:
            ConfigurationRefused: nobody could log in with them, or a generated password cannot be shown.
        """
        self.check()
        if self.is_generated:
            # Show it before storing it: if the process dies in between, the next start generates another one.
            self._show(announce)
        return RootUser(self.name, Passwords().hash(self.password))

    def _show(self, announce: Callable[[str], None]) -> None:
        try:
            announce(_NOTICE.format(name=self.name, password=self.password))
        except OSError as error:
            problem = f"cannot show the generated password of the root user: {error.strerror or error}"
            raise ConfigurationRefused([f"{problem}; set COURSER_ROOT_PASSWORD"]) from error


def choose_root(environment: Mapping[str, str], *, use_default: bool) -> RootCredentials:
    """The credentials from the environment; else iggy/iggy if requested; else a generated password."""
    name, password = variable(environment, "ROOT_USERNAME"), variable(environment, "ROOT_PASSWORD")
    if password is not None:
        name = name or USUAL_NAME
        return RootCredentials(name, password, problem=_problem(name, password))
    if name is not None:
        problem = "COURSER_ROOT_USERNAME (or IGGY_ROOT_USERNAME) is set but COURSER_ROOT_PASSWORD is not: set it too"
        return RootCredentials(name, "", problem=problem)
    if use_default:
        return RootCredentials(USUAL_NAME, DEVELOPMENT_PASSWORD, is_known_to_all=True)
    return RootCredentials(USUAL_NAME, generate_password(), is_generated=True)


def generate_password() -> str:
    """A password that cannot be guessed."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_GENERATED_LENGTH))


def _problem(name: str, password: str) -> str | None:
    try:
        check_user_name(name)
        check_password(password)
    except CommandRejected as refusal:
        return f"COURSER_ROOT_USERNAME and COURSER_ROOT_PASSWORD: {refusal}"
    return None


def reset_root_password(directory: Path, choose_password: Callable[[], str]) -> str:
    """Set the root user's password in the data directory of a server that is not running. Return the user's name.

    Durable on return. Tokens of the user stay valid. ``choose_password`` is called when nothing but the password is
    missing: nobody should type one for a directory that cannot be changed.

    Raises:
        CommandRejected: 44 for a password of an invalid size.
        StartRefused: a server is running, the metadata is damaged, or there is no root user.
        StorageFailure, OSError: the disk cannot be read or written.
    """
    _check_owner(directory)
    data = DataDirectory.open(directory)
    try:
        # Like a start: if the last session was interrupted, its last change is completed before another follows.
        store = open_catalog(data.file_system, data.path, clock=data.clock, stop=data.stop).store
        try:
            user = store.state.users.get(ROOT_USER_ID)
            if user is None:
                raise StartRefused(directory, "it has no root user", "start the server: a first start creates one")
            password = choose_password()
            check_password(password)
            store.submit(PasswordChange(ROOT_USER_ID, Passwords().hash(password)))
            return user.name
        finally:
            store.close()
    finally:
        # Keeps the record of how the last server stopped.
        data.close(is_clean=False)


def _check_owner(directory: Path) -> None:
    """Refuse other directories, and those of other users: a file that this one creates may be unreadable to them."""
    if not (directory / METADATA / JOURNAL).exists():
        raise StartRefused(
            directory, "it is not the data directory of a server", "pass the one that the server uses: system.path"
        )
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        remedy = "run the command as that user, who also runs the server"
        raise StartRefused(directory, f"it belongs to the user with the number {owner}", remedy)
