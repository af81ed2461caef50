"""Environment variables of a server that are not settings: log levels, whether to log the configuration."""

from collections.abc import Mapping

from courser.configuration.environment import variable
from courser.configuration.loading import OUR_PREFIX
from courser.errors import ConfigurationRefused
from courser.server.configuration.log_levels import LOG_LEVELS_EXPECTED, LogLevels, parse_log_levels

_OFF = ("0", "false", "no", "off")


def prints_configuration(environment: Mapping[str, str]) -> bool:
    """Whether to log the effective configuration at start."""
    return (variable(environment, "DISPLAY_CONFIG") or "1").strip().lower() not in _OFF


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
