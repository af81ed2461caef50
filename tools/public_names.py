"""What the source says about public names: signatures, docstrings, fields and methods. For the reference."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import pairwise, zip_longest
from typing import Any, TypeAlias, get_type_hints

from courser.model.topic_options import TopicOption

_SIGNATURE_WIDTH = 100
_SECTIONS = re.compile(r"^(Args|Attributes|Raises|Example):\n", re.MULTILINE)
_TWIN_PREFIX = "Sync"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Docstring:
    """A docstring in Google's style, taken apart."""

    meaning: str = ""
    sections: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> "Docstring":
        """Take it apart. The sections are Args, Attributes, Raises and Example."""
        meaning, *rest = _SECTIONS.split(inspect.cleandoc(text or ""))
        bodies = [textwrap.dedent(body).strip("\n") for body in rest[1::2]]
        return cls(meaning.strip(), dict(zip(rest[::2], bodies, strict=True)))

    @property
    def example(self) -> str:
        """The code of the example."""
        return self.sections.get("Example", "")

    def entries(self, section: str) -> dict[str, str]:
        """The texts of a section by name. A text goes on in lines that are indented."""
        items = re.split(r"\n(?=\S)", self.sections.get(section, ""))
        pairs = (item.partition(":")[::2] for item in items if item)
        return {name: " ".join(text.split()) for name, text in pairs}


@dataclass(frozen=True)
class PublicName:
    """A name that programs use."""

    path: str
    """``connect``, ``Client``, ``Client.close``."""
    docstring: Docstring
    signature: str = ""
    returns: str = ""


@dataclass(frozen=True)
class FunctionName(PublicName):
    """A function or method."""

    is_request: bool = False
    """Whether it waits for the server."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Names and types."""


@dataclass(frozen=True)
class Value:
    """A field, an attribute or a property."""

    name: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True)
class ClassName(PublicName):
    """A class, with what belongs to it."""

    values: tuple[Value, ...] = ()
    functions: tuple[FunctionName, ...] = ()
    bases: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    """Methods of the async class that this class has too."""
    is_part: bool = False
    """Whether it is shown as a part of another class."""


def named(place: str, *, missing_ok: bool = False) -> PublicName:
    """What is at a place: ``module:name``, or ``module:name=path`` for a class that is shown as a part of another.

    Raises:
        LookupError: there is no such name.
    """
    module, _, name = place.partition(":")
    name, _, path = name.partition("=")
    node, text = _definitions(module).get(name, (None, ""))
    if isinstance(node, ast.ClassDef):
        entry = _class(module, node, path or name)
        return replace(entry, is_part=bool(path))
    if isinstance(node, Function):
        return _function(module, node, "")
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return PublicName(name, Docstring.of(text), f"{name} = {_plain(ast.unparse(node.value))}")
    if missing_ok:
        return PublicName(name, Docstring())
    raise LookupError(f"there is no {name} in {module}")


def names_in(entry: PublicName) -> Iterator[PublicName]:
    """The name itself, unless it is a part of another, and its methods."""
    if not isinstance(entry, ClassName):
        yield entry
        return
    if not entry.is_part:
        yield entry
    yield from entry.functions


# --- reading the source -------------------------------------------------------------------------------


@cache
def _definitions(module: str) -> dict[str, tuple[ast.stmt, str]]:
    """The statements that define the names of a module, each with the docstring that follows it."""
    found: dict[str, tuple[ast.stmt, str]] = {}
    body = ast.parse(inspect.getsource(import_module(module))).body
    for node, following in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ClassDef | Function):
            found[node.name] = node, ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node, _text_of(following)
    return found


