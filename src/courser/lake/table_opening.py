"""Opening the table at a place, whatever its format: the way in for drivers."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from courser.lake.atomic_files import make_folders
from courser.lake.message_columns import RESERVED
from courser.lake.table_place import TablePlace
from courser.lake.tables import PartitionField, Patience, Table, TableLayout, TableRefused

CATALOG_TIMEOUT = 60.0
"""Seconds that a REST catalog has for an answer. Its library would wait for ever."""
_DELTA_UNNAMED = frozenset(" ,;{}()\n\t=")
"""Characters that Delta has in no name of a column."""


def open_table(
    place: TablePlace,
    layout: TableLayout,
    *,
    environment: Mapping[str, str] = os.environ,
    home: Path | None = None,
    patience: Patience | None = None,
) -> Table:
    """Open the table, or create it with this layout.

    Raises:
        TableRefused: its format, a feature of it, or its partitioning cannot be written.
        PlaceRefused: credentials are missing or wrong.
    """
    _check_names(place, layout)
    options, patience = place.store_options(environment, home or Path.home()), patience or Patience()
    # The libraries of the formats take a second to load: only who uses one waits for it.
    if place.format == "delta":
        from courser.lake.delta_table import open_delta  # noqa: PLC0415

        return open_delta(place.location, options, layout, patience)
    from courser.lake.iceberg_table import open_iceberg  # noqa: PLC0415

    if _has_own_catalog(place):
        make_folders(Path(place.location))
    return open_iceberg(_catalog(place, options), place.table, layout, patience)


def find_table(
    place: TablePlace,
    partition_by: Sequence[PartitionField] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    home: Path | None = None,
    patience: Patience | None = None,
) -> Table | None:
    """Open the table if it is there. Creates nothing. Raises as ``open_table`` does."""
    options, patience = place.store_options(environment, home or Path.home()), patience or Patience()
    if place.format == "delta":
        from courser.lake.delta_table import find_delta  # noqa: PLC0415

        return find_delta(place.location, options, partition_by, patience)
    from courser.lake.iceberg_table import find_iceberg  # noqa: PLC0415

    if _has_own_catalog(place) and not Path(place.location, "catalog.db").exists():
        return None
    return find_iceberg(_catalog(place, options), place.table, partition_by, patience)


def _has_own_catalog(place: TablePlace) -> bool:
    """Whether the catalog is a file of its own beside its tables."""
    return not place.catalog


def _catalog(place: TablePlace, options: Mapping[str, str]) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    properties = place.catalog_properties(options)
    # A catalog object for each table: what a REST catalog vends for one would be sent for the others too.
    catalog = load_catalog(place.catalog_name, **properties)
    if (session := getattr(catalog, "_session", None)) is not None:
        session.request = partial(session.request, timeout=CATALOG_TIMEOUT)
    return catalog


def _check_names(place: TablePlace, layout: TableLayout) -> None:
    names = list(layout.columns.names)
    if reserved := sorted(RESERVED & set(names)):
        raise TableRefused(str(place), f"the column {reserved[0]} has a name that tables reserve; give it another one")
    lower = [name.lower() for name in names]
    if twice := next((name for name in names if lower.count(name.lower()) > 1), None):
        raise TableRefused(str(place), f"two columns are named {twice}, and tools do not tell upper case from lower")
    for name in names:
        if not name or (place.format == "delta" and _DELTA_UNNAMED & set(name)):
            raise TableRefused(str(place), f'a column cannot be named "{name}"; give it another name')
    for field in layout.partition_by or ():
        if field.source.partition(".")[0] not in names:
            raise TableRefused(str(place), f"it cannot be partitioned by {field.source}: there is no such column")
        if (field.transform in ("bucket", "truncate")) != (field.argument is not None):
            raise TableRefused(str(place), f"{field.transform} of {field.source}: bucket and truncate need a number")
