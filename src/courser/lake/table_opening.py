"""Opening the table at a place, whatever its format: the way in for drivers."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from courser.lake.atomic_files import make_folders
from courser.lake.message_columns import RESERVED
from courser.lake.table_place import TablePlace
from courser.lake.tables import Patience, Table, TableLayout, TableRefused

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
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    from courser.lake.iceberg_table import open_iceberg  # noqa: PLC0415

    properties = place.catalog_properties(options)
    if properties.get("uri", "").startswith("sqlite:") and not place.catalog:
        make_folders(Path(place.location))
    # A catalog object for each table: what a REST catalog vends for one would be sent for the others too.
    catalog = load_catalog(place.catalog_name, **properties)
    if (session := getattr(catalog, "_session", None)) is not None:
        session.request = partial(session.request, timeout=CATALOG_TIMEOUT)
    return open_iceberg(catalog, place.table, layout, patience)


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
