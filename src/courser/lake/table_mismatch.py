"""The errors of schemas, and of rows that do not fit their table."""

from courser.errors import ClientFailure


class SchemaRefused(ClientFailure):
    """A schema is invalid, or uses reserved column names."""


class TableMismatch(ClientFailure):
    """A table has a column of another type. The rows come again with every retry, so a retry does not help."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(
            f"the rows do not fit the table {table}: {reason}; give the column another name, or write to another table"
        )
        self.table = table
