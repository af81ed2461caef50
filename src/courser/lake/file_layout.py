"""What the files of a table must look like, whatever its format; and making rows fit its columns."""

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.lake.table_mismatch import TableMismatch
from courser.lake.tables import StoreAccess, WrittenFile


class FileLayout(Protocol):
    """The files of one format, as described to a task."""

    @property
    def table(self) -> str:
        """For messages."""

    @property
    def columns(self) -> Any:
        """The Arrow schema that rows are fitted to."""

    @property
    def file_schema(self) -> Any:
        """The Arrow schema of files: some of the columns, with the ids of fields if the format has them."""

    @property
    def partition_sources(self) -> Sequence[str]:
        """The columns that the partition of a row depends on."""

    def partition_values(self, rows: Any) -> Sequence[Any]:
        """One array for each partition field."""

    def partition_text(self, values: Sequence[Any]) -> str:
        """Partition values as ``WrittenFile`` has them."""

    def key(self, values: Sequence[Any], name: str) -> str:
        """The key of a file of this name, relative to the root of the description."""

    def written(self, key: str, values: Sequence[Any], size: int, metadata: Any) -> WrittenFile:
        """What the driver needs to know. ``metadata``: the footer of the file."""

    def read(self, sources: Sequence[str], access: StoreAccess, names: Sequence[str] | None = None) -> Any:
        """Rows of files of a plan, or only these columns of them. Nobody may have deleted rows beside the files."""

    def path(self, source: str) -> str:
        """The path of a file of a plan, as ``WrittenFile`` has it."""


def fitted(rows: Any, columns: Any, table: str) -> Any:
    """Rows with exactly these columns and types. Optional columns that they lack are null.

    Raises:
        TableMismatch: a column is not in the table, a value does not fit, or one is missing that must be there.
    """
    if unknown := sorted(set(rows.schema.names) - set(columns.names)):
        raise TableMismatch(table, f"it has no column {unknown[0]}")
    arrays = []
    for field in columns:
        if field.name not in rows.schema.names:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        else:
            try:
                arrays.append(rows[field.name].cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise TableMismatch(table, f"column {field.name}: {str(error).splitlines()[0]}") from error
        if not field.nullable and arrays[-1].null_count:
            raise TableMismatch(table, f"column {field.name} must have a value in every row")
    return pa.table(arrays, schema=columns)
