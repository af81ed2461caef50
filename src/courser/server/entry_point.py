"""Run a server from command line arguments and environment: the entry point for the command line."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import uvloop

from courser.configuration.environment import configuration_path, with_file
from courser.configuration.loading import Configuration
from courser.server.allocator import prepare_heap
from courser.server.configuration import checks
from courser.server.configuration.effective import by_table, is_logged_at_start, list_settings
from courser.server.configuration.loading import load
from courser.server.configuration.log_levels import log_levels
from courser.server.configuration.settings import settings_of
from courser.server.logs import Logs
from courser.server.root_user import choose_root
from courser.server.server import Listening, Orders, Server
from courser.storage.watched_clock import SystemClock

_log = logging.getLogger(__name__)

_USUAL_FILE = Path("server.toml")
"""The usual name of a configuration file. The server does not search for it, but users may expect that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Arguments of the command line, and the environment."""

    environment: Mapping[str, str]
    path: Path | None = None
    """The configuration file; None means the file that the environment names, if any."""
    settings: Sequence[str] = ()
    """Settings such as ``tcp.address=127.0.0.1:0``."""
    use_default_root: bool = False


def load_configuration(wishes: Wishes) -> Configuration:
    """Load the configuration. Raises ``ConfigurationRefused``."""
    environment = with_file(wishes.environment)
    return load(wishes.path or configuration_path(environment), environment, wishes.settings)


def serve(
    wishes: Wishes,
    *,
    announce: Callable[[str], None],
    stream: TextIO,
    on_ready: Callable[[Listening], None] | None = None,
) -> bool:
    """Run a server until a signal ends it. Logs go to ``stream``. Return whether the stop was clean.

    ``on_ready`` is called instead of the usual announcement.

    Raises:
        CourserError: the server could not start; the message explains why and what to do.
    """
    environment = with_file(wishes.environment)
    configuration = load_configuration(wishes)
    checks.check(configuration)
    settings = settings_of(configuration, log_levels=log_levels(environment))
    root = choose_root(environment, use_default=wishes.use_default_root)
    prepare_heap()
    logs = Logs(settings.logging, stream, SystemClock())
    try:
        if is_logged_at_start(environment):
            _log_configuration(configuration)
        for warning in (*configuration.warnings, *checks.warnings(configuration)):
            _log.warning("%s", warning)
        if (wishes.path or configuration_path(environment)) is None and _USUAL_FILE.is_file():
            _log.warning("ignoring %s in this directory; pass --config %s to use it", _USUAL_FILE, _USUAL_FILE)
        if root.is_known_to_all:
            _log.warning("--with-default-root-credentials lets anyone log in as root; use it for development only")
        server = Server(Orders(configuration, settings, root, announce, on_ready), logs)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(server.run())
    finally:
        logs.stop()


def _log_configuration(configuration: Configuration) -> None:
    """Log one line per table."""
    for table, entries in by_table(list_settings(configuration)).items():
        values = [f"{name}={entry.value}" for name, entry in entries.items() if entry.value]
        if values:
            _log.info("configuration [%s] %s", table, " ".join(values))
