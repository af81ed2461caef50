"""Appends batches to Iceberg tables exactly once, with the ``pyiceberg`` package.

The commit that adds the rows of a batch also sets a table property with the application's batch number. So both are
there or neither is, and expiring snapshots loses nothing. The batch numbers of an application must increase.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.table import Table, Transaction

from courser.lake.table_mismatch import TableMismatch

_MARKER = "courser.batch."
"""Prefix of the property, before the application's name."""
_TRY_COUNT = 5
"""Attempts to commit, if other writers of the table get there first, before the error is raised."""


def open_catalog(folder: Path, name: str = "courser") -> Catalog:
    """A catalog in the file ``catalog.db``, with the tables' files next to it. Created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.absolute()
    return load_catalog(name, type="sql", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=place.as_uri())


def last_batch(catalog: Catalog, table: str, application: str) -> int | None:
    """The number of the last batch that ``application`` appended; None if there is none, or no table."""
    if not catalog.table_exists(table):
        return None
    return _last_batch(catalog.load_table(table), application)


def _last_batch(table: Table, application: str) -> int | None:
    text = table.properties.get(_MARKER + application)
    return int(text) if text is not None else None


def append(catalog: Catalog, table: str, batches: Iterable[Any], schema: Any, *, application: str, batch: int) -> bool:
    """Append record batches as batch number ``batch`` of ``application``; False if that was done before.

    ``table`` is ``namespace.name``; both are created if they are missing, and columns that the table lacks are added.

    Raises:
        TableMismatch: a column of the table has another type.
    """
    namespace, separator, _ = table.rpartition(".")
    if not separator:
        raise ValueError(f"table {table} has no namespace; use default.{table}")
    catalog.create_namespace_if_not_exists(namespace)
    # A crash after this step leaves an empty table without a marker, which is harmless.
    catalog.create_table_if_not_exists(table, schema)
    rows = pa.Table.from_batches(batches, schema)
    for attempt in range(1, _TRY_COUNT + 1):
        # Reload each time: another run of the same application may have appended this very batch.
        current = catalog.load_table(table)
        known = _last_batch(current, application)
        if known is not None and batch <= known:
            return False
        try:
            with current.transaction() as transaction:
                _add_columns(transaction, table, schema)
                transaction.set_properties({_MARKER + application: str(batch)})
                transaction.append(rows)
        except CommitFailedException:
            if attempt == _TRY_COUNT:
                raise
        else:
            return True
    raise AssertionError("the loop returns or raises")


def _add_columns(transaction: Transaction, table: str, schema: Any) -> None:
    """Add the columns that the table lacks. Readers see them together with the rows."""
    try:
        with transaction.update_schema() as update:
            update.union_by_name(schema)
    except (ValidationError, ValueError) as error:
        raise TableMismatch(table, str(error)) from error
