"""Iceberg tables, through the ``pyiceberg`` package: a batch is appended once, however often it is brought.

A property of the table holds, for each application, the number of its last batch; it is set in the same commit that
adds the rows. So both are there or neither, and expiring snapshots forgets nothing. Batches of one application must
come in rising order.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

_MARKER = "courser.batch."
"""Before the application's name, in the properties of a table."""
_TRY_COUNT = 5
"""Commits that may be lost to other writers of the table before the error is the caller's."""


def open_catalog(folder: Path, name: str = "courser") -> Catalog:
    """A catalogue in one file, ``catalog.db``, with the tables' files beside it; made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.absolute()
    return load_catalog(name, type="sql", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=place.as_uri())


def last_batch(catalog: Catalog, table: str, application: str) -> int | None:
    """The number of the last batch that ``application`` has appended; None if there is none, or no table."""
    if not catalog.table_exists(table):
        return None
    return _last_batch(catalog.load_table(table), application)


def _last_batch(table: Table, application: str) -> int | None:
    text = table.properties.get(_MARKER + application)
    return int(text) if text is not None else None


def append(catalog: Catalog, table: str, batches: Iterable[Any], schema: Any, *, application: str, batch: int) -> bool:
    """Append record batches as batch number ``batch`` of ``application``; False if that was done before.

    ``table`` is ``namespace.name``; both are made if they are missing.
    """
    namespace, separator, _ = table.rpartition(".")
    if not separator:
        raise ValueError(f"{table} has no namespace: call it default.{table}")
    catalog.create_namespace_if_not_exists(namespace)
    # Made without rows: if a kill comes behind it, there is an empty table and no marker.
    catalog.create_table_if_not_exists(table, schema)
    rows = pa.Table.from_batches(batches, schema)
    for attempt in range(1, _TRY_COUNT + 1):
        # Read anew each time: another run of the same application may have appended this very batch.
        current = catalog.load_table(table)
        known = _last_batch(current, application)
        if known is not None and batch <= known:
            return False
        try:
            with current.transaction() as transaction:
                transaction.set_properties({_MARKER + application: str(batch)})
                transaction.append(rows)
        except CommitFailedException:
            if attempt == _TRY_COUNT:
                raise
        else:
            return True
    raise AssertionError("the loop returns or raises")
