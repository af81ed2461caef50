"""Delta tables, through the ``deltalake`` package: a batch is appended once, however often it is brought.

The table's own log holds, for each application, the number of its last batch, in the same commit as the batch's rows.
So both are there or neither, for every reader, also after a kill. Batches of one application must come in rising order.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake


def last_batch(path: str | Path, application: str) -> int | None:
    """The number of the last batch that ``application`` has appended; None if there is none, or no table."""
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

    The table is made if it is missing. Two runs of one application at a time are the caller's mistake: the later commit
    fails.
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
