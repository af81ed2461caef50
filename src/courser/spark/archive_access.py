"""Where the archive is: the options ``archive.*`` and ``archiveConfig``.

They are the settings of the server's ``[data_maintenance.archiver]``, with the same names, kinds and sources: the
server's configuration file, the driver's environment, and options, in this order. The driver resolves them once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from courser.archive.configured import load_archiver, place_keys, usable_store
from courser.archive.settings import TABLE, ArchiveSettings, StoreSettings
from courser.configuration.environment import configuration_path, with_file
from courser.configuration.key import key_of
from courser.errors import ConfigurationRefused
from courser.spark.options import ARCHIVE_PREFIX, OptionRefused


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """An archive. Its secrets are not shown by ``repr``."""

    store: StoreSettings
    cluster: str = ""
    """The beginning of its id, if the store has several."""


def archive_access(
    given: Mapping[str, str], configuration_file: str | None, environment: Mapping[str, str]
) -> ArchiveAccess:
    """The archive that the options name. ``given`` are those that begin with ``archive.``, by the rest of their names.

    Raises:
        OptionRefused: one of them is unknown or invalid, or something is missing.
    """
    places = {path.removeprefix(TABLE) for key in place_keys() for path in key.spellings if path.startswith(TABLE)}
    if others := sorted(given.keys() - places):
        known = ", ".join(f"{ARCHIVE_PREFIX}{name}" for name in sorted(places))
        raise OptionRefused(f'unknown option "{ARCHIVE_PREFIX}{others[0]}"; the options of the archive are {known}')
    settings = [f"{TABLE}{name}={text}" for name, text in given.items()]
    path = None if configuration_file is None else Path(configuration_file)
    try:
        variables = with_file(environment)
        configuration = load_archiver(path or configuration_path(variables), variables, settings)
        store = usable_store(configuration)
    except ConfigurationRefused as refusal:
        raise OptionRefused("; ".join(map(_as_option, refusal.problems))) from None
    # Tasks may have another working directory.
    return ArchiveAccess(replace(store, path=store.path.absolute()), configuration[key_of(ArchiveSettings, "cluster")])


def _as_option(problem: str) -> str:
    """A problem with a setting, in the words of the options."""
    return problem.replace(TABLE, ARCHIVE_PREFIX).replace(" (--set)", "")
