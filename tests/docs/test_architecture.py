"""The map of the code: its tables name every module and nothing else, and its glossary has words that the code uses."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from tests.docs.blocks import ROOT, text_of

SOURCE = ROOT / "src/courser"
PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "Storage, module by module": "storage",
        "The catalog, module by module": "catalog",
        "The archive, module by module": "archive",
        "The replicated log, module by module": "replication",
        "The broker, package by package": "broker",
        "Wire and transports, module by module": "",
        "The server, module by module": "server",
        "Several processes, module by module": "",
        "The client, module by module": "client",
        "Spark, module by module": "",
        "The command line, module by module": "cli",
        "The other packages, module by module": "",
    }
)
"""The sections with tables of modules, and the package that their names start from."""
MODULES = frozenset(
    str(path.relative_to(SOURCE).with_suffix("")) for path in SOURCE.rglob("*.py") if not path.name.startswith("_")
)
QUOTED = re.compile(r"`([^`]+)`")


def rows_of(section: str) -> Iterator[list[str]]:
    """The cells of each row of the tables in a section."""
    _, found, text = text_of("docs/ARCHITECTURE.md").partition(f"\n## {section}\n")
    assert found, section
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    is_head = {number - 1 for number, line in enumerate(lines) if line.startswith("| ---")}
    for number, line in enumerate(lines):
        if number not in is_head and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def named_modules() -> Iterator[str]:
    """The path of every module that a table names: a name without folders is beside the one before."""
    for section, package in PACKAGES.items():
        for first, *others, _ in rows_of(section):
            if others and first:
                package = f"broker/{QUOTED.findall(first)[0]}"
            folder = package
            for name in QUOTED.findall(others[0] if others else first):
                path = f"{package if '/' in name else folder}/{name}".lstrip("/")
                folder = path.rpartition("/")[0]
                yield path


def matching(pattern: str) -> frozenset[str]:
    """The modules of a name in a table. A folder stands for all its modules, and ``*`` for any letters."""
    pattern = f"{pattern}*" if pattern.endswith("/") else pattern
    return frozenset(module for module in MODULES if fnmatchcase(module, pattern))


def test_every_module_in_a_table_exists() -> None:
    assert [path for path in named_modules() if not matching(path)] == []


def test_every_module_is_in_a_table() -> None:
    named = frozenset[str]().union(*(matching(path) for path in named_modules()))
    assert sorted(MODULES - named) == []


def test_the_glossary_has_words_of_the_modules_that_it_names() -> None:
    unknown = []
    for terms, _, where in rows_of("Glossary"):
        named = [matching(path) for path in QUOTED.findall(where)]
        assert all(named), terms
        modules = frozenset[str]().union(*named) or MODULES
        texts = [(SOURCE / f"{module}.py").read_text(encoding="utf-8").lower() for module in modules]
        for term in re.sub(r" \([^)]*\)", "", terms).split(", "):
            is_used = any(term.replace(" ", space) in text for text in texts for space in " _")
            unknown += [] if is_used else [term]
    assert unknown == []
