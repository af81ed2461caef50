"""The house rules, as far as a machine can tell.

A rule is a function from one file to the lines that break it, each with what to do instead. Every rule is run over
the tree, and over a planted offence, so that a rule which has stopped biting is noticed.
"""

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Written so that the patterns do not match themselves: this file keeps the rules that it checks.
LEFTOVER = re.compile(r"\b(?:FIX[M]E|TO[D]O|X{3})\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/")

SKIPPED_DIRECTORIES = {"__pycache__", "build", "dist", "local_data"}


@dataclass(frozen=True)
class Source:
    """One text file of the repository."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree: every rule goes through it, and to walk through a tree takes longer than to parse it."""
        return list(ast.walk(self.tree))

    def is_python_in(self, *directories: str) -> bool:
        return self.path.endswith(".py") and self.path.startswith(tuple(f"{name}/" for name in directories))


Finding = tuple[int, str]
Rule = Callable[[Source], Iterator[Finding]]


def modules_say_what_they_are(source: Source) -> Iterator[Finding]:
    if source.is_python_in("src") and not ast.get_docstring(source.tree):
        yield 1, "no module docstring: say what lives here, what does not, and which invariant it owns"


def nothing_is_left_for_later(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := LEFTOVER.search(line):
            yield number, f"{found.group()}: do it now, or open an issue and describe today's behaviour here"


def no_test_sleeps(source: Source) -> Iterator[Finding]:
    if not source.is_python_in("tests"):
        return
    advice = "sleep in a test: turn a manual clock, or wait for the event itself with a deadline"
    modules = {"time"}
    for node in source.nodes:
        match node:
            case ast.Import(names=names):
                modules |= {name.asname for name in names if name.name == "time" and name.asname}
            case ast.ImportFrom(module="time", names=names) if any(name.name == "sleep" for name in names):
                yield node.lineno, advice
    for node in source.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="sleep") if name in modules:
                yield node.lineno, advice


def only_the_command_line_prints(source: Source) -> Iterator[Finding]:
    if not source.is_python_in("src") or source.is_python_in("src/courser/cli"):
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield node.lineno, "print outside cli: return the value, or log it"


def paths_belong_to_no_machine(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := MACHINE_PATH.search(line):
            yield number, f"{found.group()} exists on one machine: use a relative path, or tmp_path in a test"


def errors_are_not_swallowed(source: Source) -> Iterator[Finding]:
    if not source.path.endswith(".py"):
        return
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and catches_everything(node.type) and all(map(is_idle, node.body)):
            yield node.lineno, "every error is swallowed here: name the exception, and say why it may be ignored"


def catches_everything(kind: ast.expr | None) -> bool:
    match kind:
        case None | ast.Name(id="Exception" | "BaseException"):
            return True
        case ast.Tuple(elts=kinds):
            return any(map(catches_everything, kinds))
        case _:
            return False


def is_idle(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Continue() | ast.Expr(value=ast.Constant()):
            return True
        case _:
            return False


def only_a_log_changes_itself(source: Source) -> Iterator[Finding]:
    """No ``log.x = ...``, nor ``partition.log.marks.x += ...``: jobs change a ``PartitionLog`` by its named methods."""
    if not source.is_python_in("src/courser/storage", "src/courser/broker", "src/courser/catalog"):
        return
    for node in source.nodes:
        match node:
            case ast.Assign(targets=targets):
                changed = targets
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                changed = [target]
            case _:
                continue
        for part in (part for whole in changed for part in parts_of(whole)):
            if isinstance(part, ast.Attribute) and is_in_a_log(part.value):
                yield part.lineno, f"{ast.unparse(part)} is assigned from outside: add a method to PartitionLog"


def parts_of(target: ast.expr) -> Iterator[ast.expr]:
    """The targets of ``a, (b, c) = ...``."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from parts_of(part)
    else:
        yield target


def is_in_a_log(owner: ast.expr) -> bool:
    match owner:
        case ast.Name(id="log") | ast.Attribute(attr="log" | "_log"):
            return True
        case ast.Attribute(value=value) | ast.Subscript(value=value):
            return is_in_a_log(value)
        case _:
            return False


RULES_AND_OFFENCES: list[tuple[Rule, Source]] = [
    (modules_say_what_they_are, Source("src/a.py", "import os\n")),
    (nothing_is_left_for_later, Source("src/a.py", f"# {'TO' + 'DO'}: all of it\n")),
    (no_test_sleeps, Source("tests/a.py", "import time as t\nt.sleep(1)\n")),
    (no_test_sleeps, Source("tests/a.py", "import time\ntime.sleep(1)\n")),
    (no_test_sleeps, Source("tests/a.py", "from time import sleep\n")),
    (only_the_command_line_prints, Source("src/courser/storage/a.py", "print('here')\n")),
    (paths_belong_to_no_machine, Source("docs/a.md", f"see {'/' + 'root'}/notes\n")),
    (errors_are_not_swallowed, Source("src/a.py", "try:\n    f()\nexcept Exception:\n    pass\n")),
    (only_a_log_changes_itself, Source("src/courser/storage/a.py", "log.start_offset = 1\n")),
    (only_a_log_changes_itself, Source("src/courser/storage/a.py", "a, log.segments = 1, ()\n")),
    (only_a_log_changes_itself, Source("src/courser/broker/a.py", "self.partition.log.marks.synced = 1\n")),
    (only_a_log_changes_itself, Source("src/courser/broker/a.py", "log.segments[0].size += 1\n")),
    (errors_are_not_swallowed, Source("tests/a.py", "try:\n    f()\nexcept:\n    ...\n")),
    (errors_are_not_swallowed, Source("src/a.py", "try:\n    f()\nexcept (OSError, Exception):\n    pass\n")),
]
RULES: list[Rule] = list(dict.fromkeys(rule for rule, _ in RULES_AND_OFFENCES))


@cache
def repository() -> list[Source]:
    """Every text file that is, or is about to be, part of the repository."""
    sources = []
    for path in repository_paths():
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):  # a binary file, or one that was deleted a moment ago
            continue
        sources.append(Source(path.relative_to(ROOT).as_posix(), text))
    return sources


def repository_paths() -> list[Path]:
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return sorted(ROOT / name for name in set(listing.split("\0")) if name and (ROOT / name).is_file())
    # An unpacked source archive: everything but what was generated in it.
    return sorted(path for path in ROOT.rglob("*") if path.is_file() and not is_generated(path.relative_to(ROOT)))


def is_generated(path: Path) -> bool:
    directories = path.parts[:-1]
    return any(name in SKIPPED_DIRECTORIES or (name.startswith(".") and name != ".ci") for name in directories)


@cache
def findings_in_the_tree() -> dict[Rule, list[str]]:
    """What each rule finds."""
    # A file is parsed once, and forgotten before the next one: the trees of all of them are millions of objects, which
    # every garbage collection would go through.
    findings: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for source in map(replace, repository()):
        for rule, found in findings.items():
            found += [f"{source.path}:{line}: {advice}" for line, advice in rule(source)]
    return findings


def rule_name(rule: object) -> str:
    return getattr(rule, "__name__", "")


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    findings = findings_in_the_tree()[rule]
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize(("rule", "offence"), RULES_AND_OFFENCES, ids=rule_name)
def test_the_rule_bites(rule: Rule, offence: Source) -> None:
    assert list(rule(offence))


def test_the_tree_is_seen() -> None:
    paths = {source.path for source in repository()}
    assert {"pyproject.toml", "src/courser/__init__.py", "tests/test_tidy.py"} <= paths
