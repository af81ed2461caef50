"""The types of the sync client, from the source of both clients: ``src/courser/client/sync.pyi``.

Most methods of the sync client are made when its module is loaded. Type checkers and editors cannot see them.
"""

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from courser.client import sync

PATH = "src/courser/client/sync.pyi"
_MARK = "# Types for sync.py. Written by: make reference\n"


def stub() -> str:
    """The text of the file, in the style of all others."""
    parts = [part for node in _statements(sync) for part in _parts(node)]
    imports = sorted({line for part in parts for line in part.imports})
    text = "\n".join([*imports, "", *(part.text for part in parts), ""])
    for command in (["check", "--quiet", "--fix", "--exit-zero"], ["format"]):
        text = _ruff(text, command)
    return f"{_MARK}\n{text}"


def _ruff(text: str, command: list[str]) -> str:
    whole = [sys.executable, "-m", "ruff", *command, f"--stdin-filename={PATH}", "-"]
    return subprocess.run(whole, input=text, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class _Part:
    """A declaration, and the import statements that it needs."""

    text: str
    imports: frozenset[str]


def _parts(node: ast.stmt) -> Iterator[_Part]:
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        yield _function(node, sync.__name__, node.returns, "")
    elif isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(part) for part in (*node.bases, *node.keywords))
        yield _Part(f"class {node.name}({bases}):", _imports(sync.__name__, *node.bases))
        yield from _members(node)


def _members(node: ast.ClassDef) -> Iterator[_Part]:
    for field in (part for part in node.body if isinstance(part, ast.AnnAssign)):
        yield _Part(f"    {ast.unparse(field)}", _imports(sync.__name__, field.annotation))
    written = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    for name, member in vars(vars(sync)[node.name]).items():
        is_public = not name.startswith("_") or (name in written and name.endswith("__"))
        if is_public and (inspect.isfunction(member) or isinstance(member, property)):
            # What wraps another function has its parameters, but returns what it says itself.
            function = inspect.unwrap(member.fget if isinstance(member, property) else member)  # type: ignore[arg-type]
            (source,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
            assert isinstance(source, ast.FunctionDef | ast.AsyncFunctionDef)
            returns = written[name].returns if name in written else None
            yield _function(source, function.__module__, returns, "    ", is_property=isinstance(member, property))


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    module: str,
    own_returns: ast.expr | None,
    indent: str,
    *,
    is_property: bool = False,
) -> _Part:
    arguments, returns = node.args, own_returns or node.returns
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    types = [part.annotation for part in every if part is not None]
    imports = _imports(module, *types, *arguments.defaults, *arguments.kw_defaults)
    imports |= _imports(sync.__name__ if own_returns else module, returns)
    head = f"{indent}@property\n" if is_property else ""
    kind = "None" if returns is None else ast.unparse(returns)
    return _Part(f"{head}{indent}def {node.name}({ast.unparse(arguments)}) -> {kind}: ...", imports)


# --- imports ------------------------------------------------------------------------------------------


def _imports(module: str, *nodes: ast.AST | None) -> frozenset[str]:
    """The statements that give these parts of a module their names elsewhere."""
    parts = (part for node in nodes if node is not None for part in ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)} - vars(builtins).keys()
    return frozenset(_import_of(module, name) for name in names if not _is_own(name))


def _is_own(name: str) -> bool:
    return getattr(vars(sync).get(name), "__module__", "") == sync.__name__


def _import_of(module: str, name: str) -> str:
    for node in _statements(import_module(module)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return f"from {node.module} import {ast.unparse(alias)}"
    return f"from {module} import {name}"


@cache
def _statements(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body
