"""Appends batches to Delta tables exactly once, with the ``deltalake`` package.

The commit that adds the rows of a batch also records the batch number for the application in the table's log. So both
are there or neither is, even after a crash. The batch numbers of an application must increase.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from courser.lake.table_mismatch import TableMismatch

_MISMATCHES = ("Cast error", "Cannot cast", "Schema error", "Cannot merge")


def last_batch(path: str | Path, application: str) -> int | None:
    """The number of the last batch that ``application`` appended; None if there is none, or no table."""
    if not DeltaTable.is_deltatable(str(path)):
        return None
    return DeltaTable(str(path)).transaction_version(application)


def append(
    path: str | Path,
    batches: Iterable[Any],
    schema: Any,
    *,
    application: str,
    batch: int,
    partition_by: Sequence[str] = (),
) -> bool:
    """Append record batches as batch number ``batch`` of ``application``; False if that was done before.

    Creates the table if it is missing, and adds columns that it lacks. Callers must not run one application twice at a
    time: the later commit fails.

    Raises:
        TableMismatch: a column of the table has another type.
    """
    known = last_batch(path, application)
    if known is not None and batch <= known:
        return False
    marker = CommitProperties(app_transactions=[Transaction(application, batch)])
    try:
        write_deltalake(
            str(path),
            pa.RecordBatchReader.from_batches(schema, batches),
            mode="append",
            schema_mode="merge",
            partition_by=list(partition_by) or None,
            commit_properties=marker,
        )
    except DeltaError as error:
        if any(words in str(error) for words in _MISMATCHES):
            raise TableMismatch(str(path), str(error)) from error
        raise
    return True
