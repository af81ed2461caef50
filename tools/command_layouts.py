"""The layouts in docs/formats/private-commands.md, from the rows and fields of the commands.

The prose around them is written by hand. A command without a section gets one.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from courser.api import commands, replies
from courser.api.fields import Counted, Kind, ToTheEnd
from courser.api.table import Command, CommandRow
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import Partitioning, PollingKind
from courser.records.batch import Batch

_BEGIN, _END = "<!-- layout: generated -->", "<!-- end -->"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_HEADING = re.compile(r"^#{2,3} (\d{5}) \w+$", re.MULTILINE)

_KINDS: dict[Any, str] = {
    Kind.U8: "`u8`",
    Kind.U32: "`u32`",
    Kind.U64: "`u64`",
    Kind.ID: "`u32`",
    Kind.FLAG: "`u8`, 0 or 1",
    Kind.NAME: "`u8` length, text",
    Kind.TEXT8: "`u8` length, text",
    Kind.TEXT32: "`u32` length, text",
    Kind.UUID: "16 bytes",
    Kind.OPTIONAL_PARTITION: "`u8`, 1 if present; `u32`",
    Kind.OPTIONAL_U64: "`u8`, 1 if present; `u64`",
    Identifier: "identifier",
    Consumer: "consumer",
    Partitioning: "partitioning",
    PollingKind: "`u8`",
    Batch: "a batch record",
}


def with_layouts(text: str) -> str:
    """The document with the current layouts."""
    rows = {row.code: row for row in commands.COMMANDS if row.is_private}
    described = {int(code) for code in _HEADING.findall(text)}
    for code in sorted(rows.keys() - described):
        row = rows[code]
        text += f"\n## {code} {row.kind.__name__}\n\n{inspect.getdoc(row.kind)}\n\n{_BEGIN}\n{_END}\n"
    parts = _HEADING.split(text)
    pieces = [parts[0]]
    headings = [match.group() for match in _HEADING.finditer(text)]
    for heading, number, section in zip(headings, parts[1::2], parts[2::2], strict=True):
        if int(number) not in rows:
            raise ValueError(f"there is no private command {number}")
        layout = f"{_BEGIN}\n{_layout(rows[int(number)])}{_END}"
        pieces += (heading, _BLOCK.sub(lambda _, layout=layout: layout, section, count=1))
    return "".join(pieces)


def _layout(row: CommandRow) -> str:
    request = _table("request", row.kind)
    if row.reply is None:
        return f"{request}\nNo reply.\n\n" if request else "No fields, no reply.\n\n"
    return "\n".join(filter(None, (request, _table("reply", row.reply)))) + "\n"


def _table(title: str, kind: type[msgspec.Struct]) -> str:
    if kind is replies.Polled:
        # Its codec is written by hand, because the messages are sent without a copy.
        rows = [("`partition_id`", "`u32`", ""), ("`current_offset`", "`u64`", "Of the newest message.")]
        rows += [("`message_count`", "`u32`", ""), ("each", "batch record", "")]
    else:
        rows = list(_rows(kind))
    lines = [f"| {name} | {form} | {meaning} |".replace("|  |", "| |") for name, form, meaning in rows]
    return "\n".join((f"| {title} | | |", "| --- | --- | --- |", *lines, "")) if rows else ""


def _rows(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    hints, meanings = get_type_hints(kind, include_extras=True), _field_docs(kind)
    for name in kind.row.order if issubclass(kind, Command) else kind.__struct_fields__:
        hint, meaning = hints[name], meanings.get(name, "")
        mark = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Counted | ToTheEnd)), None)
        if mark is not None:
            yield f"`{prefix}{name}`", _count_of(mark), meaning
            yield from _row_of(get_args(get_args(hint)[0])[0])
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in _KINDS:
            yield from _rows(hint)
        elif Kind.ABSENT not in getattr(hint, "__metadata__", ()):
            yield f"`{prefix}{name}`", _form(hint), meaning


def _count_of(mark: Counted | ToTheEnd) -> str:
    if isinstance(mark, ToTheEnd):
        return "rows up to the end"
    return "`u32` count" if mark.count_max is None else f"`u32` count, at most {mark.count_max:,}"


def _row_of(hint: Any) -> Iterator[tuple[str, str, str]]:
    """The fields of each row of a list."""
    if get_origin(hint) is tuple:
        yield "each", ", ".join(_form(part) for part in get_args(hint)), ""
    elif get_origin(hint) is Annotated:
        yield "each", _form(hint), ""
    else:
        yield from ((f"each: {name}", form, meaning) for name, form, meaning in _rows(hint))


def _form(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return next(_KINDS[mark] for mark in hint.__metadata__ if isinstance(mark, Kind))
    return _KINDS[hint]


def _field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings of the fields."""
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    docs: dict[str, str] = {}
    for field, following in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[field.target.id] = " ".join(inspect.cleandoc(str(following.value.value)).split())
    return docs
