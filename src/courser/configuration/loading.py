"""Load the configuration from file, environment and command line; later sources override earlier ones.

The order: defaults, the file, ``IGGY_`` variables, ``COURSER_`` variables, ``--set``. All problems are collected, so
that the operator sees every mistake at once.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from courser.configuration.key import AnyKey, Key, KeyStatus, fields_with_keys, variable_name
from courser.configuration.key_index import KeyIndex
from courser.errors import ConfigurationRefused
from courser.model.setting_kinds import Value, quoted

Settings = TypeVar("Settings")

OUR_PREFIX = "COURSER_"
IGGY_PREFIX = "IGGY_"
_NO_SETTINGS = {
    "CI_BUILD",
    "CONFIG_HOME",
    "CONFIG_PATH",
    "CONNECTION_STRING",
    "CONNECTORS_CONFIG_PATH",
    "CONTEXT",
    "DISPLAY_CONFIG",
    "ENV_PATH",
    "LOG",
    "MCP_CONFIG_PATH",
    "NEW_PASSWORD",
    "PASSWORD",
    "PURE",
    "ROOT_PASSWORD",
    "ROOT_USERNAME",
    "STATE_HOME",
    "TOKEN",
    "URL",
    "USERNAME",
}
"""Variables that are not settings: clients, tests or other modules read them."""
_NO_SETTINGS_PREFIXES = ("TEST_", "CONNECTORS_SINK_", "CONNECTORS_SOURCE_")
_FILE_SIZE_MAX = 1024 * 1024
_SHOWN_LENGTH_MAX = 80

FROM_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """The value of a key, and the source that set it."""

    value: object
    source: str
    spelling: str


class Configuration:
    """The value of every key."""

    def __init__(self, index: KeyIndex, assignments: Mapping[str, SourcedValue], warnings: Sequence[str]) -> None:
        self.index = index
        self.warnings = tuple(warnings)
        self._assignments = dict(assignments)

    def __getitem__(self, key: Key[Value]) -> Value:
        assignment = self._assignments.get(key.path)
        return key.default if assignment is None else cast(Value, assignment.value)

    def fill(self, settings: type[Settings], **others: Any) -> Settings:
        """Make settings: fields with keys have their values. ``others`` are the fields that are made otherwise."""
        values = {name: self[key] for name, key in fields_with_keys(settings).items()}
        return settings(**values | others)

    def is_set(self, key: AnyKey) -> bool:
        """Whether any source set the key."""
        return key.path in self._assignments

    def source(self, key: AnyKey) -> str:
        """The source of the value: a file, a variable, ``--set``, or the default."""
        assignment = self._assignments.get(key.path)
        return FROM_DEFAULT if assignment is None else assignment.source

    def where(self, key: AnyKey) -> str:
        """The spelling that was used, and its source, for messages."""
        assignment = self._assignments.get(key.path)
        return key.path if assignment is None else f"{assignment.spelling} ({assignment.source})"


@dataclass(slots=True)
class _Collector:
    """Collects the values and problems of all sources."""

    index: KeyIndex
    table: str
    assignments: dict[str, SourcedValue] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def knows(self, path: str) -> bool:
        """Whether the index has all keys that may be there. Others are a mistake, or none of its business."""
        return path.startswith(self.table)

    def merge(self, source: Mapping[str, SourcedValue]) -> None:
        self.assignments |= source

    def read(
        self,
        target: dict[str, SourcedValue],
        key: AnyKey,
        parse: Callable[[Any], object],
        value: object,
        source: str,
        spelling: str,
    ) -> None:
        """Note the value of a key, unless it is not valid, or the same source has another one under another name."""
        try:
            parsed = parse(value)
        except ValueError:
            shown = '"***"' if key.is_secret else _shown(value)
            self.problems.append(f"{spelling} = {shown} ({source}): expected {key.kind.expected}")
            return
        other = target.get(key.path)
        if other is not None and not key.has_any_below and other.value != parsed:
            self.problems.append(
                f"{spelling} ({source}) and {other.spelling} ({other.source}) are the same "
                "setting but have different values: remove one"
            )
        target[key.path] = SourcedValue(parsed, source, spelling)


def load(
    index: KeyIndex,
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    settings: Sequence[str] = (),
    *,
    table: str = "",
) -> Configuration:
    """Read all sources. ``settings`` are ``key=value`` texts of the command line.

    An index of one table's keys suffices to read that table: its path, with a dot at the end, is then ``table``, and
    what others contain is not checked.

    Raises:
        ConfigurationRefused: lists every problem.
    """
    collector = _Collector(index, table)
    if path is not None:
        _add_file(collector, path)
    variables = environment or {}
    _add_variables(collector, variables, IGGY_PREFIX)
    _add_variables(collector, variables, OUR_PREFIX)
    _add_settings(collector, settings)
    if collector.problems:
        raise ConfigurationRefused(collector.problems)
    collector.warnings += _stock_warnings(collector)
    return Configuration(collector.index, collector.assignments, collector.warnings)


# --- the file -----------------------------------------------------------------------------------------


def _add_file(collector: _Collector, path: Path) -> None:
    values: dict[str, SourcedValue] = {}
    for spelling, value in _leaves(read_toml(path), collector.index, ()):
        key = collector.index.find(spelling)
        if key is not None:
            collector.read(values, key, key.kind.from_toml, value, str(path), spelling)
        elif collector.index.is_table(spelling):
            if not isinstance(value, dict):
                collector.problems.append(f"{spelling} = {_shown(value)} ({path}): expected a table")
        elif collector.knows(spelling):
            collector.problems.append(_unknown(spelling, value, str(path), collector.index))
    collector.merge(values)


def _unknown(spelling: str, value: object, source: str, index: KeyIndex) -> str:
    closest = index.closest(spelling)
    key = index.find(closest)
    assert key is not None
    # The key may be the misspelled name of a secret.
    shown = '"***"' if key.is_secret else _shown(value)
    return f"{spelling} = {shown} ({source}): unknown key; the closest is {closest}, {key.kind.expected}"


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file.

    Raises:
        ConfigurationRefused: the file cannot be read, or is not valid TOML.
    """
    try:
        if path.stat().st_size > _FILE_SIZE_MAX and path.is_file():
            raise ConfigurationRefused([f"{path} is larger than {_FILE_SIZE_MAX} bytes: not a configuration file"])
        text = path.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigurationRefused([f"cannot read {path}: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationRefused([f"{path} is not valid UTF-8: invalid byte at position {error.start}"]) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The parser reports a duplicate key as "Cannot overwrite a value".
        hint = ": a key is set twice" if "overwrite" in str(error) else ""
        raise ConfigurationRefused([f"{path} is not valid TOML: {error}{hint}"]) from error


def _leaves(table: Mapping[str, object], index: KeyIndex, parents: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Paths and values. A table is a leaf if it is empty, or if it is the value of a key."""
    for name, value in table.items():
        path = ".".join((*parents, name))
        if isinstance(value, dict) and value and index.find(path) is None:
            yield from _leaves(value, index, (*parents, name))
        else:
            yield path, value


# --- the environment ----------------------------------------------------------------------------------


def _add_variables(collector: _Collector, environment: Mapping[str, str], prefix: str) -> None:
    values: dict[str, SourcedValue] = {}
    rows: dict[str, _Rows] = {}
    for variable in sorted(environment):
        name = variable.removeprefix(prefix)
        if name == variable or not environment[variable] or _is_no_setting(name):
            continue
        row = collector.index.find_row_variable(name)
        if row is not None:
            key, spelling, number, field_name = row
            of_key = rows.setdefault(key.path, _Rows(key, spelling, variable))
            of_key.tables.setdefault(number, {})[field_name] = environment[variable]
            continue
        found = collector.index.find_variable(name)
        if found is None and not name.startswith(variable_name(collector.table)):
            continue
        if found is None:
            alike = " or ".join(prefix + other for other in collector.index.closest_variables(name))
            hint = f"; did you mean {alike}?" if alike else ""
            collector.warnings.append(f"ignoring {variable}: unknown setting{hint}")
            continue
        key, spelling = found
        collector.read(values, key, key.kind.from_text, environment[variable], variable, spelling)
    for given in rows.values():
        # They replace the whole list, also that of the file.
        tables = [given.tables[number] for number in sorted(given.tables)]
        collector.read(values, given.key, given.key.kind.from_toml, tables, given.first_variable, given.spelling)
    collector.merge(values)


@dataclass(slots=True)
class _Rows:
    """A list of tables whose fields are variables of their own."""

    key: AnyKey
    spelling: str
    first_variable: str
    tables: dict[int, dict[str, str]] = field(default_factory=dict)


def _is_no_setting(name: str) -> bool:
    return name in _NO_SETTINGS or name.startswith(_NO_SETTINGS_PREFIXES)


# --- the command line ---------------------------------------------------------------------------------


def _add_settings(collector: _Collector, settings: Sequence[str]) -> None:
    values: dict[str, SourcedValue] = {}
    for setting in settings:
        spelling, _, text = setting.partition("=")
        spelling = spelling.strip()
        key = collector.index.find(spelling)
        if key is None:
            collector.problems.append(_unknown(spelling, text, "--set", collector.index))
        else:
            collector.read(values, key, key.kind.from_text, text, "--set", spelling)
    collector.merge(values)


# --- warnings about keys without effect ---------------------------------------------------------------


def _stock_warnings(collector: _Collector) -> Iterator[str]:
    given = [key for key in collector.index.keys if key.path in collector.assignments]
    ignored = [collector.assignments[key.path].spelling for key in given if key.status is KeyStatus.IGNORED]
    if ignored:
        yield f"Iggy settings that Courser does not use, ignored: {_by_table(ignored)}"


def _by_table(paths: Sequence[str]) -> str:
    """All paths, grouped by table: ``http.cors.{enabled, allowed_methods}, quic.address``."""
    tables: dict[str, list[str]] = {}
    for path in paths:
        table, _, name = path.rpartition(".")
        tables.setdefault(table, []).append(name)
    parts = []
    for table, names in tables.items():
        inner = names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"
        parts.append(f"{table}.{inner}" if table else inner)
    return ", ".join(parts)


def _shown(value: object) -> str:
    """A value for a message, written as in the file."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = quoted(value)
    elif isinstance(value, dict):
        text = "a table"
    else:
        text = str(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}..."
