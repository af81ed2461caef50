"""Schemas that change, in real tables: the cases of ``test_schema_changes``, side by side in one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from courser.lake.message_columns import OFFSET
from courser.lake.schema_changes import fitted, follow
from courser.lake.schemas import parse_schema
from courser.lake.table_mismatch import TableMismatch
from tests.lake.test_schema_changes import COMPATIBLE, Case, rows
from tests.lake.topic_tables import Runner, local_place, read

NULL_REFUSED = "a required column becomes optional"
"""In Delta: the task refuses a row that is null there."""
DELTA_REFUSES = {
    "a whole number is widened",
    "a floating number is widened",
    "a decimal gets more digits",
    "a value is null before and there after",
    "a field is added to a struct",
    "a field of a struct is widened, and the struct is null before",
    "the elements of a list are widened",
    "the structs in a list get a field",
    "the values of a map are widened",
}
"""Delta's library changes no column that is there. Nothing is rounded, cut or left out instead."""
NUMBERED = pa.field(OFFSET, pa.int64())


def named_after(case: Case, schema: Any) -> Any:
    """The columns of a case, with names that no other case has."""
    number = COMPATIBLE.index(case)
    return pa.schema([field.with_name(f"{field.name}_{number}") for field in schema])


def one_row(tables: Sequence[tuple[Case, Any]], offset: int) -> Any:
    """The rows of all cases as one row."""
    found = pa.table([pa.array([offset], pa.int64())], schema=pa.schema([NUMBERED]))
    for case, table in tables:
        schema = named_after(case, table.schema)
        for field, column in zip(schema, table.columns, strict=True):
            found = found.append_column(field, column)
    return found


@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_rows_before_and_after_a_change_are_in_the_table(format_: str, tmp_path: Path) -> None:
    old = {case.name: named_after(case, parse_schema(case.old)) for case in COMPATIBLE}
    columns = pa.schema([NUMBERED, *(field for schema in old.values() for field in schema)])
    runner = Runner.at(local_place(format_, tmp_path), columns=columns)
    runner.append(0, 1, values=one_row([(case, rows(case.old, case.row)) for case in COMPATIBLE], 0))
    taken = []
    for case in COMPATIBLE:
        table = follow(parse_schema(case.old), parse_schema(case.new))
        if format_ == "delta" and case.name in DELTA_REFUSES:
            with pytest.raises(TableMismatch, match="Delta tables cannot change it"):
                runner.table.evolve(named_after(case, table))
        elif format_ == "iceberg" or case.name != NULL_REFUSED:
            taken.append((case, table))
    runner.table.evolve(pa.schema([field for case, table in taken for field in named_after(case, table)]))
    later = [(case, fitted(rows(case.new, case.later), table)) for case, table in taken]
    # What Delta refuses stays as it was.
    later += [(case, rows(case.old, case.row)) for case in COMPATIBLE if case not in [each for each, _ in taken]]
    runner.append(1, 1, values=one_row(later, 1))
    found = read(runner).sort_by(OFFSET)
    for case, table in taken:
        own = found.select(named_after(case, table).names).rename_columns(table.names)
        assert [str(row) for row in own.to_pylist()] == [case.before, case.after], case.name
