"""All keys of a server, and the configuration that they make."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from courser.archive import configuration_keys
from courser.configuration import loading
from courser.configuration.key import Key
from courser.configuration.key_index import AnyKey, KeyIndex
from courser.configuration.loading import Configuration
from courser.server.configuration import at_rest_keys, http_keys, keys, telemetry_keys
from courser.server.configuration.stock_keys import STOCK_KEYS

LIVE_KEYS: tuple[AnyKey, ...] = tuple(
    value
    for module in (keys, at_rest_keys, http_keys, configuration_keys, telemetry_keys)
    for value in vars(module).values()
    if isinstance(value, Key)
)


def all_keys() -> KeyIndex:
    """Every key of Courser and of Iggy's stock files."""
    return KeyIndex((*LIVE_KEYS, *configuration_keys.STOCK_KEYS, *STOCK_KEYS))


def load(
    path: Path | None = None, environment: Mapping[str, str] | None = None, settings: Sequence[str] = ()
) -> Configuration:
    """Read all sources. ``settings`` are ``key=value`` texts of the command line.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    return loading.load(all_keys(), path, environment, settings)
