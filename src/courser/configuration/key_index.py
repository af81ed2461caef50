"""Look up keys by spelling, and find the closest key for a misspelled one."""

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cached_property

from courser.configuration.key import AnyKey, variable_name

_ROW_VARIABLE = re.compile(r"(?P<list>\w+?)_(?P<row>[0-9]{1,4})_(?P<field>[A-Z_]+)")
"""A field of a list of tables: HTTP_JWT_TRUSTED_ISSUERS_0_ISSUER."""
_SAME_NAME_BONUS = 0.5
"""Added to the similarity of a key that has the right name but is in the wrong table."""


class KeyIndex:
    """Finds keys by path and by environment variable."""

    def __init__(self, all_keys: Iterable[AnyKey]) -> None:
        self.keys = tuple(all_keys)
        self._by_path: dict[str, AnyKey] = {}
        self._by_variable: dict[str, tuple[AnyKey, str]] = {}
        self._tables: list[tuple[str, AnyKey]] = []
        for key in self.keys:
            for path in key.spellings:
                assert path not in self._by_path, f"two keys have the path {path}"
                self._by_path[path] = key
                self._by_variable[variable_name(path)] = key, path
                if key.has_any_below:
                    self._tables.append((path, key))

    def find(self, path: str) -> AnyKey | None:
        """The key with this spelling."""
        return self._by_path.get(path) or next(
            (key for table, key in self._tables if path.startswith(f"{table}.")), None
        )

    def find_variable(self, name: str) -> tuple[AnyKey, str] | None:
        """The key of an environment variable without its prefix, and the path that the variable stands for."""
        found = self._by_variable.get(name)
        if found is not None:
            return found
        for table, key in self._tables:
            if name.startswith(f"{variable_name(table)}_"):
                return key, table
        return None

    def find_row_variable(self, name: str) -> tuple[AnyKey, str, int, str] | None:
        """``find_variable`` for one field of a list of tables, and also which table and which field."""
        match = _ROW_VARIABLE.fullmatch(name)
        found = None if match is None else self._by_variable.get(match["list"])
        if match is None or found is None or match["field"].lower() not in found[0].kind.row_fields:
            return None
        return *found, int(match["row"]), match["field"].lower()

    def is_table(self, path: str) -> bool:
        """Whether keys exist below this path."""
        return path in self._table_paths

    @cached_property
    def _table_paths(self) -> frozenset[str]:
        return frozenset(parent for path in self._by_path for parent in _parents(path))

    def closest(self, path: str) -> str:
        """The most similar spelling."""
        return max(self._by_path, key=lambda known: _likeness(path.lower(), known))

    def closest_variables(self, name: str, count: int = 3) -> list[str]:
        """Similar variable names without prefix, best first; empty if none is similar."""
        likeness = {known: SequenceMatcher(None, name, known).ratio() for known in self._by_variable}
        best = sorted(likeness, key=lambda known: -likeness[known])[:count]
        return [known for known in best if likeness[known] > 0.7]


def _parents(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _likeness(path: str, known: str) -> float:
    same_name = path.rpartition(".")[2] == known.rpartition(".")[2]
    return SequenceMatcher(None, path, known).ratio() + (_SAME_NAME_BONUS if same_name else 0)
