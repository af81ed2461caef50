"""The environment beside settings: the variables that name a configuration file and a file of variables."""

import re
from collections.abc import Mapping
from pathlib import Path

from courser.configuration.loading import IGGY_PREFIX, OUR_PREFIX
from courser.errors import ConfigurationRefused

_QUOTED = re.compile(r"""(?P<quote>["'])(?P<value>.*?)(?P=quote)(?:\s+#.*)?""")
"""A value in quotes, optionally followed by a comment."""
_COMMENT = re.compile(r"\s+#")


def variable(environment: Mapping[str, str], name: str) -> str | None:
    """The value of ``COURSER_name``, or else of ``IGGY_name``. An empty value counts as not set."""
    return environment.get(OUR_PREFIX + name) or environment.get(IGGY_PREFIX + name) or None


def with_file(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment plus the variables of the file named by ``COURSER_ENV_PATH``; the environment wins.

    Raises:
        ConfigurationRefused: the file cannot be read, or one of its lines is not an assignment.
    """
    path = variable(environment, "ENV_PATH")
    if path is None:
        return dict(environment)
    return _read_variables(Path(path)) | {name: value for name, value in environment.items() if value}


def _read_variables(path: Path) -> dict[str, str]:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigurationRefused([f"cannot read {path}: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationRefused([f"{path} is not valid UTF-8: invalid byte at position {error.start}"]) from error
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        assignment = line.strip().removeprefix("export ").strip()
        if not assignment or assignment.startswith("#"):
            continue
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip().isidentifier():
            # The line is not shown: it may be a secret.
            raise ConfigurationRefused([f"{path}, line {number}: expected NAME=value"])
        variables[name.strip()] = _unquoted(value.strip())
    return variables


def _unquoted(value: str) -> str:
    if quoted := _QUOTED.fullmatch(value):
        return quoted["value"]
    return _COMMENT.split(value, maxsplit=1)[0]


def configuration_path(environment: Mapping[str, str]) -> Path | None:
    """The configuration file named by the environment, if any."""
    path = variable(environment, "CONFIG_PATH")
    return None if path is None else Path(path)
