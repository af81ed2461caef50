"""Log levels by module, in the syntax of RUST_LOG: ``info,courser.broker=debug``."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from courser.configuration.loading import OUR_PREFIX
from courser.errors import ConfigurationRefused
from courser.model.setting_kinds import SettingKind, checked_text, quoted

_OFF = logging.CRITICAL + 10
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": _OFF,
    "none": _OFF,
}
_MODULE = re.compile(r"[A-Za-z_][\w.:-]*")

LOG_LEVELS_EXPECTED = (
    '"error", "warn", "info", "debug", "trace" or "off", and levels of modules after it: "info,courser.broker=debug"'
)


@dataclass(frozen=True, slots=True)
class LogLevels:
    """Levels, numbered as in the module ``logging``."""

    text: str
    root: int
    modules: tuple[tuple[str, int], ...] = ()
    """Names of loggers, and the level of each."""


def parse_log_levels(text: str) -> LogLevels:
    """Parse a list of levels.

    Raises:
        ValueError: the text is not valid.
    """
    root = logging.INFO
    modules: dict[str, int] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        name, equals, word = part.rpartition("=")
        level = _LEVELS.get(word.strip().lower())
        if level is None:
            raise ValueError(text)
        if not equals:
            root = level
        elif _MODULE.fullmatch(name.strip()):
            # Rust separates modules with two colons.
            modules[name.strip().replace("::", ".")] = level
        else:
            raise ValueError(text)
    return LogLevels(",".join(parts), root, tuple(sorted(modules.items())))


def _levels(value: object) -> LogLevels:
    return parse_log_levels(checked_text(value))


LOG_LEVELS = SettingKind("log levels", LOG_LEVELS_EXPECTED, _levels, _levels, lambda value: quoted(value.text))


def log_levels(environment: Mapping[str, str]) -> LogLevels | None:
    """The levels of COURSER_LOG, or else of RUST_LOG. Other programs use RUST_LOG too, so errors in it are ignored.

    Raises:
        ConfigurationRefused: COURSER_LOG is not valid.
    """
    ours = environment.get(OUR_PREFIX + "LOG")
    if ours:
        try:
            return parse_log_levels(ours)
        except ValueError:
            raise ConfigurationRefused([f'COURSER_LOG="{ours}": expected {LOG_LEVELS_EXPECTED}']) from None
    shared = environment.get("RUST_LOG")
    try:
        return parse_log_levels(shared) if shared else None
    except ValueError:
        return None
