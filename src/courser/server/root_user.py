"""The root user of a new data directory: from the environment, or with a generated password that is shown once."""

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from courser.broker.authentication import check_password, check_user_name
from courser.broker.broker import RootUser
from courser.broker.credentials import Passwords
from courser.errors import CommandRejected, ConfigurationRefused
from courser.server.configuration.environment import variable

USUAL_NAME = "iggy"
DEVELOPMENT_PASSWORD = "iggy"
"""The password of ``--with-default-root-credentials``: the examples of all SDKs use it."""
_LETTERS = string.ascii_letters + string.digits
_GENERATED_LENGTH = 24
"""Letters and digits: 142 bits."""


@dataclass(frozen=True, slots=True)
class RootCredentials:
    """Name and password of the user that the first start creates."""

    name: str
    password: str = field(repr=False)
    is_generated: bool = False
    is_known_to_all: bool = False

    def make(self, announce: Callable[[str], None]) -> RootUser:
        """Hash the password. Show it first if it was generated. This is slow: call it in a pool."""
        if self.is_generated:
            # Show it before storing it: if the process dies in between, the next start generates another one.
            self._show(announce)
        return RootUser(self.name, Passwords().hash(self.password))

    def _show(self, announce: Callable[[str], None]) -> None:
        try:
            announce(
                f"First start: the root user is {self.name}, its password is {self.password}\n"
                "The password is not shown again. To choose your own, set COURSER_ROOT_USERNAME and "
                "COURSER_ROOT_PASSWORD before the first start."
            )
        except OSError as error:
            problem = f"cannot show the generated password of the root user: {error.strerror or error}"
            raise ConfigurationRefused([f"{problem}; set COURSER_ROOT_USERNAME and COURSER_ROOT_PASSWORD"]) from error


def choose_root(environment: Mapping[str, str], *, use_default: bool) -> RootCredentials:
    """The credentials from the environment; else iggy/iggy if requested; else a generated password.

    Raises:
        ConfigurationRefused: the environment sets only one of the two, or an invalid value.
    """
    name, password = variable(environment, "ROOT_USERNAME"), variable(environment, "ROOT_PASSWORD")
    if (name is None) != (password is None):
        there, missing = ("USERNAME", "PASSWORD") if password is None else ("PASSWORD", "USERNAME")
        raise ConfigurationRefused(
            [f"COURSER_ROOT_{there} (or IGGY_ROOT_{there}) is set but COURSER_ROOT_{missing} is not: set both or none"]
        )
    if name is not None and password is not None:
        _check(name, password)
        return RootCredentials(name, password)
    if use_default:
        return RootCredentials(USUAL_NAME, DEVELOPMENT_PASSWORD, is_known_to_all=True)
    generated = "".join(secrets.choice(_LETTERS) for _ in range(_GENERATED_LENGTH))
    return RootCredentials(USUAL_NAME, generated, is_generated=True)


def _check(name: str, password: str) -> None:
    try:
        check_user_name(name)
        check_password(password)
    except CommandRejected as refusal:
        raise ConfigurationRefused([f"COURSER_ROOT_USERNAME and COURSER_ROOT_PASSWORD: {refusal}"]) from refusal
