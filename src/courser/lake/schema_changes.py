"""What a new schema changes in a table, whether the table can follow, and rows in the shape of the table.

A table follows by new optional columns, wider types, and columns that become optional. It never loses a column, and
never gets a narrower type: rows that are there keep their values, and rows of an older or narrower schema fit too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs

from courser.lake.schemas import type_text
from courser.lake.table_mismatch import SchemaRefused


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the columns of a table and a schema."""

    column: str
    """Its path, such as ``address.city``."""
    text: str
    """What happens, as a sentence."""
    is_compatible: bool


def changes(table: Any, schema: Any) -> tuple[Change, ...]:
    """What differs in ``schema`` from the columns of ``table``, both Arrow schemas, in the order of the columns."""
    return tuple(_field_changes(list(table), list(schema), ""))


def follow(table: Any, schema: Any) -> Any:
    """The columns that the table has to have for rows of the schema. Raises ``SchemaRefused``."""
    refused = [change.text for change in changes(table, schema) if not change.is_compatible]
    if refused:
        raise SchemaRefused("; ".join(refused))
    return pa.schema(_followed(list(table), list(schema)))


def _field_changes(table: list[Any], schema: list[Any], prefix: str) -> Iterator[Change]:
    new = {field.name: field for field in schema}
    for old in table:
        path = prefix + old.name
        if old.name in new:
            yield from _changes_of(old, new[old.name], path)
        elif old.nullable:
            yield Change(path, f"{path} is not in the schema: it stays in the table, and is null in new rows", True)
        else:
            yield Change(path, f"{path} is not in the schema, but the table requires it; keep it", False)
    known = {field.name for field in table}
    alike = {field.name.lower(): field.name for field in table}
    for field in schema:
        path = prefix + field.name
        if field.name in known:
            continue
        if field.name.lower() in alike:
            other = prefix + alike[field.name.lower()]
            yield Change(path, f"{path} differs from {other} of the table only in case; use that name", False)
        elif field.nullable:
            yield Change(path, f"{path} is new: it is null in the rows that are in the table", True)
        else:
            reason = f"{path} is new and NOT NULL, but the rows that are in the table have no value for it"
            yield Change(path, f"{reason}; make it optional", False)


def _changes_of(old: Any, new: Any, path: str) -> Iterator[Change]:
    """What differs between two fields of a name."""
    if new.nullable and not old.nullable:
        yield Change(path, f"{path} becomes optional", True)
    yield from _type_changes(old.type, new.type, path)


def _type_changes(old: Any, new: Any, path: str) -> Iterator[Change]:
    types = pa.types
    if types.is_struct(old) and types.is_struct(new):
        yield from _field_changes(list(old), list(new), f"{path}.")
    elif types.is_list(old) and types.is_list(new):
        yield from _type_changes(old.value_type, new.value_type, f"{path}[]")
    elif types.is_map(old) and types.is_map(new) and old.key_type == new.key_type:
        yield from _type_changes(old.item_type, new.item_type, f"{path}[]")
    elif old != new:
        before, after = type_text(old), type_text(new)
        if _is_wider(new, old):
            yield Change(path, f"{path} is widened from {before} to {after}", True)
        elif _is_wider(old, new):
            yield Change(path, f"{path} is {after} in the schema: the table keeps {before}, which holds it", True)
        else:
            reason = f"{path} is {before} in the table, and cannot become {after}"
            yield Change(path, f"{reason}; give the column another name, or write to another table", False)


def holds(wide: Any, narrow: Any) -> bool:
    """Whether a column of a type has a place for all values of another one, exactly and in full."""
    types = pa.types
    if types.is_struct(wide) and types.is_struct(narrow):
        fields = {field.name: field.type for field in wide}
        return all(field.name in fields and holds(fields[field.name], field.type) for field in narrow)
    if types.is_list(wide) and types.is_list(narrow):
        return holds(wide.value_type, narrow.value_type)
    if types.is_map(wide) and types.is_map(narrow):
        return bool(wide.key_type == narrow.key_type) and holds(wide.item_type, narrow.item_type)
    return wide == narrow or _is_wider(wide, narrow)


def _is_wider(wide: Any, narrow: Any) -> bool:
    """Whether a type holds all values of another one exactly, and tables can be changed from that to it."""
    types = pa.types
    if types.is_decimal(wide) and types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision > narrow.precision)
    for test in (types.is_signed_integer, types.is_floating):
        if test(wide) and test(narrow):
            return bool(wide.bit_width > narrow.bit_width)
    return False


def _followed(table: list[Any], schema: list[Any]) -> list[Any]:
    new = {field.name: field for field in schema}
    kept = [_followed_field(old, new[old.name]) if old.name in new else old for old in table]
    known = {field.name for field in table}
    return kept + [field for field in schema if field.name not in known]


def _followed_field(old: Any, new: Any) -> Any:
    return pa.field(old.name, _followed_type(old.type, new.type), nullable=old.nullable or new.nullable)


def _followed_type(old: Any, new: Any) -> Any:
    types = pa.types
    if types.is_struct(old):
        return pa.struct(_followed(list(old), list(new)))
    if types.is_list(old):
        return pa.list_(old.value_field.with_type(_followed_type(old.value_type, new.value_type)))
    if types.is_map(old):
        return pa.map_(old.key_type, _followed_type(old.item_type, new.item_type))
    return new if _is_wider(new, old) else old


# --- rows ---------------------------------------------------------------------------------------------


def fitted(rows: Any, columns: Any) -> Any:
    """A table of rows with these columns: values by name, null where the rows have none.

    The columns must be those that ``follow`` gives for the schema of the rows, or of a schema that came later.
    """
    arrays = []
    for field in columns:
        index = rows.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
        else:
            chunks = [_fitted_values(chunk, field.type) for chunk in rows.column(index).chunks]
            arrays.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(arrays, schema=columns)


def _fitted_values(values: Any, kind: Any) -> Any:
    types = pa.types
    if values.type == kind:
        return values
    if types.is_struct(kind):
        given = values.type
        # ``flatten`` gives each field without rows of another slice, and null where the struct is.
        by_name = dict(zip([field.name for field in given], values.flatten(), strict=True))
        children = [
            _fitted_values(by_name[field.name], field.type)
            if field.name in by_name
            else pa.nulls(len(values), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if types.is_list(kind) or types.is_map(kind):
        # A slice would have offsets that do not begin at 0, and nulls elsewhere.
        whole = pa.concat_arrays([values, values.slice(0, 0)])
        if types.is_list(kind):
            inner = _fitted_values(whole.values, kind.value_type)
            return pa.ListArray.from_arrays(whole.offsets, inner, type=kind, mask=whole.is_null())
        inner = _fitted_values(whole.items, kind.item_type)
        return pa.MapArray.from_arrays(whole.offsets, whole.keys, inner, type=kind, mask=whole.is_null())
    return values.cast(kind)