def _text_of(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return str(node.value.value) if is_text else ""  # type: ignore[attr-defined]  # it is an expression


def _class(module: str, node: ast.ClassDef, path: str) -> ClassName:
    functions = [part for part in node.body if isinstance(part, Function) and _is_shown(part)]
    properties = {part.name for part in functions if _has_decorator(part, "property", "cached_property")}
    twin = node.name.removeprefix(_TWIN_PREFIX) if node.name.startswith(_TWIN_PREFIX) else ""
    twins = _shared_names(module, node.name, twin) if twin else ()
    return ClassName(
        path,
        Docstring.of(ast.get_docstring(node)),
        values=tuple(value for value in _values(module, node, properties) if value.name not in twins),
        functions=tuple(
            _function(module, part, path)
            for part in functions
            if part.name not in properties and part.name not in twins
        ),
        bases=tuple(_plain(ast.unparse(base)) for base in node.bases),
        twins=tuple(f"{twin}.{name}" for name in twins),
    )


def _shared_names(module: str, name: str, twin: str) -> tuple[str, ...]:
    """The public names that a sync class shares with the async one, which its module imports."""
    sync, original = (getattr(import_module(module), part, None) for part in (name, twin))
    return tuple(sorted(part for part in vars(sync) if not part.startswith("_") and hasattr(original, part)))


def _is_shown(node: Function) -> bool:
    return not node.name.startswith("_") and not _has_decorator(node, "overload")


def _has_decorator(node: Function, *names: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in node.decorator_list)


# --- values -------------------------------------------------------------------------------------------


def _values(module: str, node: ast.ClassDef, properties: set[str]) -> Iterator[Value]:
    owner = getattr(import_module(module), node.name)
    hints, rows = get_type_hints(owner), _rows(owner)
    for part, following in pairwise([*node.body, ast.Pass()]):
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and _is_public(part.target.id):
            default = "" if part.value is None else _default(module, part.value)
            name = part.target.id
            meaning = _meaning(rows[name]) if name in rows else _one_line(_text_of(following))
            yield Value(name, _kind(hints[name]), default, meaning)
        elif isinstance(part, Function) and part.name in properties:
            kind = _plain(ast.unparse(part.returns)) if part.returns is not None else ""
            yield Value(part.name, kind, "", _one_line(ast.get_docstring(part) or ""))
        elif isinstance(part, Function) and part.name == "__init__":
            yield from _attributes(part)
    for name, meaning in Docstring.of(ast.get_docstring(node)).entries("Attributes").items():
        yield Value(name, "", "", meaning)


def _rows(owner: type) -> dict[str, TopicOption]:
    """The fields that are options of topics: their rows say what they mean."""
    hints = get_type_hints(owner, include_extras=True)
    found = ((name, row) for name, hint in hints.items() for row in getattr(hint, "__metadata__", ()))
    return {name: row for name, row in found if isinstance(row, TopicOption)}


def _meaning(option: TopicOption) -> str:
    examples = " or ".join(f'``"{example}"``' for example in option.kind.examples)
    unit = f" {option.kind.unit.capitalize()}, or a text such as {examples}." if option.kind.unit else ""
    return option.sentence + unit


def _attributes(initializer: Function) -> Iterator[Value]:
    """Public attributes that ``__init__`` sets, if a docstring follows."""
    for part, following in pairwise([*initializer.body, ast.Pass()]):
        target = part.targets[0] if isinstance(part, ast.Assign) else None
        if isinstance(target, ast.Attribute) and _is_public(target.attr) and (text := _text_of(following)):
            yield Value(target.attr, "", "", _one_line(text))


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _kind(hint: Any) -> str:
    return _plain(hint.__name__ if isinstance(hint, type) and not getattr(hint, "__args__", ()) else str(hint))


def _default(module: str, node: ast.expr) -> str:
    """A default value as a program would write it. Of a dataclass's ``field`` it is the argument."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        (node,) = (word.value for word in node.keywords if word.arg == "default")
    constant = getattr(import_module(module), node.id, None) if isinstance(node, ast.Name) else None
    return repr(constant) if isinstance(constant, int | str) else ast.unparse(node)


def _plain(text: str) -> str:
    """Types without quotes and without the modules that define them."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text.replace('"', "").replace("'", ""))


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- functions ----------------------------------------------------------------------------------------


def _function(module: str, node: Function, owner: str) -> FunctionName:
    path = f"{owner}.{node.name}" if owner else node.name
    is_async = isinstance(node, ast.AsyncFunctionDef)
    parameters = list(
        _parameters(module, node.args, is_method=bool(owner) and not _has_decorator(node, "staticmethod"))
    )
    returns = _plain(ast.unparse(node.returns)) if node.returns is not None else "None"
    head, tail = f"{'await ' if is_async else ''}{path}(", f") -> {returns}"
    one_line = f"{head}{', '.join(parameters)}{tail}"
    long = "\n".join((head, *(f"    {parameter}," for parameter in parameters), tail))
    return FunctionName(
        path,
        Docstring.of(ast.get_docstring(node)),
        signature=one_line if len(one_line) <= _SIGNATURE_WIDTH else long,
        returns=returns,
        is_request=is_async,
        parameters=tuple(
            (part.arg, _plain(ast.unparse(part.annotation)))
            for part in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            if part.annotation is not None
        ),
    )


def _parameters(module: str, arguments: ast.arguments, *, is_method: bool) -> Iterator[str]:
    plain = arguments.args[1:] if is_method else arguments.args
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
    yield from (_parameter(module, part, default) for part, default in zip(plain, defaults[-len(plain) :], strict=True))
    if arguments.vararg is not None:
        yield f"*{_parameter(module, arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for part, default in zip_longest(arguments.kwonlyargs, arguments.kw_defaults):
        yield _parameter(module, part, default)
    if arguments.kwarg is not None:
        # Its type is the name of a set of options: the text says which.
        yield f"**{arguments.kwarg.arg}"


def _parameter(module: str, part: ast.arg, default: ast.expr | None) -> str:
    kind = "" if part.annotation is None else f": {_plain(ast.unparse(part.annotation))}"
    if default is None:
        return f"{part.arg}{kind}"
    return f"{part.arg}{kind} = {_default(module, default)}"
