"""Appends batches to Delta tables exactly once, with the ``deltalake`` package.

The commit that adds the rows of a batch also records the batch number for the application in the table's log. So both
are there or neither is, even after a crash. The batch numbers of an application must increase.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake


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

    Creates the table if it is missing. Callers must not run one application twice at a time: the later commit fails.
    """
    known = last_batch(path, application)
    if known is not None and batch <= known:
        return False
    marker = CommitProperties(app_transactions=[Transaction(application, batch)])
    write_deltalake(
        str(path),
        pa.RecordBatchReader.from_batches(schema, batches),
        mode="append",
        partition_by=list(partition_by) or None,
        commit_properties=marker,
    )
    return True
